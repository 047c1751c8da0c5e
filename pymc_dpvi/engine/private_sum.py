"""The noisy sum as a mark in the graph of a step, which `microbatch` replaces by an operation.

`PrivateSum` says what is released of a batch's gradients: their clipped sum plus noise (`clipping`). The mark
stands in the graph until that is complete and checked, so that an optimiser gets the release itself. It
cannot be evaluated: `sums_of_step.in_microbatches` replaces it by the one operation that adds up records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.graph.blocks import Block, Form
from pymc_dpvi.graph.local_rules import Places

__all__ = ["LOCAL_TERMS", "PrivateSum", "private_sum", "sum_type"]

#: Number of terms that integrate local values out.
LOCAL_TERMS = 4


def sum_type(noise: Variable) -> TensorType:
    """Return the type of a noisy sum: as long as its noise."""
    return TensorType("float64", shape=noise.type.shape)


class PrivateSum(Op):
    """Mark of a noisy sum of clipped per-record gradients, on the lattice.

    Parameters
    ----------
    l2_clip_norm : float
        C, in the units of the gradient.
    layout : sequence of Form
        Form of each block.
    tally_weight : float
        κ: norm of what one record adds to the tally, in units of C. 0 for no tally.
    places : Places, optional
        Where local values are integrated out (`local_sums`).

    Notes
    -----
    Inputs: the blocks' arrays, one or two each, all with one row per record; with `places` also
    `gradients.log_densities` and the terms of `gradients.local_terms`; ``count``, the number of rows
    that count, the first of them (not every backend takes empty arrays for an empty batch); ``noise``, int64
    vector (num_params,), in spacings; ``spacing``, float64 number, u in the units of the gradient
    (`LatticeNoise.spacing`; an input, so that another noise multiplier needs no other compiled function).
    Output: float64 vector (num_params,), multiples of u. Noise and output have two more entries if there is a
    tally. Of an empty batch, the output is the noise.
    """

    __props__ = ("l2_clip_norm", "layout", "tally_weight", "places")

    def __init__(
        self,
        l2_clip_norm: float,
        layout: Sequence[Form] = (Form("dense"),),
        tally_weight: float = 0.0,
        places: Places | None = None,
    ) -> None:
        self.l2_clip_norm = float(l2_clip_norm)
        self.layout = tuple(Form(*form) for form in layout)
        self.tally_weight = float(tally_weight)
        self.places = places

    @property
    def num_arrays(self) -> int:
        """Number of arrays of the blocks, the first inputs."""
        return sum(form.num_arrays for form in self.layout)

    @property
    def num_terms(self) -> int:
        """Number of the terms after them that integrate local values out."""
        return 0 if self.places is None else LOCAL_TERMS

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node; see the class for shapes."""
        # PyTensor would make a Python float float32 if that holds it exactly.
        given = (np.asarray(i) if isinstance(i, float) else i for i in inputs)
        *arrays, count, noise, spacing = (pt.as_tensor_variable(a) for a in given)
        terms = arrays[self.num_arrays :]
        arrays = arrays[: self.num_arrays]
        if len(terms) != self.num_terms:
            raise TypeError("local values are integrated out by four terms")
        kinds = [(form, k) for form in self.layout for k in range(form.num_arrays)]
        if len(arrays) != len(kinds):
            raise TypeError("one array per dense block and two per other block are needed")
        for array, (form, k) in zip(arrays, kinds, strict=True):
            positions = form.kind == "sparse" and k == 1
            fits = array.type.dtype == "int64" if positions else array.type.dtype.startswith("float")
            if array.type.ndim != form.ndim or not fits:
                raise TypeError(
                    "the blocks must be float arrays, and positions int64, with one row per record"
                )
        if noise.type.ndim != 1 or noise.type.dtype != "int64":
            raise TypeError("noise must be an int64 vector")
        if count.type.ndim != 0 or count.type.dtype != "int64":
            raise TypeError("count must be an int64 number")
        if spacing.type.ndim != 0 or spacing.type.dtype != "float64":
            raise TypeError("spacing must be a float64 number")
        return Apply(self, [*arrays, *terms, count, noise, spacing], [sum_type(noise)()])

    def perform(self, node: Apply, inputs: list[np.ndarray], output_storage: list[list[Any]]) -> None:
        """Refuse: no matrix of a whole batch's gradients is ever formed."""
        raise NotImplementedError("a mark, which `sums_of_step.in_microbatches` replaces")

    def infer_shape(self, *args: Any) -> list[tuple[Variable, ...]]:
        """Return the shape of the noise."""
        shapes = args[-1]  # PyTensor 2 passes (fgraph, node, shapes), PyTensor 3 (node, shapes)
        return [tuple(shapes[-2])]


def private_sum(
    gradients: Sequence[Block],
    noise: TensorVariable,
    l2_clip_norm: float,
    spacing: TensorVariable | float,
    count: TensorVariable | None = None,
    tally_weight: float = 0.0,
    places: Places | None = None,
    terms: Sequence[TensorVariable] = (),
) -> TensorVariable:
    """Mark the noisy sum of clipped gradients: float64, the blocks' columns in order, then the tally.

    Parameters are those of `PrivateSum`; by default all rows count. `terms` are `log_densities`, and those of
    `local_terms`.
    """
    op = PrivateSum(l2_clip_norm, [b.form for b in gradients], tally_weight, places)
    arrays = [array for b in gradients for array in b.arrays]
    return op(*arrays, *terms, arrays[0].shape[0] if count is None else count, noise, spacing)
