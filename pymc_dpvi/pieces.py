"""The private sum in pieces of the batch: no gradient of a whole batch, nor the batch itself, in memory.

`PrivateSum` takes matrices with a row per record of the batch. Here the graph that computes these rows
goes into the operation, which fetches some records, computes their rows, clips and adds them up, and goes on
to the next:

    for piece in batch:
        rows = records[piece]                      # fetched ahead of their use
        factors = per_record(rows, shared)
        high, low += clipped sum of the factors
    return round(high + low) + noise

What a piece needs stays in the processor's cache, where a batch of large records does not, and memory does
not grow with the batch. A piece is one of the blocks that `PrivateSum` adds up, or some of them, so that the
proof of its rounding errors holds as it stands.

**Fetching.** Records of a batch lie anywhere in memory, and a processor that waits for each in turn is idle
for most of a step. So the records some kilobytes ahead are asked for (LLVM's ``prefetch``) while the present
one is copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic
from pymc.pytensorf import compile as pm_compile
from pytensor.compile.io import In, Out
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.link.numba.dispatch.basic import (
    numba_funcify_and_cache_key,
    numba_njit,
    register_funcify_and_cache_key,
)
from pytensor.tensor.type import DenseTensorType, dvector

from pymc_dpvi import clipping
from pymc_dpvi.clipping import (
    BLOCK_RECORDS,
    TALLY_COLUMNS,
    PrivateSum,
    clip_bound,
    round_and_add,
    tally_units,
)

__all__ = ["PiecewiseSum", "in_pieces"]

#: Numbers of a piece's dense gradients: some megabytes.
_PIECE_NUMBERS = 1 << 20
#: Bytes to fetch ahead.
_AHEAD = 4096
_CACHE_LINE = 64


@intrinsic
def _prefetch(typing_context: Any, array: Any, offset: Any) -> Any:  # pragma: no cover
    """Ask for the cache line at a byte offset from the start of an array. It is a hint: nothing is read."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.gep(builder.bitcast(data, byte), [args[1]])
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(function, [place, word(0), word(3), word(1)])  # to read, often, data
        return context.get_dummy_value()

    return numba.types.void(array, offset), codegen


@numba.njit
def _take_rows(
    records: np.ndarray, indices: np.ndarray, first: int, last: int
) -> np.ndarray:  # pragma: no cover
    """Copy the rows ``indices[first:last]`` of a matrix, fetching beyond `last` what comes next."""
    width = records.shape[1]
    length = width * records.itemsize
    together = width > 0 and records.strides[1] == records.itemsize
    ahead = 1 + _AHEAD // max(length, _CACHE_LINE)
    out = np.empty((last - first, width), records.dtype)
    for i in range(first, last):
        if together and i + ahead < indices.size:
            start = indices[i + ahead] * records.strides[0]
            for byte in range(0, length, _CACHE_LINE):
                _prefetch(records, start + byte)
        row = indices[i]
        for j in range(width):
            out[i - first, j] = records[row, j]
    return out


class PiecewiseSum(Op):
    """`PrivateSum` of a function of records, piece by piece.

    Parameters
    ----------
    private_sum : PrivateSum
    per_record : Function
        ``(*rows, *shared) -> matrices``, with a row per record, as `private_sum` takes them.
    n_records : int
        Number of record arrays, the first inputs of `per_record`.
    sampled : bool
        Whether batches are given by indices; otherwise all records are summed.
    width : int
        Number of dense columns, as far as known: it decides how many records make a piece.

    Notes
    -----
    Inputs: the record arrays; what all records share; ``indices``, int64 vector, if sampled; ``count``,
    how many of the records there are, from the first; ``noise``; ``unit``. Output: as of `PrivateSum`.
    """

    def __init__(
        self, private_sum: PrivateSum, per_record: Any, n_records: int, sampled: bool, width: int
    ) -> None:
        self.private_sum = private_sum
        self.per_record = per_record
        self.n_records = n_records
        self.sampled = sampled
        # Whole blocks of the sum, so that its rounding errors are those of `PrivateSum`.
        self.most = BLOCK_RECORDS * max(1, _PIECE_NUMBERS // (BLOCK_RECORDS * max(1, width)))
        self._add_clipped = clipping.make_add_clipped(private_sum.outer)

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node; see the class for the inputs."""
        return Apply(self, list(inputs), [dvector()])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        """Evaluate with the kernels of `clipping`, in pieces as long as memory allows."""
        *inputs, count, noise, unit = inputs
        indices = inputs.pop() if self.sampled else None
        records, shared = inputs[: self.n_records], inputs[self.n_records :]
        op, count = self.private_sum, int(count)
        bound = clip_bound(op.l2_clip_norm, float(unit), noise.size)
        units = tally_units(op.l2_clip_norm, float(unit), op.tally_weight)
        tally = np.zeros(TALLY_COLUMNS if op.tally_weight else 0, np.int64)
        high, low = np.zeros(noise.size - tally.size), np.zeros(noise.size - tally.size)
        for first in range(0, count, self.most):
            last = min(first + self.most, count)
            piece = slice(first, last) if indices is None else indices[first:last]
            matrices = self.per_record(*[r[piece] for r in records], *shared)
            self._add_clipped(*matrices, last - first, bound, units, high, low, tally)
        output_storage[0][0] = round_and_add(high, low, tally, noise, float(unit))

    def infer_shape(self, *args: Any) -> list[tuple[Variable, ...]]:
        """Return the shape of the noise."""
        return [tuple(args[-1][-2])]


@register_funcify_and_cache_key(PiecewiseSum)
def _numba_piecewise_sum(op: PiecewiseSum, node: Apply, **kwargs: Any) -> Any:
    per_record, per_record_key = numba_funcify_and_cache_key(op.per_record.maker.fgraph)
    records = [f"d{k}" for k in range(op.n_records)]
    shared = [f"s{k}" for k in range(len(node.inputs) - op.n_records - 3 - op.sampled)]
    rows: list[str] = []
    fetch: list[str] = []
    for name, variable in zip(records, node.inputs, strict=False):
        rows.append(f"r{len(rows)}")
        if not op.sampled:
            how = f"{name}[first:last]"
        elif variable.type.ndim == 2:
            how = f"take_rows({name}, indices, first, last)"
        else:
            how = f"{name}[indices[first:last]]"
        fetch.append(f"        {rows[-1]} = {how}")
    outer = op.private_sum.outer
    factors = [f"x{k}" for k in range(len(outer) + sum(outer))]
    names = [*records, *shared, *(["indices"] if op.sampled else []), "count", "noise", "unit"]
    source = "\n".join(
        [
            f"def piecewise_sum({', '.join(names)}):",
            "    u = unit.item()",
            "    bound = clip_bound(l2_clip_norm, u, noise.size)",
            "    units = tally_units(l2_clip_norm, u, tally_weight)",
            "    tally = np.zeros(tally_columns, np.int64)",
            "    high, low = np.zeros(noise.size - tally.size), np.zeros(noise.size - tally.size)",
            "    n = count.item()",
            "    for first in range(0, n, piece):",
            "        last = min(first + piece, n)",
            *fetch,
            f"        {', '.join(factors)}, = per_record({', '.join([*rows, *shared])})",
            f"        add_clipped({', '.join(factors)}, last - first, bound, units, high, low, tally)",
            "    return round_and_add(high, low, tally, noise, u)",
        ]
    )
    scope = {
        "np": np,
        "take_rows": _take_rows,
        "clip_bound": clip_bound,
        "tally_units": tally_units,
        "tally_columns": TALLY_COLUMNS if op.private_sum.tally_weight else 0,
        "tally_weight": op.private_sum.tally_weight,
        "round_and_add": round_and_add,
        "add_clipped": numba.njit(fastmath=False)(op._add_clipped),
        "per_record": per_record,
        "piece": BLOCK_RECORDS,  # enough for the vector units, few enough for the cache
        "l2_clip_norm": op.private_sum.l2_clip_norm,
    }
    exec(source, scope)
    key = None
    if per_record_key is not None:
        # The key must change with the code: PyTensor keeps compiled functions on disk between versions.
        code = b"".join(Path(str(f)).read_bytes() for f in (__file__, clipping.__file__))
        parts = (
            "pymc_dpvi.PiecewiseSum",
            source,
            outer,
            op.private_sum.l2_clip_norm.hex(),
            op.private_sum.tally_weight.hex(),
            per_record_key,
            hashlib.sha256(code).hexdigest(),
        )
        key = hashlib.sha256(repr(parts).encode()).hexdigest()
    return numba_njit(scope["piecewise_sum"], fastmath=False), key


def in_pieces(
    outputs: Sequence[Variable],
    batch: Sequence[Variable],
    data: Sequence[Variable],
    indices: Variable | None,
    compile_kwargs: Mapping[str, Any],
) -> list[Variable]:
    """Let the private sums in a graph run over pieces of the batch.

    Parameters
    ----------
    outputs : sequence of Variable
        Graphs with `PrivateSum` nodes.
    batch : sequence of Variable
        The rows of the batch in these graphs.
    data : sequence of Variable
        The record arrays that they are rows of, in the same order.
    indices : Variable, optional
        Which rows: an int64 vector; all if None.
    compile_kwargs : dict
        For PyTensor's ``function``, with ``mode``.

    Returns
    -------
    list of Variable
        The same graphs, with a `PiecewiseSum` for every `PrivateSum`.
    """
    swap: dict[Variable, Variable] = {}
    for variable in ancestors(outputs):
        node = variable.owner
        if node is None or not isinstance(node.op, PrivateSum):
            continue
        *matrices, count, noise, unit = node.inputs
        rows = {b: b.type() for b in batch}
        shared = {v: v.type() for v in _shared_by_rows(matrices, batch)}
        per_record = pm_compile(
            [In(v, borrow=True) for v in (*rows.values(), *shared.values())],
            [Out(m, borrow=True) for m in graph_replace(matrices, {**rows, **shared}, strict=False)],
            on_unused_input="ignore",
            **compile_kwargs,
        )
        per_record.trust_input = True
        places = np.cumsum([0, *(1 + o for o in node.op.outer)])[:-1]
        dense = [matrices[k] for k, o in zip(places, node.op.outer, strict=True) if not o]
        op = PiecewiseSum(
            node.op,
            per_record,
            len(data),
            indices is not None,
            sum(m.type.shape[1] or 0 for m in dense),
        )
        which = [] if indices is None else [indices]
        swap[variable] = op(*data, *shared, *which, count, noise, unit)
    return list(graph_replace(list(outputs), swap, strict=False)) if swap else list(outputs)


def _shared_by_rows(matrices: Sequence[Variable], batch: Sequence[Variable]) -> list[Variable]:
    """Return what the computation of the rows reads that is the same for all records.

    As much as possible of it is computed once, outside: a variable that does not depend on the batch
    is taken whole, where something that does depend on it reads it.
    """
    nodes = io_toposort([], list(matrices))
    of_rows: set[Variable] = set(batch)
    for node in nodes:
        if not of_rows.isdisjoint(node.inputs):
            of_rows.update(node.outputs)
    wanted, seen = [*matrices], set(batch)
    shared: dict[Variable, None] = {}
    while wanted:
        v = wanted.pop()
        if v in seen or isinstance(v, Constant):
            continue
        seen.add(v)
        if v in of_rows or (v.owner is not None and not isinstance(v.type, DenseTensorType)):
            wanted.extend(v.owner.inputs)
        else:
            shared[v] = None
    return list(shared)
