"""Compiled steps are shared by equal graphs, and hold neither data nor models."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode

from pymc_dpvi import DPADVI
from pymc_dpvi.compat import compile_mode
from pymc_dpvi.engine import compile_cache
from pymc_dpvi.engine.compile_cache import Postponed, name_of, shared
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.engine.multistep import Chunk

FITS = {"epsilon": 1.0, "delta": 1e-6, "accountant": "rdp"}


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "_kept", type(compile_cache._kept)())


def chunk(data: np.ndarray, factor: float = 1.0, **more: Any) -> tuple[Chunk, Any]:
    """A step that adds up its batch, as numba compiles it."""
    records = pytensor.shared(data, name="data", borrow=True, shape=(None,) * data.ndim)
    x = pytensor.shared(np.zeros(3), name="x")
    batch, count = pt.lvector("batch"), pt.lscalar("count")
    noise, epsilon, weight = pt.lvector("noise"), pt.dmatrix("epsilon"), pt.dscalar("weight")
    total = pt.switch(count > 0, records[batch].sum(axis=0), 0.0)
    updates = {x: x + factor * total}
    return Chunk([batch, count, noise, epsilon, weight], [], updates, compile_mode("numba", None) | more), x


def run(step: Chunk, x: Any) -> np.ndarray:
    x.set_value(np.zeros(3))
    step(np.array([0, 2]), np.array([0, 2]), np.zeros((1, 1), int), np.zeros((1, 1, 1)), np.ones(1))
    return np.asarray(x.get_value())


@pytest.mark.turns
def test_equal_graphs_share_what_was_compiled_and_other_graphs_do_not() -> None:
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(n, 3)) for n in (4, 9)]
    steps = [chunk(d) for d in data]
    assert steps[0][0]._run is steps[1][0]._run
    assert steps[1][0].step is None  # it was not even rewritten
    for (step, x), own in zip(steps, data, strict=True):
        np.testing.assert_allclose(run(step, x), own[0] + own[2])
    other, x = chunk(data[0], factor=2.0)
    assert other._run is not steps[0][0]._run
    np.testing.assert_allclose(run(other, x), 2.0 * (data[0][0] + data[0][2]))
    # Numba would compile for this layout what has been compiled, with constants as they are then.
    columns, x = chunk(np.asfortranarray(data[1]))
    assert columns._run is not steps[0][0]._run
    np.testing.assert_allclose(run(columns, x), data[1][0] + data[1][2])


def test_what_is_not_known_to_be_equal_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.ones((4, 3))
    first = chunk(data)[0]
    assert chunk(data)[0]._run is first._run
    assert chunk(data, name="mine")[0]._run is not first._run  # an argument of the user's
    assert chunk(data, mode=get_mode("NUMBA"))[0]._run is not first._run
    with monkeypatch.context() as patched:
        patched.setattr("pymc_dpvi.engine.multistep.graph_key", lambda *_: None)
        assert chunk(data)[0]._run is not first._run
    with pytensor.config.change_flags(numba__fastmath=not pytensor.config.numba__fastmath):
        assert chunk(data)[0]._run is not first._run
    kwargs = compile_mode("numba", None)
    assert name_of("k", kwargs, [data], 1) != name_of("k", kwargs, [data], 2)
    assert name_of("k", kwargs, [data]) != name_of("l", kwargs, [data])
    for backend in ("python", "jax"):
        assert name_of("k", compile_mode(backend, None), [data]) is None
    frozen = data.copy()
    frozen.flags.writeable = False
    names = {name_of("k", kwargs, [v]) for v in (data, frozen, data[:, ::2], data[0], data.astype("f4"), 1.0)}
    assert len(names) == 6


def test_no_more_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "MOST", 2)
    made: list[str] = []

    def make(name: str) -> Any:
        return shared(name, lambda: made.append(name) or object())

    a, b = make("a"), make("b")
    assert make("a") is a and make("b") is b and make("a") is a
    make("c")  # b was used longest ago
    assert make("a") is a and make("b") is not b
    assert made == ["a", "b", "c", "b"]
    assert len(compile_cache._kept) == 2
    assert shared(None, object) is not shared(None, object)


def test_a_failure_is_not_kept() -> None:
    def fails() -> Any:
        raise NotImplementedError

    with pytest.raises(NotImplementedError):
        shared("name", fails)
    assert shared("name", lambda: 3) == 3


def test_postponed() -> None:
    calls: list[int] = []
    x = pt.dscalar()

    def compiled() -> Any:
        calls.append(1)
        return pytensor.function([x], 2 * x, mode="FAST_COMPILE")

    function = Postponed(compiled)
    assert not calls
    assert function(3.0) == 6.0 and function.maker.fgraph.inputs and len(calls) == 1


def logistic(num_records: int, seed: int) -> tuple[pm.Model, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(num_records, 3)), rng.random(num_records) < 0.5
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=3)
        pm.Bernoulli("y", logit_p=x @ beta, observed=y)
    return model, [x, y]


def _arrays() -> list[np.ndarray]:
    """Every array that something the collector knows of refers to."""
    return [v for o in gc.get_objects() for v in gc.get_referents(o) if issubclass(type(v), np.ndarray)]


@pytest.mark.turns
@pytest.mark.compiled
def test_fits_of_an_equal_model_share_one_step_that_holds_no_data() -> None:
    loops: list[Any] = []
    # Lengths that no other array has.
    for seed, (n, epsilon) in enumerate([(40_009, 1.0), (40_013, 0.5), (40_031, 1.0)]):
        model, data = logistic(n, seed)
        method = DPADVI(**{**FITS, "epsilon": epsilon}, model=model)
        approx = pm.fit(5 + seed, method=method, model=model, progressbar=False)
        approx.sample(5)
        assert method._runs.step is not None
        loops.append(method._runs.step.chunk._run)
        forgotten = weakref.ref(model), *map(weakref.ref, [*data, *method._record.arrays, approx])
        del model, data, method, approx
        gc.collect()
        assert [r() for r in forgotten] == [None] * len(forgotten)
        assert not [v for v in _arrays() if n in v.shape]
    assert loops[0] is loops[1] is loops[2]
    assert loops[0] in compile_cache._kept.values()


@pytest.mark.turns
def test_what_would_be_kept_is_seen() -> None:
    """The planted bug: a compiled step with the data in it."""
    model, data = logistic(40_037, 0)
    there = weakref.ref(model)
    shared("planted", lambda held=(model, data): held)
    del model, data
    gc.collect()
    assert there() is not None
    assert [v for v in _arrays() if 40_037 in v.shape]


@pytest.mark.turns
@pytest.mark.parametrize("planted", [False, True])
def test_nothing_that_a_fit_compiled_outlives_it(
    planted: bool, without_compiling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTensor's rewrites remember every operation, so that what hangs on ours would stay for good."""
    if planted:
        monkeypatch.setattr(MicrobatchedSum, "forget", lambda self: None)

    def functions() -> int:
        gc.collect()
        return sum(type(o).__name__ == "Function" and hasattr(o, "maker") for o in gc.get_objects())

    def fit() -> None:
        model, _ = logistic(30, 0)
        DPADVI(**FITS, model=model).fit(1, backend="python", progressbar=False)

    fit()
    before = functions()
    fit()
    assert functions() - before == int(planted)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numba", "python"])
def test_a_process_does_not_grow_with_fits(backend: str) -> None:
    """30 fits of one model on data of their own, where a step compiled for each takes 2 to 10 MB.

    What is freed is not given back at once, so that some is left whatever the number of fits.
    """
    script = Path(__file__).parents[2] / "benchmarks" / "memory_of_fits.py"
    command = [sys.executable, str(script), "--fits", "33", "--steps", "20", "--backend", backend]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    grown = float(out.strip().splitlines()[-1].split()[-1])
    assert grown < 40.0, out
