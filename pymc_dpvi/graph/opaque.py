"""Operations and values in which numbers may be hidden from the graph.

What a graph computes is seen by walking it: its constants and shared arrays are there. That is so only for
operations that compute what they say *from their inputs alone*, and only for constants that are dense arrays.
So these count as opaque, and whatever they are part of as private:

* an operation of a package other than PyTensor's and PyMC's, or one that calls a function of the user's;
* an operation that keeps more than settings: an array, numbers beyond a few, a fitted object (a spline of
  SciPy's, say), a function that somebody else wrote;
* a constant or shared variable that is no dense array of numbers: sparse, a list, any Python object.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.type_other import NoneTypeT, SliceType

__all__ = ["is_opaque_value", "opaque_part"]

#: Packages whose operations compute what they say, from their inputs alone.
_KNOWN_PACKAGES = frozenset({"pymc", "pymc_extras", "pytensor"})
#: Operations of these packages that call a function of the user's.
_CALLS_OUT = frozenset({"FromFunctionOp", "JAXOp"})
#: Packages whose objects are settings, not data, where an operation keeps them.
_SETTINGS = _KNOWN_PACKAGES | {"builtins", "collections", "functools", "numpy", "pathlib", "types", "weakref"}
#: Numbers that a setting consists of at the most.
_FEW = 8


def opaque_part(op: Op) -> str | None:
    """Name the part of an operation, or of one inside it, that may hold numbers of its own.

    Parameters
    ----------
    op : pytensor.graph.op.Op

    Returns
    -------
    str or None
        Name of a class; None if all that the operation computes with are its inputs.
    """
    for part in (op, getattr(op, "core_op", None), getattr(op, "scalar_op", None)):
        if part is None:
            continue
        if not isinstance(part, OpFromGraph):
            kind = type(part)
            package = kind.__module__.partition(".")[0]
            if package not in _KNOWN_PACKAGES or kind.__name__ in _CALLS_OUT:
                return kind.__name__
            if isinstance(part, RandomVariable) and not _is_static(kind):
                return kind.__name__  # made for one user's function, such as that of a CustomDist
            if any(_is_data(value, 3) for value in getattr(part, "__dict__", {}).values()):
                return kind.__name__
        for node in getattr(getattr(part, "fgraph", None), "apply_nodes", ()):
            if (name := opaque_part(node.op)) is not None:
                return name
    return None


def is_opaque_value(var: Variable) -> bool:
    """Whether a constant or shared variable is something else than a dense array of numbers.

    Lengths, slices, ``None`` and random generators are what they seem.
    """
    if not isinstance(var, Constant | SharedVariable):
        return False
    if isinstance(var.type, DenseTensorType):
        return bool(np.dtype(var.type.dtype) == object)
    return not isinstance(var.type, ScalarType | NoneTypeT | SliceType | RandomType)


def _is_static(kind: type) -> bool:
    """Whether a class was written in the module that it says, and not made at run time."""
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def _is_data(value: Any, depth: int) -> bool:
    """Whether an attribute of an operation may be data, or compute with some."""
    if isinstance(value, np.ndarray | np.generic):
        return value.ndim > 0 or value.dtype == object
    if isinstance(value, FunctionType):
        return value.__module__.partition(".")[0] not in _SETTINGS if value.__module__ else True
    if isinstance(value, MethodType):
        return _is_data(value.__func__, depth)
    if isinstance(value, functools.partial):
        return any(_is_data(v, depth - 1) for v in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, type | ModuleType):
        return False
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        inside = [*value, *value.values()] if isinstance(value, Mapping) else list(value)
        if sum(isinstance(v, float | complex) for v in inside) > _FEW:
            return True
        return depth > 0 and any(_is_data(v, depth - 1) for v in inside)
    return type(value).__module__.partition(".")[0] not in _SETTINGS
