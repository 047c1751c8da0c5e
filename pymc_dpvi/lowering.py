"""Operations that could raise in a compiled step, rewritten to ones that cannot.

No record may make a step raise: the error would tell that the record is there.

**Powers.** PyTensor defines ``float ** integer`` for all inputs. numba computes it by repeated squaring and
divides at the end (`numba.cpython.numbers.int_power_impl`): ``0.0 ** -1`` raises ZeroDivisionError, and so
does ``0.5 ** -2000``, whose denominator underflows. So the exponent is made a float. Every backend then calls
C's ``pow``, which returns infinity there. Constant exponents of zero and more stay integers: squaring needs
no division. With numba's ``fastmath``, LLVM turns ``pow`` with a float that was a short integer (int8 to
int32) into a call of ``__powidf2``, which no library has, and the process ends. So `FloatPower` computes a
power whose exponent is no constant, without ``fastmath``. The rewrite is the last before elementwise
operations are fused. So it finds all powers: the model's, the gradient's and those of PyTensor's rewrites.

**Python.** In Python mode, and in C mode without a compiler, an operation without a NumPy function is
computed on Python's numbers, entry by entry: an integer beyond 64 bits, or beyond the type of a cast, raises
OverflowError. So nothing is fused there; what comes fused (PyTensor makes one operation of ``x**3``) is taken
apart; sums and products of more than two arrays are taken two by two; casts and fills are NumPy's. That is
faster, too. What SciPy returns may be read-only, so nothing is computed in place. And NumPy refuses to add up
a number along an axis, which PyTensor allows.

**Functions within operations.** PyTensor 3 computes what is within an operation (a loop, a factor of a
correlation matrix) by C even if the function around it is in Python. For functions that are called a few
times, that means up to sixty calls of the compiler, half a minute or more of a first fit. So there these
operations are replaced by copies that compute in Python. The copies are the function's own: another function
with the same operation, in C and in another thread, does not see them.
"""

from __future__ import annotations

from copy import copy
from functools import cache, reduce
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import (
    GraphRewriter,
    SequentialGraphRewriter,
    in2out,
    node_rewriter,
)
from pytensor.link.basic import JITLinker, PerformLinker
from pytensor.link.c.basic import CLinker, OpWiseCLinker
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from pytensor.link.vm import VMLinker
from pytensor.scalar.basic import Add, Cast, Composite, Mul, Pow, Second, second, upcast_out
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.math import Max, Min, Prod, Sum

try:
    from pytensor.compile.inner_function import HasInnerFunction
except ImportError:  # PyTensor 2

    class HasInnerFunction:  # type: ignore[no-redef]
        """No operation is one."""


__all__ = ["NotCompiledInCError", "fast_compile", "is_python", "python_as_it_stands", "without_raising"]

#: After "specialize" and what undoes canonical forms (48), before fusion (49).
_POSITION = 48.5
#: After everything else.
_LAST = 1000.0


def without_raising(mode: Mode) -> Mode:
    """Return a mode whose functions raise on no number."""
    rewrites = [(in2out(float_exponents, name="float_exponents"), _POSITION)]
    if is_python(mode):
        mode = mode.excluding("fusion", "inplace")
        rewrites += _by_numpy(apart, two_by_two, cast_by_numpy, fill_by_numpy)
    elif type(mode.linker) in _IN_C:
        linker = mode.linker.clone()
        linker.__class__ = _IN_C[type(linker)]
        mode = Mode(linker, mode.provided_optimizer)
    return mode.register(*rewrites)


class NotCompiledInCError(Exception):
    """C was switched off while a step was compiled."""


def _in_c(made: Any) -> Any:
    """Return what a linker has made; raise if an elementwise operation could be in C and is not.

    PyTensor and PyMC switch C off for the whole process while they look at a graph's constants, and another
    thread may do that meanwhile. Operations would then be Python's, and not be lowered as Python's are.
    """
    *_, thunks, order = made
    for node, thunk in zip(order, thunks, strict=True):
        if isinstance(node.op, Elemwise) and not hasattr(thunk, "cthunk") and _has_c(node):
            raise NotCompiledInCError
    return made


class VMLinkerInC(VMLinker):
    """PyTensor's usual linker for C; see `_in_c`."""

    def make_all(self, *args: Any, **kwargs: Any) -> Any:
        """Link, and check."""
        return _in_c(super().make_all(*args, **kwargs))


class OpWiseCLinkerInC(OpWiseCLinker):
    """That of the mode ``c|py``."""

    def make_all(self, *args: Any, **kwargs: Any) -> Any:
        """Link, and check."""
        return _in_c(super().make_all(*args, **kwargs))


_IN_C: dict[type, type] = {VMLinker: VMLinkerInC, OpWiseCLinker: OpWiseCLinkerInC}


def _has_c(node: Apply) -> bool:
    """Whether an elementwise operation can be compiled in C."""
    inputs, outputs = [f"i{k}" for k in range(len(node.inputs))], [f"o{k}" for k in range(len(node.outputs))]
    try:
        return bool(node.op.c_code(node, "node", inputs, outputs, {"fail": ""}))  # type: ignore[attr-defined]
    except Exception:  # it raises of many types if it has none
        return False


@cache
def fast_compile() -> Mode:
    """Return PyTensor's "FAST_COMPILE" with NumPy's operations, for functions that are called a few times.

    PyTensor's own mode raises for an operation of more than 32 operands. PyMC adds up the log-densities of
    all free variables in one operation, and a sum that a model writes out becomes one.
    """
    mode = get_mode("FAST_COMPILE").register(*_by_numpy(two_by_two, cast_by_numpy, fill_by_numpy))
    return mode.register((_InnerFunctionsInPython(), _LAST))


@cache
def python_as_it_stands() -> Mode:
    """Return a mode in which Python computes a graph without rewrites, but for those that it needs."""
    return Mode(linker="py", optimizer=None).register(
        *_by_numpy(two_by_two, reduction_of_a_number), (_InnerFunctionsInPython(), _LAST)
    )


@node_rewriter([Sum, Prod, Max, Min])
def reduction_of_a_number(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace the sum, product or extreme of a number by the number."""
    (x,), (out,) = node.inputs, node.outputs
    return [pt.cast(x, out.type.dtype)] if x.type.ndim == 0 else None


class _InnerFunctionsInPython(GraphRewriter):
    """Replace operations with a function within them by copies that compute it in Python."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Look at each node; what is within these operations is linked by the same rule."""
        for node in fgraph.toposort():
            inner = node.op.core_op if isinstance(node.op, Blockwise) else node.op
            if not isinstance(inner, HasInnerFunction):
                continue
            own: Any = copy(inner)
            linker = VMLinker(use_cloop=False, c_thunks=False)
            own._fn = own.compile_fn(Mode(linker, SequentialGraphRewriter(self)))
            op = own
            if inner is not node.op:
                op = copy(node.op)
                op.core_op = own
            new = op.make_node(*node.inputs)
            fgraph.replace_all(list(zip(node.outputs, new.outputs, strict=True)), reason="in Python")


def _by_numpy(*rewrites: Any) -> list[tuple[Any, float]]:
    """Return rewrites with their positions, one after the other."""
    return [
        (in2out(rewrite, name=rewrite.__name__), _POSITION + number / 10)
        for number, rewrite in enumerate(rewrites, start=1)
    ]


def is_python(mode: Mode) -> bool:
    """Whether a function of this mode is computed by NumPy and Python."""
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
    """Leave casts to NumPy."""
    if not isinstance(node.op.scalar_op, Cast):
        return None
    return [NumPyCast(node.outputs[0].type.dtype)(node.inputs[0])]


class NumPyFill(Op):
    """The second array, broadcast against the first."""

    __props__ = ()

    def make_node(self, x: Variable, y: Variable) -> Apply:
        """Return y in the shape that x and y have together."""
        return Apply(self, [x, y], [Elemwise(second)(x, y).type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Copy."""
        _, y = np.broadcast_arrays(*inputs)
        output_storage[0][0] = y.astype(node.outputs[0].type.dtype)


_fill = NumPyFill()


@node_rewriter([Elemwise])
def fill_by_numpy(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Leave fills to NumPy."""
    return [_fill(*node.inputs)] if isinstance(node.op.scalar_op, Second) else None


@node_rewriter([Elemwise])
def two_by_two(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Add or multiply more than two arrays one after the other."""
    if not isinstance(node.op.scalar_op, Add | Mul) or len(node.inputs) <= 2:
        return None
    combine = pt.add if isinstance(node.op.scalar_op, Add) else pt.mul
    return [reduce(combine, node.inputs).astype(node.outputs[0].type.dtype)]


@node_rewriter([Elemwise])
def float_exponents(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Make the integer exponent of a float power a float, so that LLVM cannot undo it."""
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
