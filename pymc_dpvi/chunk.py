"""Many steps in one compiled call.

A call of a PyTensor function costs about 15 microseconds before it computes anything: as much as a private
step of a small model. `Chunk` is an operation that applies the updates of one step again and again, for a
row of batches that lie end to end,

    for t in 0, ..., n_steps - 1:
        state = step(indices[offsets[t] : offsets[t + 1]], noise[t], epsilon[t], weights[t], state, held)

so that the cost of the call is shared. It is a `scan` for one purpose: batches have different lengths, of the
state only the last is kept, and one step is compiled as PyTensor compiles any function, by its own rewrites.
What every step is to leave behind comes out as a row of a matrix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pymc.pytensorf import collect_default_updates
from pymc.pytensorf import compile as pm_compile
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import (
    numba_funcify_and_cache_key,
    numba_njit,
    register_funcify_and_cache_key,
)
from pytensor.tensor.type import DenseTensorType, dmatrix

from pymc_dpvi.graph_keys import graph_key, source_hash

__all__ = ["Chunk", "repeat_step"]

#: What a step gets of its own: the batch, its size, noise, latent draws, the weight in the average.
_PER_STEP = 5


class Chunk(Op):
    """Apply one step's updates for several batches, one after the other.

    Parameters
    ----------
    step : pytensor.compile.function.types.Function
        ``(batch, count, noise, epsilon, weight, *state, *held) -> (*new state, row)``. An empty batch is
        passed as one row with a `count` of zero: not every backend can take nothing.
    n_state : int
        How many variables a step changes.
    width : int
        Length of the row that a step leaves, a float64 vector; 0 if there is none.
    step_key : str, optional
        Key of the graph that `step` was made from.

    Notes
    -----
    Inputs: ``indices``, int64 vector, all batches end to end; ``offsets``, int64 vector
    ``(n_steps + 1,)``; ``noise``, ``epsilon`` and ``weights``, those of a step with a leading axis of
    length ``n_steps``; the state; what all steps read (the records). Outputs: the state after the
    last step; if `width` is positive, the rows, shape ``(n_steps, width)``.
    """

    def __init__(self, step: Any, n_state: int, width: int = 0, step_key: str | None = None) -> None:
        self.step = step
        self.step_key = step_key
        self.n_state = n_state
        self.width = width

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node; the state keeps its types."""
        state = inputs[_PER_STEP : _PER_STEP + self.n_state]
        rows = [dmatrix()] if self.width else []
        return Apply(self, list(inputs), [*(v.type() for v in state), *rows])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        """Call the compiled step in a loop: for backends without a loop of their own."""
        indices, offsets, noise, epsilon, weights = inputs[:_PER_STEP]
        state = [np.array(s) if isinstance(s, np.ndarray) else s for s in inputs[_PER_STEP:][: self.n_state]]
        held = inputs[_PER_STEP + self.n_state :]
        nothing = np.zeros(1, dtype=np.int64)
        left = np.empty((len(weights), self.width))
        for t in range(len(weights)):
            batch = indices[offsets[t] : offsets[t + 1]]
            count = np.asarray(batch.size)
            rows = batch if batch.size else nothing
            state = self.step(rows, count, noise[t], epsilon[t], np.asarray(weights[t]), *state, *held)
            if self.width:
                *state, left[t] = state
        for storage, value in zip(output_storage, [*state, *([left] if self.width else [])], strict=True):
            storage[0] = value


#: Numba takes seconds to compile ``left[t] = row``, for the texts of its errors.
_LEAVE_ROW = [
    "        if row.size != left.shape[1]:",
    "            raise ValueError('a row of another length')",
    "        for j in range(row.size):",
    "            left[t, j] = row[j]",
]


@register_funcify_and_cache_key(Chunk)
def _numba_chunk(op: Chunk, node: Apply, **kwargs: Any) -> Any:
    step, step_key = numba_funcify_and_cache_key(op.step.maker.fgraph)
    state = [f"s{k}" for k in range(op.n_state)]
    # Contiguous arrays of the chunk's own, so that their types stay the same in the loop.
    copies = [
        f"    {s} = {s}.copy()"
        for s, v in zip(state, node.outputs, strict=False)
        if isinstance(v.type, DenseTensorType)
    ]
    held = [f"x{k}" for k in range(len(node.inputs) - _PER_STEP - op.n_state)]
    new = ", ".join([*state, *(["row"] if op.width else [])]) + ","
    out = [*state, *(["left"] if op.width else [])]
    source = "\n".join(
        [
            f"def chunk(indices, offsets, noise, epsilon, weights, {', '.join([*state, *held])}):",
            "    nothing = np.zeros(1, np.int64)",
            *copies,
            f"    left = np.empty((weights.size, {op.width}))",
            "    for t in range(weights.size):",
            "        batch = indices[offsets[t] : offsets[t + 1]]",
            "        count = np.asarray(batch.size)",
            "        rows = batch if batch.size else nothing",
            f"        {new} = step(rows, count, noise[t], epsilon[t], np.asarray(weights[t]), "
            f"{', '.join([*state, *held])})",
            *(_LEAVE_ROW if op.width else []),
            f"    return {', '.join(out)}",
        ]
    )
    key = None
    if step_key is not None:  # the step can be kept on disk
        step_key = op.step_key or step_key
        key = hashlib.sha256(f"pymc_dpvi.Chunk {source} {step_key} {source_hash()}".encode()).hexdigest()
    function = compile_numba_function_src(source, "chunk", {"np": np, "step": step}, cache_key=key)
    return numba_njit(function, fastmath=False), key


def repeat_step(
    per_step: Sequence[Variable],
    many: Sequence[Variable],
    fixed: Sequence[Variable],
    updates: Mapping[SharedVariable, Variable],
    compile_kwargs: Mapping[str, Any],
    row: Variable | None = None,
    width: int = 0,
) -> tuple[dict[SharedVariable, Variable], list[Variable]]:
    """Write the updates of one step as those of many.

    Parameters
    ----------
    per_step : sequence of Variable
        Inputs of the step: batch (int64 vector), count (int64), noise, epsilon, weight.
    many : sequence of Variable
        What stands for them in many steps: indices, offsets, noise, epsilon, weights; see `Chunk`.
    fixed : sequence of Variable
        Inputs that are the same in all steps.
    updates : dict
        New values of shared variables, in terms of `per_step`, `fixed` and shared variables.
    compile_kwargs : dict
        For PyTensor's ``function``, with ``mode``.
    row : Variable, optional
        What each step leaves behind, a float64 vector in the same terms.
    width : int
        Its length.

    Returns
    -------
    updates : dict
        New values of the same variables after all steps.
    rows : list of Variable
        The rows, one matrix of shape ``(n_steps, width)``; empty without `row`.
    """
    left = [] if row is None else [row]
    outputs = [*updates.values(), *left]
    updates = {**collect_default_updates(outputs, inputs=[*per_step, *fixed]), **updates}
    new = [v.type.filter_variable(u, allow_convert=True) for v, u in updates.items()]
    held = [
        v
        for v in dict.fromkeys(graph_inputs([*new, *left]))
        if isinstance(v, SharedVariable) and v not in updates
    ]
    inner = {v: v.type(name=v.name) for v in (*updates, *fixed, *held)}
    inputs = [*per_step, *(inner[v] for v in (*updates, *fixed, *held))]
    outputs = graph_replace([*new, *left], inner, strict=False)
    step = pm_compile(
        inputs,
        outputs,
        on_unused_input="ignore",
        **compile_kwargs,
    )
    step.trust_input = True
    chunk = Chunk(step, len(updates), width if left else 0, graph_key(inputs, outputs))
    after = chunk(*many, *updates, *fixed, *held, return_list=True)
    return dict(zip(updates, after, strict=False)), after[len(updates) :]
