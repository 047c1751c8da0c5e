"""Steps whose sum is made by threads: the same, bit by bit, for any number, and no way around the sum."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from functools import partial
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dpvi import DPADVI, ArgumentError, audit, numba_cache
from pymc_dpvi.engine import (
    assisted_chunk,
    assisted_sum,
    atomics,
    lattice_sums,
    pieces,
    split_step,
    step,
    threads,
)
from pymc_dpvi.engine.pieces import PieceSum, cuts_of_persons
from pymc_dpvi.errors import ModelEvaluationError, PrivacyError
from pymc_dpvi.numba_cache import kernel

pytestmark = pytest.mark.filterwarnings("ignore:.*insecure_noise_seed.*")

N = 3000
rng = np.random.default_rng(7)
X = rng.normal(size=(N, 4))
Y = rng.binomial(1, 0.4, size=N)
GROUP = rng.integers(0, 9, size=N)
PERSON = rng.integers(0, 400, size=N)


def dense() -> None:
    scale = pm.HalfNormal("scale", 1)
    pm.Normal("y", pm.Normal("mean", 0, 1), scale, observed=X[:, 0])


def outer() -> None:
    pm.Bernoulli("y", logit_p=pm.Data("x", X) @ pm.Normal("beta", 0, 1, shape=4), observed=Y)


def sparse() -> None:
    level = pm.Normal("level", 0, 1, shape=9)
    pm.Normal("y", level[pm.Data("group", GROUP)], 1.0, observed=X[:, 1])


def network() -> None:
    first, second = pm.Normal("first", 0, 1, shape=(4, 40)), pm.Normal("second", 0, 1, shape=(40, 3))
    hidden = pt.tanh(pm.Data("x", X) @ first)
    pm.Categorical("y", logit_p=hidden @ second, observed=GROUP % 3)


def persons() -> None:
    pm.Data("person", PERSON)
    outer()


def network_of_persons() -> None:
    """The first matrix is large enough for a person's gradient to stay factored."""
    pm.Data("person", PERSON)
    x = pm.Data("x", np.tile(X, 8) * np.linspace(-1.0, 1.0, 32))
    hidden = pt.tanh(x @ pm.Normal("first", 0, 1, shape=(32, 32)))
    pm.Categorical("y", logit_p=hidden @ pm.Normal("second", 0, 1, shape=(32, 3)), observed=GROUP % 3)


def intercepts() -> None:
    person = pm.Data("person", PERSON)
    own = pm.Normal("own", 0, pm.HalfNormal("spread", 1), shape=400)
    pm.Bernoulli("y", logit_p=own[person] + pm.Normal("mean", 0, 1), observed=Y)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "dense": (dense, {}),
    "outer": (outer, {}),
    "sparse": (sparse, {}),
    "network": (network, {}),
    "vanilla": (outer, {"gradient": "vanilla", "l2_clip_norm": 1.0}),
    "full batch": (outer, {"sampler": "full_batch", "sampling_prob": None}),
    "persons": (persons, {"unit": "person"}),
    "network of persons": (network_of_persons, {"unit": "person"}),
    "some rows of persons": (persons, {"unit": "person", "max_rows_per_unit": 8}),
    "intercepts": (intercepts, {"unit": "person"}),
}


def fitted(build: Any, cores: int | None, n: int = 12, **kwargs: Any) -> list[np.ndarray]:
    kwargs = {"sampling_prob": 0.9, **kwargs}
    with pm.Model():
        build()
        method = DPADVI(noise_multiplier=0.8, delta=1e-6, insecure_noise_seed=5, random_seed=6, **kwargs)
        # Numba also for so few steps.
        approx = method.fit(n, progressbar=False, cores=cores, backend="numba")
    return [p.get_value() for p in approx.params]


#: Those that take numba long go by turns, and so does the comparison with a step in one call.
SLOW = {"vanilla", "network", "network of persons", "some rows of persons"}
QUICK = {"outer", "persons"}


def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take steps in parts, as those with long vectors are (`split_step`)."""
    monkeypatch.setattr(step, "has_long_vectors", lambda _: True)


def begun_by_helpers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Keep how many pieces helpers have begun in each call."""
    numbers = []

    def kept(board: np.ndarray) -> None:
        assisted_sum.dismiss(board)
        numbers.append(int(board[:, assisted_sum.BEGUN].sum()))

    monkeypatch.setattr(assisted_chunk, "dismiss", kept)
    return numbers


@pytest.mark.turns
@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.zoo] if name in SLOW else []) for name in CASES]
)
def test_any_number_of_helpers_gives_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, kwargs = CASES[case]
    monkeypatch.setattr(pieces, "_NUMBERS", 1)  # the shortest pieces, so that there are many
    one, found = fitted(build, 1, **kwargs), begun_by_helpers(monkeypatch)
    for cores in (2, 3):
        for _ in range(100):  # a helper may come late to a fit
            for a, b in zip(one, fitted(build, cores, **kwargs), strict=True):
                assert np.array_equal(a, b)
            if found[-1]:
                break
        else:
            raise AssertionError("no helper has taken part")


@pytest.mark.turns
@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.zoo] if name in SLOW else []) for name in CASES]
)
def test_any_number_of_threads_gives_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch)
    build, kwargs = CASES[case]
    used = set()
    add_up = PieceSum.__call__

    def watched(self: PieceSum, batch: Any, cuts: Any, turns: Any, total: Any) -> None:
        before = int(turns[0])
        if threading.current_thread() is threading.main_thread() and cores > 1 and cuts.size > 2:
            deadline = time.monotonic() + 1.0
            while turns[0] == before and time.monotonic() < deadline:
                time.sleep(1e-4)  # until another thread has taken a piece
        add_up(self, batch, cuts, turns, total)
        used.add(threading.get_ident())

    monkeypatch.setattr(PieceSum, "__call__", watched)
    cores = 1
    one = fitted(build, 1, **kwargs)
    assert used == {threading.get_ident()}
    for cores in (2, 3):
        for a, b in zip(one, fitted(build, cores, **kwargs), strict=True):
            assert np.array_equal(a, b)
    assert len(used) > 1


@pytest.mark.turns
@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.zoo]) for name in CASES]
)
def test_threads_give_what_one_call_gives(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, kwargs = CASES[case]
    helped = fitted(build, 2, **kwargs)
    for a, b in zip(helped, fitted(build, None, **kwargs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    in_parts(monkeypatch)
    for a, b in zip(helped, fitted(build, 2, **kwargs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_pieces_of_persons_end_with_a_person() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        rows = rng.integers(1, 8, size=rng.integers(1, 40))
        last = np.zeros(rows.sum(), dtype=np.int64)
        last[np.cumsum(rows) - 1] = 1
        marked = 2 * rng.permutation(last.size) + last
        length = rng.choice([1, 5, 10, 100])
        cuts = cuts_of_persons(marked, length)
        assert all(last[a:b].sum() == 1 for a, b in pairwise(cuts) if b - a > length)
        assert cuts[0] == 0 and cuts[-1] == marked.size
        assert (last[cuts[1:] - 1] == 1).all()
        assert (np.diff(cuts) <= length).all() or length < 7  # else some are one person
        assert (cuts[2:] - cuts[:-2] > length).all()  # no two of them fit together


@pytest.mark.turns
def test_an_error_in_a_thread_ends_all_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch)
    with pm.Model():
        outer()
        method = DPADVI(noise_multiplier=0.8, delta=1e-6, sampling_prob=0.9, insecure_noise_seed=5)
        method.fit(3, progressbar=False, cores=2, backend="numba")
    calls = []

    def raising(self: PieceSum, *args: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError("record 4711 is 3.25")
        time.sleep(0.01)

    monkeypatch.setattr(PieceSum, "__call__", raising)
    with pytest.raises(ModelEvaluationError, match="ZeroDivisionError") as caught:
        method.refine(5, progressbar=False)
    assert "4711" not in str(caught.value) and caught.value.__context__ is None
    seen = len(calls)
    time.sleep(0.05)
    assert len(calls) == seen  # nobody goes on
    assert method.approx.privacy.runs[-1].n_steps == 5  # what was planned is charged


@pytest.mark.turns
def test_an_error_in_a_helper_ends_the_fit_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["if number > 0:", "    return 0", "add_up(address, number)", "return 1"]
    fails = "\n    ".join(["def work(address, number):", *lines]) + "\n"
    monkeypatch.setattr(numba_cache, "_SOURCES", f"helpers fail, {time.time()}")
    monkeypatch.setattr(assisted_sum, "_TRY", fails)
    before = set(threading.enumerate())
    with pm.Model():
        outer()
        method = DPADVI(noise_multiplier=0.8, delta=1e-6, sampling_prob=0.9, insecure_noise_seed=5)
        with pytest.raises(ModelEvaluationError, match="raised RuntimeError") as caught:
            method.fit(1_000_000, progressbar=False, cores=2, backend="numba")
    assert caught.value.__context__ is None
    for thread in set(threading.enumerate()) - before:
        thread.join(5.0)
        assert not thread.is_alive()


@pytest.mark.turns
def test_what_comes_after_the_sum_cannot_read_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch)
    with pm.Model() as model:
        outer()
        data = model["x"]
        method = DPADVI(noise_multiplier=0.8, delta=1e-6, sampling_prob=0.9, insecure_noise_seed=5)

    caught = []

    class Spying(split_step._Cut):
        def __init__(self, inputs: Any, outputs: Any) -> None:
            (records,) = [v for v in inputs if v.type.ndim == 2 and v.name == data.name]
            with pytest.raises(PrivacyError, match="around their noisy sum"):
                super().__init__(inputs, [outputs[0] + records.sum(), *outputs[1:]])
            caught.append(1)
            super().__init__(inputs, outputs)

    monkeypatch.setattr(split_step, "_Cut", Spying)
    method.fit(3, progressbar=False, cores=1, backend="numba")
    assert caught


@pytest.mark.turns
def test_threads_by_default_where_a_step_is_long_by_what_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    init = threads.Threads.__init__

    def watched(self: threads.Threads, cores: int) -> None:
        made.append(cores)
        init(self, cores)

    monkeypatch.setattr(threads.Threads, "__init__", watched)
    monkeypatch.setattr(split_step, "_LONG", 5000)
    fitted(outer, None)
    assert made == []  # how many records there are is private
    fitted(outer, None, batch_size=2000, sampling_prob=None)
    assert made == [threads.available_cores()]
    fitted(outer, None, batch_size=200, sampling_prob=None)
    assert len(made) == 1


@pytest.mark.turns
def test_fits_in_several_threads_share_what_is_compiled() -> None:
    def begun() -> DPADVI:
        with pm.Model():
            outer()
            method = DPADVI(
                noise_multiplier=0.8, delta=1e-6, sampling_prob=0.9, insecure_noise_seed=5, random_seed=6
            )
            method.fit(2, progressbar=False, cores=2, backend="numba")
        return method

    # PyMC and PyTensor change their settings while they build and compile: that is left to one thread.
    wanted, *methods = (begun() for _ in range(4))
    wanted.refine(400, progressbar=False)
    at_once = [threading.Thread(target=m.refine, args=(400,), kwargs={"progressbar": False}) for m in methods]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in at_once:
            thread.start()
        for thread in at_once:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    for method in methods:
        for a, b in zip(method.approx.params, wanted.approx.params, strict=True):
            assert np.array_equal(a.get_value(), b.get_value())


@numba.njit
def _too_little(sums: Any, noise: Any, spacing: float) -> Any:  # pragma: no cover
    return lattice_sums.release_of(sums, noise // 2, spacing)


@pytest.mark.turns
def test_an_audit_looks_at_the_sums_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    with pm.Model():
        outer()
        method = DPADVI(epsilon=1.0, delta=1e-6)
    assert audit(method=method, runs=400, cores=2, random_seed=1).passed
    # Other sources have other keys, so what is kept on the disk and in the process is not found.
    monkeypatch.setattr(numba_cache, "_SOURCES", f"with too little noise, {time.time()}")
    monkeypatch.setattr(assisted_sum, "release_of", _too_little)
    assert not audit(method=method, runs=400, cores=2, random_seed=1).passed
    monkeypatch.undo()
    in_parts(monkeypatch)
    assert audit(method=method, runs=400, cores=2, random_seed=1).passed
    add = split_step.SplitChunk._release_of
    monkeypatch.setattr(split_step.SplitChunk, "_release_of", lambda self, s, n, u: add(self, s, n // 2, u))
    assert not audit(method=method, runs=400, cores=2, random_seed=1).passed


@pytest.mark.turns
@pytest.mark.parametrize("cores", [0, -1, 2.5, "all", True])
def test_cores_is_a_positive_whole_number(cores: Any) -> None:
    with pm.Model():
        outer()
        method = DPADVI(epsilon=1.0, delta=1e-6)
        with pytest.raises(ArgumentError, match="cores"):
            method.fit(3, cores=cores)


def test_cores_needs_numba() -> None:
    with pm.Model():
        outer()
        method = DPADVI(epsilon=1.0, delta=1e-6)
        with pytest.raises(ArgumentError, match="cores=2 needs backend"):
            method.fit(3, cores=2, backend="python")
        with pytest.raises(ArgumentError, match=r"give it to pm\.fit"):
            DPADVI(epsilon=1.0, delta=1e-6, cores=2)


@pytest.mark.turns
def test_cores_needs_noise_that_pieces_fit_in() -> None:
    with pm.Model():
        outer()
        method = DPADVI(noise_multiplier=1e7, delta=1e-6, sampling_prob=0.1, insecure_noise_seed=1)
        with pytest.raises(ArgumentError, match="cores=2 needs noise"):
            method.fit(3, cores=2, backend="numba")


def test_threads_that_cannot_begin_leave_none_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    four, start, begun = threads.Threads(4), threading.Thread.start, []

    def once(self: threading.Thread) -> None:
        if begun:
            raise RuntimeError("can't start new thread")
        begun.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", once)
    with pytest.raises(RuntimeError, match="new thread"):
        four.each(lambda _: 0, 4)
    begun[0].join(5.0)
    assert not begun[0].is_alive()


def test_threads_end_with_what_holds_them() -> None:
    """As in a generator that nobody closes, or a step that a caller drops."""
    before = set(threading.enumerate())
    three = threads.Threads(3)
    three.each(lambda bells: threads.ring(bells), 3)
    begun = set(threading.enumerate()) - before
    assert len(begun) == 2
    del three
    gc.collect()
    for thread in begun:
        thread.join(5.0)
        assert not thread.is_alive()


@pytest.mark.parametrize("looks", [1, 1 << 20])
def test_threads_share_work_and_hand_on_what_is_raised(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are awake or asleep when work comes."""
    monkeypatch.setattr(threads, "_LOOKS", looks)
    monkeypatch.setattr(threads, "available_cores", lambda: 3)
    three, caller = threads.Threads(3), threading.current_thread()
    all_there = threading.Barrier(3)

    def who(bells: np.ndarray) -> threading.Thread:
        threads.ring(bells)
        all_there.wait(5.0)
        return threading.current_thread()

    def fails(bells: np.ndarray) -> None:
        if who(bells) is not caller:
            raise MemoryError("of a thread")

    def fails_early(_: np.ndarray) -> None:
        if threading.current_thread() is caller:  # so that nobody rings before the others are waited for
            raise MemoryError("of the caller")

    for _ in range(50):
        assert len(set(three.each(who, 9))) == 3
    with pytest.raises(MemoryError, match="of a thread"):
        three.each(fails, 9)
    with pytest.raises(MemoryError, match="of the caller"):
        three.each(fails_early, 9)
    assert len(set(three.each(who, 9))) == 3
    helpers = set(three._helpers)
    give, given = type(three._helpers[0]).give, []

    def interrupted_once(self: Any, work: Any) -> None:
        give(self, work)
        given.append(self)
        if len(given) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(type(three._helpers[0]), "give", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        three.each(lambda _: 0, 9)
    for helper in helpers:  # told to end, the one that had work and the one that had none
        helper._thread.join(5.0)
        assert not helper._thread.is_alive()
    all_there = threading.Barrier(2)
    assert len(three.each(who, 2)) == 2 and three.each(lambda _: 1, 1) == [1]
    helpers = set(three._helpers)
    three.close()
    for helper in helpers:
        helper._thread.join(5.0)
        assert not helper._thread.is_alive()


@kernel(nogil=True)
def _take_all(turns: Any, times: Any, load: Any, bells: Any) -> None:  # pragma: no cover
    threads.ring(bells)
    x, k = 0.5, atomics.take_turn(turns)
    while k < times.size:
        for _ in range(load):
            x = 3.9 * x * (1.0 - x)
        times[k] += 1 if x < 2.0 else 2
        k = atomics.take_turn(turns)


@pytest.mark.parametrize("looks", [1, 1000, 1 << 20])
def test_nobody_is_waited_for_for_ever(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a thread looks before it sleeps: it may fall asleep at any place of a turn."""
    monkeypatch.setattr(threads, "_LOOKS", looks)
    monkeypatch.setattr(threads, "available_cores", lambda: 3)
    rng, three = np.random.default_rng(looks), threads.Threads(3)

    def rounds() -> None:
        for _ in range(3000):
            pieces, load = rng.integers(1, 8), rng.choice([1, 1000, 50_000], p=[0.6, 0.38, 0.02])
            turns, times = np.zeros(1, dtype=np.int64), np.zeros(pieces, dtype=np.int64)
            three.each(partial(_take_all, turns, times, load), int(pieces))
            assert (times == 1).all()
            if load > 1000:
                time.sleep(1e-3)
        ended.set()

    ended = threading.Event()
    threading.Thread(target=rounds, daemon=True).start()
    assert ended.wait(60.0)
    three.close()


@pytest.mark.turns
def test_records_may_lie_in_memory_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(x: np.ndarray) -> Any:
        return lambda: pm.Bernoulli(
            "y", logit_p=pm.Data("x", x) @ pm.Normal("beta", 0, 1, shape=4), observed=Y
        )

    wanted = fitted(build(X), 2)
    for x in (np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2]):
        assert not x.flags.c_contiguous
        for a, b in zip(wanted, fitted(build(x), 2), strict=True):
            assert np.array_equal(a, b)

    def watched(held: list[Any]) -> list[bool]:
        return [v.get_value(borrow=True).flags.c_contiguous for v in held if v.type.ndim == 2]

    monkeypatch.setattr(split_step, "_LONG", 5000)  # also where threads are the default
    with pm.Model():
        build(np.asfortranarray(X))()
        method = DPADVI(epsilon=1.0, delta=1e-6, batch_size=2000)
        method.fit(3, progressbar=False, backend="numba")
    assert method._runs.step is not None
    chunk = method._runs.step.chunk
    assert isinstance(chunk, assisted_chunk.AssistedChunk) and all(watched(chunk.held))


@pytest.mark.turns
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("parts", [False, True])
def test_an_interrupt_leaves_nobody_at_work(parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if parts:
        in_parts(monkeypatch)
    before = set(threading.enumerate())
    with pm.Model():
        outer()
        method = DPADVI(noise_multiplier=0.8, delta=1e-6, sampling_prob=0.9, insecure_noise_seed=5)
        method.fit(3, progressbar=False, cores=3, backend="numba")
    for _ in range(5):
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        method.refine(1_000_000, progressbar=False)
        timer.join()
        assert method.approx.privacy.runs[-1].n_steps == 1_000_000
    for thread in set(threading.enumerate()) - before:
        thread.join(5.0)
        assert not thread.is_alive()
    method.refine(3, progressbar=False)


@pytest.mark.turns
def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    with pm.Model():
        outer()
        method = DPADVI(noise_multiplier=0.8, delta=1e-6, sampling_prob=0.9, insecure_noise_seed=5)
        method.fit(3, progressbar=False, cores=3, backend="numba")
        method.refine(3, progressbar=False)
    for thread in set(threading.enumerate()) - before:
        thread.join(5.0)
        assert not thread.is_alive()
