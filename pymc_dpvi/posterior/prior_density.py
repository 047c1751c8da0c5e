"""The model's prior by itself: its density, centre and width.

Centre and width are the median and half the central 68 % of draws from the prior, in the unconstrained space.
They are mean and standard deviation of a normal prior, and finite for a Cauchy prior, too. The *reach* is at
least the width, and more where the tails are heavier than a normal density's. They are unknown (centre NaN,
width and reach infinite) where a prior has no draws (`pm.Flat`), or where drawing would use what may hold
data: a function of the user's (``pm.CustomDist(random=...)``), or an array that nobody declared public.

Privacy: uses no records. The prior's density is checked to hold none (`private_constants`). What only its
draws would use is not checked there, and is left out here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.engine.blas_threads import ONE_THREAD
from pymc_dpvi.graph.batched_ops import stacked, without_loops, written_out
from pymc_dpvi.graph.gradients import Latents, prior_and_slope
from pymc_dpvi.graph.opaque import hides_numbers
from pymc_dpvi.graph.rebuild import fold_shapes
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.synthetic_records import python_function
from pymc_dpvi.graph.traversal import walk
from pymc_dpvi.posterior.over_points import over_points

__all__ = ["FARTHEST", "Prior"]

_DRAWS = 400
#: Widths of a normal density beyond which so many draws seldom lie.
FARTHEST = 3.5
#: Least finite draws, those in the support of the transform: of four ordered values one in 24 is.
_LEAST = 10
_CENTRAL = (0.1587, 0.5, 0.8413)


@dataclass(frozen=True)
class Prior:
    """The prior of the unconstrained latent vector, the same for every data set."""

    record: RecordModel
    latents: Latents

    @property
    def centre(self) -> np.ndarray:
        """Medians, shape ``(D,)``; NaN where they are not known."""
        return self._location[0]

    @property
    def stddev(self) -> np.ndarray:
        """Widths, shape ``(D,)``; infinite where they are not known."""
        return self._location[1]

    @property
    def reach(self) -> np.ndarray:
        """Widths, or more where the tails are heavier than a normal density's, shape ``(D,)``.

        Effects of groups whose spread has a prior have such tails. All draws are within 3.5 reaches.
        """
        return self._location[2]

    @cached_property
    def _location(self) -> np.ndarray:
        record, latents, model = self.record, self.latents, self.record.model
        found = np.repeat([[np.nan], [np.inf], [np.inf]], latents.size, axis=1)
        by_value = {model.rvs_to_values[rv].name: rv for rv in model.free_RVs}
        with quiet_pytensor():
            for var, at in zip(latents.value_vars, latents.slices, strict=True):
                rv = by_value[var.name]
                if all(_is_known(record, v) for v in walk([rv], into_size=True)):
                    found[:, at] = _located(_unconstrained(model, rv), at.stop - at.start)
        return found

    @cached_property
    def density(self) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Function of unconstrained points (n, D): log density (n,), up to a constant, and its gradient."""
        function, dtype = self.compiled, pytensor.config.floatX

        def evaluate(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            # BLAS splits small matrices among threads, which then wait milliseconds for each other.
            with ONE_THREAD, np.errstate(all="ignore"):
                with suppress(ArithmeticError, np.linalg.LinAlgError, ValueError):
                    found, by_z = function(points.astype(dtype))
                    return np.asarray(found, dtype=float), np.asarray(by_z, dtype=float)
            return np.full(len(points), -np.inf), np.zeros(points.shape)  # a point where it has no value

        return evaluate

    @cached_property
    @quiet_pytensor()
    def compiled(self) -> Callable[[np.ndarray], list[np.ndarray]]:
        """PyTensor's function behind `density`, without loops over points or entries."""
        prior, slope, blocks = prior_and_slope(self.record, self.latents)
        one = fold_shapes(written_out([prior, slope]))
        floatx = pytensor.config.floatX
        return over_points(self.latents, one, blocks, floatx, lambda many: stacked(without_loops(many)))


def _is_known(record: RecordModel, var: Variable) -> bool:
    return not (hides_numbers(var) or (isinstance(var, SharedVariable) and record.is_private(var)))


def _unconstrained(model: Any, rv: Variable) -> Variable:
    transform = model.rvs_to_transforms[rv]
    return rv if transform is None else transform.forward(rv, *rv.owner.inputs)


def _located(graph: Variable, size: int) -> np.ndarray:
    """Median, width and reach of each entry of a random variable, shape ``(3, size)``."""
    unknown = np.repeat([[np.nan], [np.inf], [np.inf]], size, axis=1)
    try:
        # New generators, so that those of the model keep their state.
        theirs = [v for v in graph_inputs([graph]) if isinstance(v.type, RandomType)]
        own = {v: pytensor.shared(np.random.default_rng(k)) for k, v in enumerate(theirs)}
        draw = python_function([], clone_replace([graph], own))
        with np.errstate(all="ignore"):
            draws = np.array([np.ravel(draw()[0]) for _ in range(_DRAWS)], dtype=float)
    except Exception:  # a prior without draws
        return unknown
    draws = draws[np.isfinite(draws).all(axis=1)]
    if draws.shape[1:] != (size,) or len(draws) < _LEAST:
        return unknown
    low, middle, high = np.quantile(draws, _CENTRAL, axis=0)
    width = (high - low) / 2.0
    reach = np.maximum(width, np.abs(draws - middle).max(axis=0) / FARTHEST)
    return np.where(width > 0.0, [middle, width, reach], unknown)
