"""A record's gradient is the same, bit by bit, in every batch and at every place in it.

docs/noise.md, section 4, assumes that it is. Pieces of one length make all shapes the same in every step
(`engine.microbatch`); what is left is that an operation treats all rows of a microbatch alike. Equal
records show it: where their rows are added up in different orders, the last digits differ.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numba
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.linalg import solve_triangular
from zoo import ZOO

from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.engine.private_sum import private_sum
from pymc_dpvi.engine.sums_of_step import _LENGTHS, in_microbatches
from pymc_dpvi.graph.blocks import Block
from pymc_dpvi.graph.gradients import aligned_gradients
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.posterior.approximation import DPMeanField

UNIT = 2.0**-36
#: Models with matrix products, triangular systems, gathered rows and loops, the first of them in every run.
NAMES = (
    "linear",
    "logistic_logit",
    "poisson_exposure",
    "weibull_censored",
    "radon_centered",
    "bnn_one_layer",
)
NAMES += ("bnn_two_layers", "lkj_mvnormal", "categorical_softmax", "hsgp", "dpvi_gaussian_mixture")


def sum_behind(out: Any) -> Any:
    """Find the sum in microbatches."""
    nodes = {v.owner for v in pytensor.graph.traversal.ancestors([out]) if v.owner is not None}
    (found,) = (node for node in nodes if isinstance(node.op, MicrobatchedSum))
    return found


@pytest.mark.turns
@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES[1:])])
@pytest.mark.parametrize("mode", ["NUMBA", pytest.param("CVM", marks=pytest.mark.slow), "JAX"])
def test_equal_records_have_equal_rows(name: str, mode: str) -> None:
    entry = ZOO[name]
    record = build_record_model(entry.build(), record_dim=entry.record_dim, public_data=entry.public_data)
    latents = DPMeanField(record, random_seed=1).latents
    indices, noise, z = pt.lvector(), pt.lvector(), pt.matrix("z", dtype="float64", shape=(1, latents.size))
    data = record.data()
    batch = [
        pt.specify_shape(d[indices], (None, *row.type.shape[1:]))
        for d, row in zip(data, record.rows, strict=True)
    ]
    gradients = aligned_gradients(record, batch, latents, z, 1)
    release = private_sum(gradients, noise, 1.0, np.asarray(UNIT), indices.size)
    (cut,) = in_microbatches([release], batch, data, indices, {"mode": mode})
    node = sum_behind(cut)
    op, places = node.op, node.inputs.index(indices)
    shared = pytensor.function([z], node.inputs[len(data) : places], mode="CVM")
    rng = np.random.default_rng(0)
    for scale in (0.1, 1.0):
        values = shared(rng.normal(size=(1, latents.size)) * scale)
        for i in rng.choice(record.num_records, size=5):
            alike = [np.repeat(d.eval()[[i]], op.length, axis=0) for d in data]
            for out in map(np.asarray, op.per_record(*alike, *values)):
                assert len(out) in (1, op.length)
                np.testing.assert_array_equal(out, np.broadcast_to(out[:1], out.shape))


def products(
    columns: int, width: int, rng: np.random.Generator
) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Products of rows with a vector or matrix, as PyTensor's backends have them computed."""
    weights = rng.standard_normal((columns, width))[:, slice(None) if width > 1 else 0]
    yield "numpy", lambda rows: rows @ weights
    yield "numpy, Fortran order", lambda rows: rows @ np.asfortranarray(weights)
    yield "numpy, rows in Fortran order", lambda rows: np.asfortranarray(rows) @ weights
    yield "numpy, transposed", lambda rows: (weights.T @ rows.T).T
    yield "numba", lambda rows: compiled_product(rows, weights)
    if width in (1, 3, 17, 100, 300):  # it compiles for each
        yield "JAX", lambda rows: np.asarray(jax_product(rows, weights))
    if width == columns > 1:
        lower = np.tril(weights) + 5.0 * np.eye(columns)
        yield "triangular system", lambda rows: solve_triangular(lower, rows.T, lower=True).T


@numba.njit
def compiled_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # pragma: no cover
    return np.dot(a, b)


jax.config.update("jax_enable_x64", True)  # as PyTensor does


@jax.jit
def jax_product(a: Any, b: Any) -> Any:
    return a @ b


@pytest.mark.turns
@pytest.mark.parametrize(
    "kernels",
    ["", *(pytest.param(k, marks=pytest.mark.slow) for k in ("Prescott", "Sandybridge", "Haswell", "Zen"))],
)
def test_products_treat_all_rows_of_a_microbatch_alike(kernels: str) -> None:
    """On one thread, as in a step; OpenBLAS reads at its start how many, and which kernels it is to take."""
    if kernels and platform.machine() != "x86_64":
        pytest.skip("kernels of another processor")
    own = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    own |= {"OPENBLAS_CORETYPE": kernels} if kernels else {}
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    check = f"import sys; sys.path[:0] = {paths}; import test_batch_position as t; "
    check += f"[t.check_products(n) for n in {(*_LENGTHS, 960)}]"
    subprocess.run([sys.executable, "-c", check], check=True, env={**os.environ, **own})


def check_products(length: int) -> None:
    rng = np.random.default_rng(length)
    for columns in (1, 2, 3, 5, 8, 15, 16, 31, 64, 100, 257):
        row = rng.standard_normal(columns)
        for width in (1, 2, 3, 4, 5, 8, 10, 17, 32, 50, 100, columns, 300):
            for name, product in products(columns, width, rng):
                out = product(np.tile(row, (length, 1)))
                alike = np.array_equal(out, np.broadcast_to(out[:1], out.shape))
                assert alike, f"{name}: {length} rows of {columns} by {width}"


@pytest.mark.turns
@pytest.mark.parametrize("mode", ["CVM", "NUMBA", "JAX"])
@pytest.mark.parametrize("width", [1, 3])
def test_a_row_that_cancels_does_not_move_others(mode: str, width: int) -> None:
    """In microbatches as long as the batch, one more record would move the sum by three clip norms."""
    row = np.zeros(16)
    row[[2, 10, 8]] = 2.0**90, -(2.0**90), 1e6
    x = pytensor.shared(np.tile(row, (200, 1)), shape=(None, 16))
    indices, noise = pt.lvector(), pt.lvector()
    batch = x[indices]
    sums = pt.dot(batch, pt.ones((16, width)) if width > 1 else pt.ones(16)[:, None])
    release = private_sum([Block(sums)], noise, 1.0, np.asarray(UNIT), indices.size)
    (cut,) = in_microbatches([release], [batch], [x], indices, {"mode": mode})
    run = pytensor.function([indices, noise], cut, mode="CVM" if mode == "JAX" else mode)
    zeros = np.zeros(width, dtype=np.int64)
    for sizes in (range(1, 30), range(90, 110), range(185, 200)):
        totals = np.array([run(np.arange(n), zeros) for n in sizes])
        assert np.all(np.linalg.norm(np.diff(totals, axis=0), axis=1) <= 1.0)
