"""Fits of records that are in sources: the same posterior bit by bit, and what is refused."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
from short_fits import CHEAP, MARKS, Iterates, params, quiet

from pymc_dpvi import DPADVI, Amortized, ArgumentError, Point, PrivacyBudget, RecordSourceError, audit
from pymc_dpvi.accounting import epsilon
from pymc_dpvi.engine import read_ahead
from pymc_dpvi.engine.source_records import SourceRecords

pytestmark = MARKS

N = 613
SENTINEL = "SENTINEL-7231.4159"

Model = Callable[..., pm.Model]


def data(dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(N, 3)).astype(dtype)
    return x, (x @ [1.0, -0.5, 0.0] + rng.logistic(size=N) > 0).astype("int8")


def logistic(x: np.ndarray, y: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ beta, observed=y)
    return model


def template() -> pm.Model:
    return logistic(np.linspace(-1, 1, 24).reshape(8, 3), np.array([0, 1] * 4))


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., dict[str, np.ndarray]]:
    """Return a function that writes arrays, and returns memory maps of them."""

    def write(**arrays: np.ndarray) -> dict[str, np.ndarray]:
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", array)
        return {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in arrays}

    return write


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail if a thread of the package is still there that was not before."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("pymc_dpvi"):
            thread.join(5.0)  # it may be on its way out
            assert not thread.is_alive()


class Own:
    """A user's own source; `fails` says whether it does when it is read, from which reading on."""

    def __init__(self, array: np.ndarray, fails: int | None = None) -> None:
        self._array, self._fails = array, fails
        self.shape, self.dtype = array.shape, array.dtype
        self.asked: list[np.ndarray] = []
        self.threads: set[str] = set()

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        self.asked.append(indices)
        self.threads.add(threading.current_thread().name)
        if self._fails is not None and len(self.asked) > self._fails:
            raise OSError(f"{SENTINEL} in /private/{SENTINEL}.npy")
        return self._array[indices]


# ---------------------------------------------------------------- the same posterior


SETTINGS: dict[str, dict[str, Any]] = {
    "poisson": {},
    "batch size": {"batch_size": 90, "sampling_prob": None},
    "fixed size": {"sampler": "fixed_size", "neighboring_relation": "replace_one"},
    "vanilla": {"gradient": "vanilla", "l2_clip_norm": 1.0},
    "empty batches": {"sampling_prob": 1e-3},
}


def fit(
    model: pm.Model, settings: str, n: int, cores: int | None = None, **kwargs: Any
) -> tuple[DPADVI, Any]:
    method = DPADVI(**{**CHEAP, **SETTINGS[settings], **kwargs}, model=model)
    seen = Iterates()
    approx = quiet(method, n, callbacks=[seen], cores=cores)
    method.refine(4, progressbar=False)
    return method, (*seen.values, params(approx), approx.sample(3)["posterior"]["beta"].values)


@pytest.mark.turns
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("buffer", [1 << 25, 1])  # many steps at once, and a step at a time
def test_same_bit_by_bit(settings: str, buffer: int, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_BUFFER_BYTES", buffer)
    x, y = data()
    _, memory = fit(logistic(x, y), settings, 12)
    _, disk = fit(template(), settings, 12, records=files(x=x, y=y))
    for a, b in zip(memory, disk, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.turns
@pytest.mark.compiled
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_same_bit_by_bit_compiled(
    dtype: str, order: Any, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_BUFFER_BYTES", 100_000)  # some steps at once
    x, y = data(dtype)
    _, memory = fit(logistic(x.astype("float64"), y), "poisson", 40, cores=1)
    _, disk = fit(template(), "poisson", 40, records=files(x=np.asarray(x, order=order), y=y))
    for a, b in zip(memory, disk, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.turns
def test_several_outcomes_and_an_index(files: Any) -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "group": rng.integers(0, 4, N).astype("uint8"),
        "score": rng.normal(size=(N, 2)),
        "count": rng.poisson(2.0, N).astype("int32"),
    }

    def build(group: Any, score: Any, count: Any) -> pm.Model:
        with pm.Model() as model:
            a = pm.Normal("beta", 0, 1, shape=4)[pm.Data("group", group)]
            pm.Normal("score of both", a[:, None], 1.0, observed=pm.Data("score", score))
            pm.Poisson("count", pm.math.exp(a), observed=count)
        return model

    _, memory = fit(build(**arrays), "poisson", 5)
    made_up = {"group": np.arange(6) % 4, "score": np.ones((6, 2)), "count": np.arange(6)}
    method, disk = fit(build(**made_up), "poisson", 5, records=files(**arrays))
    np.testing.assert_array_equal(memory[-2], disk[-2])
    results = audit(method=method, n=5, runs=100, backend="python").results
    assert [r.name for r in results if r.passed is False] == ["randomness"]  # the seed


@pytest.mark.turns
def test_a_row_of_nan_counts_zero(files: Any) -> None:
    x, y = data()
    x[7] = np.nan
    _, memory = fit(logistic(np.where(np.isnan(x), np.inf, x), y), "poisson", 5)  # pm.Data takes no NaN
    _, disk = fit(template(), "poisson", 5, records=files(x=x, y=y))
    np.testing.assert_array_equal(memory[-1], disk[-1])


# ---------------------------------------------------------------- what is read, and by whom


@pytest.mark.turns
def test_rows_are_asked_for_ascending_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_BUFFER_BYTES", 20_000)
    x, y = data()
    source = Own(x)
    method, _ = fit(template(), "poisson", 20, records={"x": source, "y": y})
    assert len(source.asked) > 4
    for asked in source.asked:
        assert asked.dtype == np.int64 and (np.diff(asked) > 0).all()
        assert 0 <= asked[0] and asked[-1] < N
    assert threading.current_thread().name not in source.threads
    step = method._runs.step
    assert step is not None and all(len(v.get_value()) == 8 for v, _ in step._data)  # the template is back


@pytest.mark.turns
def test_buffers_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_BUFFER_BYTES", 1)
    buffers: list[weakref.ref] = []
    most = 0
    read = SourceRecords.read

    def watched(self: SourceRecords, *args: Any) -> list[np.ndarray]:
        nonlocal most
        found = read(self, *args)
        buffers.extend(weakref.ref(array) for array in found)
        most = max(most, sum(ref() is not None for ref in buffers))
        return found

    monkeypatch.setattr(SourceRecords, "read", watched)
    method, _ = fit(template(), "poisson", 12, records={"x": X, "y": Y})
    gc.collect()
    assert len(buffers) > 20 and all(ref() is None for ref in buffers)
    assert most == 4  # of two arrays, those of a step and those of the next
    assert method.approx is not None


@pytest.mark.turns
@pytest.mark.parametrize("ends", [StopIteration, KeyboardInterrupt])
def test_ends_early(ends: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_BUFFER_BYTES", 1)

    def stop(approx: Any, losses: Any, i: int) -> None:
        if i == 3:
            raise ends

    x, y = data()
    method = DPADVI(**CHEAP, model=template(), records={"x": x, "y": y})
    approx = quiet(method, 10, callbacks=[stop])
    assert approx.privacy.runs[0].steps_run == 3
    method.refine(2, progressbar=False)
    assert np.isfinite(params(approx)).all()


@pytest.mark.turns
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("wait", [0.0, 0.3])
def test_keyboard_interrupt_while_rows_are_read(wait: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Own):
        def __getitem__(self, indices: np.ndarray) -> np.ndarray:
            if len(self.asked) == 6:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(wait)
            return super().__getitem__(indices)

    monkeypatch.setattr(read_ahead, "_BUFFER_BYTES", 1)
    x, y = data()
    method = DPADVI(**CHEAP, model=template(), records={"x": Slow(x), "y": y})
    approx = quiet(method, 1000)
    run = approx.privacy.runs[0]
    assert run.n_steps == 1000 and 0 < run.steps_run < 1000
    assert np.isfinite(params(approx)).all()


# ---------------------------------------------------------------- sources that fail


@pytest.mark.turns
def test_a_source_that_fails_tells_nothing() -> None:
    x, y = data()
    source = Own(x, fails=2)
    method = DPADVI(**CHEAP, model=template(), records={"x": source, "y": y})
    before = params(method.approx)
    with pytest.raises(RecordSourceError, match=r"records\['x'\] raised OSError .* charged") as caught:
        quiet(method, 2000)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert SENTINEL not in "".join(traceback.format_exception(caught.value))
    np.testing.assert_array_equal(params(method.approx), before)
    assert method.approx.privacy.runs[0].n_steps == 2000
    assert method.approx.privacy.epsilon > 0
    text = str(caught.value)
    assert str(N) not in text
    for frame, _ in traceback.walk_tb(caught.value.__traceback__):
        if "pymc_dpvi" in str(frame.f_globals.get("__name__")):
            assert SENTINEL not in repr(frame.f_locals)
            assert not any(isinstance(v, np.ndarray | Own) for v in frame.f_locals.values())


@pytest.mark.turns
def test_when_it_fails_nothing_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_BUFFER_BYTES", 1)
    x, y = data()
    texts = set()
    for fails in (2, 5):
        method = DPADVI(**CHEAP, model=template(), records={"x": Own(x, fails), "y": y})
        with pytest.raises(RecordSourceError) as caught:
            quiet(method, 10)
        texts.add((str(caught.value), method.approx.privacy.runs[0].steps_run))
    assert len(texts) == 1


@pytest.mark.turns
def test_a_source_that_returns_something_else() -> None:
    class Other(Own):
        def __getitem__(self, indices: np.ndarray) -> np.ndarray:
            found = super().__getitem__(indices)
            return found if len(self.asked) == 1 else found[:-1]

    x, y = data()
    method = DPADVI(**CHEAP, model=template(), records={"x": Other(x), "y": y})
    with pytest.raises(RecordSourceError, match="raised TypeError"):
        quiet(method, 5)


@pytest.mark.turns
def test_no_room_for_a_batch_tells_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(indices: np.ndarray) -> Any:
        raise MemoryError(f"Unable to allocate {SENTINEL}")

    x, y = data()
    method = DPADVI(**CHEAP, model=template(), records={"x": x, "y": y})
    monkeypatch.setattr(read_ahead, "_distinct", full)
    with pytest.raises(RecordSourceError, match="MemoryError") as caught:
        quiet(method, 5)
    assert SENTINEL not in "".join(traceback.format_exception(caught.value))


def factors(x: np.ndarray) -> tuple[pm.Model, dict[Any, Any]]:
    with pm.Model() as model:
        seen = pm.Data("x", x)
        v, w = pm.Flat("V", shape=(3, 2)), pm.Normal("W", 0, 1, shape=(2, 3))
        z = pm.Normal("z", 0, 1, shape=(len(x), 2))
        pm.Normal("y", z @ w, 0.5, observed=seen)
    return model, {"z": Amortized(seen @ v, pm.math.exp(seen[:, :2] * 0.1)), ("V", "W"): Point()}


@pytest.mark.turns
@pytest.mark.parametrize("buffer", [1 << 25, 1])
def test_encoders_are_the_same_bit_by_bit(buffer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record has noise of its own, which is made when it is read."""
    monkeypatch.setattr(read_ahead, "_BUFFER_BYTES", buffer)
    start = {"V": np.full((3, 2), 0.1), "W": np.arange(6).reshape(2, 3) / 5}
    found = []
    for rows, more in ((X, {}), (X[:8] * 2, {"records": {"x": X}})):
        model, guide = factors(rows)
        approx = quiet(DPADVI(**CHEAP, model=model, guide=guide, start=start, **more), 6)
        found.append((params(approx), approx.sample(2)["posterior"]["W"].values))
        codes = approx.local_posterior({"x": X[:4]}, 3, random_seed=1)["posterior"]["z"]
        found[-1] += (codes.values,)
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


# ---------------------------------------------------------------- what is refused


X, Y = data()
REFUSED: dict[str, tuple[Any, str]] = {
    "no dict": (X, "records must be a dict of names and sources"),
    "missing": ({"x": X}, r"records lacks 'y'.*Say records=\{'y': ...\}"),
    "extra": ({"x": X, "y": Y, "z": Y}, "records names 'z', .* these are"),
    "object": ({"x": X.astype(object), "y": Y}, "entries of type object_"),
    "strings": ({"x": X, "y": Y.astype("U7")}, "entries of type str_,"),
    "float to int": (
        {"x": X, "y": Y.astype(float)},
        "type float64, .* store the records as int64",
    ),
    "complex": ({"x": X.astype(complex), "y": Y}, "complex128"),
    "dates": ({"x": X, "y": Y.astype("M8[s]")}, "entries of type datetime64"),
    "row shape": (
        {"x": X[:, :2], "y": Y},
        r"rows of shape \(2,\), and those of the template",
    ),
    "lengths": ({"x": X, "y": Y[:-1]}, "'x'\\] and records\\['y'\\] have different lengths"),
    "empty": ({"x": X[:0], "y": Y[:0]}, r"records\['x'\] has fewer than two rows"),
    "one row": ({"x": X[:1], "y": Y[:1]}, r"records\['x'\] has fewer than two rows"),
    "no axis": ({"x": X, "y": np.array(1)}, "IndexError was raised"),
    "a list": ({"x": X.tolist(), "y": Y}, r"it is a list: give np.asarray\(...\) of it"),
    "a path": ({"x": "x.npy", "y": Y}, "open it first"),
    "masked": ({"x": np.ma.masked_array(X), "y": Y}, "MaskedArray"),
    "no array": ({"x": object(), "y": Y}, "has shape and dtype and is read by source"),
    "fails at once": (
        {"x": Own(X, fails=0), "y": Y},
        "raised OSError while rows.*Nothing is spent",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, nothing_spent: None) -> None:
    records, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=f"(?s){message}") as caught:
        DPADVI(**CHEAP, model=template(), records=records)
    text = "".join(traceback.format_exception(caught.value))
    assert SENTINEL not in text and str(N) not in str(caught.value)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"unit": np.arange(N) // 2}, r"must be the name of a pm.Data .* records=\{'person': ids"),
        ({"unit": np.arange(8) // 2}, r"must be the name of a pm.Data .* records=\{'person': ids"),
        ({"unit": "x"}, "unit must"),
        ({"sampler": "full_batch", "sampling_prob": None}, "would read everything"),
        ({"sampling_prob": 1.0}, "would read everything"),
    ],
)
def test_settings_that_do_not_go_with_it(kwargs: Any, message: str, nothing_spent: None) -> None:
    with pytest.raises(ArgumentError, match=message):
        DPADVI(**{**CHEAP, **kwargs}, model=template(), records={"x": X, "y": Y})


def test_a_batch_of_all_records_is_refused(nothing_spent: None) -> None:
    settings = {**CHEAP, "sampling_prob": None, "batch_size": N}
    method = DPADVI(**settings, model=template(), records={"x": X, "y": Y})
    with pytest.raises(ArgumentError, match="would read everything"):
        quiet(method, 5)


def test_an_array_without_a_name_is_refused() -> None:
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=np.ones((8, 3)) @ beta, observed=np.array([0, 1] * 4))
    with pytest.raises(ArgumentError, match=r"Wrap it as pm.Data\('x', ...\), and name it in records="):
        DPADVI(**CHEAP, model=model, records={"y": Y})


def test_another_length_later_is_refused(nothing_spent: None) -> None:
    source = Own(X)
    method = DPADVI(**CHEAP, model=template(), records={"x": source, "y": Y})
    source.shape = (N + 1, 3)
    with pytest.raises(ArgumentError, match="another length or type now") as caught:
        quiet(method, 5)
    assert str(N) not in str(caught.value)


def test_another_length_before_refine_is_refused() -> None:
    budget = PrivacyBudget(epsilon=10.0, delta=1e-3)
    settings = {**CHEAP, "insecure_noise_seed": None, "budget": budget}
    source = Own(X)
    method = DPADVI(**settings, model=template(), records={"x": source, "y": Y})
    quiet(method, 5)
    spent = len(budget.ledger)
    source.shape = (N + 1, 3)
    with pytest.raises(ArgumentError, match="another length or type now"):
        method.refine(5, progressbar=False)
    assert len(budget.ledger) == spent == 1


def test_a_template_that_has_changed_is_refused() -> None:
    model = template()
    method = DPADVI(**CHEAP, model=model, records={"x": X, "y": Y})
    with model:
        pm.set_data({"x": np.ones((9, 3))})
    with pytest.raises(ValueError, match="another shape now"):
        quiet(method, 5)


@pytest.mark.turns
def test_report_and_cost_are_those_of_the_records() -> None:
    settings = {**CHEAP, "sampling_prob": None, "batch_size": 100}
    approx = quiet(DPADVI(**settings, model=template(), records={"x": X, "y": Y}), 5)
    run = approx.privacy.runs[0]
    assert run.sampling_prob == 100 / N
    assert run.epsilon == epsilon(delta=1e-6, noise_multiplier=2.0, n_steps=5, sampling_prob=100 / N)
    assert "template" not in str(approx.privacy)
