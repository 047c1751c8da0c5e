r"""Clip, sum, add noise: the only place where a function of the records becomes public.

For per-record gradients :math:`g_1,\dots,g_B \in \mathbb{R}^P` and noise :math:`\eta`,

.. math::

    \tilde s = \sum_{i=1}^{B} g_i \min\!\left(1, \frac{C'}{\lVert g_i\rVert_2}\right) + \eta ,
    \qquad C' = C\,(1 - 2^{-20}),

where a record with a non-finite norm (a NaN, an infinity, or an overflow of the squared norm) counts as
:math:`g_i = 0`. Adding or removing one record moves the sum by at most :math:`C` in Euclidean norm,
replacing one by at most :math:`2C`, whatever the record holds. The slack :math:`2^{-20}` covers the rounding
of the norm, of the scaling and of the float64 sum.

It is one PyTensor operation, so that the unnoised sum is no variable of any graph. Its kernel is
compiled without fastmath, under which a compiler may assume that NaN does not occur.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.tensor.type import dvector

__all__ = ["PrivateSum", "clipped_sum"]

SLACK = 2.0**-20


@numba.njit(cache=True, fastmath=False)
def clipped_sum(gradients: np.ndarray, l2_clip_norm: float) -> np.ndarray:  # pragma: no cover
    """Sum of the clipped rows of `gradients`; no noise yet.

    Parameters
    ----------
    gradients : ndarray of float, shape (batch, num_params)
        One row per record; anything may stand in it.
    l2_clip_norm : float
        C, the largest Euclidean norm by which one row can move the result.

    Returns
    -------
    ndarray of float64, shape (num_params,)
    """
    batch, num_params = gradients.shape
    bound = l2_clip_norm * (1.0 - SLACK)
    total = np.zeros(num_params)
    whole = num_params - num_params % 4
    for i in range(batch):
        row = gradients[i]
        # Four partial sums: the compiler may not reorder floats without fastmath, so we do.
        a = b = c = d = 0.0
        for j in range(0, whole, 4):
            w, x, y, z = (
                np.float64(row[j]),
                np.float64(row[j + 1]),
                np.float64(row[j + 2]),
                np.float64(row[j + 3]),
            )
            a += w * w
            b += x * x
            c += y * y
            d += z * z
        for j in range(whole, num_params):
            w = np.float64(row[j])
            a += w * w
        norm = np.sqrt((a + b) + (c + d))
        if norm < np.inf:  # False for NaN and infinity: such a record contributes nothing
            factor = 1.0 if norm <= bound else bound / norm
            for j in range(num_params):
                total[j] += factor * np.float64(row[j])
    return total


class PrivateSum(Op):
    """Noisy sum of clipped per-record gradients.

    Parameters
    ----------
    l2_clip_norm : float
        C, in the units of the gradient.

    Notes
    -----
    Inputs: ``gradients``, float matrix (batch, num_params), and ``noise``, float64 vector (num_params,).
    Output: float64 vector (num_params,). An empty batch is a normal case: the output is the noise.
    """

    __props__ = ("l2_clip_norm",)

    def __init__(self, l2_clip_norm: float) -> None:
        self.l2_clip_norm = float(l2_clip_norm)

    def make_node(self, gradients: Any, noise: Any) -> Apply:
        """Build the node; see the class for shapes."""
        gradients = pt.as_tensor_variable(gradients)
        noise = pt.as_tensor_variable(noise)
        if gradients.type.ndim != 2 or not gradients.type.dtype.startswith("float"):
            raise TypeError("gradients must be a float matrix with one row per record")
        if noise.type.ndim != 1 or noise.type.dtype != "float64":
            raise TypeError("noise must be a float64 vector")
        return Apply(self, [gradients, noise], [dvector()])

    def perform(self, node: Apply, inputs: list[np.ndarray], output_storage: list[list[Any]]) -> None:
        """Evaluate with the same kernel that the numba backend compiles in."""
        gradients, noise = inputs
        output_storage[0][0] = clipped_sum(np.ascontiguousarray(gradients), self.l2_clip_norm) + noise

    def infer_shape(self, *args: Any) -> list[tuple[Variable, ...]]:
        """Return the shape of the noise."""
        shapes = args[-1]  # PyTensor 2 passes (fgraph, node, shapes), PyTensor 3 (node, shapes)
        return [tuple(shapes[1])]


@register_funcify_default_op_cache_key(PrivateSum)
def _numba_private_sum(op: PrivateSum, node: Apply, **kwargs: Any) -> Any:
    l2_clip_norm = op.l2_clip_norm

    @numba.njit(fastmath=False)
    def private_sum(gradients: np.ndarray, noise: np.ndarray) -> np.ndarray:  # pragma: no cover
        return clipped_sum(gradients, l2_clip_norm) + noise

    return private_sum
