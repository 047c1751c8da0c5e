"""A fit that ends early: all planned steps are charged, and what was released is kept."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pymc as pm
import pytest
from pymc.variational.callbacks import CheckParametersConvergence
from short_fits import CHEAP, MARKS, SEEDED, Build, Iterates, params, quiet

from pymc_dpvi import DPADVI, accounting
from pymc_dpvi.engine import loop
from pymc_dpvi.errors import ModelEvaluationError
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.progress import StepProgress

pytestmark = MARKS


def test_convergence_check_stops(logistic: Build, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="pymc_dpvi")
    check = CheckParametersConvergence(every=5, tolerance=1e9)
    with logistic():
        approx = pm.fit(30, method=DPADVI(**SEEDED), callbacks=[check], progressbar=False)
    run = approx.privacy.runs[0]
    assert (run.n_steps, run.steps_run) == (30, 5)
    assert 0.99 < run.epsilon <= 1.0  # the planned cost
    assert "Convergence achieved at 5" in caplog.text
    assert np.isfinite(approx.sample(3)["posterior"]["beta"].values).all()


def test_stop_iteration(logistic: Build) -> None:
    def stop(approx: Any, losses: Any, i: int) -> None:
        if i == 9:
            raise StopIteration

    seen = Iterates()
    with logistic():
        approx = quiet(DPADVI(**CHEAP), 12, callbacks=[seen, stop])
    assert approx.privacy.runs[0].steps_run == 9
    np.testing.assert_allclose(params(approx), np.mean(seen.values[6:], axis=0), rtol=1e-10)


def test_callback_that_raises(logistic: Build) -> None:
    def boom(approx: Any, losses: Any, i: int) -> None:
        if i == 3:
            raise LookupError("mine")

    with logistic():
        method = DPADVI(**SEEDED)
        with pytest.raises(LookupError, match="mine"):
            pm.fit(10, method=method, callbacks=[boom], progressbar=False)
    run = method.approx.privacy.runs[0]
    assert (run.n_steps, run.steps_run) == (10, 3)
    assert 0.99 < run.epsilon <= 1.0
    assert method.approx.sample(2)["posterior"]["beta"].shape == (1, 2, 2)
    method.refine(4, progressbar=False)
    assert len(method.approx.privacy.runs) == 2


def test_charged_before_the_first_draw(logistic: Build, nothing_spent: None) -> None:
    with logistic():
        method = DPADVI(**SEEDED)
        with pytest.raises(AssertionError, match="the mechanism was run"):
            quiet(method, 10)
    run = method.approx.privacy.runs[0]
    assert (run.n_steps, run.steps_run) == (10, 0)
    assert 0.99 < run.epsilon <= 1.0


def test_keyboard_interrupt_in_a_callback(logistic: Build) -> None:
    def interrupt(approx: Any, losses: Any, i: int) -> None:
        if i == 4:
            raise KeyboardInterrupt

    seen = Iterates()
    with logistic():
        approx = pm.fit(20, method=DPADVI(**SEEDED), callbacks=[seen, interrupt], progressbar=False)
    run = approx.privacy.runs[0]
    assert (run.n_steps, run.steps_run) == (20, 4)
    assert 0.99 < approx.privacy.epsilon <= 1.0
    np.testing.assert_array_equal(params(approx), seen.values[-1])
    assert approx.sample(2)["posterior"]["beta"].shape == (1, 2, 2)


@pytest.mark.turns
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.usefixtures("interruptible")
def test_keyboard_interrupt_by_signal(
    logistic: Build, monkeypatch: pytest.MonkeyPatch, steps_seen: list[tuple[np.ndarray, ...]]
) -> None:
    advance = StepProgress.advance
    over = threading.Event()

    def interrupt() -> None:
        """Again after a while: CPython drops an interrupt that comes while an object is being deleted."""
        wait = 0.05
        while not over.wait(wait):
            os.kill(os.getpid(), signal.SIGINT)
            wait = 10.0

    timer = threading.Thread(target=interrupt)

    def first_chunk(self: StepProgress, steps: int) -> None:
        if timer.ident is None:  # not earlier: the steps are to be interrupted
            timer.start()
        advance(self, steps)

    monkeypatch.setattr(StepProgress, "advance", first_chunk)
    try:
        with logistic():
            approx = quiet(DPADVI(**CHEAP, accountant="rdp"), 90_000)  # PLD would take seconds
    finally:
        over.set()
        timer.join()
    run = approx.privacy.runs[0]
    assert run.n_steps == 90_000
    assert 0 < len(steps_seen) < 90_000
    assert abs(run.steps_run - len(steps_seen)) <= 1
    planned = accounting.epsilon(
        delta=1e-6, noise_multiplier=2.0, n_steps=90_000, sampling_prob=0.3, accountant="rdp"
    )
    assert approx.privacy.epsilon == planned
    assert np.isfinite(approx.sample(2)["posterior"]["beta"].values).all()


def test_no_room_for_a_batch_does_not_tell_how_large_it_is(
    logistic: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = DPADVI(**{**CHEAP, "model": logistic()})
    quiet(method, 4)
    before = params(method.approx)

    def no_room(*_: Any) -> Any:
        raise MemoryError("Unable to allocate 8.01 MiB for an array with shape (1049794,)")

    monkeypatch.setattr(Mechanism, "draw", no_room)
    with pytest.raises(ModelEvaluationError, match="could not be held in memory") as caught:
        method.refine(7, progressbar=False)
    assert "1049794" not in str(caught.value) and caught.value.__context__ is None
    np.testing.assert_array_equal(params(method.approx), before)
    assert [(run.n_steps, run.steps_run) for run in method.approx.privacy.runs] == [(4, 4), (7, 0)]


@pytest.mark.turns
def test_an_interrupted_fit_keeps_the_trace_of_the_steps_run(logistic: Build) -> None:
    def interrupt(approx: Any, losses: Any, i: int) -> None:
        if i == 33:
            raise KeyboardInterrupt

    with logistic():
        approx = quiet(DPADVI(**CHEAP), 100, callbacks=[interrupt])
    assert approx.privacy.runs[0].steps_run == sum(b.n for b in approx._trace.blocks) == 33
    assert approx.sample(4, noise_aware=True).attrs["noise_aware"] == 1
    assert 16 <= approx.diagnostics().n_steps_late <= 26


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("when", ["in the step", "while the loop ends", "while the bar ends", "a timer"])
def test_an_interrupt_does_not_hide_that_a_record_ended_a_run(
    logistic: Build,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    when: str,
) -> None:
    """What was released, or the number of steps, would tell at which step the record did."""

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass  # the interpreter looks for signals here

    with logistic():
        method = DPADVI(**SEEDED)
        pm.fit(2, method=method, progressbar=False)
        before = params(method.approx)

        def raising(*args: Any) -> Any:
            if when == "in the step":
                interrupt()
            raise ZeroDivisionError("record 4711")

        calls = iter([method._runs.step._call, raising])
        # The first call of a run makes one step, the second as many as its time allows.
        monkeypatch.setattr(method._runs.step, "_call", lambda *args: next(calls)(*args))
        ends = StepProgress.__exit__

        def interrupted_end(self: StepProgress, *raised: Any) -> Any:
            found = ends(self, *raised)
            if when == "while the bar ends":
                interrupt()
            return found

        monkeypatch.setattr(StepProgress, "__exit__", interrupted_end)
        draw = loop.closing

        class Closing(draw):  # type: ignore[misc, valid-type]
            def __exit__(self, *raised: Any) -> Any:
                found = super().__exit__(*raised)
                if when == "while the loop ends":
                    interrupt()
                if when == "a timer":  # as a user's own handler of SIGALRM does
                    raise TimeoutError
                return found

        monkeypatch.setattr(loop, "closing", Closing)
        with pytest.raises(ModelEvaluationError, match="ZeroDivisionError"):
            method.refine(9, progressbar=True)
    assert np.array_equal(params(method.approx), before)
    run = method.approx.privacy.runs[-1]
    assert run.n_steps == 9 and not 0 < run.steps_run < 9
    assert "Interrupted" not in caplog.text
    shown = "".join(capsys.readouterr())
    assert "1/9" not in shown.rstrip().rpartition("\r")[2]
