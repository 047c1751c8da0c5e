r"""The noisy sum inside a compiled loop of steps, shared with helpers that stand by in compiled code.

`split_step` calls threads from Python, which takes a tenth of a millisecond a step. Where a step takes a
millisecond, that is much. So a loop of steps is one compiled call of one thread, and the others stand by
for as long as it runs (`assisted_chunk`). In each step the caller offers them the pieces of the batch
(`pieces`), takes turns at these itself, adds up what they have, and goes on.

**The board** has a row of int64 for each thread, the caller's first. A helper's begins with its state::

    IDLE     --the caller offers-->              OFFERED
    OFFERED  --the helper begins-->              WORKING  --it has no more to do-->  IDLE, or FAILED
    OFFERED  --the caller has finished-->        IDLE
    any      --the caller's loop has ended-->    DISMISSED

Each arrow is one atomic exchange. So a helper that comes too late, because its core is busy with other work,
is not waited for, and none reads what the caller has let go of.

**One machine code.** All threads call the compiled pieces by their address, which is on the board, too. A
function that numba calls by name is compiled again into each caller, and its rows might differ in last bits.

**The task** is where the arrays of a step are: address and shape of each, as int64. It is read only by those
who are WORKING, and the caller keeps the arrays until none is.

The sum is that of `lattice_sums`, integers, and becomes the release as in `split_step`: it is the same, bit
by bit, for any number of helpers. It leaves this operation with noise alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import carray
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_dpvi.engine.atomics import at_address, call_at, exchange, give_way, load, store
from pymc_dpvi.engine.compile_cache import compiled_source
from pymc_dpvi.engine.lattice_sums import release_of
from pymc_dpvi.engine.local_sum import LocalSum
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.engine.pieces import (
    PieceSum,
    by_person,
    cuts_of_persons,
    cuts_of_rows,
    has_indices,
    piece_length,
)
from pymc_dpvi.engine.private_sum import sum_type
from pymc_dpvi.numba_cache import kernel, source_hash

__all__ = ["BEGUN", "AssistedSum", "dismiss", "new_board", "open_board", "stand_by"]

_IDLE, _OFFERED, _WORKING, _FAILED, _DISMISSED = range(5)
#: Places in a row of the board after the state: where the task is, how many a helper has begun, and where the
#: code is that does it.
_TASK, BEGUN, _CODE = 1, 2, 3
#: Length of a row: two lines of the cache, so that no two threads write to one.
_ROW = 16
#: How often a helper looks before it gives way to others.
_OFTEN = 1 << 10
#: How often the caller looks whether a helper has finished before it lets another thread have the core.
_LOOKS = 1 << 12


def new_board(threads: int) -> np.ndarray:
    """Return the board of so many threads, the caller among them."""
    return np.zeros((threads, _ROW), dtype=np.int64)


def open_board(board: np.ndarray, work: int) -> None:
    """Make a board ready for a loop of steps, with the address of what is to be done (`AssistedSum.work`)."""
    board[:] = 0
    board[:, _CODE] = work


@kernel(nogil=True)
def _offer(board: np.ndarray, task: int) -> None:  # pragma: no cover
    for k in range(1, len(board)):
        board[k, _TASK] = task
        store(board[k], _OFFERED)


@kernel(nogil=True)
def _withdraw(board: np.ndarray) -> bool:  # pragma: no cover
    """End what was offered, wait for helpers that have begun, and return whether none of them failed."""
    fine = True
    for k in range(1, len(board)):
        if exchange(board[k], _OFFERED, _IDLE):
            continue
        looks = 0
        while load(board[k]) == _WORKING:
            looks += 1
            if looks > _LOOKS:
                give_way()
        fine = fine and load(board[k]) != _FAILED
    return fine


@kernel(nogil=True)
def dismiss(board: np.ndarray) -> None:  # pragma: no cover
    """Let all helpers go, and wait for those that are at work."""
    for k in range(1, len(board)):
        while load(board[k]) != _DISMISSED:
            for state in (_IDLE, _OFFERED, _FAILED):
                exchange(board[k], state, _DISMISSED)
            give_way()


@kernel(nogil=True)
def stand_by(board: np.ndarray, number: int, looks: int, awake: int) -> bool:  # pragma: no cover
    """Take part in sums as helper `number`, from 1, until dismissed, or until nothing has come for long.

    It looks at its row of the board `looks` times, and `awake` times after work. Return whether it was
    dismissed.
    """
    row = board[number]
    while looks > 0:
        state = load(row)
        if state == _OFFERED and exchange(row, _OFFERED, _WORKING):
            row[BEGUN] += 1
            fine = call_at(row[_CODE], row[_TASK], number)
            store(row, _IDLE if fine else _FAILED)
            looks = awake
        elif state == _DISMISSED:
            return True
        looks -= 1
        if looks % _OFTEN == 0:
            give_way()
    return False


@kernel()
def _work(board: np.ndarray, task: int) -> bool:  # pragma: no cover
    """Do the caller's part."""
    return call_at(board[0, _CODE], task, 0) != 0


class AssistedSum(Op):
    """The operation `whole`, of `microbatch` or `local_sum`, with helpers.

    Notes
    -----
    Inputs: the record arrays; what all records share; ``indices``, ``count``, ``noise``, ``spacing``, as of
    `MicrobatchedSum`, for a batch of all records, too; ``board``. Output: that of `whole`.
    """

    def __init__(self, whole: MicrobatchedSum | LocalSum) -> None:
        self.whole = whole
        key = whole.graph_key
        #: For `graph_keys`.
        self.graph_key = None if key is None else hashlib.sha256(f"assisted {key}".encode()).hexdigest()

    @classmethod
    def of(cls, node: Apply, indices: Variable, board: Variable) -> Variable:
        """Return the sum of a node with helpers."""
        count, noise, spacing = node.inputs[-3:]
        data = node.inputs[: -4 if has_indices(node.op) else -3]
        out: Variable = cls(node.op)(*data, indices, count, noise, spacing, board)
        return out

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node; see the class for the inputs."""
        return Apply(self, list(inputs), [sum_type(inputs[-3])()])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        """Raise: helpers need numba."""
        raise NotImplementedError("threads add up records in compiled code only")

    def infer_shape(self, *args: Any) -> list[tuple[Variable, ...]]:
        """Return the shape of the noise."""
        return [tuple(args[-1][-3])]

    def work(self, node: Apply) -> Any:
        """Return ``(task, number) -> fine``, all int64: it takes turns at the pieces of a task."""
        *data, indices, count, noise, spacing, _ = node.inputs
        which = [indices] if has_indices(self.whole) else []
        pieces = PieceSum(self.whole.make_node(*data, *which, count, noise, spacing))
        names, arrays = _arrays(node)
        lines, at = [], 0
        for name, dtype, ndim in arrays:
            shape = ", ".join(f"task[{at + 1 + axis}]" for axis in range(max(1, ndim)))
            array = f"carray(at_address(task[{at}]), ({shape},), np.{dtype})"
            lines.append(f"    {name} = {array if ndim else f'np.asarray({array}[0])'}")
            at += 1 + max(1, ndim)
        source = "\n".join(
            [
                "def sums_of_task(address, number):",
                f"    task = carray(at_address(address), ({at},), np.int64)",
                *lines,
                f"    add({', '.join(names)}, batch, cuts, turns, totals[number], spacing)",
            ]
        )
        scope = {"np": np, "carray": carray, "at_address": at_address, "add": pieces.function}
        key = None if pieces.key is None else _key(source, pieces.key)
        add_up = compiled_source("sums_of_task", source, scope, key)
        return compiled_source("work", _TRY, {"add_up": add_up}, None if key is None else _key(_TRY, key))

    def for_numba(self, node: Apply) -> tuple[Any, str]:
        """Return the Python function that numba compiles, and a key of it."""
        names, arrays = _arrays(node)
        if by_person(self.whole):
            cuts = f"cuts_of_persons(batch[: count.item()], {piece_length(self.whole)})"
        else:
            cuts = f"cuts_of_rows(count.item(), {piece_length(self.whole)})"
        kept = [f"a{k}" for k in range(len(arrays))]
        task = [
            number
            for a, (_, _, ndim) in zip(kept, arrays, strict=True)
            for number in (f"{a}.ctypes.data", *(f"{a}.shape[{axis}]" for axis in range(max(1, ndim))))
        ]
        source = "\n".join(
            [
                f"def assisted_sum({', '.join(names)}, batch, count, noise, number, board):",
                f"    cuts, turns = {cuts}, np.zeros(1, np.int64)",
                "    totals = np.zeros((len(board), 2, noise.size), np.int64)",
                *(
                    f"    {a} = {_contiguous(name, dtype, ndim)}"
                    for a, (name, dtype, ndim) in zip(kept, arrays, strict=True)
                ),
                f"    task = np.empty({len(task)}, np.int64)",
                *(f"    task[{k}] = {number}" for k, number in enumerate(task)),
                "    if cuts.size > 2:",
                "        offer(board, task.ctypes.data)",
                "    fine = work(board, task.ctypes.data)",
                "    fine = withdraw(board) and fine",
                # numba lets go of an array after its last use: here.
                f"    if not fine or {' + '.join(f'{a}.size' for a in kept)} + task.size < 0:",
                "        raise RuntimeError('adding up records raised')",
                "    return release_of(totals, noise, number.item())",
            ]
        )
        scope = {
            "np": np,
            "work": _work,
            "offer": _offer,
            "withdraw": _withdraw,
            "release_of": release_of,
            "cuts_of_persons": cuts_of_persons,
            "cuts_of_rows": cuts_of_rows,
        }
        exec(source, scope)
        function: Any = scope["assisted_sum"]
        function.__source__ = source
        return function, _key(source)


#: A function of its own: numba takes long to compile what stands in a ``try``.
_TRY = """\
def work(address, number):
    try:
        add_up(address, number)
    except Exception:
        return 0
    return 1
"""


def _arrays(node: Apply) -> tuple[list[str], Sequence[tuple[str, str, int]]]:
    """Return names of records and of what they share; and of all arrays of a task, with types and axes."""
    names = [f"d{k}" for k in range(len(node.inputs) - 5)]
    data = [(name, _name_of(v.type.dtype), v.type.ndim) for name, v in zip(names, node.inputs, strict=False)]
    return names, [
        *data,
        ("batch", "int64", 1),
        ("cuts", "int64", 1),
        ("turns", "int64", 1),
        ("totals", "int64", 3),
        ("spacing", "float64", 0),
    ]


def _name_of(dtype: str) -> str:
    return "bool_" if dtype == "bool" else dtype


def _contiguous(name: str, dtype: str, ndim: int) -> str:
    """Return the source of an array whose entries lie one after the other."""
    if name in ("cuts", "turns", "totals"):
        return name
    name = "number" if name == "spacing" else name
    return f"np.ascontiguousarray({name})" if ndim else f"np.full(1, {name}.item(), np.{dtype})"


def _key(*parts: str) -> str:
    return hashlib.sha256(f"pymc_dpvi.AssistedSum {parts} {source_hash()}".encode()).hexdigest()


@register_funcify_and_cache_key(AssistedSum)
def _numba_assisted_sum(op: AssistedSum, node: Apply, **kwargs: Any) -> Any:
    function, key = op.for_numba(node)
    return numba_njit(function, fastmath=False), key
