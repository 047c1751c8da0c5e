"""Keys of graphs that are the same in every process; compiled steps are kept on disk under them.

PyTensor keeps what numba compiles under a key of the rewritten graph. PyTensor 2 rewrites in an order that
depends on addresses in memory. So equal models end in different graphs in different processes, and each
process would compile anew, for half a minute a step. Here the key is of the graph before it is rewritten. No
rewrite changes what a graph computes, so a function that was compiled from it may be used for it again.

Two graphs have the same key only if they have the same operations with the same properties, on inputs of the
same types in the same order, with the same constants. Where that cannot be told (an operation that does not
declare its properties), there is no key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np
import pytensor
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.traversal import io_toposort
from pytensor.graph.type import Type
from pytensor.scalar.basic import Cast, Composite, ScalarOp
from pytensor.scalar.loop import ScalarLoop

from pymc_dpvi.numba_cache import source_hash

__all__ = ["graph_key"]

#: Attributes of every operation on scalars: its type and the types of its results tell the same.
_OF_SCALARS = {"name", "output_types_preference", "bool"}
_PLAIN = (str, bytes, bool, int, float, complex, type(None), np.generic, np.dtype, slice)


class _Unknown(Exception):
    """An operation or value that may have more to it than is known here."""


def graph_key(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> str | None:
    """Return a SHA-256 of a graph before any rewrite, in hexadecimal digits, or None if none can be made."""
    try:
        versions = (pytensor.__version__, numba.__version__, source_hash())
        return _digest("graph", versions, _graph(inputs, outputs))
    except _Unknown:
        return None


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _graph(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> str:
    """Hash a graph by its structure; the order of nodes and the names of variables do not matter."""
    known = {v: _digest("input", k, _type(v.type)) for k, v in enumerate(inputs)}

    def key_of(v: Variable) -> str:
        if v not in known:
            if not isinstance(v, Constant):
                raise _Unknown
            known[v] = _digest("constant", _type(v.type), _value(v.data))
        return known[v]

    for node in io_toposort(list(inputs), list(outputs)):
        types = [_type(out.type) for out in node.outputs]
        whole = _digest("node", _operation(node.op), [key_of(v) for v in node.inputs], types)
        for k, out in enumerate(node.outputs):
            known.setdefault(out, _digest("output", whole, k))
    return _digest([_type(v.type) for v in inputs], [key_of(v) for v in outputs])


def _operation(op: Op) -> str:
    kind = f"{type(op).__module__}.{type(op).__qualname__}"
    own = getattr(op, "graph_key", False)  # of our own operations, None where it is not known
    if own is None:
        raise _Unknown
    if own is not False:
        return _digest(kind, own)
    if isinstance(op, Cast):
        return _digest(kind, _type(op.o_type))
    if type(op) in (Composite, OpFromGraph):  # what derives from them may have more than its inner graph
        return _digest(kind, _graph(op.inner_inputs, op.inner_outputs))
    if isinstance(op, ScalarLoop):
        return _digest(kind, op.is_while, _graph(op.inner_inputs, op.inner_outputs))
    props = [(name, _value(getattr(op, name))) for name in getattr(op, "__props__", ())]
    if isinstance(op, OpFromGraph) and kind.startswith(
        "pytensor."
    ):  # a softmax, say: what it is, and its graph
        return _digest(kind, props, _graph(op.inner_inputs, op.inner_outputs))
    if hasattr(op, "__props__") and not isinstance(op, HasInnerGraph):
        return _digest(kind, props)
    if isinstance(op, ScalarOp) and vars(op).keys() <= _OF_SCALARS:
        return _digest(kind)
    raise _Unknown


def _type(type_: Type) -> str:
    kind = f"{type(type_).__module__}.{type(type_).__qualname__}"
    if any("__repr__" in vars(cls) for cls in type(type_).__mro__[:-1]):
        return f"{kind} {type_!r}"
    if getattr(type_, "__dict__", True):  # a representation by address tells nothing
        raise _Unknown
    return kind


def _value(value: Any) -> str:
    """Hash a property or a constant."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise _Unknown
        return _digest("array", str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest())
    if isinstance(value, _PLAIN):
        return _digest(type(value).__qualname__, repr(value))
    if isinstance(value, tuple | list):
        return _digest(type(value).__qualname__, [_value(v) for v in value])
    if isinstance(value, frozenset | set):
        return _digest("set", sorted(_value(v) for v in value))
    if isinstance(value, Mapping):
        return _digest("dict", sorted((_value(k), _value(v)) for k, v in value.items()))
    if isinstance(value, Op):
        return _operation(value)
    if isinstance(value, Type):
        return _type(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    raise _Unknown
