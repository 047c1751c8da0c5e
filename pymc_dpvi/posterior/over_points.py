"""Graphs of the latent values as functions of many unconstrained points."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.pytensorf import compile as pm_compile
from pytensor.graph.basic import Variable

from pymc_dpvi.graph.gradients import Latents
from pymc_dpvi.graph.traversal import substituted, vectorized
from pymc_dpvi.lowering import fast_compile

__all__ = ["over_points"]


def over_points(
    latents: Latents,
    graphs: Sequence[Variable],
    values: Sequence[Variable],
    dtype: str,
    simplify: Callable[[Sequence[Variable]], Sequence[Variable]] = list,
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Compile graphs of `values`, the variables that `latents` splits a vector into, for points (n, D).

    Results lead with n. `simplify` is applied to the graphs for all points at once. Where PyTensor has no
    such graph, one point is evaluated after the other: what is compiled here is needed after a fit has been
    charged, and nothing may be lost then.
    """
    z = pt.matrix("z", dtype=dtype, shape=(None, latents.size))
    try:
        found = simplify(vectorized(graphs, dict(zip(values, latents.split(z), strict=True))))
        many = [
            new if new.type.ndim > old.type.ndim else pt.broadcast_to(new, (z.shape[0], *new.shape))
            for old, new in zip(graphs, found, strict=True)
        ]
        return pm_compile([z], many, mode=fast_compile(), on_unused_input="ignore")  # type: ignore[no-any-return]
    except Exception:
        point = pt.vector("z", dtype=dtype, shape=(latents.size,))
    one = substituted(graphs, dict(zip(values, latents.split(point), strict=True)))
    function = pm_compile([point], one, mode=fast_compile(), on_unused_input="ignore")

    def evaluate(points: np.ndarray) -> list[np.ndarray]:
        return [np.stack(of_graph) for of_graph in zip(*map(function, points), strict=True)]

    return evaluate
