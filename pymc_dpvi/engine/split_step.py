"""A step whose sum is left to an executor: before the sum, the sum, and after it.

`multistep.Chunk` compiles a step into one function, which is fastest where a step is short. Here the same
graph is cut in two at the noisy sum::

    shared   = before(state, base draws)               # what all records share, at released values
    sums     = executor.sums(records, shared, batch)   # integers, without noise: `executor`
    released = round(their total) + noise              # `lattice_sums.release_into`
    state    = after(released, state, base draws)

So an executor may be threads, or processes on other machines. What comes after cannot read records, the
batch or the noise: they are no inputs of it, and that is checked. Long vectors before and after the sum are
computed by columns on the same threads (`columns`). What is long and needed on both sides is computed once,
before the sum, and handed on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from pytensor.compile.mode import get_mode, optdb
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.elemwise import Elemwise

from pymc_dpvi.engine.atomics import take_turn
from pymc_dpvi.engine.cluster import Cluster, OnWorkers
from pymc_dpvi.engine.columns import InColumns, is_long_vector
from pymc_dpvi.engine.compile_cache import shared
from pymc_dpvi.engine.executor import Executor, OnThreads
from pymc_dpvi.engine.lattice_sums import release_into
from pymc_dpvi.engine.local_sum import LocalSum
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.engine.multistep import Chunk
from pymc_dpvi.engine.pieces import Batch, PieceSum, has_indices
from pymc_dpvi.engine.sums_of_step import nodes_of_sums
from pymc_dpvi.engine.threads import Threads, ring
from pymc_dpvi.errors import PrivacyError
from pymc_dpvi.graph.traversal import substituted
from pymc_dpvi.numba_cache import kernel

__all__ = ["SplitChunk", "has_long_vectors", "is_long"]

#: Without those rewrites that take a part of a long vector before it is computed.
_CANONICAL = optdb.query(
    RewriteDatabaseQuery(include=["ShapeOpt", "canonicalize"], exclude=["local_subtensor_of_batch_dims"])
)

#: Columns of a release that a thread computes at a time.
_COLUMNS = 1 << 14

#: Numbers of a batch's gradients from which on threads were measured to gain (`benchmarks/scale.py`).
_LONG = 1 << 18


def is_long(
    sums: Sequence[MicrobatchedSum | LocalSum],
    public_batch: float | None,
    compile_kwargs: Mapping[str, Any],
) -> bool:
    """Whether several threads are worth their while, by what is public: about a third of a millisecond.

    How many records there are is not, unless the user gave a batch size. A record's row may differ in its
    last bits between the two ways of compiling a step. So the choice must not turn on a record.
    """
    if not isinstance(get_mode(compile_kwargs["mode"]).linker, NumbaLinker):
        return False
    rows = 0.0 if public_batch is None else public_batch
    return any(isinstance(op, MicrobatchedSum) and (op.large or rows * op.width >= _LONG) for op in sums)


def has_long_vectors(outputs: Sequence[Variable]) -> bool:
    """Whether what a step computes has vectors that are worth to be computed by columns."""
    return any(is_long_vector(v) for v in outputs)


class SplitChunk(Chunk):
    """As `Chunk`, step by step, with each sum made by `cores` threads, or by the workers of a cluster."""

    def __init__(self, *args: Any, cores: int, cluster: Cluster | None = None, **kwargs: Any) -> None:
        self.threads, self.cluster = Threads(cores), cluster
        self.executor: Executor
        super().__init__(*args, **kwargs)

    def _release_of(self, sums: np.ndarray, noise: np.ndarray, spacing: float) -> np.ndarray:
        """Add up the sums and the noise, on the threads."""
        released, turns = np.empty(noise.size), np.zeros(1, dtype=np.int64)
        work = partial(_release_into, sums, noise, spacing, released, turns)
        self.threads.each(work, -(-noise.size // _COLUMNS))
        return released

    def share_out(self, own: Callable[[], object], others: Sequence[Callable[[], object]]) -> None:
        """Do `own` in this thread, and the others in any."""
        caller, rest = threading.get_ident(), iter(others)  # one thread at a time asks it for the next

        def work(bells: np.ndarray) -> None:
            if threading.get_ident() == caller:
                ring(bells)
                own()
            for do in rest:
                do()

        self.threads.each(work, 1 + len(others))

    def rest(self) -> None:
        """End the threads, until the next step."""
        self.executor.close()
        self.threads.close()

    def _compiled(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        compile_kwargs: Mapping[str, Any],
        key: str | None,
        name: Hashable | None,
    ) -> Callable[..., Any]:
        """Compile the three parts of a step, or take those of an equal graph."""
        cut = _Cut(inputs, outputs)
        around = shared(_named(name, "around"), lambda: _Around(cut, compile_kwargs))
        if self.cluster is None:
            piece_sum = shared(_named(name, "piece"), lambda: PieceSum(cut.node))
            self.executor = OnThreads(piece_sum, self.threads)
        else:
            self.executor = OnWorkers(self.cluster, cut.node)

        def step(batch: np.ndarray, noise: np.ndarray, *rest: Any) -> Any:
            values = (None, None, noise, *rest)
            spacing = values[cut.spacing]
            given, handed = around.before(self.threads, *(values[k] for k in cut.of_before))
            given = [np.ascontiguousarray(v) if np.ndim(v) else v for v in given]
            records = [values[k] for k in cut.records]
            sums = self.executor.sums(Batch(records, given, batch, spacing, noise.size))
            released = self._release_of(sums, noise, spacing.item())
            return around.after(self.threads, released, *handed, *(values[k] for k in cut.of_after))

        return lambda *arrays: self._many(step, *arrays)


@kernel(nogil=True)
def _release_into(
    sums: np.ndarray,
    noise: np.ndarray,
    spacing: float,
    released: np.ndarray,
    turns: np.ndarray,
    bells: np.ndarray,
) -> None:  # pragma: no cover
    ring(bells)
    begin = take_turn(turns) * _COLUMNS
    while begin < noise.size:
        release_into(sums, noise, spacing, released, begin, min(begin + _COLUMNS, noise.size))
        begin = take_turn(turns) * _COLUMNS


class _Cut:
    """The graph of a step, cut at its sum.

    `records`, `of_before`, `of_after` and `spacing` are places among the step's inputs. `shared` is what all
    records share, `computed` is what else is computed before the sum for what comes after, there `handed`.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        if has_long_vectors(outputs):
            inputs, outputs = _simplified(inputs, outputs)
        (node,) = nodes_of_sums(outputs)
        data = node.op.num_record_arrays
        batch = 3 + has_indices(node.op)
        self.node = node
        self.shared = node.inputs[data:-batch]
        self.released = node.outputs[0].type("released")
        self.computed = _needed_again(outputs, self.shared, node.outputs[0])
        self.handed = [v.type(name=v.name) for v in self.computed]
        swap = {node.outputs[0]: self.released, **dict(zip(self.computed, self.handed, strict=True))}
        self.outputs = substituted(outputs, swap)
        place = {v: k for k, v in enumerate(inputs)}
        self.records = [place[v] for v in node.inputs[:data]]
        self.spacing = place[node.inputs[-1]]
        self.of_before = _places(inputs, [*self.shared, *self.computed])
        self.of_after = _places(inputs, self.outputs)
        batch_count_noise = [0, 1, 2]
        if {*self.records, *batch_count_noise} & {*self.of_before, *self.of_after}:
            raise PrivacyError("A part of the private step reads the records around their noisy sum.")
        self.inputs = inputs


class _Around:
    """What comes before the sum and after it, compiled.

    Fits in several threads share these functions, and one of them at a time calls them (`InColumns`).
    """

    def __init__(self, cut: _Cut, compile_kwargs: Mapping[str, Any]) -> None:
        self._lock = threading.Lock()
        self._num_shared = len(cut.shared)
        before = [cut.inputs[k] for k in cut.of_before]
        self._before = InColumns(before, [*cut.shared, *cut.computed], compile_kwargs, borrow=True)
        after = [cut.released, *cut.handed, *(cut.inputs[k] for k in cut.of_after)]
        self._after = InColumns(after, cut.outputs, compile_kwargs)

    def before(self, threads: Threads, *inputs: Any) -> tuple[list[Any], list[Any]]:
        """Return what all records share, and what is handed on."""
        with self._lock:
            found = self._before(threads, *inputs)
        return found[: self._num_shared], found[self._num_shared :]

    def after(self, threads: Threads, *inputs: Any) -> list[Any]:
        """Return the new state, and a row."""
        with self._lock:
            return self._after(threads, *inputs)


def _simplified(
    inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> tuple[list[Variable], list[Variable]]:
    """Copy a graph in PyTensor's canonical form, in which what was computed twice is one variable."""
    graph = FunctionGraph(list(inputs), _with_known_shapes(inputs, outputs))
    _CANONICAL.rewrite(graph)
    MergeOptimizer().rewrite(graph)
    return list(graph.inputs), list(graph.outputs)


def _with_known_shapes(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> list[Variable]:
    """Make elementwise operations anew: of their arguments' shapes more is known than when they were made."""
    swap: dict[Variable, Variable] = {}
    for node in io_toposort(list(inputs), list(outputs)):
        given = [swap.get(v, v) for v in node.inputs]
        if isinstance(node.op, Elemwise):
            made = node.op.make_node(*given)
        else:
            made = node.clone_with_new_inputs(given, strict=False)
        swap.update(zip(node.outputs, made.outputs, strict=True))
    return [swap.get(v, v) for v in outputs]


def _needed_again(
    outputs: Sequence[Variable], shared: Sequence[Variable], released: Variable
) -> list[Variable]:
    """Return the long vectors behind `shared` that outputs need, other than through the release."""
    before, found, seen = set(ancestors(shared)), list[Variable](), {released}
    todo = list(outputs)
    while todo:
        v = todo.pop()
        if v in seen or v.owner is None:
            continue
        seen.add(v)
        if v in before and is_long_vector(v) and isinstance(v.owner.op, Elemwise):
            found.append(v)
        else:
            todo += v.owner.inputs
    return found


def _named(name: Hashable | None, part: str) -> Hashable | None:
    return None if name is None else (name, part)


def _places(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> list[int]:
    """Return the places of those inputs that outputs depend on."""
    behind = set(ancestors(list(outputs)))
    return [k for k, v in enumerate(inputs) if v in behind]
