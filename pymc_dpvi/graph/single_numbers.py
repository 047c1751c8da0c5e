r"""Constants that are no array and still hold one: many single numbers, and vectors read entry by entry.

A single number that is written into a model counts as public: nobody can tell ``0.5`` from a mean of the
records. A hundred of them are a table, in whatever way they were put in::

    for v in y: pm.Potential(f"p{i}", -((mu - v) ** 2))         # numbers, one a term
    pm.CustomDist(..., logp=lambda x, mu: sum((mu - float(v)) ** 2 for v in y))

:func:`holds_table` counts the numbers of a graph in two ways, and more than `MOST_NUMBERS` by either are a
table:

* **different numbers.** What people write into a formula are a few numbers, often the same ones; the models
  of `tests/zoo.py` have at most 13, those of PyMC's densities included. Index positions, axes, lengths and
  shapes are no numbers here.
* **one expression with other numbers in it.** Nodes that differ in their numbers alone, as ``mu - 1`` and
  ``mu - 0`` do, are rows of a table, also where only two different numbers occur (the answers yes and no).
  An unrolled loop is none: each turn is computed from the one before. Nor are a hundred times ``0.1 * b``:
  all rows but eight at most are the same. Nor are ``x**0``, ``x**1``, ..., ``x**99``: equal steps, each
  as often, say two numbers.

A constant array that says next to nothing (`structural`) counts for two numbers: seventy of them are a table.

What a loop writes into positions, operands and turns, `written_loops` looks for.

The threshold says how many numbers go uncounted: a user who writes up to 64 summaries of the data into a
model, one by one, is not stopped (``docs/limitations.md``, 1).

:func:`shape_vectors` finds the integer vectors that are shapes, by the operations that read them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import Cast, ScalarType
from pytensor.tensor.basic import Alloc, Join, Split
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import TensorType

from pymc_dpvi.graph.rebuild import is_static_shape
from pymc_dpvi.graph.traversal import array_value, is_array
from pymc_dpvi.graph.written_loops import MOST_NUMBERS, breaks, spells_data

__all__ = [
    "MOST_NUMBERS",
    "constant_parts",
    "holds_table",
    "joined_numbers",
    "shape_vectors",
    "written_shapes",
    "written_triangles",
]

#: Rows of a table that may differ from the others, and it is none.
_FEW = 8
#: Axes that an array has at most, and so entries of a vector of lengths.
_MOST_AXES = 8
#: Operations whose first input alone is computed with: the others are shapes, axes and indices.
_FIRST_ONLY = {"Alloc", "BroadcastTo", "Reshape", "SpecifyShape", "Unbroadcast", "Split"}
#: Operations whose inputs are lengths.
_NO_INPUT = {"ARange", "AllocEmpty", "Eye", "MakeSlice"}


def holds_table(found: Iterable[Variable], lists: Sequence[Sequence[Variable]] = ()) -> bool:
    """Whether a graph tells as much as an array of data has, by its single numbers or by its structure.

    Parameters
    ----------
    found : iterable of Variable
        All variables of the graph, inputs before outputs (`rebuild.walk`).
    lists : sequence of sequence of Variable
        Variables of it that are a list, such as the Potentials of a model.

    Returns
    -------
    bool
    """
    found = list(found)
    nodes = list({var.owner: None for var in found if var.owner is not None})
    return _count(nodes, set()) or spells_data(found, lists)


def _count(nodes: Sequence[Apply], different: set[Hashable]) -> bool:
    """Count the numbers that nodes read, and those of their inner graphs."""
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
            # A number still, whichever it is; it counts where it is used.
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
    """Whether rows of numbers are many, and not the same one but for a few."""
    ((_, most),) = Counter(rows).most_common(1)
    return len(rows) * len(rows[0]) > MOST_NUMBERS and len(rows) - most > _FEW


def _is_progression(rows: Sequence[tuple[float, ...]]) -> bool:
    """Whether rows are single numbers that go on in equal steps, but for a few: two numbers say them all."""
    if len(set(rows)) <= _FEW or any(len(row) != 1 for row in rows):
        return False
    return breaks(np.array(rows)[:, 0]) <= _FEW


def _small_arrays(node: Apply) -> Iterator[Hashable]:
    """Yield what constant arrays count for: two different numbers each, as a grid of one axis needs."""
    for k, var in enumerate(node.inputs):
        if not isinstance(var, Constant) or not is_array(var):
            continue
        value = array_value(var)
        length = value.dtype.kind in "iu" and value.ndim == 1 and value.size <= _MOST_AXES
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

    A shared one may be given any value, so each is another number; and so is one that is not real.
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
    """Return the arrays in a graph that follow from constants alone, and are computed with.

    Shapes, axes and indices are left out.

    Parameters
    ----------
    found : iterable of Variable
        All variables of the graph, inputs before outputs (`rebuild.walk`).

    Returns
    -------
    list of Variable
        The last ones of their kind: what is computed from them depends on something else.
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
    """Tell leaves apart; equal indices and axes are one."""
    if isinstance(var, Constant):
        value = np.asarray(var.data) if is_array(var) or isinstance(var.type, ScalarType) else None
        if value is not None and value.size == 1:
            return (str(value.dtype), value.flat[0].item())
    return id(var)


def shape_vectors(found: Iterable[Variable]) -> set[Variable]:
    """Return the constant integer vectors that are read as shapes and in no other way.

    That is the shape of a reshape, the size of a random variable, the lengths of parts, and what stands for
    the shape of an array whose type knows it. The operations that read a vector decide, and no entry of it.

    Parameters
    ----------
    found : iterable of Variable
        All variables of the graph (`rebuild.walk`).

    Returns
    -------
    set of Variable
    """
    return {v for v, how in _readers(found).items() if how == {"shape"} or is_static_shape(v)}


def joined_numbers(found: Iterable[Variable]) -> set[Variable]:
    """Return the constants of one entry that are joined to something, and read in no other way.

    That is how a number is put before a vector: ``pt.concatenate([[0.0], cutpoints])``. No type tells it from
    an array of the records of which one entry is left (``docs/limitations.md``, 1).

    Parameters
    ----------
    found : iterable of Variable
        All variables of the graph (`rebuild.walk`).

    Returns
    -------
    set of Variable
    """
    joined: set[Variable] = set()
    others: set[Variable] = set()
    for node in _all_nodes(found):
        for i in node.inputs:
            one = isinstance(i, Constant) and is_array(i) and array_value(i).shape == (1,)
            (joined if one and isinstance(node.op, Join) else others).add(i)
    return joined - others


def written_shapes(found: Sequence[Variable]) -> set[Variable]:
    """Return `shape_vectors`, and the vectors that are read entry by entry and repeat a part of a shape.

    PyMC reads the size of a random variable so. Counts of records may repeat a shape too: so this decides
    what the report lists of what counts as public, and neither a refusal nor a release.

    Parameters
    ----------
    found : sequence of Variable
        All variables of the graph (`rebuild.walk`).

    Returns
    -------
    set of Variable
    """
    shapes: set[tuple[int | None, ...]] = {getattr(v.type, "shape", ()) for v in found if not is_array(v)}
    for node in _all_nodes(found):
        shapes.update(getattr(v.type, "shape", ()) for v in node.outputs)
    parts = {s[a:b] for s in shapes for a in range(len(s)) for b in range(a + 1, len(s) + 1)}
    return shape_vectors(found) | {
        v
        for v, how in _readers(found).items()
        if how <= {"shape", "entry"} and tuple(array_value(v).tolist()) in parts
    }


def _all_nodes(found: Iterable[Variable]) -> Iterator[Apply]:
    """Yield the operations of a graph and of the graphs inside them."""
    nodes = list({v.owner: None for v in found if v.owner is not None})
    while nodes:
        node = nodes.pop()
        yield node
        nodes += getattr(getattr(node.op, "fgraph", None), "apply_nodes", ())


def _readers(found: Iterable[Variable]) -> dict[Variable, set[str]]:
    """Say of each constant vector of a few integers how it is read: as a shape, an entry of it, else."""
    readers: dict[Variable, set[str]] = {}
    for node in _all_nodes(found):
        for k, i in enumerate(node.inputs):
            if not isinstance(i, Constant) or not is_array(i):
                continue
            if i.type.dtype[:3] in ("int", "uin") and i.type.ndim == 1 and array_value(i).size <= _MOST_AXES:
                entry = isinstance(node.op, Subtensor) and node.outputs[0].type.ndim == 0
                shape = (
                    (isinstance(node.op, Reshape) and k == 1)
                    or (isinstance(node.op, Split) and k == len(node.inputs) - 1)
                    or (isinstance(node.op, RandomVariable) and i is node.op.size_param(node))
                )
                readers.setdefault(i, set()).add("shape" if shape else "entry" if entry else "other")
    return readers


def written_triangles(
    found: Iterable[Variable], is_packed: Callable[[Variable], bool] = lambda packed: True
) -> set[Variable]:
    """Return the index tables by which a packed vector is written into the lower triangle of a new matrix.

    That is how PyMC unpacks the Cholesky factor of ``pm.LKJCholeskyCov``. The tables are ``tril_indices(n)``
    of the n by n matrix that is made for it.

    The entries are compared, so that no other table passes. Whether one passes tells nothing if the packed
    vector is an LKJ variable (`is_packed`): at other places than the triangle's its numbers are no Cholesky
    factor, so there is no model in which a record decides about the places. A vector of any other
    variable may be written where records say, to the pairs that occur among them.

    Parameters
    ----------
    found : iterable of Variable
        All variables of the graph (`rebuild.walk`).
    is_packed : callable
        Whether a vector is an LKJ variable's.

    Returns
    -------
    set of Variable
    """
    tables: set[Variable] = set()
    for node in {v.owner: None for v in found if v.owner is not None}:
        if "IncSubtensor" not in type(node.op).__name__ or len(node.inputs) != 4:
            continue
        into, packed, *indices = node.inputs
        n = into.type.shape[0] if into.type.ndim == 2 and len(set(into.type.shape)) == 1 else None
        if n is None or into.owner is None or not isinstance(into.owner.op, Alloc) or not is_packed(packed):
            continue
        if all(isinstance(i, Constant) and is_array(i) for i in indices) and all(
            np.array_equal(array_value(i), table)
            for i, table in zip(indices, np.tril_indices(n), strict=True)
        ):
            tables.update(indices)
    return tables
