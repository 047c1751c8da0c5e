"""Every scalar operation of PyTensor on hostile numbers, in a backend's own machine code.

``python operations.py BACKEND FIRST ONLY`` evaluates the operations from number FIRST on, one by one, in
value and gradient, and says on a line of its own which one it begins and how it ended. It is run in a process
that is killed if a line takes too long (`test_lowering`): what raises, warns or does not end must be refused
or guarded by `pymc_dpvi.graph.guards`.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.scalar.basic as scalar_basic
import pytensor.scalar.math as scalar_math
import pytensor.tensor as pt
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.elemwise import Elemwise

from pymc_dpvi.compat import compile_mode

FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.7, -1100.0, 1100.0, 5000.0),
    *(5e-324, -1e-310, 1e-300, 1e15, -1e15, 1e300, -1e300, np.inf, -np.inf, np.nan),
)
INTEGERS = (0, 1, -1, 2, -2, 7, 1100, -1100, 5000, -5000, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
#: Of more than two arguments, so that not all combinations are tried.
FEWER = (0.0, 1.0, -1.0, 0.5, 1100.0, -1e15, 1e300, np.inf, np.nan)
FEWEST = (0.0, -1.0, 0.5, 1e15, np.inf, np.nan)


@dataclass(frozen=True)
class Operation:
    """An operation, and the types of its arguments: f for float64, i for int64, b for bool."""

    name: str
    op: ScalarOp | Callable[..., Any]
    kinds: str

    def __str__(self) -> str:
        return f"{self.name}({','.join(self.kinds)})"

    def arguments(self) -> list[np.ndarray]:
        """All combinations of hostile numbers, a vector for each argument."""
        floats = {1: FLOATS, 2: FLOATS, 3: FEWER}.get(len(self.kinds), FEWEST)
        values = {"f": floats, "i": INTEGERS, "b": (False, True)}
        columns = zip(*itertools.product(*(values[kind] for kind in self.kinds)), strict=True)
        dtypes = {"f": "float64", "i": "int64", "b": "bool"}
        return [np.array(c, dtypes[kind]) for c, kind in zip(columns, self.kinds, strict=True)]

    def graphs(self) -> tuple[list[Any], list[Any]]:
        """Inputs; value and gradients by the float arguments."""
        types = {"f": pt.dvector, "i": pt.lvector, "b": lambda: pt.vector(dtype="bool")}
        inputs = [types[kind]() for kind in self.kinds]
        value = Elemwise(self.op)(*inputs) if isinstance(self.op, ScalarOp) else self.op(*inputs)
        graphs = [value]
        wrt = [v for v, kind in zip(inputs, self.kinds, strict=True) if kind == "f"]
        if wrt and value.dtype.startswith("float"):
            try:
                graphs += pt.grad(value.sum(), wrt, disconnected_inputs="ignore")
            except (NotImplementedError, pytensor.gradient.NullTypeGradError):
                # By one of the arguments alone: guards' records may still enter by the others.
                for v in wrt:
                    try:
                        graphs.append(pt.grad(value.sum(), v))
                    except (NotImplementedError, pytensor.gradient.NullTypeGradError):
                        continue
        return inputs, graphs


def operations() -> list[Operation]:
    """Return every real scalar operation, on floats and with an integer for each of its arguments."""
    found: dict[str, tuple[str, ScalarOp]] = {}
    for module in (scalar_basic, scalar_math):
        for name, value in vars(module).items():
            if isinstance(value, ScalarOp) and "omplex" not in type(value).__name__:
                found.setdefault(type(value).__name__, (name, value))
    out = []
    for kind, (_, op) in sorted(found.items()):
        if kind in ("Angle", "Conj", "Imag", "Real"):
            continue
        number = {"Add": 3, "Mul": 3, "BetaIncInv": 3}.get(kind, op.nin)
        if number < 0:
            continue
        bits = kind in ("AND", "OR", "XOR", "Invert")
        own = [] if bits else ["f" * number]
        if kind == "Switch":
            own = ["bff", "bif", "bii", "fff"]
        else:
            own += ["f" * k + "i" + "f" * (number - k - 1) for k in range(number) if not bits]
            own += ["i" * number, *(["b" * number] if kind not in ("Sub", "Neg") else [])]
        out += [Operation(kind, op, kinds) for kinds in dict.fromkeys(own)]
    return out + written()


def written() -> list[Operation]:
    """Formulas of which PyTensor makes operations of its own, and casts, which no module holds."""
    out = []
    for kind in "fi":
        for k in (2, 3, 4, 7, 2.5):
            out.append(Operation(f"Power{k}", lambda x, k=k: x**k, kind))
        out.append(Operation("Quotient", lambda x: x**2 / x**3, kind))
        out.append(Operation("Switched", lambda x: pt.switch(x > 3, x**3, x), kind))
        out.append(Operation("Polynomial", lambda x: 3 * x**3 - x**2 * x + 7 - x, kind))
    for before in ("int8", "int16", "int32", "int64", "uint8", "uint64"):
        for after in dict.fromkeys((before, "int8", "int32", "int64", "uint64", "bool", "float64")):
            cast = lambda x, a=before, b=after: pt.cast(pt.cast(x, a), b)  # noqa: E731
            out.append(Operation(f"Cast-{before}-{after}", cast, "i"))
    return out


def run(backend: str, first: int, only: str) -> Iterator[str]:
    """Evaluate the operations from one on; say what is begun and what came of it."""
    for number, operation in enumerate(operations()):
        if number < first or (only and str(operation) not in only.split(";")):
            continue
        yield f"{number} begin {operation}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                inputs, graphs = operation.graphs()
        except Exception as error:  # not for these types, or without a gradient
            yield f"{number} none {operation} {type(error).__name__}"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kwargs = compile_mode(backend, None)
                if backend == "jax":
                    kwargs = {"mode": "JAX"}
                fn = pytensor.function(inputs, graphs, on_unused_input="ignore", **kwargs)
                given = operation.arguments()
                harmless = [np.ones_like(g[:1]) for g in given]
                fn(*harmless)  # compiles
        except Exception as error:
            yield f"{number} uncompiled {operation} {type(error).__name__}"
            continue
        yield f"{number} run {operation}"
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("error")
                fn(*given)
            yield f"{number} ok {operation}"
        except Exception as error:
            yield f"{number} raised {operation} {type(error).__name__}"
    yield "end"


if __name__ == "__main__":
    for line in run(sys.argv[1], int(sys.argv[2]), sys.argv[3]):
        print(line, flush=True)
