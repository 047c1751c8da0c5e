"""Many steps in one compiled call of one thread, while others stand by to add up records (`assisted_sum`)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_dpvi.engine.assisted_sum import AssistedSum, dismiss, new_board, open_board, stand_by
from pymc_dpvi.engine.compile_cache import address_of, shared
from pymc_dpvi.engine.interrupts import uninterrupted
from pymc_dpvi.engine.multistep import Chunk
from pymc_dpvi.engine.sums_of_step import nodes_of_sums
from pymc_dpvi.engine.threads import Threads, ring

__all__ = ["AssistedChunk"]

#: Seconds that a helper sleeps between two looks when nothing has come for long.
_NAP = 5e-5
#: How often it looks then.
_GLANCE = 1 << 8


class AssistedChunk(Chunk):
    """As `Chunk`, with each sum made by `cores` threads."""

    def __init__(
        self,
        per_step: Sequence[Variable],
        fixed: Sequence[Variable],
        updates: Mapping[SharedVariable, Variable],
        compile_kwargs: Mapping[str, Any],
        *,
        cores: int,
        row: Variable | None = None,
        width: int = 0,
    ) -> None:
        self._threads, self._board = Threads(cores), new_board(cores)
        self._work: Any = None
        self._called = False
        board, outputs = pt.lmatrix("board"), list(updates.values())
        if row is not None:
            outputs.append(row)
        new = _assisted(outputs, per_step[0], board)
        if row is not None:
            row = new.pop()
        updates = dict(zip(updates, new, strict=True))
        super().__init__(per_step, [*fixed, board], updates, compile_kwargs, row, width)

    def rest(self) -> None:
        """End the threads, until the next step."""
        self._threads.close()

    def __call__(self, *arrays: Any) -> np.ndarray:
        """Make the steps; see `Chunk`.

        The first call compiles, and is made alone: so an interrupt may end it. In later ones it waits.
        """
        open_board(self._board, address_of(self._work, "int64(int64, int64)"))
        try:
            if self._called:
                with uninterrupted():
                    return self._with_helpers(super().__call__, arrays)
            rows = super().__call__(*arrays, self._board)
            dismiss(self._board)  # compiles it, too
            self._called = True
            return rows
        finally:
            self._board[:] = 0  # it may tell how large a batch was

    def _with_helpers(self, make: Callable[..., np.ndarray], arrays: Sequence[Any]) -> np.ndarray:
        caller, helpers = threading.get_ident(), itertools.count(1)

        def work(bells: np.ndarray) -> np.ndarray | None:
            if threading.get_ident() != caller:
                self._help(next(helpers))
                return None
            try:
                ring(bells)
                return make(*arrays, self._board)
            finally:
                dismiss(self._board)

        rows, *_ = self._threads.each(work, self._threads.cores)
        assert rows is not None
        return rows

    def _help(self, number: int) -> None:
        """Take part in sums until dismissed."""
        looks = awake = self._threads.looks
        while not stand_by(self._board, number, looks, awake):
            time.sleep(_NAP)
            looks = min(awake, _GLANCE)

    def _compiled(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        compile_kwargs: Mapping[str, Any],
        key: str | None,
        name: Hashable | None,
    ) -> Callable[..., Any]:
        """Compile a step and what helpers do, or take those of an equal graph."""

        def compiled() -> tuple[Any, Any]:
            (node,) = {v.owner for v in ancestors(outputs) if v.owner and isinstance(v.owner.op, AssistedSum)}
            self._compile_step(inputs, outputs, compile_kwargs)
            return self._loop_of_numba(inputs, key, nogil=True), node.op.work(node)

        loop, self._work = shared(name, compiled)
        return loop  # type: ignore[no-any-return]


def _assisted(outputs: Sequence[Variable], indices: Variable, board: Variable) -> list[Variable]:
    """Let helpers take part in the sum of a step."""
    (node,) = nodes_of_sums(outputs)
    swap = {node.outputs[0]: AssistedSum.of(node, indices, board)}
    return list(graph_replace(list(outputs), swap, strict=False))
