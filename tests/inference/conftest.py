"""Fixtures of the tests of a fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
from short_fits import CHEAP, SEEDED, Build

from pymc_dpvi import DPADVI
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.mechanism.mechanism import Mechanism


@pytest.fixture(scope="session")
def fitted(logistic: Build) -> Any:
    """Return what a fit of 20 steps left; no test may fit it again."""
    with logistic():
        kwargs = {"compile_kwargs": {"mode": "PYTHON"}}
        return pm.fit(20, method=DPADVI(**SEEDED), progressbar=False, **kwargs)


_UNSPENT: list[DPADVI] = []


@pytest.fixture
def unspent(logistic: Build) -> DPADVI:
    """Return a method that has spent nothing; the same one until some test spends it by mistake."""
    if not _UNSPENT or _UNSPENT[0].approx._report is not None:
        with logistic():
            _UNSPENT[:] = [DPADVI(**CHEAP)]
    return _UNSPENT[0]


@pytest.fixture
def nothing_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as soon as a mechanism draws a batch or noise."""

    def draw(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the mechanism was run")

    monkeypatch.setattr(Mechanism, "draw", draw)


@pytest.fixture
def steps_seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, ...]]:
    """Keep (indices, noise, latent draws) of every step that is made."""
    seen: list[tuple[np.ndarray, ...]] = []
    original = PrivateStep.__call__

    def step(self: PrivateStep, indices: Any, offsets: Any, noise: Any, epsilon: Any, weights: Any) -> None:
        for t in range(len(weights)):
            batch = indices[offsets[t] : offsets[t + 1]]
            seen.append((np.array(batch), np.array(noise[t]), np.array(epsilon[t])))
        original(self, indices, offsets, noise, epsilon, weights)

    monkeypatch.setattr(PrivateStep, "__call__", step)
    return seen
