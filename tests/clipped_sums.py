"""Private sums of given gradients: by the kernels, in a graph whose batch is all rows, and on matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_dpvi.engine import clipping, generated_code
from pymc_dpvi.engine.private_sum import PrivateSum
from pymc_dpvi.engine.sums_of_step import in_microbatches
from pymc_dpvi.graph.blocks import Form

__all__ = ["noisy_sum", "of_all_rows", "of_matrices"]


def noisy_sum(
    arrays: Sequence[np.ndarray],
    layout: Sequence[Form],
    l2_clip_norm: float,
    noise: np.ndarray,
    unit: float,
    tally_weight: float = 0.0,
) -> np.ndarray:
    """What is released of these gradients: no record but these is fetched, and no row computed."""
    bound, units, *sums = clipping.start_of_sum(noise.size, l2_clip_norm, tally_weight, unit)
    generated_code.write_add_clipped(layout)(*arrays, len(arrays[0]), bound, units, *sums)
    return clipping.round_and_add(*sums, noise, unit)


def of_all_rows(outputs: Sequence[Variable], rows: Sequence[Variable], mode: str) -> list[Any]:
    """Make the private sums in graphs of gradients `rows` operations."""
    return in_microbatches(outputs, rows, rows, None, {"mode": mode})


class _OfMatrices(Op):
    """The sum that a mark stands for, of the whole batch's gradients: what the package never forms."""

    def __init__(self, mark: PrivateSum) -> None:
        self.mark = mark

    def make_node(self, *inputs: Any) -> Apply:
        return Apply(self, list(inputs), [self.mark.make_node(*inputs).outputs[0].type()])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        *arrays, count, noise, unit = inputs
        if any(len(a) < count for a in arrays):
            raise ValueError("every block needs a row per record")
        own = [a[: int(count)] for a in arrays]
        mark = self.mark
        output_storage[0][0] = noisy_sum(
            own, mark.layout, mark.l2_clip_norm, noise, float(unit), mark.tally_weight
        )


def of_matrices(outputs: Sequence[Variable], *_: Any) -> list[Any]:
    """Make the private sums in a graph operations on whole matrices: the obvious way, to compare with."""
    nodes = {v: v.owner for v in ancestors(outputs) if v.owner and isinstance(v.owner.op, PrivateSum)}
    swap = {v: _OfMatrices(node.op)(*node.inputs) for v, node in nodes.items()}
    return list(graph_replace(list(outputs), swap, strict=False)) if swap else list(outputs)
