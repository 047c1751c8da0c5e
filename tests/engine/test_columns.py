"""Long vectors computed by columns: what an ordinary PyTensor function computes, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Variable

from pymc_dpvi import DPADVI, Dropout, LowRank, Point
from pymc_dpvi.compat import default_numba_mode
from pymc_dpvi.engine import columns, compile_cache, split_step
from pymc_dpvi.engine.columns import InColumns
from pymc_dpvi.engine.threads import Threads

pytestmark = pytest.mark.filterwarnings("ignore:.*insecure_noise_seed.*")

N = 1000
KWARGS: dict[str, Any] = {"mode": default_numba_mode()}


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_LONG", N)
    monkeypatch.setattr(columns, "_PIECE", 96)  # the last piece is shorter
    monkeypatch.setattr(compile_cache, "_kept", type(compile_cache._kept)())


def inputs() -> list[Any]:
    return [
        pt.vector("a", shape=(N,)),
        pt.vector("b", shape=(N,)),
        pt.matrix("draws", shape=(3, N)),
        pt.matrix("row", shape=(1, N)),
        pt.scalar("rate"),
        pt.vector("more", shape=(N + 3,)),
    ]


Graph = Callable[..., list[Variable]]
OFFSETS = np.linspace(-1.0, 1.0, N)

#: Name, graph, numbers of heads and of tails.
GRAPHS: dict[str, tuple[Graph, int, int]] = {
    "by columns alone": (lambda a, b, draws, row, rate, more: [a + pt.softplus(b) * rate, a * 2], 1, 0),
    "draws": (lambda a, b, draws, row, rate, more: [a + pt.exp(b) * draws, (a * row).sum(axis=0)], 1, 0),
    "a mean over draws": (lambda a, b, draws, row, rate, more: [(draws * b).mean(axis=0)], 1, 1),
    "a vector in parts": (
        lambda a, b, draws, row, rate, more: [
            a - rate * pt.concatenate([pt.exp(a * b)[: N // 2], pt.tanh(b * b)[N // 2 :]])
        ],
        1,
        1,
    ),
    "a part of a vector": (
        lambda a, b, draws, row, rate, more: [a - more[:N] * rate, b + more[3:] ** 2, more[0]],
        0,
        1,
    ),
    "two lengths": (lambda a, b, draws, row, rate, more: [a * b, more * more[0], more * rate], 2, 1),
    "a sum over columns": (lambda a, b, draws, row, rate, more: [a / pt.sqrt((a * b).sum()), rate + 1], 1, 1),
    "neighbours": (
        lambda a, b, draws, row, rate, more: [a[::-1] * b, pt.cumsum(a) - b, a[1:] - a[:-1]],
        0,
        1,
    ),
    "columns as rows": (
        lambda a, b, draws, row, rate, more: [(draws.T * 2.0)[:, 0] * a, row.T[:, 0] - b],
        0,
        1,
    ),
    "a constant vector": (lambda a, b, draws, row, rate, more: [a + OFFSETS * rate], 0, 1),
    "as they came": (lambda a, b, draws, row, rate, more: [a, row, a[None], b * 1.5, rate], 1, 0),
    "whole numbers": (lambda a, b, draws, row, rate, more: [pt.floor(a).astype("int64"), a > b], 1, 0),
    "a table of all": (lambda a, b, draws, row, rate, more: [pt.outer(a[:3], b), a * rate], 1, 0),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_it_computes_what_the_graph_says(name: str) -> None:
    build, heads, tails = GRAPHS[name]
    given = inputs()
    outputs = build(*given)
    rng = np.random.default_rng(3)
    values = [rng.normal(size=v.type.shape) for v in given]
    wanted = pytensor.function(given, outputs, mode="FAST_COMPILE", on_unused_input="ignore")(*values)
    found = []
    in_columns = InColumns(given, outputs, KWARGS)
    assert (len(in_columns._heads), len(in_columns._tails)) == (heads, tails)
    for cores in (1, 3):
        threads = Threads(cores)
        before = [v.copy() for v in values]
        found.append([np.array(v) for v in in_columns(threads, *values)])
        threads.close()
        for own, kept in zip(values, before, strict=True):
            assert np.array_equal(own, kept)  # arguments are left alone
    for one, several, right, variable in zip(*found, wanted, outputs, strict=True):
        assert one.dtype == several.dtype == right.dtype and variable.type.dtype == right.dtype
        np.testing.assert_allclose(one, right, rtol=1e-12, atol=1e-12)
        assert np.array_equal(one, several)


def test_new_vectors_share_no_memory_with_the_arguments() -> None:
    given = inputs()
    in_columns = InColumns(given, [given[0], given[0] * 2, given[3][0]], KWARGS)
    values = [np.ones(v.type.shape) for v in given]
    for v in in_columns(Threads(1), *values):
        assert not any(np.shares_memory(v, own) for own in values)


X = np.random.default_rng(5).normal(size=(600, 20))
Y = (X[:, 0] > 0).astype(int)

MODELS: dict[str, dict[str, Any]] = {
    "mean field": {},
    "two draws": {"obj_n_mc": 2},
    "points": {"guide": {"first": Point()}},
    "dropout": {"guide": {"first": Dropout()}},
    "low rank": {"guide": {"first": LowRank(2)}},
}


@pytest.mark.zoo  # numba takes half a minute to two minutes
@pytest.mark.parametrize("name", MODELS)
def test_a_fit_is_that_of_one_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = []

    class Watched(InColumns):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            loops.append(len(self._heads) + len(self._tails))

    monkeypatch.setattr(split_step, "InColumns", Watched)

    def fitted(cores: int | None) -> list[np.ndarray]:
        kwargs = dict(MODELS[name])
        n_mc = {"obj_n_mc": kwargs.pop("obj_n_mc")} if "obj_n_mc" in kwargs else {}
        with pm.Model():
            kind = pm.Flat if name == "dropout" else partial(pm.Normal, mu=0, sigma=0.5)
            first = kind("first", shape=(20, 60))
            second = pm.Normal("second", 0, 1, shape=60)
            pm.Bernoulli("y", logit_p=pt.tanh(pm.Data("x", X) @ first) @ second, observed=Y)
            kwargs |= {"sampling_prob": 0.3, "insecure_noise_seed": 5, "random_seed": 6}
            method = DPADVI(noise_multiplier=0.8, delta=1e-6, **kwargs)
            approx = method.fit(7, progressbar=False, cores=cores, backend="numba", **n_mc)
        return [p.get_value() for p in approx.params]

    one = fitted(None)
    assert not loops
    two, three = fitted(2), fitted(3)
    assert sum(loops) > 0
    for a, b, c in zip(one, two, three, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
        assert np.array_equal(b, c)


@pytest.mark.turns
def test_the_number_of_records_does_not_choose_how_a_step_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long array of records is no long vector of a step: only what is released or public is."""
    monkeypatch.setattr(columns, "_LONG", 500)
    simplified = []
    monkeypatch.setattr(split_step, "_simplified", lambda *graph: simplified.append(1) or graph)
    with pm.Model():
        pm.Normal("y", pm.Normal("mean", 0, 1), 1, observed=X[:, 1])  # 600 records, known to the graph
        method = DPADVI(noise_multiplier=0.8, delta=1e-6, sampling_prob=0.3, insecure_noise_seed=5)
        method.fit(2, progressbar=False, cores=1, backend="numba")
    assert not simplified


@pytest.mark.turns
def test_what_both_sides_need_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = []

    class Spying(split_step._Cut):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            cuts.append(self)

    monkeypatch.setattr(split_step, "_Cut", Spying)
    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=N)
        pm.Normal("y", beta[0] + beta[N - 1] * pm.Data("x", X)[:, 0], 1, observed=X[:, 1])
        method = DPADVI(noise_multiplier=0.8, delta=1e-6, sampling_prob=0.3, insecure_noise_seed=5)
        method.fit(2, progressbar=False, cores=1, backend="numba")
    (cut,) = cuts
    assert sorted(v.type.shape for v in cut.computed) == [(1, N), (N,)]  # the draw, standard deviations
    assert not set(cut.computed) & set(pytensor.graph.traversal.ancestors(cut.outputs))
