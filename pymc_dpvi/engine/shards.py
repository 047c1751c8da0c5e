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

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba
import numpy as np
import pytensor
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.type import Type

from pymc_dpvi.compat import default_numba_mode, quiet_pytensor
from pymc_dpvi.engine.blas_threads import ONE_THREAD
from pymc_dpvi.engine.lattice_sums import no_sum
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.engine.pieces import Batch, PieceSum
from pymc_dpvi.engine.private_sum import PrivateSum
from pymc_dpvi.engine.silence import silence
from pymc_dpvi.engine.sources import in_type
from pymc_dpvi.engine.sums_of_step import rows_function
from pymc_dpvi.numba_cache import source_hash

__all__ = ["Group", "Recipe", "hold", "packed", "sum_of_group", "unpacked"]

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
    versions: tuple[Any, ...]  # of what decides on the last digits, but for the processor

    @classmethod
    def of(cls, node: Apply) -> Recipe:
        """Return the recipe of a `MicrobatchedSum`."""
        op = node.op
        graph = op.per_record.inputs, op.per_record.outputs
        types = [v.type for v in node.inputs]
        return cls(op.mark, *graph, types, op.numbers, pytensor.config.floatX, _versions())

    def pickled(self) -> bytes:
        """Return the recipe as bytes."""
        with _deep():
            return pickle.dumps(self)

    def compiled(self) -> PieceSum:
        """Compile the sum of a piece, or raise a RuntimeError if this process would compute another one."""
        if self.versions != _versions():
            raise RuntimeError("other versions of packages")
        if self.floatx != pytensor.config.floatX:
            raise RuntimeError("another floatX")
        rows = rows_function(self.inputs, self.outputs, {"mode": default_numba_mode()})
        op = MicrobatchedSum(self.mark, rows, *self.numbers)
        return PieceSum(op(*(t() for t in self.types)).owner)


def _versions() -> tuple[Any, ...]:
    packages = (np, numba, pytensor)
    return (source_hash(), *(p.__version__ for p in packages), bool(pytensor.config.numba__fastmath))


def _processor() -> str:
    return str(llvm.get_host_cpu_name())


def hold(
    blocks: Sequence[Sequence[Any]],
    dtypes: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    lengths: Sequence[int],
) -> Group | str:
    """Return a group of shards, each of one block of each record array; or the name of what was raised.

    Compiled code checks no places. So a block that has not as many rows as its array says, such as one that
    was filtered by ``map_blocks``, is an error here. Nothing is kept of what a block is a part of.
    """
    try:
        group = []
        for shard, length in zip(blocks, lengths, strict=True):
            arrays = []
            for block, dtype, shape in zip(shard, dtypes, shapes, strict=True):
                array = np.array(in_type(block, np.dtype(dtype)), order="C", copy=True)
                if array.shape != (length, *shape):
                    raise ValueError("a block of another shape than its array says")
                arrays.append(array)
            group.append(arrays)
        return group
    except Exception as error:
        return type(error).__name__


def packed(places: np.ndarray, rows: int) -> np.ndarray:
    """Return ascending places in a shard in few bytes: a bit for each row, or 32 for each place."""
    if places.size * 32 <= rows < 2**32:
        return places.astype(np.uint32)
    there = np.zeros(rows, dtype=np.bool_)
    there[places] = True
    return np.packbits(there)


def unpacked(sent: np.ndarray) -> np.ndarray:
    """Return the places, int64."""
    return sent.astype(np.int64) if sent.dtype == np.uint32 else np.flatnonzero(np.unpackbits(sent))


def sum_of_group(
    recipe: bytes, group: Group | str, batches: Sequence[np.ndarray], shared: bytes, spacing: float, call: int
) -> tuple[int, Any, str]:
    """Return the clipped sum over the batch of each shard, (2, size), int64; or the name of what was raised.

    `batches` are `packed` places in the shards, `shared` is pickled: what all records share, and the size.
    `call` is returned, so that an answer can be told from an older one, and so is the kind of processor.
    """
    if isinstance(group, str):  # of `hold`
        return call, group, ""
    try:
        values, size = pickle.loads(shared)
        piece_sum = _compiled(recipe)
        total, number = no_sum(size), np.asarray(spacing)
        with ONE_THREAD, silence():
            places = [unpacked(sent) for sent in batches]
            nothing = not any(batch.size for batch in places)
            for arrays, batch in zip(group, places, strict=True):
                # Of no batch at all, as at the rehearsal, one microbatch is computed, and all is compiled.
                if batch.size or nothing:
                    turns = np.zeros(1, dtype=np.int64)
                    own = Batch(arrays, values, batch, number, size)
                    piece_sum(own, piece_sum.cuts(batch), turns, total)
        return call, total, _processor()
    except Exception as error:
        return call, type(error).__name__, ""


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
