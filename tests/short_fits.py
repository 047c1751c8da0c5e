"""Cheap settings for short fits, and what to look at in them: shared by the tests in `inference`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytest

from pymc_dpvi import DPADVI

#: Of every test file here: seeded noise is meant, and no test compiles unless it says so.
MARKS = [
    pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning"),
    pytest.mark.usefixtures("without_compiling"),
]

Build = Callable[[], pm.Model]

TARGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
SEEDED: dict[str, Any] = {**TARGET, "insecure_noise_seed": 1, "random_seed": 2}
#: No calibration: the quickest way to a run.
CHEAP: dict[str, Any] = {
    "noise_multiplier": 2.0,
    "delta": 1e-6,
    "sampling_prob": 0.3,
    "insecure_noise_seed": 1,
    "random_seed": 2,
}
DATA_TREE = int(az.__version__.split(".")[0]) >= 1


def quiet(method: DPADVI, n: int = 5, **kwargs: Any) -> Any:
    return method.fit(n, progressbar=False, **kwargs)


def params(approx: Any) -> np.ndarray:
    return np.concatenate([p.get_value().ravel() for p in approx.params])


class Iterates:
    """A callback that keeps every iterate, and the numbers it was called with."""

    def __init__(self) -> None:
        self.values: list[np.ndarray] = []
        self.calls: list[tuple[Any, int]] = []

    def __call__(self, approx: Any, losses: Any, i: int) -> None:
        self.values.append(params(approx))
        self.calls.append((losses, i))


def still() -> Any:
    """Return an optimiser that does nothing, so that a fit ends where it starts."""
    return pm.sgd(learning_rate=0.0)
