"""The slow and obvious way to per-record terms: PyMC's own model, and one compiled function."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import compile as pm_compile
from pytensor.graph.replace import graph_replace, vectorize_graph

from pymc_dpvi.compat import compile_mode, quiet_pytensor
from pymc_dpvi.graph import gradients
from pymc_dpvi.graph.blocks import as_matrix
from pymc_dpvi.graph.gradients import Latents, aligned_gradients
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.traversal import array_value

__all__ = ["compare", "latents_of", "points"]


def latents_of(model: pm.Model) -> tuple[Latents, np.ndarray]:
    """Return the flat layout of the model's unconstrained values, and its initial point."""
    start = model.initial_point(0)
    values = [model.rvs_to_values[rv] for rv in model.free_RVs]
    ends = np.cumsum([0, *(start[v.name].size for v in values)])
    slices = tuple(slice(int(a), int(b)) for a, b in itertools.pairwise(ends))
    shapes = tuple(start[v.name].shape for v in values)
    flat = np.concatenate([np.ravel(start[v.name]) for v in values])
    return Latents(tuple(values), slices, shapes), flat


def points(start: np.ndarray, n: int, scale: float = 0.3) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [
        (start + rng.normal(scale=scale, size=start.shape)).astype(pytensor.config.floatX) for _ in range(n)
    ]


def compare(record: RecordModel, backend: str, n_points: int = 2) -> dict[str, float]:
    """Largest relative differences between ours and PyMC's own, over all records.

    Parameters
    ----------
    record : RecordModel
    backend : {"numba", "c", "PYTHON"}
    n_points : int
        Number of latent values at which to compare.

    Returns
    -------
    dict
        ``rows``: per-record log-densities; ``gradient``: sum of per-record gradients against the
        gradient of the model's whole likelihood; ``factored``: per-record gradients by the uses of the
        free variables (`factoring`) against those by the variables.
    """
    model = record.model
    latents, start = latents_of(model)
    terms = [v for v in (*model.observed_RVs, *model.potentials) if v.name in record.factors]
    own = [
        t.sum(axis=tuple(range(1, t.ndim))) if t.ndim > 1 else t for t in model.logp(vars=terms, sum=False)
    ]
    own_gradient = pytensor.grad(
        pt.add(*[t.sum() for t in own]),
        list(latents.value_vars),
        disconnected_inputs="ignore",
        return_disconnected="zero",
    )
    data = [pt.as_tensor(array_value(a)) for a in record.arrays]
    rows = [pt.expand_dims(d, 1) for d in data]
    singles = vectorize_graph(
        [record.factors[t.name].sum() for t in terms], dict(zip(record.rows, rows, strict=True))
    )
    z = pt.matrix("z", shape=(1, latents.size), dtype=pytensor.config.floatX)
    ours = as_matrix(aligned_gradients(record, data, latents, z, 1))
    # The same by the free variables themselves, with nothing factored.
    by_variables = pt.concatenate(
        [
            g.flatten()
            for g in pytensor.grad(
                gradients._stable(record.row_logp),
                list(latents.value_vars),
                disconnected_inputs="ignore",
                return_disconnected="zero",
            )
        ]
    )
    plain = vectorize_graph(by_variables, dict(zip(record.rows, rows, strict=True)))
    values = dict(zip(latents.value_vars, latents.split(z[0]), strict=True))
    flat = pt.concatenate([pt.atleast_1d(g.flatten()) for g in own_gradient])
    *own, flat, plain = graph_replace([*own, flat, plain], values, strict=False)
    singles = graph_replace(singles, values, strict=False)
    # What we compare with is evaluated as it stands; ours is what a step compiles.
    whole_model = pm_compile([z], [*own, flat, plain], on_unused_input="ignore", mode="PYTHON")
    kwargs: dict[str, Any] = {"mode": backend} if backend == "PYTHON" else compile_mode(backend, None)
    by_record = pm_compile([z], [*singles, ours], on_unused_input="ignore", **kwargs)
    worst = {"rows": 0.0, "gradient": 0.0, "factored": 0.0}
    for point in points(start, n_points):
        *left, full, dense = (np.asarray(o, dtype="float64") for o in whole_model(point[None]))
        with quiet_pytensor():  # numba cannot keep on disk what has large arrays in it, and says so
            found = by_record(point[None])
        *right, per_record = (np.asarray(o, dtype="float64") for o in found)
        for a, b in zip(left, right, strict=True):
            assert a.shape == b.shape == (record.num_records,)
            worst["rows"] = max(worst["rows"], _relative(a, b))
        assert per_record.shape == (record.num_records, latents.size)
        assert np.isfinite(per_record).all()
        assert np.abs(full).max() > 0
        worst["factored"] = max(worst["factored"], _relative(dense, per_record))
        worst["gradient"] = max(worst["gradient"], _relative(full, per_record.sum(axis=0)))
    return worst


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    assert np.array_equal(np.isfinite(a), np.isfinite(b))
    finite = np.isfinite(a)
    if not finite.any():
        return 0.0
    scale = max(1.0, float(np.abs(a[finite]).max()))
    return float(np.abs(a[finite] - b[finite]).max()) / scale
