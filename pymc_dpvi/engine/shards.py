"""What runs on the workers of a cluster: shards of the records are held, and their clipped sums computed.

A *shard* is a run of rows, as the user's arrays are cut. A *group* of shards is held by one worker, in one
future. The sum of a batch over a group is that of its shards, each cut into pieces by itself (`pieces`): so
it does not depend on how shards are grouped, or on who computes it.

A worker is sent a `Recipe`, which is the graph of a record's gradients without data, and compiles it once. It
gets no noise, no budget and no key. It returns the sum without noise, which is private.

Whatever is raised here becomes the name of its type, in a string: Dask writes the arguments of a task that
raised into its log, and these are records.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type

from pymc_dpvi.compat import default_numba_mode, quiet_pytensor
from pymc_dpvi.engine.blas_threads import ONE_THREAD
from pymc_dpvi.engine.graph_keys import source_hash
from pymc_dpvi.engine.lattice_sums import no_sum
from pymc_dpvi.engine.microbatch import MicrobatchedSum, rows_function
from pymc_dpvi.engine.pieces import PieceSum
from pymc_dpvi.engine.private_sum import PrivateSum

__all__ = ["Group", "Recipe", "hold", "sum_of_group"]

#: Shards, each a list of record arrays with as many rows.
Group = list[list[np.ndarray]]

#: Frames that pickle needs for the deepest graphs.
_DEEP = 100_000


@dataclass(frozen=True)
class Recipe:
    """The sum of a piece as a worker compiles it: graphs, types and numbers, and no record."""

    mark: PrivateSum
    inputs: Sequence[Variable]
    outputs: Sequence[Variable]
    types: Sequence[Type]  # of all inputs of the operation
    numbers: tuple[Any, ...]  # the other arguments of `MicrobatchedSum`
    floatx: str
    sources: str  # hash of this package's sources

    @classmethod
    def of(cls, node: Apply) -> Recipe:
        """Return the recipe of a `MicrobatchedSum`."""
        op = node.op
        graph = op.per_record.inputs, op.per_record.outputs
        types = [v.type for v in node.inputs]
        return cls(op.mark, *graph, types, op.numbers, pytensor.config.floatX, source_hash())

    def pickled(self) -> bytes:
        """Return the recipe as bytes."""
        with _deep():
            return pickle.dumps(self)

    def compiled(self) -> PieceSum:
        """Compile the sum of a piece, or raise a RuntimeError if this process would compute another one."""
        if self.sources != source_hash():
            raise RuntimeError("another version of pymc_dpvi")
        if self.floatx != pytensor.config.floatX:
            raise RuntimeError("another floatX")
        rows = rows_function(self.inputs, self.outputs, {"mode": default_numba_mode()})
        op = MicrobatchedSum(self.mark, rows, *self.numbers)
        return PieceSum(op(*(t() for t in self.types)).owner)


def hold(
    blocks: Sequence[Sequence[Any]], dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> Group | str:
    """Return a group of shards, each of one block of each record array; or the name of what was raised."""
    try:
        group = []
        for shard in blocks:
            arrays = [
                np.ascontiguousarray(np.asarray(block).astype(dtype, casting="safe", copy=False))
                for block, dtype in zip(shard, dtypes, strict=True)
            ]
            if any(a.shape[1:] != s or len(a) != len(arrays[0]) for a, s in zip(arrays, shapes, strict=True)):
                raise TypeError("blocks of another shape")
            group.append(arrays)
        return group
    except Exception as error:
        return type(error).__name__


def sum_of_group(
    recipe: bytes, group: Group | str, batches: Sequence[np.ndarray], shared: bytes, spacing: float, call: int
) -> tuple[int, Any]:
    """Return the clipped sum over the batch of each shard, (2, size), int64; or the name of what was raised.

    `batches` are places in the shards, `shared` is pickled: what all records share, and the size. `call` is
    returned, so that an answer can be told from an older one.
    """
    if isinstance(group, str):  # of `hold`
        return call, group
    try:
        values, size = pickle.loads(shared)
        piece_sum = _compiled(recipe)
        total, number = no_sum(size), np.asarray(spacing)
        with ONE_THREAD, np.errstate(all="ignore"):
            for arrays, places in zip(group, batches, strict=True):
                # Of no batch at all, as at the rehearsal, one microbatch is computed, and all is compiled.
                if places.size or not any(own.size for own in batches):
                    batch, turns = places.astype(np.int64), np.zeros(1, dtype=np.int64)
                    piece_sum(arrays, values, batch, piece_sum.cuts(batch), turns, number, total)
        return call, total
    except Exception as error:
        return call, type(error).__name__


_sums: dict[str, PieceSum] = {}
_lock = threading.Lock()


def _compiled(recipe: bytes) -> PieceSum:
    """Compile once in a process."""
    name = hashlib.sha256(recipe).hexdigest()
    with _lock:
        if name not in _sums:
            with _deep(), quiet_pytensor():
                _sums[name] = pickle.loads(recipe).compiled()
                ONE_THREAD.look()
    return _sums[name]


@contextmanager
def _deep() -> Iterator[None]:
    """Let pickle go as deep as graphs are."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _DEEP))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
