"""Advanced indices in front: ``a[:, g]`` as a transposed ``a.T[g]``.

PyTensor 2 cannot vectorise an advanced index beside a slice or a new axis if the index differs from record to
record, PyTensor 3 can. The result is the same: with ``k`` advanced axes and the indices broadcast to ``B``,

    x[..., i_1, ..., i_k, ...]  =  x.transpose(advanced axes, other axes)[i_1, ..., i_k],

whose axes are those of ``B`` and then the others. NumPy leaves them there if the advanced axes are not
next to each other, and else moves those of ``B`` to the place of the first advanced one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.type_other import NoneTypeT, SliceType
from pytensor.tensor.variable import TensorVariable

__all__ = ["with_leading_indices"]


def with_leading_indices(inputs: Sequence[Variable]) -> TensorVariable | None:
    """Write an ``AdvancedSubtensor`` of PyTensor 2 without slices and new axes.

    Parameters
    ----------
    inputs : sequence of Variable
        What is indexed, and one index an axis: an integer tensor, a slice or None.

    Returns
    -------
    TensorVariable or None
        None if there is neither slice nor new axis, or if an index is a mask.
    """
    x: Any = inputs[0]
    indices = list(inputs[1:])
    kinds = [type(i.type) for i in indices]
    if not {SliceType, NoneTypeT} & {*kinds}:
        return None
    if any(getattr(i.type, "dtype", "") == "bool" for i in indices):
        return None
    x = pt.expand_dims(x, [k for k, kind in enumerate(kinds) if kind is NoneTypeT])
    advanced = [k for k, kind in enumerate(kinds) if kind not in (SliceType, NoneTypeT)]
    x = x[tuple(_as_slice(i) if isinstance(i.type, SliceType) else slice(None) for i in indices)]
    others = [k for k in range(x.type.ndim) if k not in advanced]
    out = x.transpose(*advanced, *others)[tuple(indices[k] for k in advanced)]
    if advanced != list(range(advanced[0], advanced[-1] + 1)):
        return out
    looked_up = list(range(out.type.ndim - len(others)))
    rest = list(range(len(looked_up), out.type.ndim))
    return out.transpose(*rest[: advanced[0]], *looked_up, *rest[advanced[0] :])


def _as_slice(var: Variable) -> slice:
    if isinstance(var, Constant):
        return var.data
    assert var.owner is not None
    return slice(*(None if isinstance(i.type, NoneTypeT) else i for i in var.owner.inputs))
