"""How wide the prior leaves each latent value, before any data: no posterior has reason to be wider.

The width is half the central 68 % of draws from the prior, in the unconstrained space: a standard deviation
where the prior is normal there, and finite where it has none (Cauchy). It is not known, and infinite, where a
prior cannot be drawn from (`pm.Flat`), or where drawing would call what may hold data: a function of the
user's (``pm.CustomDist(random=...)``), an array that nobody declared public.

Privacy: uses no records. The prior's graph is checked to hold none (`unprotected`), and what only its draws
would need is left out here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.gradients import Latents
from pymc_dpvi.graphs import walk
from pymc_dpvi.opaque import is_opaque_value, opaque_part
from pymc_dpvi.records import RecordModel
from pymc_dpvi.synthetic import python_function

__all__ = ["prior_stddevs"]

_DRAWS = 400
#: Draws that must be within the support of the transform: of four ordered values one in 24 is.
_LEAST = 10
_CENTRAL = (0.1587, 0.8413)


@quiet_pytensor()
def prior_stddevs(record: RecordModel, latents: Latents) -> np.ndarray:
    """Return the prior's width of each unconstrained latent value.

    Parameters
    ----------
    record : RecordModel
    latents : Latents

    Returns
    -------
    ndarray, shape (D,)
        Infinite where it is not known. The same for every data set.
    """
    found = np.full(latents.size, np.inf)
    model = record.model
    by_value = {model.rvs_to_values[rv].name: rv for rv in model.free_RVs}
    for var, at in zip(latents.value_vars, latents.slices, strict=True):
        rv = by_value[var.name]
        if all(_is_known(record, v) for v in walk([rv], into_size=True)):
            found[at] = _widths(_unconstrained(model, rv), at.stop - at.start)
    return found


def _is_known(record: RecordModel, var: Variable) -> bool:
    if var.owner is not None:
        return opaque_part(var.owner.op) is None
    return not (is_opaque_value(var) or (isinstance(var, SharedVariable) and record.is_private(var)))


def _unconstrained(model: Any, rv: Variable) -> Variable:
    transform = model.rvs_to_transforms[rv]
    return rv if transform is None else transform.forward(rv, *rv.owner.inputs)


def _widths(graph: Variable, size: int) -> np.ndarray:
    unknown = np.full(size, np.inf)
    try:
        # Generators of its own: those of the model stay as they are.
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
    low, high = np.quantile(draws, _CENTRAL, axis=0)
    width = (high - low) / 2.0
    return np.where(width > 0.0, width, np.inf)
