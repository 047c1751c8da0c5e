"""No operation raises, warns or runs on for ever, whatever the numbers, in any backend's machine code.

A short list runs on every push, the whole of PyTensor's scalar operations in the deep profile. An operation
that fails here has to be refused or guarded by `pymc_dpvi.graph.guards`, and then stands in `GUARDED`.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import operations
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from operations import FLOATS, INTEGERS
from pytensor.compile.mode import Mode
from pytensor.tensor.elemwise import Elemwise

from pymc_dpvi import DPADVI
from pymc_dpvi.compat import compile_mode
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.lowering import NotCompiledInCError, fast_compile, without_raising
from pymc_dpvi.posterior.released_draws import evaluator

BACKENDS = ("numba", "c", "python", "jax")
#: Seconds that the evaluation of an operation at all hostile numbers may take, and its compilation.
LIMIT, COMPILING = 30, 300
#: What `guards` keeps records out of, or within bounds of: see there, and `test_guards`.
GUARDED = {"Hyp2F1", "PolyGamma", "Psi", "TriGamma", "IntDiv(i,i)", "Mod(i,i)", "Pow(i,i)"} | {
    "IntDiv(b,b)",
    "Mod(b,b)",
}
#: Their gradients loop up to 10⁵ times, which takes seconds where Python computes: docs/limitations.md.
SLOW_IN_PYTHON = {"BetaInc", "GammaInc", "GammaIncC"}
#: The operations that likelihoods are made of, and those that have been seen to fail.
SHORT = {
    *("Abs(f)", "Clip(f,f,f)", "Erfcx(f)", "Exp(f)", "GammaLn(f)", "IntDiv(f,f)", "Log(f)", "Log1mexp(f)"),
    *("Log1p(f)", "Maximum(f,f)", "Mod(f,f)", "Mod(f,i)", "Mul(i,i,i)", "Add(i,i,i)", "Pow(f,f)", "Pow(f,i)"),
    *("IntDiv(f,i)", "Reciprocal(f)", "Sigmoid(f)", "Softplus(f)", "Sqr(f)", "Sqrt(f)", "Switch(b,f,f)"),
    *("TrueDiv(f,f)", "TrueDiv(i,i)", "Cast(f)", "Log(i)", "Sqrt(i)"),
    *("Power3(i)", "Quotient(i)", "Polynomial(i)", "Cast-int64-int8(i)", "Cast-uint64-int64(i)"),
}


def lines(backend: str, first: int, only: str) -> Iterator[str]:
    """What a process that evaluates operations says; killed where a line does not come in time."""
    command = [sys.executable, operations.__file__, backend, str(first), only]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "JAX_ENABLE_X64": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=Path(__file__).parent)
    said: queue.Queue[str | None] = queue.Queue()

    assert process.stdout is not None

    def read() -> None:
        for line in process.stdout:
            said.put(line.strip())
        said.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    last = f"{first} begin"
    try:
        while (line := said.get(timeout=LIMIT if " run " in last else COMPILING)) != "end":
            if line is None:
                yield f"{last} DIED"
                return
            last = line
            yield line
        yield "end"
    except queue.Empty:  # compilers see no records: how long they take tells nothing
        yield f"{last} HANGS" if " run " in last else f"{last} uncompiled"
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()


def failures(backend: str, only: str = "") -> list[str]:
    """Everything that raises, warns, dies or hangs."""
    found, first, line = [], 0, ""
    while line != "end":
        for line in lines(backend, first, only):
            if any(word in line.split() for word in ("raised", "DIED", "HANGS")):
                found.append(line)
            if line != "end":
                first = int(line.split()[0]) + 1
    known = GUARDED | (SLOW_IN_PYTHON if backend == "python" else set())
    names = [line.split()[2] for line in found]
    return [
        line for line, name in zip(found, names, strict=True) if not {name, name.partition("(")[0]} & known
    ]


@pytest.mark.parametrize(
    "backend", ["numba", "python", *(pytest.param(b, marks=pytest.mark.slow) for b in "c")]
)
def test_the_short_list(backend: str) -> None:
    assert not SHORT - {str(o) for o in operations.operations()}
    assert failures(backend, ";".join(sorted(SHORT))) == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_scalar_operation(backend: str) -> None:
    assert failures(backend) == []


def power(backend: str, rewritten: bool) -> list[np.ndarray]:
    x, k = pt.dvector("x"), pt.lvector("k")
    value = x**k
    kwargs = compile_mode(backend, None) if rewritten else {"mode": "NUMBA"}
    fn = pytensor.function([x, k], [value, pt.grad(value.sum(), x)], **kwargs)
    grid = np.array([(a, b) for a in FLOATS for b in INTEGERS])
    with np.errstate(all="ignore"):
        return fn(grid[:, 0], np.array([b for _ in FLOATS for b in INTEGERS]))


@pytest.mark.parametrize("backend", ["numba", "python"])
def test_integer_powers_are_those_of_c(backend: str) -> None:
    """Whatever the exponent: infinity where numba would raise."""
    value, slope = power(backend, rewritten=True)
    with np.errstate(all="ignore"):
        expected = np.array([np.float64(a) ** np.float64(b) for a in FLOATS for b in INTEGERS])
        slopes = np.array([b * np.float64(a) ** (np.float64(b) - 1) for a in FLOATS for b in INTEGERS])
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    fine = np.isfinite(slopes) & (np.abs([float(b) for _ in FLOATS for b in INTEGERS]) < 2**31)
    np.testing.assert_allclose(slope[fine], slopes[fine], rtol=1e-12)


def test_without_the_rewrite_numba_raises() -> None:
    """Else the rewrite can go."""
    with pytest.raises(ZeroDivisionError):
        power("numba", rewritten=False)


def test_constant_powers_stay_as_they_were() -> None:
    """A square is a product, and a cube is by squaring: no call of pow."""
    x = pt.dvector("x")
    for exponent in (2, 3):
        fn = pytensor.function([x], x**exponent, **compile_mode("numba", None))
        casts = [n for n in fn.maker.fgraph.apply_nodes if "Cast" in str(n.op)]
        assert not casts
        assert not any(
            getattr(v, "data", None) is not None and v.dtype == "float64" for v in fn.maker.fgraph.variables
        )


def test_c_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be Python, under another name; a mode of the user's own raises on no integer."""
    monkeypatch.setattr(pytensor.config, "cxx", "")
    with pytest.raises(ArgumentError, match=r"needs a C\+\+ compiler.*leave backend= out"):
        compile_mode("c", None)
    a = pt.lvectors(3)
    graphs = [a[0] + a[1] + a[2], a[0] * a[1] * a[2] + a[0]]
    fn = pytensor.function(a, graphs, **compile_mode(None, {"mode": "CVM"}))
    largest = np.array([2**63 - 1])
    with np.errstate(all="ignore"):
        total, product = fn(largest, largest, largest)
    assert total == np.int64(2**63 - 3) and product == np.int64(-2)


@pytest.mark.parametrize(("backend", "fused"), [("numba", True), ("c", True), ("python", False)])
def test_elementwise_operations_are_fused_where_a_compiler_is(backend: str, fused: bool) -> None:
    """Numba's linker is derived from Python's; if it is taken for that, a step of 14 loops has 123."""
    if backend == "c" and not pytensor.config.cxx:
        pytest.skip("no C++ compiler")
    x, y = pt.dvectors("xy")
    graph = pytensor.function(
        [x, y], pt.exp(x * y) + pt.log(y) - x, **compile_mode(backend, None)
    ).maker.fgraph
    assert (len(graph.apply_nodes) == 1) is fused


def test_sums_of_more_terms_than_numpy_takes() -> None:
    """Predictors that are written out one by one: the prior, the mean and a Deterministic are such sums.

    They ended in "could not be taken apart", in "finite for none of the synthetic records", and, after the
    charge, in an AttributeError of `sample`.
    """
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        betas = [pm.Normal(f"b{k}", 0, 1) for k in range(33)]
        mean = sum(b * rng.normal(size=20) for b in betas)
        pm.Deterministic("total", sum(betas))
        pm.Normal("y", mean, 1, observed=rng.normal(size=20))
    method = DPADVI(noise_multiplier=2.0, delta=1e-5, sampling_prob=0.5, accountant="rdp", model=model)
    draws = rng.normal(size=(3, 33))
    (total,) = evaluator(model, method.approx.latents, [model["total"]], draws.dtype)(draws)
    np.testing.assert_allclose(total, draws.sum(axis=1))


@pytest.mark.parametrize("mode", [fast_compile(), compile_mode("python", None)["mode"]])
def test_products_fills_and_casts_are_numpys(mode: Mode) -> None:
    """Python would compute them entry by entry, hundreds of times slower."""
    x, y, k = pt.dmatrix("x"), pt.dvector("y"), pt.lvector("k")
    graphs = [
        pt.mul(x, y, x + 1.0),
        pt.add(x, y, k),
        pt.fill(x, y),
        pt.gt(x, 0.0).astype("float64"),
        pt.fill(y, x),
    ]
    fn = pytensor.function([x, y, k], graphs, mode=mode)
    for node in fn.maker.fgraph.apply_nodes:
        if isinstance(node.op, Elemwise):
            assert node.op.nfunc_spec is not None and node.op.nfunc_spec[1] == len(node.inputs), node
    xs, ys, ks = np.array([[1.0, -2.0, np.inf], [0.0, 3.0, np.nan]]), np.array([0.5, 2.0, -1.0]), np.arange(3)
    wanted = [xs * ys * (xs + 1.0), xs + ys + ks, np.stack([ys, ys]), (xs > 0.0).astype(float), xs]
    for found, value in zip(fn(xs, ys, ks), wanted, strict=True):
        assert found.dtype == "float64"
        np.testing.assert_array_equal(found, value)


def test_a_fill_is_no_view() -> None:
    """What it is made of may be overwritten."""
    x = pt.dvector("x")
    fn = pytensor.function([x], pt.fill(x, x), mode=fast_compile())
    given = np.arange(3.0)
    found = fn(given)
    given[:] = 7.0
    np.testing.assert_array_equal(found, np.arange(3.0))


POWERS_OF_SHORT_INTEGERS = """
import numpy as np, pytensor, pytensor.tensor as pt
from pymc_dpvi import DPADVI
from pymc_dpvi.compat import compile_mode

x, k = pt.dvector("x"), pt.lvector("k")
base, exponents = np.array([0.0, 0.5, 2.0]), np.array([-3, -70, 5])
for kind in ("int8", "int16", "int32", "uint8", "uint16", "bool"):
    for short in (k.astype(kind), k.astype(kind).astype("float64")):
        graphs = [x**short, pt.grad((x**short).sum(), x)]
        value, _ = pytensor.function([x, k], graphs, **compile_mode("numba", None))(base, exponents)
        with np.errstate(all="ignore"):
            expected = base ** exponents.astype(kind).astype(float)
        np.testing.assert_allclose(value, expected)
print("end")
"""


def test_powers_of_short_integers_do_not_end_the_process() -> None:
    """LLVM made of them a call of a function that no library has, and gave up with the whole process."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", POWERS_OF_SHORT_INTEGERS], capture_output=True, text=True
    )
    assert found.returncode == 0 and found.stdout == "end\n", found.stderr[-2000:]


@pytest.mark.skipif(not pytensor.config.cxx, reason="needs a compiler")
@pytest.mark.parametrize("linker", ["cvm", "c|py"])
def test_what_should_be_in_c_is_in_c_or_refused(linker: str) -> None:
    """Known: PyTensor switches C off for moments, in all threads, and a step was Python's, not lowered."""
    mode, k = without_raising(Mode(linker, "fast_run")), pt.lvector("k")
    assert pytensor.function([k], k**3 * 2, mode=mode)([2]) == [16]
    with pytensor.config.change_flags(cxx=""), pytest.raises(NotCompiledInCError):
        pytensor.function([k], k**5 * 3, mode=mode)
