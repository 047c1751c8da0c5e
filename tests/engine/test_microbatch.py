"""The private sum in microbatches against the one on whole matrices."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from clipped_sums import of_matrices
from pytensor.graph.traversal import ancestors
from test_fetching import LAYOUTS
from zoo import ZOO

from pymc_dpvi import DPADVI, PrivacyBudget
from pymc_dpvi.engine import sums_of_step
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.engine.private_sum import PrivateSum, private_sum
from pymc_dpvi.engine.sums_of_step import in_microbatches
from pymc_dpvi.errors import ArgumentError, PrivacyError
from pymc_dpvi.graph.blocks import Block
from pymc_dpvi.graph.gradients import aligned_gradients
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.posterior.approximation import DPMeanField
from pymc_dpvi.runs import Runs

N, D = 400, 3
UNIT = 2.0**-36
MODES = ["PYTHON", "CVM", "NUMBA", "JAX"]


def arrays(layout: str) -> list[np.ndarray]:
    """Record arrays with none, one and two axes beside the records'; some records are hostile."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(N, D)), rng.normal(size=(N, 2, 2)).astype("float32")
    x[5, 1], x[6, 0], x[7] = np.nan, np.inf, 1e200
    g = rng.integers(0, D, size=N)
    return [LAYOUTS[layout](a) for a in (x, g, w)]


def graph(data: list[Any], indices: Any, count: Any, noise: Any, beta: Any) -> tuple[Any, list[Any]]:
    """An outer and two dense blocks of the batch, and the batch."""
    batch = [d if indices is None else d[indices] for d in data]
    x, g, w = batch
    scale = pt.cumsum(pt.outer(beta, beta), axis=0)
    error = pt.tanh(x @ scale[0]) - g
    blocks = [
        Block(x, pt.stack([error, 2.0 * error], axis=1)),
        Block(w[:, 0] * beta[0]),
        Block(beta[g][:, None]),
    ]
    return private_sum(blocks, noise, 1.3, np.asarray(UNIT), count), batch


BETA = np.array([0.5, -1.0, 2.0])


def functions(mode: str, layout: str = "C", whole: bool = False) -> tuple[Any, ...]:
    """The same sum on whole matrices and in microbatches."""
    data = [pytensor.shared(a, borrow=True) for a in arrays(layout)]
    indices, count, noise, beta = pt.lvector(), pt.lscalar(), pt.lvector(), pt.dvector()
    which = None if whole else indices
    noisy, batch = graph(data, which, count, noise, beta)
    (cut,) = in_microbatches([noisy], batch, data, which, {"mode": mode})
    inputs = [indices, count, noise, beta]
    modes = ("CVM", "CVM" if mode == "JAX" else mode)
    return tuple(
        pytensor.function(inputs, out, mode=around, on_unused_input="ignore")
        for out, around in zip([*of_matrices([noisy]), cut], modes, strict=True)
    )


def check(both: tuple[Any, ...], indices: np.ndarray, count: int) -> None:
    noise = np.random.default_rng(0).integers(-(2**36), 2**36, size=2 * D + 2 + 1)
    with np.errstate(all="ignore"):
        matrices, parts = (f(indices, count, noise, BETA) for f in both)
    assert np.isfinite(matrices).all()
    np.testing.assert_allclose(parts, matrices, rtol=0, atol=2 * UNIT)
    if not count:
        np.testing.assert_array_equal(parts, noise * UNIT)


@pytest.mark.turns
@pytest.mark.parametrize(
    ("mode", "layout"),
    [
        pytest.param(mode, layout, marks=pytest.mark.slow if mode == "NUMBA" and layout != "C" else ())
        for mode in MODES
        for layout in LAYOUTS
    ],
)
def test_a_batch_in_microbatches(mode: str, layout: str):
    both = functions(mode, layout)
    for size in (1, 95, 96, 97, 257, N):
        indices = np.random.default_rng(size).choice(N, size=size, replace=False)
        indices[-1:] = N - 1  # nothing is fetched beyond the last record
        check(both, indices, size)
    check(both, np.arange(200), 150)
    check(both, np.arange(1), 0)


@pytest.mark.parametrize("mode", ["PYTHON", "CVM", pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_all_records_in_microbatches(mode: str):
    both = functions(mode, whole=True)
    check(both, np.zeros(0, dtype=np.int64), N)
    check(both, np.zeros(0, dtype=np.int64), 0)


def test_microbatches_of_python_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """However wide the gradients are."""
    monkeypatch.setattr(sums_of_step, "_MOST_NUMBERS", 1)
    both = functions("PYTHON")
    (op,) = {n.op for n in both[1].maker.fgraph.apply_nodes if isinstance(n.op, MicrobatchedSum)}
    assert op.length == 8
    check(both, np.arange(N), N)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [0, 1])
def test_a_row_for_all_records_is_refused_even_on_no_records(mode: str, n: int):
    """One record would stand for a microbatch; that this is so must be seen before anything is spent."""
    x, indices, noise, count = pytensor.shared(np.ones((7, 2))), pt.lvector(), pt.lvector(), pt.lscalar()
    batch = x[indices]
    release = private_sum([Block(batch[:1])], noise, 1.0, np.asarray(UNIT), count)
    (cut,) = in_microbatches([release], [batch], [x], indices, {"mode": mode})
    run = pytensor.function([indices, noise, count], cut, mode="CVM" if mode == "JAX" else mode)
    with pytest.raises(ValueError, match="a row per record"):
        run([0], [0, 0], n)


def test_dense_gradients_of_a_batch_are_never_there_at_once():
    rows, columns = 4096, 2000  # 64 MB as a matrix
    x = pytensor.shared(np.ones((rows, 1)), shape=(None, 1))
    indices, noise, beta = pt.lvector(), pt.lvector(), pt.dvector("beta")
    beta = pt.specify_shape(beta, columns)
    batch = x[indices]
    noisy = private_sum([Block(batch * beta)], noise, 1.0, np.asarray(UNIT), indices.size)
    (cut,) = in_microbatches([noisy], [batch], [x], indices, {"mode": "PYTHON"})
    peaks = []
    for out in (*of_matrices([noisy]), cut):
        run = pytensor.function([indices, noise, beta.owner.inputs[0]], out, mode="PYTHON")
        inputs = np.arange(rows), np.zeros(columns, dtype=np.int64), np.ones(columns)
        run(*inputs)
        tracemalloc.start()
        run(*inputs)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    whole = 8 * rows * columns
    assert peaks[0] > whole  # planted: what is to be avoided would be seen
    assert peaks[1] < whole / 3


def test_what_records_share_is_computed_once():
    both = functions("PYTHON")
    (node,) = (n for n in both[1].maker.fgraph.apply_nodes if isinstance(n.op, MicrobatchedSum))
    inner = [str(n.op) for n in node.op.per_record.maker.fgraph.apply_nodes]
    assert any("Tanh" in name or "tanh" in name for name in inner)
    outer = [str(n.op) for n in both[1].maker.fgraph.apply_nodes]
    assert any("Cum" in name for name in outer) and not any("Cum" in name for name in inner)
    assert not any(isinstance(n.op, PrivateSum) for n in both[1].maker.fgraph.apply_nodes)


def test_constants_and_shapes_that_are_known_stay_inside():
    """As an input, a shape would keep PyTensor from simplifying what is done to every microbatch."""
    x, scale = pytensor.shared(np.ones((7, 2)), shape=(None, 2)), pytensor.shared(np.ones(2), shape=(2,))
    indices, noise, count = pt.lvector(), pt.lvector(), pt.lscalar()
    batch = x[indices]
    two = pt.ones((1, 2)) + 1.0  # of constants alone
    gradients = (batch * (scale[None] + 1.0) * two).reshape((batch.shape[0], 1, pt.prod(two.shape)))[:, 0]
    release = private_sum([Block(gradients)], noise, 1.0, np.asarray(UNIT), count)
    (out,) = in_microbatches([release], [batch], [x], indices, {"mode": "FAST_RUN"})
    op, inputs = out.owner.op, out.owner.inputs
    assert isinstance(op, MicrobatchedSum)
    shared = inputs[1 : inputs.index(indices)]
    assert [v.type.ndim for v in shared] == [2] and scale in ancestors(shared)
    assert len(op.per_record.maker.fgraph.apply_nodes) == 1  # the product
    np.testing.assert_allclose(
        out.eval({indices: [0, 3], noise: [0, 0], count: 2}), np.full(2, 2**0.5), rtol=1e-3
    )


@pytest.mark.parametrize(
    "around", [lambda x, indices: x[indices], lambda x, indices: x.sum(), lambda x, i: i.size]
)
def test_records_that_do_not_come_with_the_batch_are_refused(around: Callable[[Any, Any], Any]):
    """They would be the same for every microbatch: the first rows again in each, or all rows for each."""
    x, indices, noise = pytensor.shared(np.ones((7, 2)), shape=(None, 2)), pt.lvector(), pt.lvector()
    batch = x[indices]
    release = private_sum([Block(batch * around(x, indices))], noise, 1.0, np.asarray(UNIT), indices.size)
    with pytest.raises(PrivacyError, match="around their noisy sum"):
        in_microbatches([release], [batch], [x], indices, {"mode": "PYTHON"})


@pytest.mark.parametrize(
    "beside",
    [
        lambda x, indices, noise, count: x.sum(),
        lambda x, indices, noise, count: indices[0],
        lambda x, indices, noise, count: noise.sum(),
        lambda x, indices, noise, count: count,
    ],
)
def test_what_comes_beside_the_sum_is_refused(beside: Callable[..., Any]):
    x, indices, noise, count = (
        pytensor.shared(np.ones((7, 2)), shape=(None, 2)),
        pt.lvector(),
        pt.lvector(),
        pt.lscalar(),
    )
    batch = x[indices]
    release = private_sum([Block(batch)], noise, 1.0, np.asarray(UNIT), count)
    given = [batch], [x], indices, {"mode": "PYTHON"}
    in_microbatches([release, release * 2.0], *given)
    with pytest.raises(PrivacyError, match="around their noisy sum"):
        in_microbatches([release, release * beside(x, indices, noise, count)], *given)


def test_a_copy_of_the_rows_graph_holds_the_batch_itself():
    """The second gradient was of a copy of the batch, which was taken for what all records share."""
    record = build_record_model(ZOO["panel_random_walk"].build())
    latents = DPMeanField(record, random_seed=1).latents
    indices, z = pt.lvector(), pt.matrix("z", dtype="float64", shape=(1, latents.size))
    batch = [
        pt.specify_shape(d[indices], (None, *row.type.shape[1:]))
        for d, row in zip(record.data(), record.rows, strict=True)
    ]
    for block in aligned_gradients(record, batch, latents, z, 1):
        assert indices in ancestors(block.arrays)
        assert indices not in ancestors(block.arrays, blockers=batch)


def test_other_graphs_are_left_alone():
    x, indices = pytensor.shared(np.ones((3, 2))), pt.lvector()
    batch = x[indices]
    out = pt.lscalar() + x.shape[1]
    assert in_microbatches([out], [batch], [x], indices, {"mode": "PYTHON"}) == [out]
    for leak in (batch.sum(), x.shape[0] + 1):
        with pytest.raises(PrivacyError, match="around their noisy sum"):
            in_microbatches([leak], [batch], [x], indices, {"mode": "PYTHON"})


def test_jax_compiles_in_the_rehearsal_and_on_no_records():
    """Its compiler runs at the first call: before anything is spent, and without a look at the data."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=2)
        pm.Normal("y", pm.Data("x", rng.normal(size=(40, 2))) @ beta, 1.0, observed=rng.normal(size=40))
    calls: list[Any] = []
    before = MicrobatchedSum.__init__

    def watched(self: MicrobatchedSum, mark: Any, per_record: Any, *rest: Any) -> None:
        def call(*arrays: Any) -> Any:
            calls.append(arrays)
            return per_record(*arrays)

        call.maker = per_record.maker  # type: ignore[attr-defined]
        before(self, mark, call, *rest)

    with pytest.MonkeyPatch.context() as patch, model:
        patch.setattr(MicrobatchedSum, "__init__", watched)
        method = DPADVI(epsilon=1.0, delta=1e-5, sampling_prob=0.5)
        patch.setattr(
            Runs, "_charge_budget", lambda *given, dry_run=False: dry_run or calls.append("reserved")
        )
        method.fit(2, backend="jax", progressbar=False)
    at = calls.index("reserved")
    assert at == 1 and len(calls) > 2
    tried, at_work = calls[0], calls[2]
    assert not np.any(tried[0]) and np.any(at_work[0])
    assert [np.shape(a) for a in tried] == [np.shape(a) for a in at_work]


def test_what_jax_cannot_compile_is_refused_before_anything_is_spent():
    with pm.Model():
        shape = pm.HalfNormal("shape", 1.0)
        x = pm.Data("x", np.linspace(0.5, 2.0, 20))
        pm.Potential("term", pt.log(pt.gammainc(1.0 + shape, x)))  # JAX has no gradient by the shape
        budget = PrivacyBudget(1.0, 1e-5)
        method = DPADVI(epsilon=1.0, delta=1e-5, budget=budget)
        with pytest.raises(
            ArgumentError, match=r"backend='jax' cannot compile.*Leave backend= out.*Nothing is spent"
        ):
            method.fit(2, backend="jax", progressbar=False)
    assert budget.ledger == () and budget.remaining.epsilon == 1.0
