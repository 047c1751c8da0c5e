"""Draws of the released variables, of which none is infinite or NaN.

A latent value that the noise has left wide open can lie where the constrained one is no number any more: the
exponential of 800 is infinite. Such draws are made anew, which is to draw from the posterior given that it
can be written down. A formula of the user's (a Deterministic) that is undefined for most draws stays so: it
is no reason to drop what the free variables are.

Privacy: post-processing; draws and formulas are functions of what the fit released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import compile as pm_compile
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph

from pymc_dpvi.graph.gradients import Latents
from pymc_dpvi.lowering import fast_compile

__all__ = ["evaluator", "finite_draws"]

#: How often draws that are no numbers are made anew.
_ROUNDS = 30

Evaluate = Callable[[np.ndarray], list[np.ndarray]]


def evaluator(model: pm.Model, latents: Latents, variables: Sequence[Variable], dtype: np.dtype) -> Evaluate:
    """Compile model variables as functions of unconstrained draws (draws, D); results lead with draws."""
    z = pt.matrix("z", dtype=str(dtype), shape=(None, latents.size))
    graphs = model.replace_rvs_by_values(list(variables))
    swap: dict[Variable, Variable] = dict(zip(latents.value_vars, latents.split(z), strict=True))
    many = [
        new if new.type.ndim > old.type.ndim else pt.broadcast_to(new, (z.shape[0], *new.shape))
        for old, new in zip(graphs, vectorize_graph(graphs, swap), strict=True)
    ]
    function = pm_compile([z], many, mode=fast_compile(), on_unused_input="ignore")

    def evaluate(flat: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.asarray(v) for v in function(flat)]

    return evaluate


def finite_draws(
    draw: Callable[[int], np.ndarray], evaluate: Evaluate, draws: int, num_free: int
) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Draw until every draw is finite: flat draws (draws, D) and their values, or None if there are none.

    `draw` takes a number of draws, `evaluate` is of `evaluator`. The first `num_free` values are free
    variables, and must be finite; others only if at least half of their first draws are.
    """
    flat = draw(draws)
    values = evaluate(flat)
    fine = [_finite(v) for v in values]
    required = [k for k, f in enumerate(fine) if k < num_free or f.mean() >= 0.5]
    for _ in range(_ROUNDS):
        good = np.logical_and.reduce([fine[k] for k in required] + [_finite(flat)])
        if good.all():
            return flat, values
        (bad,) = np.nonzero(~good)
        flat[bad] = draw(len(bad))
        for k, new in enumerate(evaluate(flat[bad])):
            values[k] = np.array(values[k])
            values[k][bad] = new
            fine[k] = _finite(values[k])
    return None


def _finite(values: np.ndarray) -> np.ndarray:
    """Whether each draw is, shape ``(draws,)``."""
    return np.asarray(np.isfinite(values).reshape(len(values), -1).all(axis=1))
