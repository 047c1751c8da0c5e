"""Records on a Dask cluster: workers hold shards and return clipped sums, and the caller adds the noise.

The record arrays are Dask arrays. Their blocks are computed by the workers and stay there; the calling
process sees none of them. In each step it sends what all records share, which follows from released values,
and for each shard the places of the batch. It gets integers back (`lattice_sums`) and adds them up. The batch
is drawn from the mechanism's key stream as ever, so each record has exactly its probability.

**The same, bit by bit.** Integers are added in any order, and pieces begin by shard: so the result depends on
how the arrays are cut into blocks, and not on the number of workers, nor on which of them was how fast. All
must have processors of one kind, or rows may differ in their last digits.

**Faults.** If a worker dies, Dask computes its shards again from their source, and the task again, on another
one. The batch is the same, and there is no second noise: the workers get none. An answer that is not of the
form, or of another step, ends the fit. If the scheduler dies, or no worker is left, the fit ends. What was
planned had been charged before.

**Trust.** Scheduler and workers see records, and sums without noise. Who can read their traffic does, too:
use TLS (``distributed.security``). docs/scale.md says who sees what.
"""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply

from pymc_dpvi.engine.lattice_sums import no_sum
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.engine.pieces import Batch
from pymc_dpvi.engine.shards import Recipe, hold, packed, sum_of_group
from pymc_dpvi.errors import ArgumentError, WorkersError
from pymc_dpvi.redaction import LEFT_OUT

__all__ = ["Cluster", "OnWorkers", "check_client"]

#: Seconds from one look at the cluster to the next, and how many find no worker before the fit ends.
_LOOK, _LOOKS = 5.0, 12
#: No sum of records comes near: a group would need some millions of pieces.
_LARGEST = 2**62


def check_client(client: Any) -> None:
    """Raise an ArgumentError unless this is a synchronous ``distributed.Client``."""
    names = ("submit", "compute", "nthreads", "gather")
    if not all(hasattr(client, name) for name in names) or getattr(client, "asynchronous", False):
        raise ArgumentError(
            f"client must be a distributed.Client, as in client=Client('tcp://scheduler:8786'); found a "
            f"{type(client).__name__}."
        )


class Cluster:
    """Record arrays as shards on the workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
    arrays : mapping of str to dask.array.Array
        By name, in the order of the record arrays.
    dtypes : sequence of dtype
        Those of the template.

    Raises
    ------
    ArgumentError
        The arrays are not cut in the same way.
    """

    def __init__(self, client: Any, arrays: Mapping[str, Any], dtypes: Sequence[np.dtype]) -> None:
        check_client(client)
        self.client = client
        first = next(iter(arrays))
        for name, array in arrays.items():
            _check_blocks(name, array, first, arrays[first])
        blocks = [int(n) for n in arrays[first].chunks[0]]
        self.num_rows = int(sum(blocks))
        self._starts = np.cumsum([0, *blocks[:-1]])
        self._blocks = [list(a.to_delayed().reshape(-1)) for a in arrays.values()]
        self._dtypes = [np.dtype(d).str for d in dtypes]
        self._shapes = [tuple(int(n) for n in a.shape[1:]) for a in arrays.values()]
        self._lengths = blocks
        #: First shard of each group, and the number of shards.
        self._cuts: list[int] = []
        self._groups: list[Any] = []

    def check_unchanged(self) -> None:
        """Dask arrays do not change."""

    def groups(self) -> tuple[list[int], list[Any]]:
        """Return where groups of shards begin, and the futures that hold them; they are made when first used.

        There is a group for each thread of the workers, of about as many rows.
        """
        if not self._groups:
            threads = [w for w, n in sorted(self.client.nthreads().items()) for _ in range(n)]
            if not threads:
                raise WorkersError("The cluster has no workers.")
            self._cuts = _even(self._lengths, len(threads))
            for (a, b), worker in zip(itertools.pairwise(self._cuts), threads, strict=False):
                blocks = [[own[k] for own in self._blocks] for k in range(a, b)]
                held = self.client.submit(
                    hold,
                    _futures(self.client, blocks),
                    self._dtypes,
                    self._shapes,
                    self._lengths[a:b],
                    pure=False,
                    workers=[worker],
                    allow_other_workers=True,
                )
                self._groups.append(held)
        return self._cuts, self._groups

    def release(self) -> None:
        """Let go of the shards: they are read again when they are needed."""
        self._groups = []

    def places(self, indices: np.ndarray) -> list[np.ndarray]:
        """Return the places of a batch in each shard, as they are sent (`shards.packed`)."""
        if (indices[1:] < indices[:-1]).any():  # a batch of fixed size
            indices = np.sort(indices)
        cuts = [*np.searchsorted(indices, self._starts), len(indices)]
        return [
            packed(indices[a:b] - start, rows)
            for (a, b), start, rows in zip(itertools.pairwise(cuts), self._starts, self._lengths, strict=True)
        ]


class OnWorkers:
    """An `Executor` whose pieces are added up by the workers of a cluster."""

    def __init__(self, cluster: Cluster, node: Apply) -> None:
        assert isinstance(node.op, MicrobatchedSum)
        self._cluster = cluster
        client = cluster.client
        # A task, so that a worker that comes later can have it.
        self._recipe = client.submit(bytes, Recipe.of(node).pickled(), pure=False)
        self._calls = itertools.count()
        self._processor = ""

    def sums(self, batch: Batch) -> np.ndarray:
        """Return the sum over the batch; see `Executor.sums`. Its records, made-up rows, are not used."""
        failed = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Dask's quote how much is sent, and so how large a batch is
                return self._sum(batch)[None]
        except WorkersError:
            self._cluster.release()
            raise
        except Exception as error:  # its text may hold records; raised below, so that it is not chained
            failed = type(error).__name__
        self._cluster.release()
        raise WorkersError(f"The cluster failed: {failed} was raised. {LEFT_OUT}")

    def _sum(self, batch: Batch) -> np.ndarray:
        call, client = next(self._calls), self._cluster.client
        cuts, groups = self._cluster.groups()
        places = self._cluster.places(batch.indices)
        values = pickle.dumps((list(batch.shared), batch.size), protocol=5)
        spacing = batch.spacing.item()
        futures = [
            client.submit(sum_of_group, self._recipe, group, places[a:b], values, spacing, call, pure=False)
            for (a, b), group in zip(itertools.pairwise(cuts), groups, strict=True)
        ]
        self._wait(futures)
        total = no_sum(batch.size)
        for answer in client.gather(futures):
            part, processor = _checked(answer, call, batch.size)
            self._processor = self._processor or processor
            if processor != self._processor:
                raise WorkersError(
                    "The workers have processors of different kinds, on which a record's row may differ in "
                    "its last digits. Use workers of one kind."
                )
            total += part
        return total

    def _wait(self, futures: Sequence[Any]) -> None:
        """Wait until all have come; a WorkersError if there has been nobody to compute them for a minute."""
        for future in futures:
            looks = 0
            while not future.done():
                try:
                    future.exception(timeout=_LOOK)  # what it is comes up when it is gathered
                except TimeoutError:
                    looks = 0 if self._cluster.client.nthreads() else looks + 1
                if looks >= _LOOKS:
                    raise WorkersError("The cluster has no workers any more.")

    def close(self) -> None:
        """Do nothing: shards stay with the workers for as long as the method lives."""


def _checked(answer: Any, call: int, size: int) -> tuple[np.ndarray, str]:
    """Return a worker's sum and its kind of processor, or raise a WorkersError."""
    if isinstance(answer, tuple) and len(answer) == 3 and answer[0] == call:
        _, sum_, processor = answer
        if isinstance(sum_, str):
            raise WorkersError(f"A worker raised {sum_[:80]}. {LEFT_OUT}")
        if type(sum_) is np.ndarray and sum_.dtype == np.int64 and sum_.shape == (2, size):
            if ((sum_ > -_LARGEST) & (sum_ < _LARGEST)).all():
                return sum_, str(processor)
    raise WorkersError("A worker returned what is not the sum that it was asked for.")


def _futures(client: Any, blocks: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Let the workers compute blocks."""
    flat = client.compute([block for shard in blocks for block in shard])
    rest = iter(flat)
    return [[next(rest) for _ in shard] for shard in blocks]


def _even(lengths: Sequence[int], parts: int) -> list[int]:
    """Cut shards into at most so many runs, of about as many rows."""
    ends = np.cumsum(lengths)
    wanted = ends[-1] * np.arange(1, parts) / parts
    cuts = np.searchsorted(ends, wanted) + 1
    return [0, *(int(c) for c in np.unique(cuts) if c < len(lengths)), len(lengths)]


def _check_blocks(name: str, array: Any, first: str, of_first: Any) -> None:
    if not all(hasattr(array, a) for a in ("chunks", "to_delayed", "rechunk")):
        raise ArgumentError(
            f"records[{name!r}] is a {type(array).__name__}, and client= wants dask arrays: say "
            "dask.array.from_zarr(...), or what else reads files on the workers."
        )
    lengths = array.chunks[0]
    if any(len(c) > 1 for c in array.chunks[1:]):
        raise ArgumentError(
            f"records[{name!r}] is cut along another axis than that of the rows: give "
            f".rechunk({{0: {name}.chunks[0], 1: -1}}) of it."
        )
    if lengths != of_first.chunks[0]:
        raise ArgumentError(
            f"records[{first!r}] and records[{name!r}] are cut into blocks of different lengths: give "
            f"{name}.rechunk({{0: {first}.chunks[0]}})."
        )
    if any(n == 0 for n in lengths):
        raise ArgumentError(f"records[{name!r}] has blocks without rows: call .rechunk() on it.")
