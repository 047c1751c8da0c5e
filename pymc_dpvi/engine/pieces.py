"""The sum of a piece of a batch, as a compiled function that any thread may call.

A batch is cut into pieces of whole microbatches (`microbatch`), or of whole persons. `PieceSum` computes
the clipped sum of one piece and adds it on the lattice (`lattice_sums`): the same operation as in a step of
one compiled call, with another last line. It holds no record: records, and what all records share at the
released values, are arguments.

Where pieces begin is decided by the batch alone, not by who computes them. So the sum of a batch is the same,
bit by bit, on any number of threads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from textwrap import indent
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Apply

from pymc_dpvi.engine.atomics import take_turn
from pymc_dpvi.engine.compile_cache import compiled_source
from pymc_dpvi.engine.generated_code import PIECE
from pymc_dpvi.engine.local_sum import LocalSum
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.mechanism.limits import PIECE_RECORDS
from pymc_dpvi.numba_cache import kernel

__all__ = ["Batch", "PieceSum", "by_person", "cuts_of_persons", "cuts_of_rows", "has_indices", "piece_length"]

#: Numbers of a piece's gradients: enough work to be worth a call, and little enough to be shared out evenly.
_NUMBERS = 1 << 16


class Batch(NamedTuple):
    """What is to be added up: records, what all of them share at released values, and which of them."""

    records: Sequence[np.ndarray]
    shared: Sequence[np.ndarray]
    indices: np.ndarray  # int64
    spacing: np.ndarray  # of the lattice, float64, ()
    size: int  # of the sum


class PieceSum:
    """The clipped sum of a piece of a batch.

    Parameters
    ----------
    node : Apply
        Of `MicrobatchedSum` or `LocalSum`: what is added up.

    Attributes
    ----------
    length : int
        Most rows in a piece. A piece that is one person may have more, as persons are not cut.
    by_person : bool
        Whether indices are marked (`unit_sums`).
    function : callable
        The compiled sum of some pieces.
    key : str or None
        Of what it computes; None if it cannot be kept.
    """

    def __init__(self, node: Apply) -> None:
        op = node.op
        assert isinstance(op, MicrobatchedSum | LocalSum)
        self.length, self.by_person = piece_length(op), by_person(op)
        self.function, self.key = _compiled(node)

    def __call__(self, batch: Batch, cuts: np.ndarray, turns: np.ndarray, total: np.ndarray) -> None:
        """Add the sums of pieces to `total`, (2, size), int64, until there is none left.

        Piece k is ``indices[cuts[k] : cuts[k + 1]]``, int64. `turns`, one int64, counts the pieces that have
        been taken, by all threads. Of no indices, one microbatch of zeros is computed and not added, as at
        the rehearsal (`step`).
        """
        indices = batch.indices if batch.indices.size else np.zeros(1, dtype=np.int64)
        self.function(*batch.records, *batch.shared, indices, cuts, turns, total, batch.spacing)

    def cuts(self, indices: np.ndarray) -> np.ndarray:
        """Return where the pieces of a batch begin, and where the last one ends: at least two numbers."""
        if self.by_person:
            return cuts_of_persons(indices, self.length)
        return cuts_of_rows(indices.size, self.length)


def piece_length(op: MicrobatchedSum | LocalSum) -> int:
    """Return the most rows in a piece."""
    most = min(PIECE_RECORDS // op.length, _NUMBERS // (op.length * max(1, op.width)))
    return op.length * max(1, most)


def has_indices(op: MicrobatchedSum | LocalSum) -> bool:
    """Whether the operation gets its batch by indices, and not all records."""
    return isinstance(op, LocalSum) or op.sampled


def by_person(op: MicrobatchedSum | LocalSum) -> bool:
    """Whether indices are marked (`unit_sums`), and pieces end with a person."""
    return isinstance(op, LocalSum) or op.by_unit


@kernel(fastmath=False)
def cuts_of_rows(rows: int, length: int) -> np.ndarray:  # pragma: no cover
    """Return where pieces of `length` rows begin, and where the last one ends."""
    out = np.arange(max(1, -(-rows // length)) + 1) * length
    out[-1] = rows
    return out


@kernel(fastmath=False)
def cuts_of_persons(marked: np.ndarray, length: int) -> np.ndarray:  # pragma: no cover
    """Return where pieces of whole persons begin, and where the last one ends.

    They have at most `length` rows, but for one person with more.
    """
    out = np.zeros(2 * (marked.size // max(1, length)) + 3, np.int64)
    pieces, end = 0, 0
    for i in range(marked.size):
        if marked[i] & 1:
            if i + 1 - out[pieces] > length and end > out[pieces]:
                pieces += 1
                out[pieces] = end
            end = i + 1
    out[pieces + 1] = marked.size
    return out[: pieces + 2]


def _compiled(node: Apply) -> tuple[Callable[..., None], str | None]:
    """Compile the sums of pieces with numba, as a function that does not hold Python's lock; with a key."""
    written, key = node.op.for_numba(node, PIECE)
    body = indent(written.__source__.partition("\n")[2], "    ")
    *arguments, indices = list(inspect.signature(written).parameters)[:-3]
    source = "\n".join(
        [
            f"def sums_of_pieces({', '.join(arguments)}, batch, cuts, turns, onto, number):",
            "    k = take_turn(turns)",
            "    while k < cuts.size - 1:",
            f"        {indices} = batch[cuts[k] : max(cuts[k + 1], cuts[k] + 1)]",
            "        count = np.asarray(cuts[k + 1] - cuts[k])",
            body,
            "        k = take_turn(turns)",
        ]
    )
    scope = {**written.__globals__, "take_turn": take_turn}
    return compiled_source("sums_of_pieces", source, scope, key, nogil=True), key
