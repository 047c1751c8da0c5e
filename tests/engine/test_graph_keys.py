"""Equal graphs have equal keys in every process, and graphs that differ in anything have different ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.type import Type
from pytensor.tensor.type import TensorType
from pytensor.tensor.type_other import make_slice

import pymc_dpvi
from pymc_dpvi import numba_cache
from pymc_dpvi.engine import graph_keys
from pymc_dpvi.engine.graph_keys import graph_key


def make(**other: Any) -> str | None:
    """The key of one graph, or of one that differs from it in the things named."""
    how: dict[str, Any] = {
        "dtype": "float64",
        "shape": (None, 3),
        "constant": np.arange(3.0),
        "number": 2.0,
        "op": pt.exp,
        "axis": 1,
        "index": slice(0, 2),
        "flip_inputs": False,
        "flip_outputs": False,
        "inner": 1.0,
        "cast": "float32",
        "names": "xy",
    } | other
    x = TensorType(how["dtype"], how["shape"])(how["names"][0])
    y = pt.vector(how["names"][1])
    z = pt.scalar("z")
    inner = OpFromGraph([z], [z * how["inner"]])
    first = how["op"](x + how["constant"]).sum(axis=how["axis"]) * how["number"]
    second = inner(y[how["index"]].sum()) + pt.cast(y, how["cast"]).sum()
    inputs, outputs = [x, y], [first, second]
    if how["flip_inputs"]:
        inputs.reverse()
    if how["flip_outputs"]:
        outputs.reverse()
    return graph_key(inputs, outputs)


DIFFERENT = {
    "dtype": "float32",
    "shape": (None, None),
    "constant": np.nextafter(np.arange(3.0), 9),
    "number": 2.5,
    "op": pt.log,
    "axis": 0,
    "index": slice(0, 3),
    "flip_inputs": True,
    "flip_outputs": True,
    "inner": 1.5,
    "cast": "int64",
}


def test_equal_graphs_have_equal_keys() -> None:
    assert make() is not None
    assert make() == make()
    assert make(names="ab") == make()


@pytest.mark.turns
@pytest.mark.parametrize("what", DIFFERENT)
def test_whatever_differs_is_in_the_key(what: str) -> None:
    assert make(**{what: DIFFERENT[what]}) not in (None, make())


def test_sharing_is_not_structure() -> None:
    """What is computed once or twice is the same, and so is its key; x + y is not y + x."""
    x, y = pt.dvector("x"), pt.dvector("y")
    once = pt.exp(x)
    assert graph_key([x], [once * once]) == graph_key([x], [pt.exp(x) * pt.exp(x)])
    assert graph_key([x, y], [x - y]) != graph_key([x, y], [y - x])


class Undeclared(Op):
    """An operation that does not say what it depends on."""

    def __init__(self, by: float) -> None:
        self.by = by

    def make_node(self, x: Variable) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        output_storage[0][0] = inputs[0] * self.by


class Derived(OpFromGraph):
    """One with an inner graph, which may have more than that."""


def test_what_is_not_known_has_no_key() -> None:
    x, y = pt.dvector("x"), pt.dvector("y")
    assert graph_key([x], [Undeclared(2.0)(x)]) is None
    assert graph_key([x], [x + y]) is None  # y is no input
    assert graph_key([x], [Derived([x], [x * 2.0])(x)]) is None


class Unspeaking(Type):
    """A type whose representation is an address."""

    def __init__(self, length: int | None = None) -> None:
        if length is not None:
            self.length = length

    def filter(self, data: Any, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        return data


def test_the_key_of_a_type_is_not_its_address() -> None:
    """`SliceType`, of every Cholesky factor's gradient, says no more of itself than where it lies."""
    assert graph_key([(a := Unspeaking()())], [a]) == graph_key([(b := Unspeaking()())], [b]) is not None
    assert graph_key([(a := Unspeaking(3)())], [a]) is None
    i = pt.lscalar("i")
    assert "0x" not in graph_keys._type(make_slice(i, i, i).type)
    assert graph_key([i], [make_slice(i, i, i)]) is not None


STEP = """
import warnings
warnings.simplefilter("ignore")
import numpy as np, pymc as pm
from pymc_dpvi import DPADVI
from pymc_dpvi.engine import multistep, sums_of_step
import python_mode
found = []
def kept(make):
    def key(*args):
        found.append(make(*args))
        return found[-1]
    return key
multistep.graph_key, sums_of_step.graph_key = kept(multistep.graph_key), kept(sums_of_step.graph_key)
rng = np.random.default_rng(0)
x, group = rng.normal(size=(50, 3)), rng.integers(4, size=50)
with pm.Model():
    level = pm.Normal("level", 0, 1, shape=4)
    beta = pm.Normal("beta", 0, 1, shape=3)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Normal("y", level[group] + x @ beta, sigma, observed=x[:, 0])
    chol = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0), compute_corr=False)
    pm.MvNormal("x", np.zeros(3), chol=pm.expand_packed_triangular(3, chol), observed=x)
    method = DPADVI(noise_multiplier=2.0, delta=1e-5, sampling_prob=0.5, accountant="rdp")
    method.fit(1, progressbar=False, compile_kwargs={"mode": "PYTHON"})
print(*found)
"""


@pytest.mark.slow
def test_a_step_has_the_same_keys_in_every_process() -> None:
    def keys(seed: str) -> list[str]:
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{STEP}"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first, second = keys("1"), keys("2")
    assert first == second and len(set(first)) == 2 and "None" not in first


def test_every_source_of_the_package_is_part_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What `lowering` or `graph` compile into a step is kept on disk, too."""
    copy = tmp_path / "pymc_dpvi"
    shutil.copytree(Path(pymc_dpvi.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(numba_cache, "__file__", str(copy / "numba_cache.py"))
    before = numba_cache._hash_of_sources()
    assert before == numba_cache._SOURCES
    for name in ("lowering.py", "graph/batched_ops.py", "engine/kernels.py"):
        with (copy / name).open("a") as file:
            file.write("# changed\n")
        after = numba_cache._hash_of_sources()
        assert after != before
        before = after
