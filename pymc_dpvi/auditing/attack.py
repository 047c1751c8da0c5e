r"""(D) Can it be told from one step whether a record is there? No better than the accountant says.

For one step with every record (q = 1) and a record that moves the release by :math:`d`, the best test is the
projection :math:`\langle \tilde s, d\rangle`; :math:`\lVert d\rVert` is as large as the claimed sensitivity,
if such a record is found. Many steps with and without the record give the test's rates of false and true
positives, and bounds on them (Clopper and Pearson 1934). A mechanism that is :math:`(\varepsilon, \delta)`-DP
for every claimed pair satisfies, for each test (Kairouz, Oh and Viswanath 2015, Theorem 2.1),

.. math:: \mathrm{TPR} \le e^{\varepsilon}\,\mathrm{FPR} + \delta, \qquad
          1 - \mathrm{FPR} \le e^{\varepsilon}\,(1 - \mathrm{TPR}) + \delta,

and the same with the two data sets exchanged. The check fails if the bounds contradict a claimed pair. The
largest :math:`\varepsilon` that they do contradict is an *empirical lower bound*: weak evidence, of one
attack on one step (Jagielski, Ullman and Oprea 2020).

Each block of parameters is attacked with the record that moves it most. The thresholds are fixed beforehand,
so that all bounds hold together by Bonferroni's inequality. With the sampler's batches (`sampled`), the test
is about amplification by sampling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dpvi.auditing import statistics as st
from pymc_dpvi.auditing.probe import Probe, Vector, without_sampling
from pymc_dpvi.auditing.report import CheckResult
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.mechanism.mechanism import Mechanism, Streams
from pymc_dpvi.sampling import FixedSizeSampler

__all__ = ["DELTAS", "Attack", "Rates", "check_attack", "claims", "lower_bound", "run_attack"]

DELTAS = (0.3, 0.1, 0.03, 0.01, 1e-3)
"""Where a claimed curve is compared with what an attack sees."""

_CUTS = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])  # from the middle, in standard deviations
_TRIED = 16  # most records that are tried, if one replaces another
_BASE = 3  # records that are in both data sets


@dataclass(frozen=True)
class Rates:
    """How often, of n steps each, the score was above each threshold without and with the record.

    `distance` is how far the record moves the release, in units of the claimed sensitivity.
    """

    block: str
    distance: float
    without: NDArray[np.int64]
    within: NDArray[np.int64]
    n: int


@dataclass(frozen=True)
class Attack:
    """What was seen: for each block, rates without and with a record."""

    rates: tuple[Rates, ...]

    def bounds(self, error: float) -> list[tuple[Vector, Vector, Vector, Vector]]:
        """Bound the rates for each block: (without low, high, with low, high), (thresholds,) each.

        The probability that one of all these bounds is wrong is at most `error`.
        """
        share = error / (4 * _CUTS.size * len(self.rates))
        return [
            (*st.clopper_pearson(r.without, r.n, share), *st.clopper_pearson(r.within, r.n, share))
            for r in self.rates
        ]


def run_attack(
    probe: Probe,
    mechanism: Mechanism,
    streams: Streams,
    rng: np.random.Generator,
    n: int,
    *,
    sampled: bool = False,
    most_blocks: int = 8,
) -> Attack:
    """Run n steps with and without one record, for each of the first `most_blocks` blocks; rng is public.

    If `sampled`, the mechanism's sampler draws the batches; otherwise every record is in every step.
    """
    (draw,) = probe.draws(rng, 1)
    single = probe.contributions(draw)
    single = np.where(np.isfinite(single), single, 0.0)
    base = rng.integers(probe.num_ordinary, size=_BASE)
    if sampled:  # other sampled records would add noise: take one, which adds as little as possible
        base = np.array([np.argmin(np.linalg.norm(single, axis=1))])
    replace = mechanism.neighboring_relation == "replace_one"
    if not sampled:
        mechanism = without_sampling(mechanism)
    fixed = mechanism.sampler if isinstance(mechanism.sampler, FixedSizeSampler) else None
    rates = []
    for block, columns in list(probe.blocks.items())[:most_blocks]:
        record, other = _strongest(single, columns, replace)
        absent = [other] if replace else []
        direction = single[record] - single[absent].sum(axis=0)
        size = float(np.linalg.norm(direction))
        if size == 0.0:
            continue
        unit = direction / size
        if fixed is not None:  # the worst case: all others equal the record that is replaced
            base = np.full(fixed.num_records - 1, absent[0])
            foot = fixed.batch_size * single[absent[0]]
        else:
            foot = single[base].sum(axis=0) + single[absent].sum(axis=0)
        middle = float(foot @ unit) + size / 2
        cuts = middle + _CUTS * mechanism.noise.stddev
        counts = [
            _above(probe, mechanism, streams, [*base, *who], draw, unit, cuts, n)
            for who in (absent, [record])
        ]
        rates.append(Rates(block, size / mechanism.sensitivity, counts[0], counts[1], n))
    return Attack(tuple(rates))


def _strongest(single: Vector, columns: NDArray[np.int64], replace: bool) -> tuple[int, int]:
    """Find a record of about full norm that moves these entries most, and the one that it replaces.

    If one is replaced, the `_TRIED` strongest records are tried, for the pair that is furthest apart.
    """
    sizes = np.linalg.norm(single, axis=1)
    full = sizes >= 0.999 * sizes.max()
    order = np.argsort(np.where(full, -np.linalg.norm(single[:, columns], axis=1), 0.0), kind="stable")
    best, found = -1.0, (int(order[0]), int(order[0]))
    for record in order[: _TRIED if replace else 1]:
        apart = np.linalg.norm(single - single[record], axis=1)
        if apart.max() > best * (1 + 1e-6):
            best, found = float(apart.max()), (int(record), int(np.argmax(apart)))
    return found


def _above(
    probe: Probe,
    mechanism: Mechanism,
    streams: Streams,
    data: list[int],
    draw: NDArray[Any],
    unit: Vector,
    cuts: Vector,
    n: int,
) -> NDArray[np.int64]:
    """Count the steps on these records whose score is above each threshold."""
    probe.load(data)
    scores = np.empty(n)
    piece = max(1, 1_000_000 // probe.num_noise)
    for first in range(0, n, piece):
        draws = mechanism.draw(streams, len(data), min(piece, n - first), probe.num_noise)
        for t, noise in enumerate(draws.noise):
            batch = draws.indices[draws.offsets[t] : draws.offsets[t + 1]]
            scores[first + t] = probe.release(noise, draw, batch) @ unit
    return np.count_nonzero(scores[:, None] > cuts, axis=0)


def claims(
    mechanism: Mechanism,
    accountant: Any,
    deltas: Iterable[float] = DELTAS,
    *,
    sampled: bool = False,
) -> dict[float, float]:
    """Return the accountant's ε of one step by δ, where it has one; `sampled` as in `run_attack`."""
    if not sampled:
        mechanism = without_sampling(mechanism)
    found = {}
    for d in deltas:
        try:
            found[d] = mechanism.epsilon(1, d, accountant)
        except ArgumentError:
            continue
    return found


def check_attack(attack: Attack, claimed: Mapping[float, float]) -> CheckResult:
    """Check (D): no bound on the rates contradicts a claimed ε by δ, for the step that was attacked.

    The statistic is the largest probability by which a claim is exceeded; negative if none is.
    """
    margin, where = -1.0, ""
    for rate, (low0, high0, low1, high1) in zip(attack.rates, attack.bounds(st.FALSE_ALARM), strict=True):
        for delta, epsilon in claimed.items():
            factor = np.exp(min(epsilon, 700.0))
            # A test, its complement, and both with the data sets exchanged.
            for more, less in ((low1, high0), (low0, high1), (1 - high0, 1 - low1), (1 - high1, 1 - low0)):
                over = float(np.max(more - factor * less - delta))
                if over > margin:
                    margin, where = over, f"block '{rate.block}', epsilon {epsilon:.3g} at delta {delta:.3g}"
    passed = bool(claimed) and bool(attack.rates) and margin <= 0.0
    strongest = max((r.distance for r in attack.rates), default=0.0)
    words = (
        f"{len(attack.rates)} blocks, {attack.rates[0].n if attack.rates else 0} steps with and without the "
        f"record; it moved the release by up to {strongest:.3g} of the sensitivity. "
    )
    if not attack.rates:
        words = "No synthetic record moves the release at all, so nothing could be attacked."
    elif not claimed:
        words = "The accountant says nothing of a single step, so there is no claim to test."
    elif passed:
        words += "No bound on the rates contradicts a claim."
    else:
        words += f"The rates exceed a claim by a probability of {margin:.3g} at least ({where})."
    return CheckResult(
        "attack",
        "From one step it cannot be told better than claimed whether a record was there.",
        passed,
        margin,
        0.0,
        words,
    )


def lower_bound(attack: Attack, delta: float, confidence: float = 0.95) -> float:
    """Return the empirical lower bound on ε at `delta` of the step that was attacked: weak evidence."""
    best = 0.0
    with np.errstate(divide="ignore"):
        for low0, high0, low1, high1 in attack.bounds(1.0 - confidence):
            for more, less in ((low1, high0), (low0, high1), (1 - high0, 1 - low1), (1 - high1, 1 - low0)):
                ratio = np.maximum(more - delta, 0.0) / less
                best = max(best, float(np.log(np.max(ratio, initial=1.0))))
    return best
