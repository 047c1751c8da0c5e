"""Single numbers in a formula that together are an array of data.

A single number that is written into a model counts as public: nobody can tell ``0.5`` from a mean of the
records. A hundred of them are a table, however they were put in::

    for v in y: pm.Potential(f"p{i}", -((mu - v) ** 2))         # numbers, one a term
    pm.CustomDist(..., logp=lambda x, mu: sum((mu - float(v)) ** 2 for v in y))

:func:`holds_table` counts the numbers of a graph in two ways, and more than `MOST_NUMBERS` by either are a
table:

* **different numbers.** People write few numbers into a formula, and often the same ones; the models of
  `tests/zoo.py` have at most 13, those of PyMC's densities included. Index positions, axes, lengths and
  shapes are no numbers here.
* **one expression with other numbers in it.** Nodes that differ in their numbers alone, as ``mu - 1`` and
  ``mu - 0`` do, are rows of a table, also where only two different numbers occur (the answers yes and no). An
  unrolled loop is no table: each turn is computed from the one before. Nor are a hundred times ``0.1 * b``:
  at most eight rows differ from the most frequent one. Nor are ``x**0``, ``x**1``, ..., ``x**99``: two
  numbers, a start and a step, say them all.

A constant array that says next to nothing (`shape_constants`) counts for two numbers: 33 different ones are a
table. `unrolled_loops` looks for what a loop writes into positions, operands and turns. Up to 64 summaries
of the data that a user writes into a model, one by one, pass unnoticed (``docs/limitations.md``, 1).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import Cast, ScalarType
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import TensorType

from pymc_dpvi.graph.traversal import array_value, is_array
from pymc_dpvi.graph.unrolled_loops import MOST_NUMBERS, breaks, spells_data

__all__ = ["MOST_NUMBERS", "constant_parts", "holds_table"]

#: Rows that may differ from the most frequent one without being a table.
_FEW = 8
#: Most entries of a vector of lengths.
_MOST_LENGTHS = 8
#: Operations that compute with their first input alone: the others are shapes, axes and indices.
_FIRST_ONLY = {"Alloc", "BroadcastTo", "Reshape", "SpecifyShape", "Unbroadcast", "Split"}
#: Operations whose inputs are lengths.
_NO_INPUT = {"ARange", "AllocEmpty", "Eye", "MakeSlice"}


def holds_table(found: Iterable[Variable], lists: Sequence[Sequence[Variable]] = ()) -> bool:
    """Whether a graph could hold an array of data, in its single numbers or in its structure.

    `found` are all variables of the graph (`traversal.walk`); `lists` are lists of its variables that the
    model keeps, such as its Potentials.
    """
    found = list(found)
    nodes = list({var.owner: None for var in found if var.owner is not None})
    return _count(nodes, set()) or spells_data(found, lists)


def _count(nodes: Sequence[Apply], different: set[Hashable]) -> bool:
    """Whether nodes and their inner graphs read a table, or too many numbers; add those to `different`."""
    kinds: dict[Any, int] = {}
    kind: dict[Variable, int] = {}
    number: dict[Variable, float] = {}
    rows: dict[int, list[tuple[float, ...]]] = {}

    def name(key: Any) -> int:
        return kinds.setdefault(key, len(kinds))

    for node in nodes:
        read = _computed_with(node)
        different.update(_small_arrays(node))
        inputs, held = [], []
        for position, var in enumerate(node.inputs):
            value = _number(var, number) if position in read else None
            if value is None:
                if var not in kind:
                    kind[var] = name(_leaf(var))
                inputs.append(kind[var])
            else:
                inputs.append(-1)
                held.append(value)
                if var not in number:
                    different.add(value)
        made = name((node.op, tuple(inputs)))
        for k, out in enumerate(node.outputs):
            kind[out] = name((made, k))
        if held and len(held) == len(read) and isinstance(node.op, Alloc | DimShuffle | Elemwise):
            # Still a single number: it counts where it is used.
            same = not isinstance(node.op, Elemwise) or isinstance(node.op.scalar_op, Cast)
            number[node.outputs[0]] = held[0] if same else float(name((made, tuple(held))))
        elif held:
            rows.setdefault(made, []).append(tuple(held))
        for part in (node.op, getattr(node.op, "core_op", None), getattr(node.op, "scalar_op", None)):
            inner = getattr(part, "fgraph", None)
            if inner is not None and _count(inner.toposort(), different):
                return True
    tables: list[list[tuple[float, ...]]] = list(rows.values())
    tables += [[(v,) for v in row] for table in tables for row in table]
    for table in tables:
        if _is_progression(table):
            different.difference_update(*table)
        elif _is_table(table):
            return True
    return len(different) > MOST_NUMBERS


def _is_table(rows: Sequence[tuple[float, ...]]) -> bool:
    """Whether rows hold many numbers, and more than a few rows differ from the most frequent one."""
    ((_, most),) = Counter(rows).most_common(1)
    return len(rows) * len(rows[0]) > MOST_NUMBERS and len(rows) - most > _FEW


def _is_progression(rows: Sequence[tuple[float, ...]]) -> bool:
    """Whether rows are single numbers at equal steps, but for a few: two numbers say them all."""
    if len(set(rows)) <= _FEW or any(len(row) != 1 for row in rows):
        return False
    return breaks(np.array(rows)[:, 0]) <= _FEW


def _small_arrays(node: Apply) -> Iterator[Hashable]:
    """Yield what constant arrays count for: two different numbers each, as a grid of one axis needs."""
    for k, var in enumerate(node.inputs):
        if not isinstance(var, Constant) or not is_array(var):
            continue
        value = array_value(var)
        length = value.dtype.kind in "iu" and value.ndim == 1 and value.size <= _MOST_LENGTHS
        if value.size > 1 and (
            k in _computed_with(node) or not length or "Subtensor" in type(node.op).__name__
        ):
            yield from (((value.shape, value.tobytes()), number) for number in range(2))


def _computed_with(node: Apply) -> set[int]:
    """Positions of the inputs that are no index, no axis, no length and no size."""
    kind = type(node.op).__name__
    everything = set(range(len(node.inputs)))
    if isinstance(node.op, RandomVariable):
        parameters = node.op.dist_params(node)
        return {k for k in everything if any(node.inputs[k] is p for p in parameters)}
    if kind in _NO_INPUT:
        return set()
    if kind in _FIRST_ONLY:
        return {0}
    if "Subtensor" in kind:
        return {0, 1} if "Inc" in kind else {0}
    if kind == "Join" and not hasattr(node.op, "axis"):  # in PyTensor 2 the first input is the axis
        return everything - {0}
    return everything


def _number(var: Variable, known: dict[Variable, float]) -> float | None:
    """Return the value of a single number, also behind an expansion of its axes.

    Each shared one is another number, since it may be given any value. So is each that is not real.
    """
    if var in known:
        return known[var]
    if not isinstance(var.type, TensorType | ScalarType) or not isinstance(var, Constant | SharedVariable):
        return None
    value = array_value(var)
    if value.size != 1:
        return None
    shared = isinstance(var, SharedVariable) or value.dtype.kind not in "biuf"
    # Not the address itself: numbers made one after the other stand in equal steps in memory.
    return random.Random(id(var)).random() if shared else float(value.flat[0])


def constant_parts(found: Iterable[Variable]) -> list[Variable]:
    """Return the arrays in a graph that follow from constants alone and are computed with.

    Shapes, axes and indices are left out. `found` are all variables of the graph. Of arrays that follow from
    each other only the last is returned, which an operation with other inputs reads.
    """
    fixed: set[Variable] = set()
    parts: dict[Variable, None] = {}
    for var in found:
        node = var.owner
        if isinstance(var, Constant):
            fixed.add(var)
        elif node is None:
            continue
        elif node.inputs and all(i in fixed for i in node.inputs):
            fixed.add(var)
        else:
            for k in _computed_with(node):
                i = node.inputs[k]
                inner = isinstance(node.op, OpFromGraph) and getattr(i.type, "dtype", "f")[0] != "f"
                if i in fixed and getattr(i.type, "ndim", 0) > 0 and not inner:
                    parts[i] = None
    return list(parts)


def _leaf(var: Variable) -> Any:
    """Return the key of a leaf: equal single numbers, such as indices and axes, share one."""
    if isinstance(var, Constant):
        value = np.asarray(var.data) if is_array(var) or isinstance(var.type, ScalarType) else None
        if value is not None and value.size == 1:
            return (str(value.dtype), value.flat[0].item())
    return id(var)
