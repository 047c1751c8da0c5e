"""What numba cannot compile is computed by C or Python, and says so; nothing is charged by that."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numba.core.errors import TypingError, UnsupportedError

import pymc_dpvi
from pymc_dpvi import DPADVI, PrivacyBudget, PrivacyReport, check_release, runs
from pymc_dpvi.compat import compile_mode
from pymc_dpvi.engine import backends
from pymc_dpvi.engine.backends import Backend, StepFailedError, few_steps, first_that_works, reason_of
from pymc_dpvi.errors import ArgumentError, InsecureNoiseWarning, UnsupportedModelError

REASON = (
    "Failed in nopython mode pipeline (step: x)\nCalling a closure with *args is unsupported.\n\nFile ..."
)
DEFAULT = [Backend(name, compile_mode(name, None)) for name in ("numba", "c", "python")]


def failing(*names: str, error: Callable[[], Exception] = lambda: UnsupportedError(REASON)) -> Any:
    """Make a backend's step: its name, or an error of the compiler."""
    tried: list[str] = []

    def make(candidate: Backend) -> str:
        tried.append(candidate.name)
        if candidate.name in names:
            raise error()
        return f"step of {candidate.name}"

    return make, tried


@pytest.mark.parametrize(
    ("broken", "taken", "tried"),
    [
        ((), "numba", ["numba"]),
        (("numba",), "c", ["numba", "python", "c"]),
        (("numba", "c"), "python", ["numba", "python", "c"]),
    ],
)
def test_the_first_that_works(
    broken: tuple[str, ...], taken: str, tried: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    make, seen = failing(*broken)
    with caplog.at_level(logging.WARNING):
        step, said = first_that_works(DEFAULT, make)
    assert step == f"step of {taken}" and seen == tried
    assert said.split(" (")[0] == taken
    assert len(caplog.records) == (1 if broken else 0)
    for name in broken:
        assert f"{name}: UnsupportedError: Calling a closure with *args is unsupported" in said
        assert name in caplog.text and "closure" in caplog.text


def test_what_fails_everywhere_is_no_fault_of_a_backend() -> None:
    make, tried = failing("numba", "c", "python", error=lambda: StepFailedError("ValueError"))
    with pytest.raises(ArgumentError, match=r"raised ValueError.*obj_optimizer.*Nothing is spent"):
        first_that_works(DEFAULT, make)
    assert tried == ["numba", "python"]


@pytest.mark.parametrize("name", ["numba", "c", "jax"])
def test_who_names_a_backend_gets_it_or_an_error(name: str) -> None:
    make, tried = failing(name)
    with pytest.raises(ArgumentError, match=rf"backend='{name}' cannot compile.*closure") as caught:
        first_that_works([Backend(name, compile_mode(name, None))], make)
    assert "Leave backend= out, and the first backend that can" in str(caught.value)
    assert "Nothing is spent" in str(caught.value)
    assert f"backend='{name}'," not in str(caught.value)  # it recommends another one
    assert tried == [name, "python"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("error", [None, RuntimeError])
def test_an_interrupt_of_a_compiler_is_not_lost(error: type[Exception] | None) -> None:
    """Known: Ctrl-C while LLVM compiled became numba's RuntimeError, and the fit went on with C."""
    asked: list[str] = []

    def make(candidate: Backend) -> str:
        asked.append(candidate.name)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass  # the interpreter looks for signals here
        except KeyboardInterrupt:
            if error is not None:
                raise error("of LLVM") from None
        return "made"

    with pytest.raises(KeyboardInterrupt) as caught:
        first_that_works(backends.backends(None, None), make)
    assert asked == ["numba"] and caught.value.__context__ is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_the_user_handles_ends_nothing() -> None:
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))

    def make(candidate: Backend) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        return "made"

    assert first_that_works(backends.backends(None, None), make) == ("made", "numba")
    assert came == [signal.SIGINT]


def test_errors_of_our_own_pass() -> None:
    make, tried = failing("numba", error=lambda: UnsupportedModelError("no gradient"))
    with pytest.raises(UnsupportedModelError, match="no gradient"):
        first_that_works(DEFAULT, make)
    assert tried == ["numba"]


def test_reasons_hold_no_numbers() -> None:
    assert reason_of(ValueError("the value 17.5 of the data")) == "ValueError"
    found = reason_of(
        TypingError("\x1b[1mFailed in x\x1b[0m\n\x1b[1mno matching literal -17.25e3 for 0x7f\x1b[0m")
    )
    assert found == "TypingError: no matching literal # for #"


def test_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(*given: Any) -> list[str]:
        return [b.name for b in backends.backends(*given)]

    assert named(None, None) == ["numba", "c", "python"]
    assert named("c", None) == named("cvm", {"name": "step"}) == ["c"]
    assert named(None, {"mode": "CVM"}) == ["compile_kwargs"]
    monkeypatch.setattr(pytensor.config, "cxx", "")
    assert named(None, None) == ["numba", "python"]


@pytest.mark.turns
def test_a_fit_falls_back_before_it_is_charged(
    logistic: Callable[[], pm.Model], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both of a whole fit's ways to fail: numba raises, and C makes no step on no records."""
    budget = PrivacyBudget(3.0, 1e-5)
    charged: list[int] = []

    class Step(runs.PrivateStep):
        def __init__(self, *args: Any, compile_kwargs: dict[str, Any], **kwargs: Any) -> None:
            charged.append(len(budget.ledger))
            linker = type(compile_kwargs["mode"].linker).__name__
            if linker == "NumbaLinker":
                raise UnsupportedError(REASON)
            if linker != "PerformLinker":
                raise StepFailedError("SomeError")
            super().__init__(*args, compile_kwargs=compile_kwargs, **kwargs)

    monkeypatch.setattr(runs, "PrivateStep", Step)
    with logistic():
        method = DPADVI(epsilon=0.4, delta=1e-6, sampling_prob=0.3, accountant="rdp", budget=budget)
        with caplog.at_level(logging.WARNING):
            approx = method.fit(3, progressbar=False)
        assert charged == [0, 0, 0] and len(budget.ledger) == 1
        [line] = [r for r in caplog.records if "backend=" in r.getMessage()]
        assert "closure" in line.getMessage() and "c: SomeError" in line.getMessage()
        method.refine(2, progressbar=False)
    first, second = approx.privacy.runs
    assert first.backend == second.backend and first.backend.startswith("python (numba: UnsupportedError")
    assert "backend python (numba: UnsupportedError" in str(approx.privacy)
    read = PrivacyReport.from_json(approx.privacy.to_json())
    assert read == approx.privacy
    assert check_release(approx.sample(3)).runs[0].backend == first.backend
    with (
        logistic(),
        pytest.raises(ArgumentError, match=r"backend='numba' cannot compile.*Leave backend= out"),
    ):
        DPADVI(epsilon=0.4, delta=1e-6, budget=budget).fit(3, backend="numba", progressbar=False)
    assert len(budget.ledger) == 2


@pytest.mark.turns
def test_reports_of_older_versions_are_read(
    logistic: Callable[[], pm.Model], without_compiling: None
) -> None:
    with logistic():
        approx = DPADVI(epsilon=1.0, delta=1e-6, accountant="rdp").fit(2, progressbar=False)
    fields = json.loads(approx.privacy.to_json())
    assert fields["format_version"] == 7 and fields["runs"][0].pop("backend") == "python"
    read = PrivacyReport.from_json(json.dumps({**fields, "format_version": 4}))
    assert read.runs[0].backend == "" and read.epsilon == approx.privacy.epsilon


@pytest.mark.turns
def test_python_mode_computes_what_numba_does(logistic: Callable[[], pm.Model]) -> None:
    """Same noise, same batches: the same posterior, up to the order of sums."""
    means = []
    for backend in ("numba", "python"):
        with logistic():
            method = DPADVI(epsilon=1.0, delta=1e-6, accountant="rdp", random_seed=1, insecure_noise_seed=2)
        with pytest.warns(InsecureNoiseWarning):
            approx = method.fit(20, backend=backend, progressbar=False)
        means.append(approx.mean.eval())
    np.testing.assert_allclose(means[0], means[1], rtol=1e-9)


@pytest.mark.turns
@pytest.mark.few_steps
def test_a_fit_of_few_steps_starts_in_python_mode(logistic: Callable[[], pm.Model]) -> None:
    """It goes on there, and says so; the name of a backend counts for more."""
    with logistic():
        method = DPADVI(epsilon=1.0, delta=1e-6, accountant="rdp")
        approx = method.fit(3, progressbar=False)
        method.refine(2, progressbar=False)
    assert [run.backend for run in approx.privacy.runs] == ["python", "python"]
    for n, latents, places, named, taken in [
        (backends.FEW_STEPS, 4096, 0, None, ["python"]),
        (backends.FEW_STEPS + 1, 3, 0, None, ["numba", "c", "python"]),
        (42, 3, 15, None, ["python"]),
        (43, 3, 15, None, ["numba", "c", "python"]),
        (1, 4097, 0, None, ["numba", "c", "python"]),
        (1, 3, 0, "numba", ["numba"]),
    ]:
        found = few_steps(backends.backends(named, None), n, latents, [pt.exp(pt.vector())], places)
        assert [c.name for c in found] == taken


def test_python_mode_computes_nothing_in_place() -> None:
    """Known: SciPy's solution of a linear system is read-only, and scaling it in place raised."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    with pm.Model():
        b, s = pm.Normal("b", shape=3), pm.HalfNormal("s")
        slopes = pt.linalg.solve(pt.eye(3) * (1.0 + s) + 0.1, b)
        pm.Normal("y", x @ slopes, s, observed=rng.normal(size=60))
        approx = DPADVI(epsilon=1.0, delta=1e-6, accountant="rdp").fit(2, progressbar=False, backend="python")
    assert approx.privacy.runs[0].backend == "python"


@pytest.mark.few_steps
@pytest.mark.parametrize(
    "looping",
    [
        lambda x: pt.gammainc(2.0, x),
        lambda x: pm.logcdf(pm.NegativeBinomial.dist(mu=pt.exp(x), alpha=2.0), np.arange(3)),
        lambda x: pytensor.function([x], 1.0 + pt.betainc(2.0, x, 0.5), mode="NUMBA").maker.fgraph.outputs[0],
        lambda x: pytensor.scan(lambda v, s: v + s, sequences=x, outputs_info=x[0], return_updates=False),
    ],
)
def test_what_loops_in_python_is_compiled_for_few_steps_too(looping: Callable[[Any], Any]) -> None:
    found = few_steps(DEFAULT, 1, 3, [pt.exp(looping(pt.dvector()))])
    assert [c.name for c in found] == ["numba", "c", "python"]


@pytest.mark.turns
def test_python_computes_nothing_that_loops_as_long_as_a_record_makes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Known: one record made a step of such a model take minutes, which everybody sees."""
    data = np.random.default_rng(0).poisson(2.0, 40)
    with pm.Model() as model:
        mu = pm.Gamma("mu", 2.0, 1.0)
        pm.Censored("y", pm.Gamma.dist(2.0, mu), lower=None, upper=4.0, observed=np.minimum(1.0 + data, 4.0))
    loops = [pt.gammainc(2.0, pt.dvector())]
    quick = [pt.exp(pt.dvector())]
    assert backends.bounded(DEFAULT, quick) == DEFAULT
    assert [c.name for c in backends.bounded(DEFAULT, loops)] == ["numba", "c"]
    for given in [("python", None), (None, {"mode": "FAST_COMPILE"})]:
        with pytest.raises(ArgumentError, match=r"Python mode one record.*Leave backend= and"):
            backends.bounded(backends.backends(*given), loops)
    budget = PrivacyBudget(3.0, 1e-5)
    with model:
        method = DPADVI(epsilon=0.4, delta=1e-6, accountant="rdp", budget=budget)
    with pytest.raises(ArgumentError, match="Leave backend= and"):
        method.fit(3, backend="python", progressbar=False)
    with pytest.raises(ArgumentError, match="Leave backend= and"):
        pymc_dpvi.audit(method=method, backend="python", runs=100)
    assert len(budget.ledger) == 0
    monkeypatch.setattr(pytensor.config, "cxx", "")
    with pytest.raises(ArgumentError, match="Leave backend= and"):
        backends.bounded([Backend("c", {"mode": pytensor.compile.mode.get_mode("CVM")})], loops)


def test_what_loops_is_not_computed_in_python_where_compilers_fail() -> None:
    make, tried = failing("numba", "c")
    with pytest.raises(ArgumentError, match=r"But they cannot.*numba: .*c: .*closure"):
        first_that_works([c for c in DEFAULT if c.name != "python"], make)
    assert tried == ["numba", "python", "c"]


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_again(enabled: bool) -> None:
    seen: list[bool] = []

    def make(candidate: Backend) -> str:
        seen.append(gc.isenabled())
        if len(seen) == 1:
            raise StepFailedError("ValueError")
        return "step"

    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        first_that_works(DEFAULT, make)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False] * 3
