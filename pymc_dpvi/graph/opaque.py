"""Operations and constants that may hold numbers which no graph shows.

A graph shows its numbers only if its operations compute what they say *from their inputs alone*, and its
constants are dense arrays. A black-box likelihood, ``pytensor.wrap_py`` or a fitted spline may hold data, and
so may the code by which an operation that is given by a graph is computed or differentiated. So an operation
is opaque (:func:`opaque_part`) if it

* is of a package other than PyTensor's and PyMC's;
* calls a function of the user's;
* keeps more than settings;
* is given by a graph, and is not as its class makes it of that graph: it has methods or a derivative of the
  user's, or was changed after it was made.

So is any constant that is sparse, a list or another Python object, and a shared variable that PyTensor
updates by itself.

Graphs are searched before they are differentiated, so what a derivative brings in would be seen by nobody.
What this cannot see is what a user puts in the place of PyTensor's own, such as a compiled function.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.type_other import NoneTypeT, SliceType

from pymc_dpvi.graph.model_checks import is_updated

__all__ = ["hides_numbers", "is_opaque_value", "opaque_part"]

#: Packages whose operations compute what they say, from their inputs alone.
_KNOWN_PACKAGES = frozenset({"pymc", "pymc_extras", "pytensor"})
#: Operations of these packages that call a function of the user's.
_CALLS_OUT = frozenset({"FromFunctionOp", "JAXOp"})
#: Where classes above all others stand.
_ABSTRACT = frozenset({"abc", "builtins", "typing"})
#: What an operation that is given by a graph is made of, which is looked at otherwise or holds no number.
_MADE_OF = frozenset({"fgraph", "input_types", "output_types", "shared_inputs"})
#: Methods and properties by which PyTensor computes, differentiates and compiles such an operation.
_METHODS = frozenset(
    name
    for name in dir(OpFromGraph)
    if callable(code := getattr(OpFromGraph, name)) or isinstance(code, property | functools.cached_property)
) - {"__eq__", "__hash__", "__init__", "__ne__", "__repr__", "__str__"}
#: Packages whose objects are settings, not data, where an operation keeps them.
_SETTINGS = _KNOWN_PACKAGES | {"builtins", "collections", "functools", "numpy", "pathlib", "types", "weakref"}
#: Most numbers of a setting.
_FEW = 8


def opaque_part(op: Op) -> str | None:
    """Name the class of a part of an operation that may hold numbers of its own; None if there is none."""
    for part in (op, getattr(op, "core_op", None), getattr(op, "scalar_op", None)):
        if part is None:
            continue
        if isinstance(part, OpFromGraph):
            if _is_not_its_graph(part):
                return type(part).__name__
        else:
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


def _is_not_its_graph(op: OpFromGraph) -> bool:
    """Whether an operation that is given by a graph may compute something else, or have another derivative.

    A class of the user's passes if it is a random variable by its graph alone: it has no other base that
    computes, and a method of its own only where PyTensor's class has none.
    """
    known = _KNOWN_PACKAGES | _ABSTRACT
    own = [k for k in type(op).__mro__ if k.__module__.partition(".")[0] not in known]
    if own and not all(
        k in own or k in SymbolicRandomVariable.__mro__ or issubclass(k, SymbolicRandomVariable)
        for k in type(op).__mro__
    ):
        return True
    named = set(vars(op)).union(*map(vars, own))
    if named & _METHODS or not all(isinstance(v, str | bool | None) for v in op.kwargs.values()):
        return True
    held = {name: value for name, value in vars(op).items() if name not in _MADE_OF and value is not None}
    given = [value for name, value in held.items() if name.endswith("_overrides")]
    derived = [value for name, value in held.items() if name.startswith("_frozen_")]
    return any(not _is_theirs(v) for v in given) or bool(derived and not given) or _is_data(held, 3)


def _is_theirs(override: Any) -> bool:
    """Whether a derivative is a function of PyTensor's or PyMC's."""
    package = str(getattr(override, "__module__", "")).partition(".")[0]
    return isinstance(override, FunctionType) and package in _KNOWN_PACKAGES


def hides_numbers(var: Variable) -> bool:
    """Whether a variable may hold numbers that no graph shows.

    That is an operation that is opaque, a constant that is no dense array, or a number that a function
    updates.
    """
    if var.owner is not None:
        return opaque_part(var.owner.op) is not None
    return is_opaque_value(var) or is_updated(var)


def is_opaque_value(var: Variable) -> bool:
    """Whether a constant or shared variable is no dense array of numbers, and may hide some.

    Scalars, slices, ``None`` and random generators hide none.
    """
    if not isinstance(var, Constant | SharedVariable):
        return False
    if isinstance(var.type, DenseTensorType):
        return bool(np.dtype(var.type.dtype) == object)
    return not isinstance(var.type, ScalarType | NoneTypeT | SliceType | RandomType)


def _is_static(kind: type) -> bool:
    """Whether a class stands in its module under its name: one that was made at run time does not."""
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
