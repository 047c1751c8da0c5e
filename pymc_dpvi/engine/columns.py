"""Long vectors of a graph, computed column by column on several threads.

A network's update is arithmetic on vectors as long as there are weights: Adam's moments, the latent draw, the
averages. Each entry of the results depends on the same entry of every long vector, and on scalars. So the
graph is cut into three, each part compiled::

    ahead          = head(vectors, scalars)   # by columns: what follows from the inputs alone
    between, rest  = other(inputs, ahead)     # anything: matrices made of parts of the vectors, sums
    outputs        = tail(between), rest      # by columns again

The head and the tail are computed for some thousand columns at a time, by whichever thread is free. Where
pieces begin is fixed, so the result does not depend on the number of threads.

An operation is taken by columns if its last axis is that of its arguments, entry by entry: elementwise ones,
new or dropped axes in front, and reductions over other axes. All others are left to the middle part. Privacy
needs no proof here: there are no records (`split_step` checks that), only released and public values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.pytensorf import compile as pm_compile
from pytensor.compile.io import In, Out
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.type import DenseTensorType

from pymc_dpvi.engine.atomics import take_turn
from pymc_dpvi.engine.compile_cache import compiled_source
from pymc_dpvi.engine.threads import Threads, ring
from pymc_dpvi.graph.traversal import substituted
from pymc_dpvi.numba_cache import source_hash

__all__ = ["InColumns", "is_long_vector"]

#: Columns from which on several threads are worth a call.
_LONG = 1 << 16
#: Columns of a piece: what is computed for them stays in the processor's cache.
_PIECE = 1 << 11


def is_long_vector(variable: Variable) -> bool:
    """Whether a variable is a vector, or a row of vectors, of many columns."""
    return _columns(variable) >= _LONG


class InColumns:
    """A compiled graph whose long vectors are computed by columns.

    `inputs` and `outputs` are the graph. With `borrow`, outputs may share memory with inputs, and are not to
    be changed. One thread at a time may call it, as PyTensor's functions keep their arguments.
    """

    def __init__(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        compile_kwargs: Mapping[str, Any],
        borrow: bool = False,
    ) -> None:
        by_numba = isinstance(get_mode(compile_kwargs["mode"]).linker, NumbaLinker)
        inside = _inside(inputs, outputs) if by_numba else set()
        of_tails = [v for v in outputs if by_numba and v not in inside and _worth_it(v, _tail_inputs(v))]
        between = _all_tail_inputs(of_tails)
        rest = [v for v in outputs if v not in of_tails]
        heads = _by_length(_used_outside(inside, inputs, [*between, *rest]))
        tails = _by_length(of_tails)
        fresh = {v: v.type(name=v.name) for own in heads for v in own}
        wanted = substituted([*between, *rest], fresh)
        self._other = pm_compile(
            [In(v, borrow=True) for v in (*inputs, *fresh.values())],
            [Out(v, borrow=borrow or k < len(between)) for k, v in enumerate(wanted)],
            on_unused_input="ignore",
            **compile_kwargs,
        )
        self._other.trust_input = True
        self._heads = [_Loop(own, inputs, _head_inputs(own), compile_kwargs) for own in heads]
        self._tails = [_Loop(own, between, _all_tail_inputs(own), compile_kwargs) for own in tails]
        self._num_between = len(between)
        places = {v: k for k, v in enumerate([*(v for own in tails for v in own), *rest])}
        self._order = [places[v] for v in outputs]

    def __call__(self, threads: Threads, *inputs: Any) -> list[Any]:
        """Return the outputs, on these threads."""
        ahead = [v for loop in self._heads for v in loop(threads, inputs)]
        found = self._other(*inputs, *ahead)
        between, rest = found[: self._num_between], found[self._num_between :]
        done = [v for loop in self._tails for v in loop(threads, between)]
        done += rest
        return [done[k] for k in self._order]


class _Loop:
    """Vectors of one length, computed piece by piece from some, `inputs`, of what is `given`."""

    def __init__(
        self,
        outputs: Sequence[Variable],
        given: Sequence[Variable],
        inputs: Sequence[Variable],
        compile_kwargs: Mapping[str, Any],
    ) -> None:
        self._places = [given.index(v) for v in inputs]
        self._types = [(v.type.shape, v.type.dtype) for v in outputs]
        self._is_long = [is_long_vector(v) for v in inputs]
        pieces = {v: _of_a_piece(v) if is_long_vector(v) else v.type(name=v.name) for v in inputs}
        swap = {v: _as_before(v, piece) for v, piece in pieces.items()}
        by_piece = [_flat(v) for v in clone_replace(list(outputs), swap, rebuild_strict=False)]
        function = pm_compile(
            list(pieces.values()),
            [Out(v, borrow=True) for v in by_piece],
            on_unused_input="ignore",
            **compile_kwargs,
        )
        long_axes = [
            piece.type.ndim if long else 0 for piece, long in zip(pieces.values(), self._is_long, strict=True)
        ]
        self._function = _compiled(function, long_axes, [v.type.ndim for v in by_piece])

    def __call__(self, threads: Threads, values: Sequence[Any]) -> list[np.ndarray]:
        """Return the vectors."""
        made = [np.empty(shape, dtype) for shape, dtype in self._types]
        given = [
            _without_ones(np.ascontiguousarray(v)) if long else v
            for v, long in zip((values[k] for k in self._places), self._is_long, strict=True)
        ]
        into, turns = [_without_ones(v) for v in made], np.zeros(1, dtype=np.int64)
        pieces = -(-made[0].shape[-1] // _PIECE)
        threads.each(lambda bells: self._function(*given, *into, turns, bells), pieces)
        return made


def _columns(variable: Variable) -> int:
    """Return the length of a vector or of a matrix's rows, if it is known; else 0."""
    kind = variable.type
    if not isinstance(kind, DenseTensorType) or kind.ndim not in (1, 2) or None in kind.shape:
        return 0
    return int(kind.shape[-1])


def _is_scalar(variable: Variable) -> bool:
    kind = variable.type
    return isinstance(kind, DenseTensorType) and all(n == 1 for n in kind.shape)


def _treats_columns_alike(node: Apply) -> bool:
    """Whether each column of the output, a long one, follows from that of long inputs and from scalars."""
    (out, *more), op = node.outputs, node.op
    length = _columns(out)
    if more or not all(_is_scalar(v) or _columns(v) == length for v in node.inputs):
        return False
    if isinstance(op, Elemwise):
        return True
    if isinstance(op, DimShuffle):
        return bool(op.new_order) and op.new_order[-1] == op.input_ndim - 1 and is_long_vector(node.inputs[0])
    if isinstance(op, CAReduce):
        axes = range(node.inputs[0].type.ndim) if op.axis is None else op.axis
        return node.inputs[0].type.ndim - 1 not in axes
    return False


def _tail_inputs(out: Variable) -> list[Variable]:
    """Return what a long vector follows from by columns, walking back as far as that goes."""
    found: dict[Variable, None] = {}
    todo, seen = [out], set()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        if is_long_vector(v) and v.owner is not None and _treats_columns_alike(v.owner):
            todo += v.owner.inputs
        elif not (isinstance(v, Constant) and _is_scalar(v)):
            found[v] = None
    return list(found)


def _worth_it(variable: Variable, behind: Sequence[Variable]) -> bool:
    """Whether an elementwise operation stands between a long vector and these."""
    if not is_long_vector(variable):
        return False
    return any(isinstance(node.op, Elemwise) for node in io_toposort(list(behind), [variable]))


def _inside(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> set[Variable]:
    """Return what follows from long vectors and scalars among the inputs by columns, with those inputs."""
    inside = {v for v in inputs if is_long_vector(v) or _is_scalar(v)}
    for node in io_toposort(list(inputs), list(outputs)):
        known = all(v in inside or (isinstance(v, Constant) and _is_scalar(v)) for v in node.inputs)
        out = node.outputs[0]
        scalar = _is_scalar(out) and isinstance(node.op, Elemwise | DimShuffle)
        if known and (scalar or (is_long_vector(out) and _treats_columns_alike(node))):
            inside.add(out)
    return inside


def _used_outside(
    inside: set[Variable], inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> list[Variable]:
    """Return those long vectors inside that are outputs, or that something outside is computed from."""
    used: dict[Variable, None] = dict.fromkeys(outputs)
    for node in io_toposort(list(inputs), list(outputs)):
        if node.outputs[0] not in inside:
            used.update(dict.fromkeys(node.inputs))
    return [v for v in used if v in inside and v.owner is not None and _worth_it(v, inputs)]


def _head_inputs(outputs: Sequence[Variable]) -> list[Variable]:
    return [v for v in ancestors(outputs) if v.owner is None and not isinstance(v, Constant)]


def _all_tail_inputs(outputs: Sequence[Variable]) -> list[Variable]:
    return list(dict.fromkeys(v for out in outputs for v in _tail_inputs(out)))


def _by_length(variables: Sequence[Variable]) -> list[list[Variable]]:
    found: dict[int, list[Variable]] = {}
    for v in dict.fromkeys(variables):
        found.setdefault(_columns(v), []).append(v)
    return list(found.values())


def _of_a_piece(variable: Variable) -> Variable:
    """Return an input for some columns of a long vector; rows of one vector come without their axis."""
    shape = variable.type.shape
    lead = () if shape[0] == 1 or len(shape) == 1 else shape[:1]
    return variable.type.clone(shape=(*lead, None))(name=variable.name)


def _as_before(variable: Variable, piece: Any) -> Variable:
    """Return a piece with as many axes as the variable has."""
    return piece if piece.type.ndim == variable.type.ndim else piece[None]


def _flat(variable: Any) -> Variable:
    """Return a matrix of one row as a vector."""
    return variable[0] if variable.type.ndim == 2 and variable.type.shape[0] == 1 else variable


def _without_ones(array: np.ndarray) -> np.ndarray:
    return array[0] if array.ndim == 2 and len(array) == 1 else array


#: Source that takes a piece of an input, contiguous, by the number of its axes; 0 if it is none with columns.
_CUT = {0: "", 1: "[a:b]", 2: "[:, a:b].copy()"}


def _compiled(function: Any, long_axes: Sequence[int], ndims: Sequence[int]) -> Callable[..., None]:
    """Compile the loop over pieces and what it computes, as a function that does not hold Python's lock.

    `long_axes` has the number of axes of each input with columns, 0 for the others; `ndims` are the outputs'.
    """
    step, step_key = numba_funcify_and_cache_key(function.maker.fgraph)
    given = [f"x{k}" for k in range(len(long_axes))]
    made = [f"o{k}" for k in range(len(ndims))]
    new = [f"n{k}" for k in range(len(ndims))]
    cut = [x + _CUT[axes] for x, axes in zip(given, long_axes, strict=True)]
    store = []
    for o, n, ndim in zip(made, new, ndims, strict=True):
        rows = "    " * (ndim - 1)
        if ndim == 2:
            store.append(f"        for i in range({o}.shape[0]):")
        row = "i, " * (ndim - 1)
        store += [f"{rows}        for j in range(b - a):", f"{rows}            {o}[{row}a + j] = {n}[{row}j]"]
    source = "\n".join(
        [
            f"def columns({', '.join([*given, *made])}, turns, bells):",
            "    ring(bells)",
            f"    a = take_turn(turns) * {_PIECE}",
            f"    while a < {made[0]}.shape[-1]:",
            f"        b = min(a + {_PIECE}, {made[0]}.shape[-1])",
            f"        {', '.join(new)}, = step({', '.join(cut)})",
            *store,
            f"        a = take_turn(turns) * {_PIECE}",
        ]
    )
    key = None
    if step_key is not None:  # the step can be kept on disk
        key = hashlib.sha256(f"pymc_dpvi.columns {source} {step_key} {source_hash()}".encode()).hexdigest()
    scope = {"ring": ring, "take_turn": take_turn, "step": step}
    return compiled_source("columns", source, scope, key, nogil=True)
