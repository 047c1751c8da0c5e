r"""The noisy sum inside a compiled loop of steps, shared with helpers that stand by in compiled code.

`split_step` calls threads from Python, which takes a tenth of a millisecond a step. Where a step takes a
millisecond, that is much. So a loop of steps is one compiled call of one thread, and the others stand by
for as long as it runs (`assisted_chunk`). In each step the caller offers them the pieces of the batch
(`pieces`), takes turns at these itself, adds up what they have, and goes on.

**The board** has a row of int64 for each helper, its state first::

    IDLE     --the caller offers-->              OFFERED
    OFFERED  --the helper begins-->              WORKING  --it has no more to do-->  IDLE, or FAILED
    OFFERED  --the caller has finished-->        IDLE
    any      --the caller's loop has ended-->    DISMISSED

Each arrow is one atomic exchange. So a helper that comes too late, because its core is busy with other work,
is not waited for, and none reads what the caller has let go of.

**The task** is where the arrays of a step are: address and shape of each, as int64. It is read only by those
who are WORKING, and the caller keeps the arrays until none is.

The sum is that of `lattice_sums`, integers, and becomes the release as in `split_step`: it is the same, bit
by bit, for any number of helpers. It leaves this operation with noise alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import carray
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_dpvi.engine.atomics import at_address, exchange, give_way, load, store
from pymc_dpvi.engine.compile_cache import compiled_source
from pymc_dpvi.engine.lattice_sums import release_of
from pymc_dpvi.engine.local_sum import LocalSum
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.engine.pieces import PieceSum, cuts_of_persons, cuts_of_rows
from pymc_dpvi.engine.private_sum import sum_type
from pymc_dpvi.engine.threads import NOBODY
from pymc_dpvi.numba_cache import kernel, source_hash

__all__ = ["BEGUN", "AssistedSum", "dismiss", "new_board"]

_IDLE, _OFFERED, _WORKING, _FAILED, _DISMISSED = range(5)
#: Places in a row of the board: the state, the address of the task, how many a helper has begun.
_TASK, BEGUN = 1, 2
#: Length of a row: a line of the cache, so that no two threads write to one.
_ROW = 8
#: How often the caller looks whether a helper has finished before it lets another thread have the core.
_LOOKS = 1 << 12


def new_board(helpers: int) -> np.ndarray:
    """Return the board of so many helpers."""
    return np.zeros((helpers, _ROW), dtype=np.int64)


@kernel(nogil=True)
def _offer(board: np.ndarray, task: int) -> None:  # pragma: no cover
    for k in range(len(board)):
        board[k, _TASK] = task
        store(board[k], _OFFERED)


@kernel(nogil=True)
def _withdraw(board: np.ndarray) -> bool:  # pragma: no cover
    """End what was offered, wait for helpers that have begun, and return whether none of them failed."""
    fine = True
    for k in range(len(board)):
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
    for k in range(len(board)):
        while load(board[k]) != _DISMISSED:
            for state in (_IDLE, _OFFERED, _FAILED):
                exchange(board[k], state, _DISMISSED)
            give_way()


class AssistedSum(Op):
    """The operation `whole`, of `microbatch` or `local_sum`, with helpers.

    Notes
    -----
    Inputs: the record arrays; what all records share; ``indices``, ``count``, ``noise``, ``spacing``, as of
    `MicrobatchedSum`, for a batch of all records, too; ``board``. Output: that of `whole`.
    """

    def __init__(self, whole: MicrobatchedSum | LocalSum) -> None:
        self.whole = whole
        self._made: tuple[Any, PieceSum, str | None] | None = None
        key = whole.graph_key
        #: For `graph_keys`.
        self.graph_key = None if key is None else hashlib.sha256(f"assisted {key}".encode()).hexdigest()

    @classmethod
    def of(cls, node: Apply, indices: Variable, board: Variable) -> Variable:
        """Return the sum of a node with helpers."""
        count, noise, spacing = node.inputs[-3:]
        data = node.inputs[: -4 if _has_indices(node.op) else -3]
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

    def stand_by(self, node: Apply) -> Callable[[np.ndarray, int, int, int], bool]:
        """Compile ``(row, number, looks, awake) -> dismissed``, what helper `number`, from 1, does.

        It looks at its `row` of the board so often, and `awake` times after work.
        """
        work, _, key = self._work(node)
        return compiled_source(
            "stand_by", _STAND_BY, {**_SCOPE, "work": work}, _key(key, _STAND_BY), nogil=True
        )

    def for_numba(self, node: Apply) -> tuple[Any, str | None]:
        """Return the Python function that numba compiles, and a key of it, None if it cannot be kept."""
        work, pieces, key = self._work(node)
        names, arrays = _arrays(node)
        if pieces.by_person:
            cuts = f"cuts_of_persons(batch[: count.item()], {pieces.length})"
        else:
            cuts = f"cuts_of_rows(count.item(), {pieces.length})"
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
                "    totals = np.zeros((len(board) + 1, 2, noise.size), np.int64)",
                *(
                    f"    {a} = {_contiguous(name, dtype, ndim)}"
                    for a, (name, dtype, ndim) in zip(kept, arrays, strict=True)
                ),
                f"    task = np.empty({len(task)}, np.int64)",
                *(f"    task[{k}] = {number}" for k, number in enumerate(task)),
                "    if cuts.size > 2:",
                "        offer(board, task.ctypes.data)",
                "    fine = work(task.ctypes.data, 0)",
                "    fine = withdraw(board) and fine",
                # numba lets go of an array after its last use: here.
                f"    if not fine or {' + '.join(f'{a}.size' for a in kept)} + task.size < 0:",
                "        raise RuntimeError('adding up records raised')",
                "    return release_of(totals, noise, number.item())",
            ]
        )
        scope = {
            "np": np,
            "work": work,
            "offer": _offer,
            "withdraw": _withdraw,
            "release_of": release_of,
            "cuts_of_persons": cuts_of_persons,
            "cuts_of_rows": cuts_of_rows,
        }
        exec(source, scope)
        function: Any = scope["assisted_sum"]
        function.__source__ = source
        return function, _key(key, source)

    def forget(self) -> None:
        """Free what was compiled: PyTensor's rewrites keep every operation that they have met."""
        self._made = None

    def _work(self, node: Apply) -> tuple[Any, PieceSum, str | None]:
        """Compile once ``(task, number) -> fine``, which takes turns at pieces; with these, and a key."""
        if self._made is None:
            self._made = self._compiled(node)
        return self._made

    def _compiled(self, node: Apply) -> tuple[Any, PieceSum, str | None]:
        *data, indices, count, noise, spacing, _ = node.inputs
        which = [indices] if _has_indices(self.whole) else []
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
                "def work(address, number):",
                f"    task = carray(at_address(address), ({at},), np.int64)",
                *lines,
                "    try:",
                f"        add({', '.join(names)}, batch, cuts, turns, nobody, totals[number], spacing)",
                "    except Exception:",
                "        return False",
                "    return True",
            ]
        )
        key = _key(pieces.key, source)
        scope = {**_SCOPE, "add": pieces.function, "nobody": NOBODY}
        return compiled_source("work", source, scope, key), pieces, key


_SCOPE = {
    "np": np,
    "carray": carray,
    "at_address": at_address,
    "exchange": exchange,
    "load": load,
    "store": store,
    "IDLE": _IDLE,
    "OFFERED": _OFFERED,
    "WORKING": _WORKING,
    "FAILED": _FAILED,
    "DISMISSED": _DISMISSED,
    "TASK": _TASK,
    "BEGUN": BEGUN,
    "OFTEN": 1 << 10,
    "give_way": give_way,
}
_STAND_BY = """\
def stand_by(row, number, looks, awake):
    while looks > 0:
        state = load(row)
        if state == OFFERED and exchange(row, OFFERED, WORKING):
            row[BEGUN] += 1
            store(row, IDLE if work(row[TASK], number) else FAILED)
            looks = awake
        elif state == DISMISSED:
            return True
        looks -= 1
        if looks % OFTEN == 0:
            give_way()
    return False
"""


def _has_indices(op: MicrobatchedSum | LocalSum) -> bool:
    return isinstance(op, LocalSum) or op.sampled


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


def _key(key: str | None, source: str) -> str | None:
    if key is None:
        return None
    return hashlib.sha256(f"pymc_dpvi.AssistedSum {source} {key} {source_hash()}".encode()).hexdigest()


@register_funcify_and_cache_key(AssistedSum)
def _numba_assisted_sum(op: AssistedSum, node: Apply, **kwargs: Any) -> Any:
    function, key = op.for_numba(node)
    return numba_njit(function, fastmath=False), key
