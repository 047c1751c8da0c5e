r"""Per-record gradients in the forms in which they are kept.

A record's gradient consists of blocks, :math:`g_i = (g_i^{(1)}, g_i^{(2)}, \dots)`, one per free variable and
latent draw. A block comes in one of four forms. All but the first stay factored: with aligned gradients, no
gradient of the length of a large parameter is formed for a record.

* ``dense``: a row of a matrix; squared norm :math:`\sum_j g_j^2`.
* ``outer``: :math:`a \otimes \delta`; :math:`\lVert a\rVert^2\lVert\delta\rVert^2`.
* ``products``: :math:`\sum_r a_r \otimes \delta_r`; :math:`\sum_{r,s} (a_r\cdot a_s)(\delta_r\cdot\delta_s)`.
* ``sparse``: entries :math:`v_e` at positions :math:`p_e`; :math:`\sum_p (\sum_{e: p_e = p} v_e)^2`.

A parameter that multiplies data or activations, ``x @ w``, has an outer gradient; one that does so several
times in a record (several rows, several uses) has a sum of products. A parameter that is looked up by group,
``a[idx]``, has a sparse gradient. The clipped sums are :math:`A^\top\Delta` of weighted rows and a scatter.
`engine.kernels` computes norms and sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

__all__ = [
    "MOST_PRODUCTS",
    "Block",
    "Form",
    "as_matrix",
]

#: Most products of one record in a block of the form `products`.
MOST_PRODUCTS = 1024


class Form(NamedTuple):
    """The form of a block."""

    kind: str  # "dense", "outer", "products" or "sparse"
    size: int = 0  # columns of a sparse block; 0 for the others, whose arrays tell
    distinct: bool = False  # whether a record's positions in a sparse block are known to be different

    @property
    def num_arrays(self) -> int:
        """How many arrays the block has."""
        return 1 if self.kind == "dense" else 2

    @property
    def ndim(self) -> int:
        """Number of axes of its arrays."""
        return 3 if self.kind == "products" else 2


_BY_ARRAYS = Form("not given")


@dataclass(frozen=True)
class Block:
    """Some columns of the per-record gradients of a batch.

    ==========  =================================  =============================================
    form        `left`                             `right`
    ==========  =================================  =============================================
    dense       the columns, (batch, p)            none
    outer       the first factor, (batch, a)       the second factor, (batch, b)
    products    the first factors, (batch, r, a)   the second factors, (batch, r, b)
    sparse      the entries, (batch, m)            their columns, int64, (batch, m)
    ==========  =================================  =============================================

    The ``a * b`` columns of a product are in the order of ``left ⊗ right``.
    """

    left: TensorVariable
    right: TensorVariable | None = None
    form: Form = _BY_ARRAYS  # if not given: outer with a second array, dense without

    def __post_init__(self) -> None:
        if self.form is _BY_ARRAYS:
            object.__setattr__(self, "form", Form("dense" if self.right is None else "outer"))

    @property
    def arrays(self) -> list[TensorVariable]:
        """One or two arrays."""
        return [self.left] if self.right is None else [self.left, self.right]

    def scaled(self, factor: TensorVariable | float) -> Block:
        """Return the block times a number."""
        # The second factor of a product is mostly the smaller one.
        if self.right is None or self.form.kind == "sparse":
            return replace(self, left=(self.left * factor).astype(self.left.type.dtype))
        return replace(self, right=(self.right * factor).astype(self.right.type.dtype))


def as_matrix(blocks: list[Block]) -> TensorVariable:
    """Write blocks out as one matrix, shape ``(batch, columns)``: for vanilla gradients and for checks."""
    columns = [_dense(b) for b in blocks]
    return columns[0] if len(columns) == 1 else pt.concatenate(columns, axis=1)


def _dense(block: Block) -> TensorVariable:
    kind, size, _ = block.form
    left, right = block.left, block.right
    if right is None:
        return left
    if kind == "outer":
        left, right = left[:, None, :], right[:, None, :]
    if kind != "sparse":
        product = (left[:, :, :, None] * right[:, :, None, :]).sum(axis=1)
        return product.reshape((product.shape[0], product.shape[1] * product.shape[2]))
    empty = pt.zeros((left.shape[0], size), dtype=left.type.dtype)
    return empty[pt.arange(left.shape[0])[:, None], right].inc(left)
