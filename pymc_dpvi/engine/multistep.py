"""Many steps in one compiled call.

A call of a PyTensor function costs about 15 microseconds before it computes anything: as much as a private
step of a small model. `Chunk` makes many steps in one call, on batches that lie end to end::

    for t in 0, ..., n_steps - 1:
        state = step(indices[offsets[t] : offsets[t + 1]], noise[t], base_draws[t], weights[t], state, held)

It is a `scan` for one purpose: batches have different lengths, only the last state is kept, and the step is
compiled as PyTensor compiles any function. What every step is to leave behind comes out as a row of a matrix.

With numba the loop is compiled together with the step, and is no operation of a PyTensor function: numba
would compile the step once more for each function around it, which takes seconds. To save compilation, too,
the arrays of the state have static shapes and one layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.pytensorf import collect_default_updates
from pymc.pytensorf import compile as pm_compile
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.type import DenseTensorType

from pymc_dpvi.engine.compile_cache import compiled_source, name_of, shared
from pymc_dpvi.engine.generated_code import SHAPE, write_loop
from pymc_dpvi.engine.graph_keys import graph_key
from pymc_dpvi.numba_cache import source_hash

__all__ = ["Chunk"]

#: Inputs of a step that differ from step to step.
_PER_STEP = 5


class Chunk:
    """Apply one step's updates for several batches, one after the other.

    `per_step` are the inputs that differ from step to step: batch (int64 vector), its size (int64), noise
    (vector), base draws (matrix), weight in the average; `fixed` are the others. An empty batch is passed as
    one index with a size of zero, as not every backend takes empty arrays. `updates` are the new values of
    shared variables, whose arrays keep their shapes. `row`, a float64 vector of length `width`, is what each
    step leaves behind.
    """

    def __init__(
        self,
        per_step: Sequence[Variable],
        fixed: Sequence[Variable],
        updates: Mapping[SharedVariable, Variable],
        compile_kwargs: Mapping[str, Any],
        row: Variable | None = None,
        width: int = 0,
    ) -> None:
        left = [] if row is None else [row]
        outputs = [*updates.values(), *left]
        updates = {**collect_default_updates(outputs, inputs=[*per_step, *fixed]), **updates}
        new = [v.type.filter_variable(u, allow_convert=True) for v, u in updates.items()]
        self.width = width if left else 0
        self.state = list(updates)
        self._shapes = [np.shape(v.get_value(borrow=True)) for v in self.state]
        self._shapes_of_a_step = [v.type.shape for v in per_step[2:4]]
        self.held = [
            v
            for v in dict.fromkeys(graph_inputs([*new, *left]))
            if isinstance(v, SharedVariable) and v not in updates
        ]
        inner: dict[Variable, Variable] = {v: _of_its_shape(v) for v in self.state}
        inner.update({v: v.type(name=v.name) for v in (*fixed, *self.held)})
        inputs = [*per_step, *(inner[v] for v in (*self.state, *fixed, *self.held))]
        outputs = clone_replace([*new, *left], inner, rebuild_strict=False)
        key = graph_key(inputs, outputs)
        #: The compiled step; None if a loop with it was compiled for an equal graph before.
        self.step: Any = None
        numbers = (len(per_step), len(fixed), tuple(self._arrays()), self.width)
        values = [v.get_value(borrow=True, return_internal_type=True) for v in (*self.state, *self.held)]

        name = name_of(key, compile_kwargs, values, type(self).__name__, *numbers)
        self._run = self._compiled(inputs, outputs, compile_kwargs, key, name)

    def __call__(
        self,
        indices: np.ndarray,
        offsets: np.ndarray,
        noise: np.ndarray,
        base_draws: np.ndarray,
        weights: np.ndarray,
        *fixed: Any,
    ) -> np.ndarray:
        """Make the steps, store the state after the last of them, and return the rows, ``(n_steps, width)``.

        `indices` holds all batches, end to end; batch t is ``indices[offsets[t]:offsets[t + 1]]``. `noise`,
        `base_draws` and `weights` are those of a step, with a leading axis of length ``n_steps``. A
        ValueError, with the state as it was, if an array of the state has another shape than at the start, or
        noise or base draws another shape than declared.
        """
        # Compiled code does not check shapes against those that were declared.
        for own, declared in zip((noise, base_draws), self._shapes_of_a_step, strict=True):
            if any(n not in (None, m) for n, m in zip(declared, own.shape[1:], strict=True)):
                raise ValueError("noise or draws of another shape than a step's")
        given = [v.get_value(borrow=True, return_internal_type=True) for v in self.state]
        if [np.shape(value) for value in given] != self._shapes:
            raise ValueError(SHAPE)
        held = [v.get_value(borrow=True, return_internal_type=True) for v in self.held]
        *state, rows = self._run(indices, offsets, noise, base_draws, weights, *given, *fixed, *held)
        for variable, value in zip(self.state, state, strict=True):
            variable.set_value(value, borrow=True)
        return np.asarray(rows)

    def share_out(self, own: Callable[[], object], others: Sequence[Callable[[], object]]) -> None:
        """Do `own`, and meanwhile or afterwards the others, on such threads as there are."""
        for do in (own, *others):
            do()

    def rest(self) -> None:
        """Let go of what is needed while steps run."""

    def _compiled(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        compile_kwargs: Mapping[str, Any],
        key: str | None,
        name: Hashable | None,
    ) -> Callable[..., Any]:
        """Compile a step, or take one of an equal graph; return what makes many.

        `inputs` are those of a step, those of `per_step` first, and `outputs` what it makes; `key` is that of
        this graph, `name` the one in `compile_cache`.
        """

        def compiled() -> Any:
            self._compile_step(inputs, outputs, compile_kwargs)
            if not isinstance(self.step.maker.linker, NumbaLinker):
                return None
            return self._loop_of_numba(inputs, key)

        loop = shared(name, compiled)
        return self._loop if loop is None else loop

    def _compile_step(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], compile_kwargs: Mapping[str, Any]
    ) -> None:
        self.step = pm_compile(inputs, outputs, on_unused_input="ignore", **compile_kwargs)
        self.step.trust_input = True

    def _loop_of_numba(self, inputs: Sequence[Variable], step_key: str | None, **options: Any) -> Any:
        """Compile the loop and the step into one function; `options` are numba's."""
        num_held = len(inputs) - _PER_STEP - len(self.state)
        return _compiled_loop(self.step, num_held, self._arrays(), self.width, step_key, **options)

    def _arrays(self) -> list[int | None]:
        """Return the numbers of axes of the state's arrays, and None for what is no array."""
        return [v.type.ndim if isinstance(v.type, DenseTensorType) else None for v in self.state]

    def _loop(self, *inputs: Any) -> list[Any]:
        """Call the compiled step in a loop: for backends without a loop of their own."""
        nothing = np.zeros(1, dtype=np.int64)

        def step(batch: np.ndarray, *of_step: Any) -> Any:
            return self.step(batch if batch.size else nothing, np.asarray(batch.size), *of_step)

        indices, offsets, noise, base_draws, weights, *rest = inputs
        state = [np.array(s) if isinstance(s, np.ndarray) else s for s in rest[: len(self.state)]]
        return self._many(step, indices, offsets, noise, base_draws, weights, *state, *rest[len(state) :])

    def _many(self, step: Callable[..., Any], *inputs: Any) -> list[Any]:
        """Make steps, ``(batch, noise, base_draws, weight, *state, *held) -> (*state, row)``, one by one."""
        indices, offsets, noise, base_draws, weights, *rest = inputs
        state, held = rest[: len(self.state)], rest[len(self.state) :]
        shapes = [np.shape(s) for s in state]
        rows = np.empty((len(weights), self.width))
        for t in range(len(weights)):
            batch = indices[offsets[t] : offsets[t + 1]]
            state = step(batch, noise[t], base_draws[t], np.asarray(weights[t]), *state, *held)
            if self.width:
                *state, rows[t] = state
            if [np.shape(s) for s in state] != shapes:
                raise ValueError(SHAPE)
        return [*state, rows]


def _of_its_shape(variable: SharedVariable) -> Variable:
    """Return an input of the variable's type and, if it is an array, of its shape."""
    kind = variable.type
    if isinstance(kind, DenseTensorType):
        kind = kind.clone(shape=variable.get_value(borrow=True).shape)
    return kind(name=variable.name)


def _compiled_loop(
    step: Any, n_held: int, arrays: Sequence[int | None], width: int, step_key: str | None, **options: Any
) -> Any:
    """Compile the loop and the step, ``(batch, count, noise, base_draws, weight, *state, *held)``, into one.

    `step_key` is the key of the graph that `step` was made from; `options` are numba's; for the rest see
    `write_loop`.
    """
    compiled, compiled_key = numba_funcify_and_cache_key(step.maker.fgraph)
    compiled, source = write_loop(compiled, n_held, arrays, width)
    key = None
    if compiled_key is not None:  # the step can be kept on disk
        parts = f"pymc_dpvi.Chunk {source} {step_key or compiled_key} {source_hash()}"
        key = hashlib.sha256(parts.encode()).hexdigest()
    return compiled_source("chunk", source, {"np": np, "step": compiled}, key, **options)
