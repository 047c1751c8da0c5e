r"""Data that a loop over the records wrote into the structure of a graph.

Data can stand in a formula in other forms than numbers and arrays. A loop in Python leaves an operation for
each of its turns, and which operation it is may be a record's answer::

    pt.stack([b[int(v)] for v in group])                            # in the positions of indices
    pm.Potential("lik", sum(log_p if v else log_q for v in y))      # in the choice of operands
    for v in y: level = level + rate * (v - level)                  # in numbers, each on the turn before

Such a graph is read as words. A *word* is the list of operands of one long operation (``stack``, ``add``),
the turns of a chain in which each operation works on the result of the one before, or a list that the model
keeps (of its Potentials). A *letter* is the formula of one operand, in which single numbers, positions and
references to earlier turns are left blank; the blanks have words of their own.

:func:`spells_data` looks at words of more than `MOST_NUMBERS` letters. A letter that occurs once is a formula
that somebody wrote, and does not count. Of the others it counts those that break the word's period (but for
the first turn and the last), and the entries of a blank that are neither the same throughout, nor at equal
steps, nor repeat. More than `_FEW` are data. So ``sum(x[:, j] * b[j] for j in range(100))`` passes, and so
does any recurrence that repeats its turn.

:func:`is_long` looks at no entry, so that what is released does not depend on one: a formula with more than
`MOST_NUMBERS` constants in it, operands of one operation, or operations in a row, is long, whatever they are.

This is against mistakes. Whoever wants to can hide data from it in a formula, as in the digits of a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from pymc_dpvi.graph.traversal import is_array

__all__ = ["MOST_NUMBERS", "breaks", "is_long", "spells_data"]

#: Single numbers, letters or positions that a graph may hold before they count as an array.
MOST_NUMBERS = 64

#: Most irregular letters and entries of a word that is no data.
_FEW = 8
#: Times that a period must occur in a word.
_PERIODS = 5
#: Steps are equal if they agree to one part in so many of the range.
_ROUNDED = 1e9
#: Most blanks of a letter; if there are more, they are part of the letter.
_MOST_BLANKS = 16
#: Most operations between two of a chain that are looked at.
_MOST_BETWEEN = 200
#: Most entries of an array that is told from others by its values.
_KNOWN_BY_VALUE = 4096

#: A formula without its blanks, and what stands in them.
Letter = tuple[int, tuple[float, ...]]


def spells_data(found: Iterable[Variable], lists: Sequence[Sequence[Variable]] = ()) -> bool:
    """Whether the structure of a graph tells more than a few letters, in a word of more than `MOST_NUMBERS`.

    `found` are all variables of the graph, inputs before outputs (`traversal.walk`); `lists` are lists of its
    variables that the model keeps, such as its Potentials.
    """
    nodes = list({v.owner: None for v in found if v.owner is not None})
    alphabet = _Alphabet(nodes)
    words = [[alphabet.letter(v) for v in node.inputs] for node in nodes if len(node.inputs) > MOST_NUMBERS]
    words += [[alphabet.entry(v) for v in one] for one in lists if len(one) > MOST_NUMBERS]
    if any(_told(word) > _FEW for word in words):
        return True
    if any(_told(alphabet.turns(chain)) > _FEW for chain in _chains(nodes)):
        return True
    return any(spells_data(inner) for inner in _inner_graphs(nodes))


def is_long(found: Iterable[Variable], lists: Sequence[Sequence[Variable]] = ()) -> bool:
    """Whether a graph could hold data, whatever it holds; `found` and `lists` as for :func:`spells_data`.

    That is if more than `MOST_NUMBERS` constants stand in it (equal ones, axes and positions count), or one
    of its words is longer.
    """
    nodes = list({v.owner: None for v in found if v.owner is not None})
    numbers = sum(
        isinstance(v, Constant | SharedVariable) and isinstance(v.type, TensorType | ScalarType)
        for node in nodes
        for v in node.inputs
    )
    widest = max([len(one) for one in lists] + [len(node.inputs) for node in nodes], default=0)
    long = max(numbers, widest) > MOST_NUMBERS or next(_chains(nodes), None) is not None
    return long or any(is_long(inner) for inner in _inner_graphs(nodes))


class _Alphabet:
    """Letters of a graph."""

    def __init__(self, nodes: Sequence[Apply]) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._letters: dict[Variable, Letter] = {}
        self._draws: dict[Variable, Letter] = {}
        self._leaves: dict[Variable, float] = {}
        self._nodes = nodes
        for node in nodes:
            random = any(isinstance(v.type, RandomType) for v in node.inputs)
            parts = [self.letter(v) for v in node.inputs if not isinstance(v.type, RandomType)]
            for k, out in enumerate(node.outputs):
                letter = self._joined((*_operation(node), k), parts)
                if random:  # each is a variable of its own
                    self._draws[out], letter = letter, self._variable(out)
                self._letters[out] = letter

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _joined(self, key: Hashable, parts: Sequence[Letter]) -> Letter:
        blanks = tuple(x for _, held in parts for x in held)
        formula = (key, tuple((name, len(held)) for name, held in parts))
        if len(blanks) > _MOST_BLANKS:
            return self._number((formula, blanks)), ()
        return self._number(formula), blanks

    def entry(self, var: Variable) -> Letter:
        """Return the letter of an entry of a list; that of a random variable is its prior."""
        return self._draws.get(var) or self.letter(var)

    def letter(self, var: Variable) -> Letter:
        """Return the letter of an operand."""
        if var not in self._letters:
            self._letters[var] = self._leaf(var)
        return self._letters[var]

    def _leaf(self, var: Variable) -> Letter:
        if isinstance(var, Constant) and (is_array(var) or isinstance(var.type, ScalarType)):
            value = np.asarray(var.data)
            if value.size == 1 and value.dtype.kind in "biuf":
                return self._number("number"), (float(value.flat[0]),)
            if value.size <= _KNOWN_BY_VALUE:
                return self._number((value.shape, value.tobytes())), ()
        return self._variable(var)

    def _variable(self, var: Variable) -> Letter:
        """Leave blank which variable of its type it is; the blank holds its place in order of occurrence."""
        return self._number(("variable", str(var.type))), (self._leaves.setdefault(var, len(self._leaves)),)

    def turns(self, chain: Sequence[Apply]) -> list[Letter]:
        """Return the letters of a chain: its operations, and their operands beside the turn before."""
        place = {out: k for k, node in enumerate(chain) for out in node.outputs}
        behind: set[Variable] = set(place)  # what depends on the chain
        for node in self._nodes:
            if not behind.isdisjoint(node.inputs):
                behind.update(node.outputs)
        return [self._turn(node, k, place, behind) for k, node in enumerate(chain)]

    def _turn(self, node: Apply, at: int, place: dict[Variable, int], behind: set[Variable]) -> Letter:
        budget = _MOST_BETWEEN

        def part(var: Variable) -> Letter:
            nonlocal budget
            if place.get(var, at) == at - 1:
                return -1, ()
            if var in place:
                return -2, (float(at - place[var]),)
            if var not in behind or budget == 0 or var.owner is None:
                return self.letter(var)
            budget -= 1
            inner = [part(v) for v in var.owner.inputs]
            return self._joined((*_operation(var.owner), var.owner.outputs.index(var)), inner)

        return self._joined(_operation(node), [part(v) for v in node.inputs])


def _inner_graphs(nodes: Iterable[Apply]) -> Iterator[list[Variable]]:
    """Yield the variables of the graphs inside operations."""
    for node in nodes:
        for op in (node.op, getattr(node.op, "core_op", None)):
            if (graph := getattr(op, "fgraph", None)) is not None:
                yield [out for one in graph.toposort() for out in one.outputs]


def _operation(node: Apply) -> tuple[Any, ...]:
    """Name an operation: by itself if it has ``__props__`` to be compared by, else by its type."""
    op = node.op
    known = hasattr(type(op), "__props__")
    return (op,) if known else (type(op), type(getattr(op, "scalar_op", None)))


def _chains(nodes: Sequence[Apply]) -> Iterator[list[Apply]]:
    """Yield chains of more than `MOST_NUMBERS` operations, none of them in two, the longest first."""
    left = list(nodes)
    while len(left) > MOST_NUMBERS:
        depth: dict[Apply, int] = {}
        before: dict[Apply, Apply] = {}
        held = set(left)
        for node in left:
            depth[node] = 1
            for var in node.inputs:
                one = var.owner
                if one in held and depth[one] + 1 > depth[node]:
                    depth[node], before[node] = depth[one] + 1, one
        last = max(left, key=depth.__getitem__)
        if depth[last] <= MOST_NUMBERS:
            return
        chain = [last]
        while chain[-1] in before:
            chain.append(before[chain[-1]])
        yield chain[::-1]
        taken = set(chain)
        left = [n for n in left if n not in taken]


def _told(word: Sequence[Letter]) -> int:
    """Count what a word tells beside its length."""
    times = Counter(name for name, _ in word)
    word = [letter for letter in word if times[letter[0]] > 1]
    if len(word) <= MOST_NUMBERS:
        return 0
    names = np.array([name for name, _ in word])
    periods = range(1, len(word) // _PERIODS + 1)
    broken = {p: int(np.count_nonzero(names[2 * p : -p] != names[p : -2 * p])) for p in periods}
    period = min(broken, key=broken.__getitem__)
    told = broken[period]
    middle = names[len(names) // 2 :][:period].tolist()
    for name in set(names.tolist()):
        blanks = np.array([held for one, held in word if one == name], dtype=float)
        turns = max(1, middle.count(name))
        for k in range(turns):
            told += sum(breaks(column) for column in blanks[k::turns].T)
    return told


def breaks(values: np.ndarray) -> int:
    """Count what breaks ``v[i + p] = v[i] + step``, for the best p and step; 0 if fewer than five."""
    if len(values) < _PERIODS or not np.isfinite(values).all():
        return 0
    width = float(np.ptp(values)) or 1.0
    found = len(values)
    for p in range(1, len(values) // _PERIODS + 1):
        steps = np.rint((values[p:] - values[:-p]) / width * _ROUNDED)
        found = min(found, len(steps) - max(Counter(steps.tolist()).values()))
    return found
