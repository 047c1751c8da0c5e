"""The noisy sum, in microbatches: neither a batch nor its gradients are ever in memory as a whole.

`PrivateSum` marks matrices with a row per record of the batch. The graph that computes these rows becomes
part of one operation, which fetches some records, computes their rows, clips them and adds them up, and goes
on to the next records::

    for microbatch in batch:                       # all of one length
        rows = arrays[microbatch]                  # `fetching`
        gradients = per_record(rows, shared)       # in blocks, dense or factored
        high, low += clipped sum of the gradients  # `clipping`, `kernels`
    return round(high + low) + noise

So the sum without noise is no variable of any graph. The data of a microbatch stay in the processor's cache,
and memory does not grow with the batch. `sums_of_step` puts the operation into a graph and chooses the
length.

**A record's row is the same in every batch.** The order in which a matrix product adds up depends on its
shape, and differs between its last rows and the others. So one more record in a batch could change the last
digits of another record's gradient, and all digits if that record's terms were made to cancel. Therefore
every microbatch of a fit has the same length, whatever the batch: the last one is filled up with copies of
its last record, which are not added up. All shapes, and the order of all sums, are then always the same. The
length is a multiple of 8, of 24 if memory allows, of 96 for simple rows, so that no loop over the rows has a
remainder that is computed differently: matrix products take 4, 8 or 24 rows at a time, and loops are
vectorised by up to 32 (`test_batch_position`). BLAS has one thread meanwhile (`blas_threads`).

Of an empty batch, one microbatch of zeros is computed and not added. So errors come up at the rehearsal on no
records (`step`), before anything is spent and whatever the records are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import (
    numba_funcify_and_cache_key,
    numba_njit,
    register_funcify_and_cache_key,
)

from pymc_dpvi.engine import clipping
from pymc_dpvi.engine.generated_code import (
    PIECE,
    RELEASE,
    ROWS,
    Ending,
    write_add_clipped,
    write_microbatched_sum,
)
from pymc_dpvi.engine.generated_unit_sums import write_add_units
from pymc_dpvi.engine.private_sum import PrivateSum, sum_type
from pymc_dpvi.engine.unit_sums import whole_persons
from pymc_dpvi.numba_cache import source_hash

__all__ = ["MicrobatchedSum"]


class MicrobatchedSum(Op):
    """Noisy sum of clipped gradients of records: the only operation in which records are added up.

    Parameters
    ----------
    mark : PrivateSum
        Clip norm, layout of the gradient, weight of the tally.
    per_record : Function
        ``(*rows, *shared) -> arrays``, with a row per record, as `mark` takes them.
    num_record_arrays : int
        Number of record arrays, the first inputs of `per_record`.
    sampled : bool
        Whether batches are given by indices; otherwise the batch is all records.
    length : int
        Number of records in a microbatch.
    by_unit : bool
        Whether the rows of a person are added up before they are clipped; indices are then marked
        (`unit_sums`).
    rows_key : str, optional
        Key of the graph that `per_record` was made from.
    width : int
        Numbers of a record's gradient, in its own form.
    large : bool
        Whether a parameter is so large that even a microbatch takes milliseconds.
    factored : tuple of bool
        Which blocks are not formed for a person (`unit_sums`): for each one, or none.

    Notes
    -----
    Inputs: the record arrays; what all records share; ``indices``, int64 vector, if sampled; ``count``, the
    number of records in the batch, the first of these; ``noise``; ``spacing``. Output: that of `PrivateSum`.
    """

    def __init__(
        self,
        mark: PrivateSum,
        per_record: Any,
        num_record_arrays: int,
        sampled: bool,
        length: int,
        by_unit: bool = False,
        rows_key: str | None = None,
        width: int = 1,
        large: bool = False,
        factored: tuple[bool, ...] = (),
    ) -> None:
        self.mark = mark
        self.per_record = per_record
        self.num_record_arrays = num_record_arrays
        self.sampled = sampled
        self.length = length
        self.by_unit = by_unit
        self.width, self.large = width, large
        self.whole = by_unit and any(factored)
        #: What a worker needs besides to make this operation anew (`shards`).
        self.numbers = (num_record_arrays, sampled, length, by_unit, rows_key, width, large, factored)
        parts = (mark._props(), num_record_arrays, sampled, length, by_unit, rows_key, factored)
        #: For `graph_keys`.
        self.graph_key = None if rows_key is None else hashlib.sha256(repr(parts).encode()).hexdigest()
        layout = mark.layout
        self.add_clipped = write_add_units(layout, factored) if by_unit else write_add_clipped(layout)

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node; see the class for the inputs."""
        return Apply(self, list(inputs), [sum_type(inputs[-2])()])

    def forget(self) -> None:
        """Free what was compiled: PyTensor's rewrites keep every operation that they have met."""
        self.per_record = None

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        """Evaluate with the kernels that the numba backend compiles in."""
        *inputs, count, noise, spacing = inputs
        indices = inputs.pop() if self.sampled else None
        records, shared = inputs[: self.num_record_arrays], inputs[self.num_record_arrays :]
        n, spacing = int(count), float(spacing)
        bound, units, *sums = clipping.start_of_sum(
            noise.size, self.mark.l2_clip_norm, self.mark.tally_weight, spacing
        )
        marked = indices
        if indices is not None and self.by_unit:
            indices, person = indices >> 1, np.zeros(sums[0].size)
        first = 0
        while first < max(n, 1):
            places = np.minimum(np.arange(first, first + self.length), max(n, 1) - 1)
            if indices is not None:
                places = indices[places]
            rows = [r[places] if n else np.zeros((self.length, *r.shape[1:]), r.dtype) for r in records]
            arrays = self.per_record(*rows, *shared)
            if any(np.shape(a)[0] != self.length for a in arrays):
                raise ValueError(ROWS)
            # In one layout: kernels are compiled for each, and some only when a person of few rows comes.
            added = [np.require(a, requirements=("C", "W")) for a in arrays]
            count = min(self.length, n - first)
            if n == 0:
                self._try_one(added, bound, units, sums)
            if self.whole:
                count = whole_persons(marked, first, count)
            if self.by_unit:
                self.add_clipped(*added, marked, first, count, bound, units, person, *sums)
            else:
                self.add_clipped(*added, count, bound, units, *sums)
            first += max(count, 1)
        output_storage[0][0] = clipping.round_and_add(*sums, noise, spacing)

    def _try_one(
        self, arrays: Sequence[np.ndarray], bound: float, units: int, sums: Sequence[np.ndarray]
    ) -> None:
        """Compile what adds up a record, a whole person, or one that goes on, and add nothing: a rehearsal.

        What cannot be compiled must not come up when such a person is in a batch.
        """
        scratch = [np.zeros_like(a) for a in sums]
        if not self.by_unit:
            self.add_clipped(*arrays, 1, bound, units, *scratch)
            return
        for marked in (np.array([1]), np.array([0, 1])):
            person = np.zeros(scratch[0].size)
            self.add_clipped(*arrays, marked, marked.size - 1, 1, bound, units, person, *scratch)

    def infer_shape(self, *args: Any) -> list[tuple[Variable, ...]]:
        """Return the shape of the noise."""
        return [tuple(args[-1][-2])]

    def for_numba(self, node: Apply, ending: Ending = RELEASE) -> tuple[Any, str | None]:
        """Return the Python function that numba compiles, and a key of it, None if it cannot be kept.

        A piece of a batch is always given by indices.
        """
        per_record, per_record_key = numba_funcify_and_cache_key(self.per_record.maker.fgraph)
        function, source = write_microbatched_sum(
            per_record,
            self.add_clipped,
            [v.type.ndim for v in node.inputs[: self.num_record_arrays]],
            len(node.inputs) - self.num_record_arrays - self.sampled - 3,
            self.mark.num_arrays,
            self.sampled or ending is PIECE,
            self.by_unit,
            self.whole,
            ending,
            length=self.length,
            l2_clip_norm=self.mark.l2_clip_norm,
            tally_weight=self.mark.tally_weight,
        )
        key = None
        if per_record_key is not None:  # the rows can be kept on disk
            rows = self.graph_key or per_record_key
            parts = (source, self.mark._props(), self.length, self.numbers[-1], rows, source_hash())
            key = hashlib.sha256(f"pymc_dpvi.MicrobatchedSum {parts}".encode()).hexdigest()
        return function, key


@register_funcify_and_cache_key(MicrobatchedSum)
def _numba_microbatched_sum(op: MicrobatchedSum, node: Apply, **kwargs: Any) -> Any:
    function, key = op.for_numba(node)
    return numba_njit(function, fastmath=False), key
