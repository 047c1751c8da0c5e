"""Operations that a backend turns into machine code that can raise, rewritten to ones that cannot.

One record must not be able to make a step raise: that it did would tell everybody that the record is there.
In a graph, ``float ** integer`` is a number for all inputs. numba computes it by repeated squaring and
divides at the end (`numba.cpython.numbers.int_power_impl`): ``0.0 ** -1`` raises ZeroDivisionError, and so
does ``0.5 ** -2000``, whose denominator underflows. Here the exponent becomes a float, of which every
backend makes C's ``pow``; it returns infinity there. Constant exponents of zero and more stay integers:
squaring does not divide.

Where numba may reorder (``fastmath``), LLVM makes of ``pow`` with a float that was a short integer (int8 to
int32) a call of ``__powidf2``, which no library has: the process ends. So a power whose exponent is no
constant is computed by `FloatPower`, without that freedom.

The rewrite is the last before elementwise operations are fused. So it sees the powers that the model has,
those that differentiation makes of them, and those that PyTensor's own rewrites bring in.

Where Python itself computes (``backend="python"``, or C without a compiler), an operation that NumPy has no
function for is one of Python's numbers: an integer beyond 64 bits, or beyond the narrower type of a cast,
raises OverflowError. There nothing is fused, what comes fused (PyTensor makes one operation of ``x**3``) is
taken apart, sums and products of integers are taken two by two, and casts are NumPy's.
"""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.link.basic import JITLinker, PerformLinker
from pytensor.link.c.basic import CLinker, OpWiseCLinker
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from pytensor.link.vm import VMLinker
from pytensor.scalar.basic import Add, Cast, Composite, Mul, Pow, upcast_out
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError

__all__ = ["fast_compile", "python_as_it_stands", "without_raising"]

#: Inputs of an operation of NumPy's, which has one output.
_MOST_OPERANDS = 31
#: After "specialize" and what undoes canonical forms (48), before fusion (49).
_POSITION = 48.5


def without_raising(mode: Mode) -> Mode:
    """Return a mode whose functions raise on no number.

    Parameters
    ----------
    mode : Mode

    Returns
    -------
    Mode
    """
    rewrites = [(in2out(float_exponents, name="float_exponents"), _POSITION)]
    if _is_python(mode):
        mode = mode.excluding("fusion")
        for number, rewrite in enumerate((apart, two_by_two, cast_by_numpy), start=1):
            rewrites.append((in2out(rewrite, name=rewrite.__name__), _POSITION + number / 10))
    return mode.register(*rewrites)


@cache
def fast_compile() -> Mode:
    """Return PyTensor's "FAST_COMPILE", for few calls, with sums of as many terms as there are.

    NumPy's functions take 32 operands. PyMC adds up the log-densities of all free variables in one
    operation, and a sum that a model writes out becomes one too. PyTensor's own mode raises for more.
    """
    return get_mode("FAST_COMPILE").register(_pairs)


@cache
def python_as_it_stands() -> Mode:
    """Return a mode in which Python computes a graph without rewrites, but for sums as in `fast_compile`."""
    return Mode(linker="py", optimizer=None).register(_pairs)


def _is_python(mode: Mode) -> bool:
    """Whether NumPy and Python compute what the mode compiles."""
    linker = mode.linker
    if isinstance(linker, JITLinker):  # numba's and JAX's, which PyTensor derives from Python's
        return False
    if isinstance(linker, VMLinker):
        return not (linker.c_thunks and pytensor.config.cxx)
    return isinstance(linker, PerformLinker) or (
        isinstance(linker, CLinker | OpWiseCLinker) and not pytensor.config.cxx
    )


class FloatPower(Pow):
    """``x ** y`` for a float y, as C's ``pow`` computes it in every backend."""


_float_power = Elemwise(FloatPower(upcast_out, name="float_power"))


@register_funcify_and_cache_key(FloatPower)
def _numba_float_power(op: FloatPower, node: Apply, **kwargs: Any) -> Any:
    @numba_njit(fastmath=False)
    def float_power(x: Any, y: Any) -> Any:
        return x**y

    return float_power, "pymc_dpvi.FloatPower"


@node_rewriter([Elemwise])
def apart(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Compute the parts of a fused operation one by one."""
    if not isinstance(node.op.scalar_op, Composite):
        return None
    inner = node.op.scalar_op.fgraph
    known: dict[Variable, Variable] = dict(zip(inner.inputs, node.inputs, strict=True))
    for part in inner.toposort():
        inputs = [known[v] if v in known else pt.as_tensor(v.data) for v in part.inputs]
        known.update(zip(part.outputs, Elemwise(part.op)(*inputs, return_list=True), strict=True))
    return [known[v].astype(out.type.dtype) for v, out in zip(inner.outputs, node.outputs, strict=True)]


class NumPyCast(Op):
    """``x.astype(dtype)``: an integer that does not fit wraps around."""

    __props__ = ("dtype",)

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def make_node(self, x: Variable) -> Apply:
        """Return the cast of a tensor."""
        return Apply(self, [x], [x.type.clone(dtype=self.dtype)()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Cast."""
        with np.errstate(all="ignore"):
            output_storage[0][0] = np.asarray(inputs[0]).astype(self.dtype)


@node_rewriter([Elemwise])
def cast_by_numpy(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Leave to NumPy what becomes an integer."""
    dtype = node.outputs[0].type.dtype
    if not isinstance(node.op.scalar_op, Cast) or np.dtype(dtype).kind not in "iu":
        return None
    return [NumPyCast(dtype)(node.inputs[0])]


@node_rewriter([Elemwise])
def two_by_two(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Add or multiply more than two integers one after the other, and more of anything than NumPy takes."""
    kind = node.outputs[0].type.dtype
    most = 2 if np.dtype(kind).kind in "iu" else _MOST_OPERANDS
    if not isinstance(node.op.scalar_op, Add | Mul) or len(node.inputs) <= most:
        return None
    combine = pt.add if isinstance(node.op.scalar_op, Add) else pt.mul
    return [reduce(combine, node.inputs).astype(kind)]


_pairs = (in2out(two_by_two, name="two_by_two"), _POSITION)


@node_rewriter([Elemwise])
def float_exponents(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Make the integer exponent of a float power a float, and forbid LLVM to take it back."""
    if type(node.op.scalar_op) is not Pow:
        return None
    base, exponent = node.inputs
    kind = node.outputs[0].type.dtype
    if np.dtype(kind).kind != "f":
        return None
    integer = np.dtype(exponent.type.dtype).kind in "iub"
    try:
        constant = get_underlying_scalar_constant_value(exponent)
    except NotScalarConstantError:
        return [_float_power(base, exponent.astype(kind) if integer else exponent).astype(kind)]
    return [pt.pow(base, exponent.astype(kind)).astype(kind)] if integer and constant < 0 else None
