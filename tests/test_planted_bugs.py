"""Bugs of the kind that a private step can have, planted one by one: the suite must catch every one.

The suite is `pymc_dpvi.auditing`, which the tests run over all configurations (`test_mechanism_suite`) and
`pymc_dpvi.audit` runs for users. Each bug here names the check that must fail, so that a check which has lost
its power is seen; and without a bug, a hundred runs raise no alarm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from dp_accounting import PoissonSampledDpEvent
from scipy import stats
from suite import CLIP, Suite, layers, regression

from pymc_dpvi.accounting.papers import rdp
from pymc_dpvi.engine import clipping, microbatch, running_clip, step, step_graph, sums_of_step
from pymc_dpvi.engine.private_sum import PrivateSum
from pymc_dpvi.errors import PrivacyError
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.traversal import walk
from pymc_dpvi.mechanism.mechanism import Draws, Mechanism, Streams
from pymc_dpvi.randomness.keystream import KeyStream
from pymc_dpvi.sampling import FixedSizeSampler, PoissonSampler


@dataclasses.dataclass(frozen=True)
class Plant:
    """Something of the package, and what to put in its place."""

    owner: Any
    name: str
    value: Any

    @property
    def in_the_step(self) -> bool:
        """Whether it becomes part of a compiled step; otherwise it is looked up at each call."""
        return self.owner in (
            clipping,
            microbatch,
            step,
            step_graph,
            step_graph.StepGraph,
            RecordModel,
            running_clip.RunningClip,
        )

    def __call__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.owner, self.name, self.value)


Check = Callable[[Suite], Any]

SCALE = 3  # the entry of the regression's release that belongs to its scale

real_draw = Mechanism.draw
real_sum = step_graph.private_sum
real_row_logp = RecordModel.row_logp
real_pull_back = step_graph.StepGraph._pull_back
real_epsilon = Mechanism.epsilon


# ------------------------------------------------------------------------------------------------
# The noise, as the mechanism draws it
# ------------------------------------------------------------------------------------------------


def noise(bug: Callable[[np.ndarray], np.ndarray]) -> Plant:
    """Change what the mechanism draws, shape (n_steps, num_noise), whatever its units are."""

    def draw(self: Mechanism, *args: Any) -> Draws:
        draws = real_draw(self, *args)
        changed = np.asarray(bug(np.array(draws.noise, dtype=float)))
        if draws.noise.dtype.kind == "i":
            changed = np.rint(changed)
        return dataclasses.replace(draws, noise=changed.astype(draws.noise.dtype))

    return Plant(Mechanism, "draw", draw)


def in_columns(columns: Any, change: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], np.ndarray]:
    def bug(z: np.ndarray) -> np.ndarray:
        z[:, columns] = change(z)
        return z

    return bug


def every_second_step_again(z: np.ndarray) -> np.ndarray:
    z[1::2] = z[0::2][: len(z[1::2])]
    return z


def drifting(z: np.ndarray) -> np.ndarray:
    """Autoregressive, with the right variance in every step."""
    for t in range(1, len(z)):
        z[t] = 0.5 * z[t - 1] + np.sqrt(0.75) * z[t]
    return z


def common_part(z: np.ndarray) -> np.ndarray:
    return np.sqrt(0.7) * z + np.sqrt(0.3) * z[:, :1]


def uniform_of_the_same_variance(z: np.ndarray) -> np.ndarray:
    size = np.sqrt(np.mean(z**2))
    return (stats.norm.cdf(z / size) - 0.5) * np.sqrt(12) * size


def noise_from_the_sampling_stream(self: Mechanism, streams: Streams, *args: Any) -> Draws:
    return real_draw(self, Streams(streams.sampling, streams.sampling), *args)


def one_key(cls: Any) -> KeyStream:
    return KeyStream.from_insecure_seed(7, "noise")


def the_same_secure_key(cls: Any) -> KeyStream:
    """Worse: it says that it is secure."""
    stream = KeyStream.from_insecure_seed(7, "noise")
    stream._secure = True
    return stream


# ------------------------------------------------------------------------------------------------
# The kernel: clip and sum
# ------------------------------------------------------------------------------------------------


def kernel(bug: Callable[[np.ndarray], np.ndarray]) -> Plant:
    """Put a sum of gradients, shape (records, num_noise), in place of the kernel's; the noise stays."""

    def make(layout: Any) -> Callable[..., np.ndarray]:
        def add_clipped(*args: Any) -> None:
            *matrices, count, _, _, high, _, _ = args
            rest_of, columns = iter(matrices), []
            for form in layout:
                assert form.kind in ("dense", "outer")
                left = next(rest_of)[:count]
                if form.kind == "outer":
                    right = next(rest_of)[:count]
                    width = left.shape[1] * right.shape[1]
                    left = (left[:, :, None] * right[:, None, :]).reshape(count, width)
                columns.append(left)
            with np.errstate(all="ignore"):
                high += bug(np.concatenate(columns, axis=1))

        return add_clipped

    return Plant(microbatch, "write_add_clipped", make)


def guarded(rows: np.ndarray) -> np.ndarray:
    """Records whose squared norm is finite; the others count as zero."""
    return np.where(np.isfinite(np.sum(rows**2, axis=1))[:, None], rows, 0.0)


def clipped(rows: np.ndarray, bound: float = CLIP * (1 - 2.0**-12)) -> np.ndarray:
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, bound / np.where(sizes > 0, sizes, 1.0))


def right(rows: np.ndarray) -> np.ndarray:
    return clipped(guarded(rows)).sum(axis=0)


def unrounded(
    high: np.ndarray, low: np.ndarray, tally: np.ndarray, noise: np.ndarray, unit: float
) -> np.ndarray:
    return np.concatenate([high + low, tally * unit]) + noise * unit


# The counts that move an adaptive clip norm.

real_units = clipping.tally_units
real_round_and_add = clipping.round_and_add
real_clip_updates = running_clip.RunningClip.updates


def twice_the_units(*args: Any) -> int:
    return 2 * real_units(*args)


def counts_without_noise(
    high: np.ndarray, low: np.ndarray, tally: np.ndarray, noise: np.ndarray, unit: float
) -> np.ndarray:
    return real_round_and_add(high, low, tally, np.where(np.arange(noise.size) < high.size, noise, 0), unit)


def tally(share: Callable[[np.ndarray], np.ndarray]) -> Plant:
    """Count with another function of norm over bound, shape (records,) to (records, 3)."""

    def add_tally(squared_norms: np.ndarray, bound: float, units: int, out: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            norms = np.sqrt(squared_norms) / bound
            out += np.rint(units * share(norms[np.isfinite(norms)])).astype(np.int64).sum(axis=0)

    return Plant(clipping, "add_tally", add_tally)


def ramp(norms: np.ndarray) -> np.ndarray:
    within = np.clip(2.5 - 2 * norms, 0, 1)
    length = within * np.minimum(norms, 1)
    return np.column_stack([within - length, 1 - within, length])


def both_counts(norms: np.ndarray) -> np.ndarray:
    """Everybody counts as one record, and those within the bound once more."""
    return np.column_stack([norms < 0, np.ones(len(norms)), norms < 1])


def sum_of_norms(norms: np.ndarray) -> np.ndarray:
    return np.column_stack([norms, 0 * norms, 0 * norms])


def norms_beside_the_counts(norms: np.ndarray) -> np.ndarray:
    """What lacks to the bound is not taken off: a record at the bound adds two to the counts."""
    rest, beyond, length = ramp(norms).T
    return np.column_stack([rest + length, beyond, length])


def clip_norm_from_the_batch(self: Any, released: Any, unit: Any, scale: Any) -> dict[Any, Any]:
    """The size of the batch is at hand, and would not be noisy."""
    (node,) = [v.owner for v in walk([released]) if v.owner and isinstance(v.owner.op, PrivateSum)]
    updates = real_clip_updates(self, released, unit, scale)
    return {v: new + 0.01 * node.inputs[-3] if v is self.log_scale else new for v, new in updates.items()}


def only_the_gradients(self: Mechanism) -> float:
    return self.l2_clip_norm


def by_block(rows: np.ndarray) -> np.ndarray:
    rows = guarded(rows)
    return np.concatenate([clipped(rows[:, :2]), clipped(rows[:, 2:3]), clipped(rows[:, 3:])], axis=1).sum(
        axis=0
    )


def by_coordinate(rows: np.ndarray) -> np.ndarray:
    return np.clip(guarded(rows), -CLIP, CLIP).sum(axis=0)


def by_batch(rows: np.ndarray) -> np.ndarray:
    return clipped(guarded(rows).sum(axis=0)[None])[0]


def after_averaging(rows: np.ndarray) -> np.ndarray:
    return 4 * clipped(guarded(rows).mean(axis=0)[None])[0] if len(rows) else np.zeros(rows.shape[1])


def divided_by_the_batch(rows: np.ndarray) -> np.ndarray:
    return right(rows) / max(1, len(rows)) * 2


def without_guard(rows: np.ndarray) -> np.ndarray:
    return clipped(rows).sum(axis=0)


def everybody_pays_for_one_nan(rows: np.ndarray) -> np.ndarray:
    return right(rows) if np.isfinite(rows).all() else np.zeros(rows.shape[1])


def only_the_first_layer_is_clipped(rows: np.ndarray) -> np.ndarray:
    """The factors of one outer product are left out of the norm."""
    rows = guarded(rows)
    sizes = np.linalg.norm(rows[:, :6], axis=1, keepdims=True)
    return (rows * np.minimum(1.0, CLIP / np.where(sizes > 0, sizes, 1.0))).sum(axis=0)


def in_l1(rows: np.ndarray) -> np.ndarray:
    """The wrong norm: bounds the largest entry, not the length."""
    rows = guarded(rows)
    sizes = np.abs(rows).max(axis=1, keepdims=True)
    return (rows * np.minimum(1.0, CLIP / np.where(sizes > 0, sizes, 1.0))).sum(axis=0)


# ------------------------------------------------------------------------------------------------
# The graph around it
# ------------------------------------------------------------------------------------------------


def noise_grows_with_the_batch(blocks: Any, noise: Any, *args: Any) -> Any:
    count = args[-1]
    return real_sum(blocks, noise * count, *args)


def float_noise(blocks: Any, noise: Any, c: float, unit: float, count: Any) -> Any:
    return real_sum(blocks, noise * 0, c, unit * 2.0**-12, count) + noise * unit


def noise_left_out(blocks: Any, noise: Any, *args: Any) -> Any:
    return real_sum(blocks, noise * 0, *args)


def mean_of_the_batch(blocks: Any, noise: Any, *args: Any) -> Any:
    count = args[-1]
    return real_sum(blocks, noise, *args) / pt.maximum(count, 1)


def no_private_sum_at_all(blocks: Any, noise: Any, *args: Any) -> Any:
    rows = clipping_matrix(blocks)
    return pt.clip(rows, -CLIP, CLIP).sum(axis=0) + noise


def clipping_matrix(blocks: Any) -> Any:
    from pymc_dpvi.graph.blocks import as_matrix

    return as_matrix(blocks)


def something_besides(self: Any, *args: Any) -> Any:
    """The size of the first record goes into the update, unnoised."""
    first, *others = real_pull_back(self, *args)
    return [first + 1e-3 * self.record.data()[0].sum(), *others]


def noise_taken_off(blocks: Any, noise: Any, *args: Any) -> Any:
    return real_sum(blocks, noise, *args) - noise * 1e-9


def with_prior(self: RecordModel) -> Any:
    return real_row_logp.fget(self) + self.prior_logp / self.num_records


# ------------------------------------------------------------------------------------------------
# Batches
# ------------------------------------------------------------------------------------------------


def batches(bug: Callable[..., list[np.ndarray]]) -> Plant:
    """Draw Poisson batches in another way; `bug` gets (rng, q, num_records, n_steps)."""

    def draw(self: PoissonSampler, stream: KeyStream, num_records: int, n_steps: int) -> Any:
        rng = np.random.default_rng(int(stream.words(1)[0]))
        made = [np.asarray(b, dtype=np.int64) for b in bug(rng, self.sampling_prob, num_records, n_steps)]
        offsets = np.cumsum([0, *(b.size for b in made)]).astype(np.int64)
        return np.concatenate([np.zeros(0, dtype=np.int64), *made]), offsets

    return Plant(PoissonSampler, "draw", draw)


def coins(rng: Any, q: float, num_records: int, n_steps: int) -> list[np.ndarray]:
    """As it should be."""
    return [np.flatnonzero(rng.random(num_records) < q) for _ in range(n_steps)]


def shuffled(rng: Any, q: float, num_records: int, n_steps: int) -> list[np.ndarray]:
    made: list[np.ndarray] = []
    while len(made) < n_steps:
        made += np.array_split(rng.permutation(num_records), round(1 / q))
    return made[:n_steps]


def fixed_size(rng: Any, q: float, num_records: int, n_steps: int) -> list[np.ndarray]:
    return [rng.permutation(num_records)[: round(q * num_records)] for _ in range(n_steps)]


def too_often(rng: Any, q: float, num_records: int, n_steps: int) -> list[np.ndarray]:
    return coins(rng, 1.05 * q, num_records, n_steps)


def every_batch_twice(rng: Any, q: float, num_records: int, n_steps: int) -> list[np.ndarray]:
    once = coins(rng, q, num_records, (n_steps + 1) // 2)
    return [b for b in once for _ in range(2)][:n_steps]


def one_is_always_there(rng: Any, q: float, num_records: int, n_steps: int) -> list[np.ndarray]:
    return [np.union1d(b, [5]) for b in coins(rng, q, num_records, n_steps)]


def neighbours_together(rng: Any, q: float, num_records: int, n_steps: int) -> list[np.ndarray]:
    couples = coins(rng, q, num_records // 2, n_steps)
    return [np.sort(np.concatenate([2 * b, 2 * b + 1])) for b in couples]


def with_replacement(rng: Any, q: float, num_records: int, n_steps: int) -> list[np.ndarray]:
    return [rng.integers(num_records, size=rng.binomial(num_records, q)) for _ in range(n_steps)]


def sticky(rng: Any, q: float, num_records: int, n_steps: int) -> list[np.ndarray]:
    """Each record keeps its last coin one time in ten."""
    state = rng.random(num_records) < q
    made = []
    for _ in range(n_steps):
        state = np.where(rng.random(num_records) < 0.1, state, rng.random(num_records) < q)
        made.append(np.flatnonzero(state))
    return made


def poisson_event(self: FixedSizeSampler, noise_event: Any) -> Any:
    return PoissonSampledDpEvent(self.sampling_prob, noise_event)


# ------------------------------------------------------------------------------------------------
# Claims
# ------------------------------------------------------------------------------------------------


def always_c(self: Mechanism) -> float:
    return self.l2_clip_norm


def a_third_of_epsilon(self: Mechanism, *args: Any) -> float:
    return real_epsilon(self, *args) / 3


def fresh_rdp(neighboring_relation: Any) -> rdp.GuardedRdpAccountant:
    """Not by name: what accountants of a name say is remembered, from before the bug or after it."""
    return rdp.GuardedRdpAccountant(neighboring_relation)


SENSITIVITY: Check = Suite.sensitivity
NOISE: Check = Suite.noise
MUCH_NOISE: Check = lambda s: s.noise(2000)  # noqa: E731
BATCHES: Check = Suite.batches
RANDOMNESS: Check = Suite.randomness
ONE_WAY: Check = Suite.one_way_out
GRADIENT: Check = Suite.gradients
ATTACK: Check = lambda s: s.attack(2000, "pld", most_blocks=1)  # noqa: E731

REPLACED: Check = lambda s: s.attack(2000, fresh_rdp, most_blocks=1)  # noqa: E731

ADAPTIVE: dict[str, Any] = {"adaptive": True}

#: Bug → how it is planted, which check must fail, and in which setting.
BUGS: dict[str, tuple[Plant, Check, dict[str, Any]]] = {
    "noise halved": (noise(lambda z: 0.5 * z), NOISE, {}),
    "noise halved, seen by the attack": (noise(lambda z: 0.5 * z), ATTACK, {}),
    "noise ten per cent short": (noise(lambda z: 0.9 * z), MUCH_NOISE, {}),
    "noise twenty per cent short in one number": (
        noise(in_columns(SCALE, lambda z: 0.8 * z[:, SCALE])),
        MUCH_NOISE,
        {},
    ),
    "noise missing on one block": (noise(in_columns(SCALE, lambda z: 0.0)), NOISE, {}),
    "noise shared between blocks": (noise(in_columns(SCALE, lambda z: z[:, 0])), NOISE, {}),
    "noise of one block is minus another's": (noise(in_columns(SCALE, lambda z: -z[:, 0])), NOISE, {}),
    "one deviate for all numbers": (noise(lambda z: np.repeat(z[:, :1], z.shape[1], axis=1)), NOISE, {}),
    "a common part in all numbers": (noise(common_part), NOISE, {}),
    "noise of one step used in all": (noise(lambda z: np.repeat(z[:1], len(z), axis=0)), NOISE, {}),
    "noise used in two steps": (noise(every_second_step_again), NOISE, {}),
    "noise that drifts": (noise(drifting), NOISE, {}),
    "noise with a mean": (noise(lambda z: z + 0.3 * np.sqrt(np.mean(z**2))), NOISE, {}),
    "uniform noise": (noise(uniform_of_the_same_variance), lambda s: s.noise(4000), {}),
    "noise left out": (Plant(step_graph, "private_sum", noise_left_out), NOISE, {}),
    "noise grows with the batch": (Plant(step_graph, "private_sum", noise_grows_with_the_batch), NOISE, {}),
    "every fit has the same key": (
        Plant(KeyStream, "from_os", classmethod(the_same_secure_key)),
        RANDOMNESS,
        {},
    ),
    "keys come from a seed": (Plant(KeyStream, "from_os", classmethod(one_key)), RANDOMNESS, {}),
    "noise drawn from the stream of the batches": (
        Plant(Mechanism, "draw", noise_from_the_sampling_stream),
        RANDOMNESS,
        {},
    ),
    "clipping left out": (kernel(lambda rows: guarded(rows).sum(axis=0)), SENSITIVITY, {}),
    "clipped at 2C": (kernel(lambda rows: clipped(guarded(rows), 2 * CLIP).sum(axis=0)), SENSITIVITY, {}),
    "clipped one per cent late": (
        kernel(lambda rows: clipped(guarded(rows), 1.01 * CLIP).sum(axis=0)),
        SENSITIVITY,
        {},
    ),
    "clipped by block": (kernel(by_block), SENSITIVITY, {}),
    "clipped by coordinate": (kernel(by_coordinate), SENSITIVITY, {}),
    "clipped in the wrong norm": (kernel(in_l1), SENSITIVITY, {}),
    "clipped by batch": (kernel(by_batch), SENSITIVITY, {}),
    "clipped after averaging": (kernel(after_averaging), SENSITIVITY, {}),
    "clipping skips an outer product": (
        kernel(only_the_first_layer_is_clipped),
        SENSITIVITY,
        {"model": layers},
    ),
    "divided by the realised batch, in the sum": (kernel(divided_by_the_batch), SENSITIVITY, {}),
    "NaN let through": (kernel(without_guard), SENSITIVITY, {}),
    "one NaN silences everybody": (kernel(everybody_pays_for_one_nan), SENSITIVITY, {}),
    "counts weigh twice": (Plant(clipping, "tally_units", twice_the_units), SENSITIVITY, ADAPTIVE),
    "a record counts twice": (tally(both_counts), SENSITIVITY, ADAPTIVE),
    "norms are summed, not counted": (tally(sum_of_norms), SENSITIVITY, ADAPTIVE),
    "norms are summed beside the counts": (tally(norms_beside_the_counts), GRADIENT, ADAPTIVE),
    "counts of something else": (tally(lambda norms: ramp(norms)[:, ::-1]), GRADIENT, ADAPTIVE),
    "counts without noise": (Plant(clipping, "round_and_add", counts_without_noise), NOISE, ADAPTIVE),
    "counts are not paid for": (
        Plant(Mechanism, "record_norm", property(only_the_gradients)),
        SENSITIVITY,
        ADAPTIVE,
    ),
    "the clip norm knows the size of the batch": (
        Plant(running_clip.RunningClip, "updates", clip_norm_from_the_batch),
        ONE_WAY,
        ADAPTIVE,
    ),
    "the sum is not rounded": (Plant(clipping, "round_and_add", unrounded), Suite.lattice, {}),
    "noise in floating point": (Plant(step_graph, "private_sum", float_noise), Suite.lattice, {}),
    "sensitivity C where 2C is due": (
        Plant(Mechanism, "sensitivity", property(always_c)),
        SENSITIVITY,
        {"sampler": "full batch, replace"},
    ),
    "divided by the realised batch, after the sum": (
        Plant(step_graph, "private_sum", mean_of_the_batch),
        ONE_WAY,
        {},
    ),
    "a sum that is not private": (Plant(step_graph, "private_sum", no_private_sum_at_all), ONE_WAY, {}),
    "records enter the update past the sum": (
        Plant(step_graph.StepGraph, "_pull_back", something_besides),
        ONE_WAY,
        {},
    ),
    "the noise is known to the update": (Plant(step_graph, "private_sum", noise_taken_off), ONE_WAY, {}),
    "the likelihood counts twice": (
        Plant(RecordModel, "row_logp", property(lambda self: 2.0 * real_row_logp.fget(self))),
        GRADIENT,
        ADAPTIVE,
    ),
    "prior inside the sum": (Plant(RecordModel, "row_logp", property(with_prior)), GRADIENT, {}),
    "shuffled batches accounted as Poisson": (batches(shuffled), BATCHES, {}),
    "batches of fixed size drawn for Poisson": (batches(fixed_size), BATCHES, {}),
    "batches of fixed size accounted as Poisson": (
        Plant(FixedSizeSampler, "dp_event", poisson_event),
        BATCHES,
        {"sampler": "fixed size"},
    ),
    "records drawn five per cent too often": (batches(too_often), lambda s: s.batches(2000), {}),
    "every batch used twice": (batches(every_batch_twice), BATCHES, {}),
    "coins that stick": (batches(sticky), lambda s: s.batches(2000), {}),
    "one record in every batch": (batches(one_is_always_there), BATCHES, {}),
    "records drawn in couples": (batches(neighbours_together), BATCHES, {}),
    "records drawn with replacement": (batches(with_replacement), BATCHES, {}),
    "replace-one accounted as one record more": (
        Plant(rdp.GuardedRdpAccountant, "_sensitivity", 1.0),
        REPLACED,
        {"sampler": "full batch, replace"},
    ),
    "a third of epsilon is claimed": (
        Plant(Mechanism, "epsilon", a_third_of_epsilon),
        ATTACK,
        {"noise_multiplier": 0.5},
    ),
}


def build(model: Callable[[], Any] = regression, **kwargs: Any) -> Suite:
    return Suite(model(), **kwargs)


clean = cache(lambda setting: build(**SETTINGS[setting]))


def label(setting: dict[str, Any]) -> str:
    return ", ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in sorted(setting.items())) or "plain"


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch):
    plant, check, setting = BUGS[bug]
    suite = None if plant.in_the_step else clean(label(setting))  # others use it too: made before the bug
    plant(monkeypatch)
    if bug in BESIDE:  # to see that it would be caught without the check, too
        monkeypatch.setattr(sums_of_step, "_refuse_beside", lambda *_: None)
    found = check(build(**setting) if suite is None else suite)
    assert not found.passed, str(found)
    assert "raises" not in found.words  # it was measured, and did not merely fall over


#: What `sums_of_step._refuse_beside` refuses.
BESIDE = (
    "divided by the realised batch, after the sum",
    "a sum that is not private",
    "the noise is known to the update",
    "the clip norm knows the size of the batch",
)


@pytest.mark.parametrize("bug", BESIDE)
def test_what_comes_beside_the_sum_is_refused(bug: str, monkeypatch: pytest.MonkeyPatch):
    plant, _, setting = BUGS[bug]
    plant(monkeypatch)
    with pytest.raises(PrivacyError, match="around their noisy sum"):
        build(**setting)


SETTINGS = {label(setting): setting for _, _, setting in BUGS.values()}


@pytest.mark.parametrize("setting", SETTINGS)
def test_without_a_bug_the_same_checks_pass(setting: str):
    suite = clean(setting)
    for check in {check for _, check, used in BUGS.values() if used == SETTINGS[setting]}:
        found = check(suite)
        assert found.passed, str(found)


@pytest.mark.parametrize("noise_multiplier", [1e4, 1e8])
def test_a_coarse_lattice_is_no_bug(noise_multiplier: float, monkeypatch: pytest.MonkeyPatch):
    """With so much noise, short gradients are lost in the rounding to the lattice; a bug still shows."""
    plant, check, setting = BUGS["the likelihood counts twice"]
    found = check(build(**setting, noise_multiplier=noise_multiplier))
    assert found.passed, str(found)
    plant(monkeypatch)
    found = check(build(**setting, noise_multiplier=noise_multiplier))
    assert not found.passed, str(found)


def test_planting_alone_breaks_nothing(monkeypatch: pytest.MonkeyPatch):
    """The stand-ins are right when they do the right thing."""
    tally(ramp)(monkeypatch)
    suite = build(adaptive=True)
    for check in (SENSITIVITY, GRADIENT):
        assert check(suite).passed
    kernel(right)(monkeypatch)
    noise(lambda z: z)(monkeypatch)
    batches(coins)(monkeypatch)
    suite = build()
    for check in (SENSITIVITY, NOISE, BATCHES, GRADIENT, RANDOMNESS, ONE_WAY):
        found = check(suite)
        assert found.passed, str(found)


@pytest.mark.turns
def test_a_hundred_clean_runs_raise_no_alarm():
    """And their p-values are what they say: one in twenty below 0.05, not more."""
    suite = build(backend="numba")
    pvalues: dict[str, list[float]] = {}
    for _ in range(100):
        suite.streams = Streams.make(None)
        for check in (lambda s: s.noise(200), lambda s: s.batches(150), Suite.randomness):
            found = check(suite)
            assert found.passed, str(found)
            pvalues.setdefault(found.name, []).append(found.statistic)
        found = suite.attack(100, most_blocks=1)
        assert found.passed, str(found)
    for name, values in pvalues.items():
        # At most 5 % each; more than 18 of 100 happen once in 300,000 times.
        assert np.count_nonzero(np.array(values) < 0.05) <= 18, name
