"""The private sum in pieces of the batch: no gradient of a whole batch, nor the batch itself, in memory.

`PrivateSum` takes matrices with a row per record of the batch. Here the graph that computes these rows
goes into the operation, which fetches some records, computes their rows, clips and adds them up, and goes on
to the next::

    for piece in batch:                            # all of one length
        rows = records[piece]                      # `fetching`
        factors = per_record(rows, shared)
        high, low += clipped sum of the factors
    return round(high + low) + noise

What a piece needs stays in the processor's cache, where a batch of large records does not, and memory does
not grow with the batch: the wider the gradients, the fewer records make a piece. Where a row takes many
operations they are short, too: the rows that only fill up the last piece then cost more than the calls. Only
where a parameter is large and its gradient factored, so that each piece costs a pass over all its entries,
are pieces longer, and with JAX, which takes longer to be called than to compute a few rows. A
piece is no longer than a block that `PrivateSum` adds up plainly, so that the proof of its rounding errors
holds as it stands.

**A record's row is the same in every batch.** In exact arithmetic it is. But a matrix product adds up in an
order that hangs on its shape, and its last rows in another order than the others: one more record in a batch
would change the last digits of others' gradients, and where a row of data was made to cancel, all digits.
So every piece has the same length, whatever the batch: the last one is filled up with copies of its last
record, which are not added up. Then all shapes, and with them the order of all sums, are always the same.
The length is a multiple of 8, of 24 if memory allows, of 96 for simple rows, so that no loop over its rows
has a remainder that is treated differently: the blocks of matrix products are of 4, 8 or 24 rows, loops are
vectorised by up to 32 (`test_batch_position`). BLAS has one thread meanwhile (`blas_threads`).

For an empty batch the rows of zeros are computed and nothing is added up: what fails, fails at the rehearsal
of a step on no records (`step`), before anything is spent, and hangs on no record.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numba
import numpy as np
from pymc.pytensorf import compile as pm_compile
from pytensor.compile.io import In, Out
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.link.numba.dispatch.basic import (
    numba_funcify_and_cache_key,
    numba_njit,
    register_funcify_and_cache_key,
)
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import DenseTensorType

from pymc_dpvi.engine import kernels as block_sums
from pymc_dpvi.engine import private_sum as clipping
from pymc_dpvi.engine.compile_cache import Postponed
from pymc_dpvi.engine.fetching import in_order, places_of, take_entries, take_rows
from pymc_dpvi.engine.graph_keys import graph_key, source_hash
from pymc_dpvi.engine.inlining import inlined
from pymc_dpvi.engine.private_sum import (
    BLOCK_RECORDS,
    PrivateSum,
    arguments_of_sum,
    clip_bound,
    end_of_sum,
    round_and_add,
    start_of_sum,
    sum_type,
    tally_units,
)
from pymc_dpvi.errors import PrivacyError
from pymc_dpvi.graph.batched_ops import without_loops
from pymc_dpvi.graph.blocks import Form
from pymc_dpvi.graph.traversal import substituted

__all__ = ["PiecewiseSum", "in_pieces"]

#: Numbers of a piece's gradients: some megabytes.
_PIECE_NUMBERS = 1 << 20
#: Lengths of pieces: multiples of one of these, the largest that memory allows.
_LENGTHS = (96, 24, 8)
#: Length of pieces at the most, where a row as written takes so many elementwise operations.
_SHORT, _MANY_OPERATIONS = 24, 55
#: Entries of a factored parameter from which on a piece is as long as a block of the sum.
_LARGE = 1 << 15
#: Seen at the rehearsal, before anything is spent.
_ROWS = "every block needs a row per record of a piece"


class PiecewiseSum(Op):
    """`PrivateSum` of a function of records, piece by piece.

    Parameters
    ----------
    private_sum : PrivateSum
    per_record : Function
        ``(*rows, *shared) -> arrays``, with a row per record, as `private_sum` takes them.
    n_records : int
        Number of record arrays, the first inputs of `per_record`.
    sampled : bool
        Whether batches are given by indices; otherwise all records are summed.
    piece : int
        Number of records that are computed at a time.
    rows_key : str, optional
        Key of the graph that `per_record` was made from.

    Notes
    -----
    Inputs: the record arrays; what all records share; ``indices``, int64 vector, if sampled; what
    `private_sum` takes between its arrays and the count; ``count``, how many of the records there are, from
    the first; ``noise``; ``unit``. Output: as of `PrivateSum`.
    """

    def __init__(
        self,
        private_sum: PrivateSum,
        per_record: Any,
        n_records: int,
        sampled: bool,
        piece: int,
        rows_key: str | None = None,
    ) -> None:
        self.private_sum = private_sum
        self.per_record = per_record
        self.n_records = n_records
        self.sampled = sampled
        self.piece = piece
        parts = (private_sum._props(), n_records, sampled, self.piece, rows_key)
        #: For `graph_keys`.
        self.graph_key = None if rows_key is None else hashlib.sha256(repr(parts).encode()).hexdigest()
        self._add_clipped = clipping.make_add_clipped(private_sum.layout, private_sum.pulled)
        self._sum = _make_sum(private_sum.pulled)

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node; see the class for the inputs."""
        return Apply(self, list(inputs), [sum_type(inputs[-2])()])

    def forget(self) -> None:
        """Let go of what was compiled: PyTensor's rewrites remember every operation that they have met."""
        self.per_record = None

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        """Evaluate with the kernels of `private_sum`, in pieces as long as memory allows."""
        *inputs, count, noise, unit = inputs
        split = len(inputs) - self.private_sum.num_shared
        inputs, pull_back = inputs[:split], inputs[split:]
        indices = inputs.pop() if self.sampled else None
        records, shared = inputs[: self.n_records], inputs[self.n_records :]
        n = int(count)

        def add(*rest: Any) -> None:
            for first in range(0, max(n, 1), self.piece):
                places = np.minimum(np.arange(first, first + self.piece), max(n, 1) - 1)
                if indices is not None:
                    places = indices[places]
                rows = [r[places] if n else np.zeros((self.piece, *r.shape[1:]), r.dtype) for r in records]
                arrays = self.per_record(*rows, *shared)
                if any(np.shape(a)[0] != self.piece for a in arrays):
                    raise ValueError(_ROWS)
                self._add_clipped(*map(np.asarray, arrays), min(self.piece, n - first), *rest)

        output_storage[0][0] = self._sum(
            add,
            *pull_back,
            noise,
            self.private_sum.l2_clip_norm,
            self.private_sum.tally_weight,
            float(unit),
        )

    def infer_shape(self, *args: Any) -> list[tuple[Variable, ...]]:
        """Return the shape of the noise."""
        return [tuple(args[-1][-2])]


def _length_of_pieces(width: int, large: bool, many_operations: bool) -> int:
    """Return how many records are computed at a time. It must not depend on how many there are."""
    longest = BLOCK_RECORDS if large else _SHORT if many_operations else _LENGTHS[0]
    most = min(longest, _PIECE_NUMBERS // max(1, width))
    unit = next((length for length in _LENGTHS if length <= most), _LENGTHS[-1])
    return max(unit, most - most % unit)


def _scope() -> dict[str, Any]:
    """Return what the functions that are written at run time call."""
    own = {"clip_bound": clip_bound, "round_and_add": round_and_add, "tally_units": tally_units}
    return {**vars(block_sums), **vars(clipping), **own}


def _make_sum(pulled: bool) -> Any:
    """Write ``(add, [place, slope, shift,] noise, l2_clip_norm, tally_weight, unit) -> release``."""
    names = f"add, {'place, slope, shift, ' if pulled else ''}noise, l2_clip_norm, tally_weight, unit"
    add = f"add({', '.join(arguments_of_sum(pulled))})"
    lines = [f"def noisy_sum({names}):", *start_of_sum(pulled), add, *end_of_sum(pulled)]
    scope = _scope()
    exec("\n    ".join(lines), scope)
    return scope["noisy_sum"]


#: How the rows of a piece are fetched, by the number of axes.
_FETCH = {1: "take_entries({}, indices, first, piece)", 2: "take_rows({}, indices, first, piece)"}


@register_funcify_and_cache_key(PiecewiseSum)
def _numba_piecewise_sum(op: PiecewiseSum, node: Apply, **kwargs: Any) -> Any:
    per_record, per_record_key = numba_funcify_and_cache_key(op.per_record.maker.fgraph)
    private_sum = op.private_sum
    records = [f"d{k}" for k in range(op.n_records)]
    n_shared = len(node.inputs) - op.n_records - 3 - op.sampled - private_sum.num_shared
    shared = [f"s{k}" for k in range(n_shared)]
    rows: list[str] = []
    fetch: list[str] = []
    for name, variable in zip(records, node.inputs, strict=False):
        rows.append(f"r{len(rows)}")
        how = _FETCH.get(variable.type.ndim, "{}[places_of(indices, first, piece)]")
        fetch.append(f"    {rows[-1]} = {how.format(name)}")
    per_record, given = inlined(per_record, [*rows, *shared])
    arrays = [f"x{k}" for k in range(sum(form.num_arrays for form in private_sum.layout))]
    ordered = [f"{array}_in_order" for array in arrays]
    to_sum = arguments_of_sum(private_sum.pulled)
    pull_back = ["place", "slope", "shift"][: private_sum.num_shared]
    which = ["indices"] if op.sampled else []
    names = [*records, *shared, *which, *pull_back, "count", "noise", "number"]
    source = "\n    ".join(
        [
            f"def piecewise_sum({', '.join(names)}):",
            "unit, n = number.item(), count.item()",
            *([] if op.sampled else ["indices = np.arange(max(n, 1))"]),
            *start_of_sum(private_sum.pulled),
            "for first in range(0, max(n, 1), piece):",
            *fetch,
            "    if n == 0:",
            *(f"        {row}.fill(0)" for row in rows),
            f"    {', '.join(arrays)}, = per_record({given})",
            f"    if {' or '.join(f'{array}.shape[0] != piece' for array in arrays)}:",
            f"        raise ValueError({_ROWS!r})",
            *(f"    {name} = in_order({array})" for name, array in zip(ordered, arrays, strict=True)),
            f"    add_clipped({', '.join(ordered)}, min(piece, n - first), {', '.join(to_sum)})",
            *end_of_sum(private_sum.pulled),
        ]
    )
    scope = {
        **_scope(),
        "np": np,
        "places_of": places_of,
        "take_entries": take_entries,
        "take_rows": take_rows,
        "in_order": in_order,
        "add_clipped": numba.njit(fastmath=False)(op._add_clipped),
        "per_record": per_record,
        "piece": op.piece,
        "l2_clip_norm": private_sum.l2_clip_norm,
        "tally_weight": private_sum.tally_weight,
    }
    exec(source, scope)
    key = None
    if per_record_key is not None:  # the rows can be kept on disk
        parts = (source, private_sum._props(), op.piece, op.graph_key or per_record_key, source_hash())
        key = hashlib.sha256(f"pymc_dpvi.PiecewiseSum {parts}".encode()).hexdigest()
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

    Raises
    ------
    PrivacyError
        If the graphs depend on the data otherwise than through the batch.
    """
    swap: dict[Variable, Variable] = {}
    for variable in ancestors(outputs):
        node = variable.owner
        if node is None or not isinstance(node.op, PrivateSum):
            continue
        op = node.op
        arrays = node.inputs[: sum(form.num_arrays for form in op.layout)]
        width = sum(math.prod(n or 1 for n in a.type.shape[1:]) for a in arrays)
        large = any(_entries(form, own) > _LARGE for form, own in _by_form(op.layout, arrays))
        long = large or _is_jax(compile_kwargs)
        piece = _length_of_pieces(width, long, _operations_on_rows(arrays, batch) >= _MANY_OPERATIONS)
        rows = {b: b.type.clone(shape=(piece, *b.type.shape[1:]))() for b in batch}
        shared = {v: v.type() for v in _shared_by_rows(arrays, batch)}
        count, noise, _ = node.inputs[-3:]
        _refuse_records(shared, [*data, *([] if indices is None else [indices]), count, noise])
        inputs = [*rows.values(), *shared.values()]
        outputs_of_rows = without_loops(substituted(arrays, {**rows, **shared}))
        per_record = _rows_function(inputs, outputs_of_rows, compile_kwargs)
        piecewise = PiecewiseSum(
            op,
            per_record,
            len(data),
            indices is not None,
            piece,
            graph_key(inputs, outputs_of_rows),
        )
        which = [] if indices is None else [indices]
        swap[variable] = piecewise(*data, *shared, *which, *node.inputs[len(arrays) :])
    return list(graph_replace(list(outputs), swap, strict=False)) if swap else list(outputs)


def _rows_function(
    inputs: Sequence[Variable], outputs: Sequence[Variable], compile_kwargs: Mapping[str, Any]
) -> Any:
    """Compile what computes the rows of a piece; with numba, when a step is compiled with it."""

    def compiled() -> Any:
        function = pm_compile(
            [In(v, borrow=True) for v in inputs],
            [Out(a, borrow=True) for a in outputs],
            on_unused_input="ignore",
            **compile_kwargs,
        )
        function.trust_input = True
        return function

    by_numba = isinstance(get_mode(compile_kwargs["mode"]).linker, NumbaLinker)
    return Postponed(compiled) if by_numba else compiled()


def _operations_on_rows(arrays: Sequence[Variable], batch: Sequence[Variable]) -> int:
    """Count the elementwise operations on what depends on the batch."""
    of_rows, count = set(batch), 0
    for node in io_toposort([], list(arrays)):
        if not of_rows.isdisjoint(node.inputs):
            of_rows.update(node.outputs)
            count += isinstance(node.op, Elemwise)
    return count


def _is_jax(compile_kwargs: Mapping[str, Any]) -> bool:
    return type(get_mode(compile_kwargs["mode"]).linker).__name__ == "JAXLinker"


def _by_form(layout: Sequence[Form], arrays: Sequence[Variable]) -> list[tuple[Form, list[Variable]]]:
    rest = iter(arrays)
    return [(form, list(itertools.islice(rest, form.num_arrays))) for form in layout]


def _entries(form: Form, arrays: Sequence[Variable]) -> int:
    """Entries of a parameter whose gradient is a product of two factors, 0 for other forms."""
    if form.kind not in ("outer", "products"):
        return 0
    return math.prod(a.type.shape[-1] or 1 for a in arrays)


def _refuse_records(shared: Iterable[Variable], kept: Sequence[Variable]) -> None:
    """Raise if what all records share depends on them: a piece would be given rows of others."""
    if not set(kept).isdisjoint(ancestors(list(shared))):
        raise PrivacyError(
            "The graph of the private step reads the records around the batch, so that it cannot be taken "
            "apart into pieces. Please report the model to pymc_dpvi. Nothing is spent."
        )


def _shared_by_rows(arrays: Sequence[Variable], batch: Sequence[Variable]) -> list[Variable]:
    """Return what the computation of the rows reads that is the same for all records.

    As much as possible of it is computed once, outside: a variable that does not depend on the batch
    is taken whole, where something that does depend on it reads it. What constants alone make stays inside,
    for PyTensor to simplify by: shapes, of which half the operations on rows can be, most of all.
    """
    of_rows: set[Variable] = set(batch)
    constant: set[Variable] = set()
    for node in io_toposort([], list(arrays)):
        if not of_rows.isdisjoint(node.inputs):
            of_rows.update(node.outputs)
        elif all(v in constant or isinstance(v, Constant) for v in node.inputs):
            constant.update(node.outputs)
    inside = of_rows | constant
    wanted, seen = [*arrays], set(batch)
    shared: dict[Variable, None] = {}
    while wanted:
        v = wanted.pop()
        if v in seen or isinstance(v, Constant):
            continue
        seen.add(v)
        if v in inside or (v.owner is not None and not isinstance(v.type, DenseTensorType)):
            wanted.extend(v.owner.inputs)
        else:
            shared[v] = None
    return list(shared)
