r"""Hilbert-space Gaussian processes, whose basis PyMC places by the records unless it is told where.

``pm.gp.HSGP`` evaluates the functions :math:`\sin(\sqrt{\lambda_j}\,(x - c + L))` with
:math:`\sqrt{\lambda_j} = \pi j / 2L` at each record's x, and ``HSGPPeriodic`` :math:`\sin(\omega j (x -
c))`. For c PyMC takes (max + min) / 2 of the x that it is given, whatever `L` is, and with ``c=`` for L a
multiple of their range. Both are numbers by the time that a model is there: the two most extreme records
then stand in the basis of every other record, without a clip and without noise, and no graph says where a
number came from.

So the basis is recognised by its own form, and c and L have to be declared: each must be a ``pm.Data`` that
is public, or an expression, and no constant. No number is looked at, but for the multiples of π that PyMC
writes there itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pymc as pm
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar import basic as scalar
from pytensor.tensor.basic import Alloc, AllocDiag, ARange
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape

from pymc_dpvi.errors import UnsupportedModelError
from pymc_dpvi.graph.traversal import array_value, is_array, walk

__all__ = ["refuse_hsgp"]


def refuse_hsgp(model: pm.Model, records: Collection[Variable], public: Collection[Variable]) -> None:
    """Raise if the basis of a Gaussian process lies where nobody said in public.

    Parameters
    ----------
    model : pymc.Model
    records : collection of Variable
        The record arrays. A basis on a public grid, which records look up, may lie where it likes.
    public : collection of Variable
        What was declared public.

    Raises
    ------
    UnsupportedModelError
        Naming the variable, and what to set.
    """
    for term in [*model.observed_RVs, *model.potentials]:
        for kind, boundary, shifted in _bases(walk([term]), records):
            if set(records).isdisjoint(walk([shifted])):
                continue
            centre = _subtrahend(shifted)
            what = [] if centre is not None and _is_declared(centre, public) else ["centre"]
            if boundary is not None and not _is_declared(boundary, public):
                what.append("boundary")
            if not what:
                continue
            names = ["center"] if boundary is None else ["center", "boundary"]
            lines = ["gp._X_center = pm.Data('center', [5.0])"]
            if boundary is not None:
                lines.append("gp.L = pm.Data('boundary', [6.0])")
            raise UnsupportedModelError(
                f"'{term.name}' is built on pm.gp.{kind}, whose {' and '.join(what)} may come from the "
                "records: PyMC takes the centre of its basis from the largest and the smallest input, and "
                "with c= its boundary too, so that a single record would move the basis of all others. Set "
                "public numbers, one for each column, before gp.prior or gp.prior_linearized: "
                f"{'; '.join(lines)}; give it the inputs as pm.Data, and say public_data={names}. Numbers "
                "that are no pm.Data look like PyMC's."
            )


def _bases(
    found: list[Variable], records: Collection[Variable]
) -> Iterator[tuple[str, Variable | None, Variable]]:
    """Find the bases in a graph: the class, the boundary, and the inputs minus the centre."""
    for var in found:
        if not _is_scalar(var, scalar.Sin, scalar.Cos):
            continue
        (argument,) = var.owner.inputs
        if argument.owner is None:
            continue
        parts = argument.owner.inputs
        if _is_scalar(argument, scalar.Mul):
            for k, part in enumerate(parts):
                boundary = _boundary(part, records)
                others = [p for j, p in enumerate(parts) if j != k]
                if boundary is not None and others:
                    yield "HSGP", boundary, _untiled(others[0])
        elif len(parts) == 2 and _counts_on_diagonal(parts[1]):
            yield "HSGPPeriodic", None, _untiled(parts[0])


def _boundary(frequency: Variable, records: Collection[Variable]) -> Variable | None:
    """Return L of the square root of ``(π j / 2 L)²``, or None if it is something else."""
    root = _through(frequency)
    if not _is_scalar(root, scalar.Sqrt):
        return None
    square = _through(root.owner.inputs[0])
    if _is_scalar(square, scalar.Sqr) or (
        _is_scalar(square, scalar.Mul)
        and len(square.owner.inputs) == 2
        and len(set(square.owner.inputs)) == 1
    ):
        ratio = square.owner.inputs[0]
        # What a record array holds decides nothing.
        if (
            _is_scalar(ratio, scalar.TrueDiv)
            and ratio.owner.inputs[0] not in records
            and _is_half_pi_grid(ratio.owner.inputs[0])
        ):
            twice = _through(ratio.owner.inputs[1])
            if _is_scalar(twice, scalar.Mul):
                return twice.owner.inputs[-1]
            return twice
    return None


def _is_half_pi_grid(var: Variable) -> bool:
    """Whether an array holds ``π j`` for whole or half j, as PyMC writes them."""
    if not isinstance(var, Constant) or not is_array(var):
        return False
    halves = 2 * array_value(var) / np.pi
    return bool(np.allclose(halves, np.rint(halves)))


def _counts_on_diagonal(var: Variable) -> bool:
    """Whether a matrix is ``diag(arange(m))``."""
    var = _through(var)
    if var.owner is None or not isinstance(var.owner.op, AllocDiag):
        return False
    return var.owner.inputs[0].owner is not None and isinstance(var.owner.inputs[0].owner.op, ARange)


def _untiled(var: Variable) -> Variable:
    """Go back from an argument of a basis, through sums, tiles and columns, to the shifted inputs."""
    while var.owner is not None and not _is_scalar(var, scalar.Sub):
        if _is_scalar(var, scalar.Add):
            var = var.owner.inputs[0]
        elif _is_scalar(var, scalar.Mul):
            var = var.owner.inputs[-1]
        elif (
            isinstance(var.owner.op, Alloc | Reshape | DimShuffle)
            or "Subtensor" in type(var.owner.op).__name__
        ):
            var = var.owner.inputs[0]
        else:
            break
    return var


def _subtrahend(var: Variable) -> Variable | None:
    """Return what is taken off; None if nothing is, as where NumPy has done it before the model."""
    return var.owner.inputs[1] if _is_scalar(var, scalar.Sub) else None


def _is_declared(var: Variable, public: Collection[Variable]) -> bool:
    """Whether an array was declared public, or is an expression of the user's."""
    var = _through(var)
    return var in public or not is_array(var)


def _through(var: Variable) -> Variable:
    """Look behind changes of axes, and columns taken."""
    while var.owner is not None and (
        isinstance(var.owner.op, DimShuffle) or "Subtensor" in type(var.owner.op).__name__
    ):
        var = var.owner.inputs[0]
    return var


def _is_scalar(var: Variable, *kinds: type) -> bool:
    """Whether a variable is an elementwise operation of one of these kinds."""
    return (
        var.owner is not None
        and isinstance(var.owner.op, Elemwise)
        and isinstance(var.owner.op.scalar_op, kinds)
    )
