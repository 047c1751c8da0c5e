"""How the sums of a step are put into its graph, and how long their microbatches are.

`in_microbatches` replaces each mark (`PrivateSum`) by the operation that adds up records (`microbatch`) or
persons with local values (`local_sum`). It takes the graph of the rows apart: what depends on a record is
computed for a microbatch, what all records share is computed once.

The wider the gradients, the shorter a microbatch. It is also shorter if a row takes many operations. It is
longer if a parameter is large and its gradient factored, as each microbatch costs a pass over all its
entries, and with JAX, where a call takes longer than a few rows. No microbatch is longer than
`clipping.PLAIN_RECORDS`, the most records that the proof of rounding errors lets be added up plainly. No
number of records decides on the length that is not public.

What it must never do: let anything but the noisy sum depend on records, the batch, its size or the noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pymc.pytensorf import compile as pm_compile
from pytensor.compile.io import In, Out
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import DenseTensorType

from pymc_dpvi.engine.clipping import PLAIN_RECORDS
from pymc_dpvi.engine.compile_cache import Postponed
from pymc_dpvi.engine.graph_keys import graph_key
from pymc_dpvi.engine.local_sum import LocalSum
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.engine.private_sum import PrivateSum
from pymc_dpvi.errors import PrivacyError
from pymc_dpvi.graph.batched_ops import without_loops
from pymc_dpvi.graph.blocks import Form
from pymc_dpvi.graph.traversal import substituted, walk

__all__ = ["in_microbatches", "nodes_of_sums", "rows_function"]

#: Numbers of a microbatch's gradients: some megabytes.
_MOST_NUMBERS = 1 << 20
#: A microbatch's length is a multiple of one of these, the largest that memory allows.
_LENGTHS = (96, 24, 8)
#: Greatest length if a row, as written, takes so many elementwise operations, and has no local values.
_SHORT, _MANY_OPERATIONS = 24, 55
#: If so many rows are expected, a large model's batch is shared out to two threads.
_ALONE = 144
#: If a factored parameter has more entries, a microbatch is as long as a plain sum may be.
_LARGE = 1 << 15
#: A factored parameter stays so in the sums of persons if it has so many entries, and factors so long.
_FACTORED, _LONG = 1 << 10, 8


_AROUND = (
    "The graph of the private step reads the records around their noisy sum. Please report the model to "
    "pymc_dpvi. Nothing is spent."
)


def _length(width: int, large: bool, many_operations: bool, public_batch: float | None = None) -> int:
    """Return the length of a microbatch, on which no number of records decides that is not public."""
    longest = PLAIN_RECORDS if large else _SHORT if many_operations else _LENGTHS[0]
    most = min(longest, _MOST_NUMBERS // max(1, width))
    if large and public_batch is not None and math.isfinite(public_batch):
        # Few records are computed in vain, and nearly all batches are an even number of microbatches.
        rows, multiple = public_batch + 2.5 * math.sqrt(public_batch), _LENGTHS[1]
        most = max(multiple, most - most % multiple)
        number = 1 if rows < _ALONE else 2 * math.ceil(rows / (2 * most))
        return multiple * math.ceil(rows / (number * multiple))
    multiple = next((length for length in _LENGTHS if length <= most), _LENGTHS[-1])
    return max(multiple, most - most % multiple)


def nodes_of_sums(outputs: Sequence[Variable]) -> list[Apply]:
    """Return the nodes in which records are added up."""
    nodes = dict.fromkeys(v.owner for v in ancestors(outputs) if v.owner is not None)
    return [node for node in nodes if isinstance(node.op, MicrobatchedSum | LocalSum)]


def in_microbatches(
    outputs: Sequence[Variable],
    batch: Sequence[Variable],
    data: Sequence[Variable],
    indices: Variable | None,
    compile_kwargs: Mapping[str, Any],
    by_unit: bool = False,
    public_batch: float | None = None,
) -> list[Variable]:
    """Replace every `PrivateSum` in a graph by a `MicrobatchedSum`.

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
    by_unit : bool
        Whether `indices` are marked (`unit_sums`): the rows of a person are added up before they are clipped.
    public_batch : float, optional
        Expected number of rows in a batch, if it is public.

    Raises
    ------
    PrivacyError
        If the graphs depend on the data otherwise than through the batch.
    """
    swap: dict[Variable, Variable] = {}
    of_batch: list[Variable] = []
    for variable in ancestors(outputs):
        node = variable.owner
        if node is None or not isinstance(node.op, PrivateSum):
            continue
        mark = node.op
        end = mark.num_arrays + mark.num_terms
        arrays, rest = node.inputs[: mark.num_arrays], node.inputs[end:]
        of_batch += rest[:2]  # their number, and the noise
        terms = node.inputs[mark.num_arrays : end]
        width = sum(math.prod(n or 1 for n in a.type.shape[1:]) for a in arrays)
        large = any(_entries(form, own) > _LARGE for form, own in _by_form(mark.layout, arrays))
        many = not terms and _operations_on_rows(arrays, batch) >= _MANY_OPERATIONS
        length = _length(width, large or _is_jax(compile_kwargs), many, public_batch)
        rows = {b: b.type.clone(shape=(length, *b.type.shape[1:]))() for b in batch}
        which = [] if indices is None else [indices]

        def of_rows(
            wanted: Sequence[Variable],
            rows: Mapping[Variable, Variable] = rows,
            kept: Sequence[Variable] = (*data, *which, *rest[:2]),
            made: Sequence[Variable] = batch[len(data) :],
        ) -> tuple[Any, str | None, list[Variable], list[str]]:
            """Compile what computes arrays of a microbatch; return it, its key, and what all rows share.

            And the names of what is made for each row, beside the record arrays, that it takes.
            """
            shared = {v: v.type() for v in _shared_by_rows(wanted, batch)}
            _refuse_records(shared, kept)
            behind = set(ancestors(wanted))
            own = [v for v in made if v in behind]
            inputs = [*(rows[v] for v in (*batch[: len(data)], *own)), *shared.values()]
            outputs_of_rows = without_loops(substituted(wanted, {**rows, **shared}))
            function = rows_function(inputs, outputs_of_rows, compile_kwargs)
            return function, graph_key(inputs, outputs_of_rows), list(shared), [str(v.name) for v in own]

        op: Op
        if not terms:
            per_record, key, shared, _ = of_rows(arrays)
            factored = tuple(by_unit and _stays_factored(*own) for own in _by_form(mark.layout, arrays))
            own = len(data), indices is not None, length, by_unit, key, width, large, factored
            op = MicrobatchedSum(mark, per_record, *own)
            swap[variable] = op(*data, *shared, *which, *rest)
        else:
            found = [of_rows(wanted) for wanted in (arrays, terms[:1], terms[1:])]
            every = list(dict.fromkeys(v for _, _, shared, _ in found for v in shared))
            functions = [
                (function, [*own, *(f"s{every.index(v)}" for v in shared)])
                for function, _, shared, own in found
            ]
            keys = [k for _, k, _, _ in found if k is not None]
            rows_key = "".join(keys) if len(keys) == len(found) else None
            op = LocalSum(mark, functions, len(data), len(every), length, rows_key, width)
            swap[variable] = op(*data, *every, *which, *rest)
    new = list(graph_replace(list(outputs), swap, strict=False)) if swap else list(outputs)
    _refuse_beside(new, data, [*([] if indices is None else [indices]), *of_batch])
    return new


def rows_function(
    inputs: Sequence[Variable], outputs: Sequence[Variable], compile_kwargs: Mapping[str, Any]
) -> Any:
    """Compile what computes the rows of a microbatch; with numba, only when a step is compiled with it."""

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
    return Postponed(compiled, inputs, outputs) if by_numba else compiled()


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


def _stays_factored(form: Form, arrays: Sequence[Variable]) -> bool:
    """Whether a person's sum of a block is not formed: decided by static shapes alone."""
    shortest = min(a.type.shape[-1] or 1 for a in arrays)
    return _entries(form, arrays) >= _FACTORED and shortest >= _LONG


def _refuse_records(shared: Iterable[Variable], kept: Sequence[Variable]) -> None:
    """Raise if what all records share depends on records: a record's row would depend on others."""
    if not set(kept).isdisjoint(ancestors(list(shared))):
        raise PrivacyError(_AROUND)


def _refuse_beside(
    outputs: Sequence[Variable], data: Sequence[Variable], of_batch: Sequence[Variable]
) -> None:
    """Raise if outputs read records, the batch, its size or the noise other than through the noisy sum."""
    sums = [node.outputs[0] for node in nodes_of_sums(outputs)]
    beside = walk(outputs, stop=sums, into_size=True, columns_of=data)
    if not {*data, *of_batch}.isdisjoint(beside):
        raise PrivacyError(_AROUND)


def _shared_by_rows(arrays: Sequence[Variable], batch: Sequence[Variable]) -> list[Variable]:
    """Return the inputs of the rows' graph that are the same for all records.

    They are the variables that do not depend on the batch, and are read by one that does: so as much as
    possible is computed once, outside. Variables made from constants alone stay inside, for PyTensor to
    simplify by: shapes most of all, which can be half of the operations on rows.
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
