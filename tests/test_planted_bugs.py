"""Bugs of the kind that a private step can have, planted one by one: some check must fail each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
import test_step as checks
from test_step import PROB, Harness, regression

from pymc_dpvi import clipping, step
from pymc_dpvi.gradients import as_matrix
from pymc_dpvi.mechanism import Draws, Mechanism
from pymc_dpvi.noise import LatticeNoise
from pymc_dpvi.records import RecordModel

Check = Callable[[], None]


def on(check: Callable[..., None], *args: Any, prior: float | None = None) -> Check:
    """A check on a harness that is built when the bug is there."""
    return lambda: check(Harness(regression(prior)), *args)


NOISE: Check = checks.check_noise_of_a_fit
SUM: Check = on(checks.check_sum)
SENSITIVITY: Check = on(checks.check_sensitivity)
HOSTILE: Check = on(checks.check_hostile)
PRIOR: Check = on(checks.check_prior_outside, 0.1, prior=0.1)

real_draw = LatticeNoise.draw
real_step_draw = Mechanism.draw
real_sum = step.private_sum
real_row_logp = RecordModel.row_logp


def scaled_noise(factor: float, self: LatticeNoise, stream: Any, shape: Any) -> np.ndarray:
    return np.rint(factor * real_draw(self, stream, shape)).astype("int64")


def repeated_noise(self: Mechanism, *args: Any) -> Draws:
    draws = real_step_draw(self, *args)
    return Draws(draws.indices, draws.offsets, np.repeat(draws.noise[:1], len(draws.noise), axis=0))


def one_deviate_for_all(self: Mechanism, *args: Any) -> Draws:
    draws = real_step_draw(self, *args)
    return Draws(draws.indices, draws.offsets, np.repeat(draws.noise[:, :1], draws.noise.shape[1], axis=1))


def unclipped_factors(squared_norms: np.ndarray, l2_clip_norm: float) -> np.ndarray:
    return np.isfinite(squared_norms).astype(float)


def factors_without_guard(squared_norms: np.ndarray, l2_clip_norm: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.minimum(1.0, l2_clip_norm * (1 - 2.0**-20) / np.sqrt(squared_norms))


def per_coordinate(blocks: Any, noise: Any, c: float, unit: float, count: Any) -> Any:
    """Clips coordinates instead of the vector: the norm is then up to C·√D."""
    rows = as_matrix(blocks)[:count]
    rows = pt.where(pt.isnan(rows), 0.0, rows)
    return pt.clip(rows, -c, c).sum(axis=0) + noise * unit


def mean_of_the_batch(blocks: Any, noise: Any, c: float, unit: float, count: Any) -> Any:
    return real_sum(blocks, noise, c, unit, count) / pt.maximum(count, 1) * 26 * PROB


def noise_per_record(blocks: Any, noise: Any, c: float, unit: float, count: Any) -> Any:
    return real_sum(blocks, noise * count, c, unit, count)


def without_noise(blocks: Any, noise: Any, c: float, unit: float, count: Any) -> Any:
    return real_sum(blocks, noise * 0, c, unit, count)


def with_prior(self: RecordModel) -> Any:
    return real_row_logp.fget(self) + self.prior_logp / self.num_records


def with_factors(bug: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `bug` in place of the kernel's factors, for the layouts made from now on."""
    monkeypatch.setattr(clipping, "clip_factors", bug)
    monkeypatch.setattr(clipping, "add_weighted_rows", weigh_rows)
    monkeypatch.setattr(clipping, "add_weighted_outer", weigh_outer)


def weigh_rows(rows: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        out += factors @ rows[: factors.size]


def weigh_outer(left: np.ndarray, right: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        n = factors.size
        out += ((left[:n] * factors[:, None]).T @ right[:n]).ravel()


def set_on(owner: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Check]] = {
    "noise halved": (
        set_on(LatticeNoise, "draw", lambda *a: scaled_noise(0.5, *a)),
        NOISE,
    ),
    "noise ten per cent short": (
        set_on(LatticeNoise, "draw", lambda *a: scaled_noise(0.9, *a)),
        partial(checks.check_noise_of_a_fit, n=1500),
    ),
    "noise left out": (set_on(step, "private_sum", without_noise), SUM),
    "noise grows with the batch": (set_on(step, "private_sum", noise_per_record), SUM),
    "noise of one step used in all": (set_on(Mechanism, "draw", repeated_noise), NOISE),
    "one deviate for all coordinates": (set_on(Mechanism, "draw", one_deviate_for_all), NOISE),
    "clipping left out": (partial(with_factors, unclipped_factors), SENSITIVITY),
    "clipped by coordinate": (set_on(step, "private_sum", per_coordinate), SENSITIVITY),
    "divided by the realised batch": (set_on(step, "private_sum", mean_of_the_batch), SUM),
    "NaN let through": (partial(with_factors, factors_without_guard), HOSTILE),
    "prior inside the sum": (set_on(RecordModel, "row_logp", property(with_prior)), PRIOR),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch):
    plant, check = BUGS[bug]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_planting_alone_breaks_nothing(monkeypatch: pytest.MonkeyPatch):
    # The stand-ins for the kernel are right when the factors are.
    with_factors(clipping.clip_factors, monkeypatch)
    finite = Harness(regression())
    checks_out = finite([0, 1, 2, 3])
    monkeypatch.undo()
    np.testing.assert_allclose(checks_out, Harness(regression())([0, 1, 2, 3]), rtol=1e-12)


@pytest.mark.parametrize("check", [NOISE, SUM, SENSITIVITY, HOSTILE, PRIOR])
def test_without_a_bug_the_checks_pass(check: Check):
    check()
