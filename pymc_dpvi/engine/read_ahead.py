"""Batches whose records are in sources: rows are read for some steps at once, one read ahead of the steps.

Batches come as numbers of rows. For some steps at once, all different records of their batches are read
into buffers, ascending, and the batches' numbers become places in these. The order within a batch stays, so
every step computes what it would compute with all records in memory, bit by bit. Batches of persons come as
marked rows (`unit_sums`): twice the number of a row, plus the mark. The mark stays. The compiled step sees
buffers in place of the record arrays, and is the same.

While steps run, a thread reads what the next ones need. It draws nothing: batches and noise come from the
streams in the order of the steps, in the calling thread. At the end, for whatever reason, the thread has
ended and the buffers are given up.

How many steps are read for at once follows from the expected batch: about `_BUFFER_BYTES` for each of the two
buffers, and at least one batch.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from pymc_dpvi.engine.source_records import SourceRecords
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.errors import RecordSourceError
from pymc_dpvi.mechanism.mechanism import Draws

__all__ = ["read_ahead"]

#: Bytes of the rows that are read at once.
_BUFFER_BYTES = 1 << 25

_NO_ROOM = (
    "The rows of some steps could not be held in memory ({} was raised): all rows of a batch are there at "
    "once, and those of the next one. Use a smaller sampling_prob or batch_size. "
    "What was planned has been charged."
)

_Read = tuple[list[np.ndarray], np.ndarray, str]


def read_ahead(
    drawn: Iterator[Draws], step: PrivateStep, sources: SourceRecords, expected_batch: float
) -> Generator[Draws, None, None]:
    """Yield the draws, for fewer steps at once, and give `step` the records that they are about.

    The indices of what is yielded are places in the step's record arrays, until the next is asked for. A
    RecordSourceError if a source raises.
    """
    at_once = int(max(1.0, _BUFFER_BYTES / max(1.0, expected_batch * sources.row_bytes)))
    parts = (part for draws in drawn for part in _cut(draws, at_once))
    stopped = threading.Event()
    reader = ThreadPoolExecutor(1, thread_name_prefix="pymc_dpvi-records")

    def ahead() -> tuple[Draws, Future[_Read]] | None:
        part = next(parts, None)
        return None if part is None else (part, reader.submit(_read, sources, part.indices, stopped))

    try:
        coming = ahead()
        while coming is not None:
            draws, reading = coming
            arrays, places, failure = reading.result()
            del reading
            if failure:
                step.failed = RecordSourceError, failure
                raise RecordSourceError(failure)
            step.records_are(arrays)
            del arrays
            coming = ahead()
            yield Draws(places, draws.offsets, draws.noise)
    finally:
        stopped.set()
        step.records_are(None)
        reader.shutdown(cancel_futures=True)  # waits until what is being read has come, unless interrupted


def _cut(draws: Draws, at_once: int) -> Iterator[Draws]:
    """Yield the draws of `at_once` steps after the other."""
    for first in range(0, len(draws.noise), at_once):
        offsets = draws.offsets[first : first + at_once + 1]
        indices = draws.indices[offsets[0] : offsets[-1]]
        yield Draws(indices, offsets - offsets[0], draws.noise[first : first + at_once])


def _read(sources: SourceRecords, indices: np.ndarray, stopped: threading.Event) -> _Read:
    """Read the records at `indices`; return them, the places of `indices` in them, and what failed."""
    # What is returned is a text: an exception would keep frames with records in them.
    try:
        by_unit = sources.units is not None
        records, places = _distinct(indices >> 1 if by_unit else indices)
        if by_unit:
            places = 2 * places + (indices & 1)
        return sources.read(records, stopped.is_set), places, ""
    except RecordSourceError as error:
        return [], indices, str(error)
    except Exception as error:  # such as a MemoryError, which would tell how large a batch is
        return [], indices, _NO_ROOM.format(type(error).__name__)


def _distinct(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different numbers, ascending, and the place of each of `indices` among them."""
    order = np.argsort(indices, kind="stable")  # quick where batches are ascending
    ascending = indices[order]
    is_new = np.ones(len(ascending), dtype=np.bool_)
    is_new[1:] = ascending[1:] != ascending[:-1]
    places = np.empty(len(indices), dtype=np.int64)
    places[order] = np.cumsum(is_new) - 1
    return ascending[is_new], places
