r"""Numbers that PyMC or a formula package worked out from the records while the model was being written.

They stand in the model as numbers, and no graph says where a number came from. So one record may decide what
all others are compared with. A model is refused, or warned of, by the form of what such a function leaves,
whatever the records hold. PyMC's functions do not look into a `pm.Data`. For an outcome with ``observed=``
the log-density is derived anew, from placeholders.

**Probabilities and bounds** (:func:`refuse_inspected`). `pm.Categorical.dist` and `pm.Multinomial.dist`
divide **all** rows of a constant ``p=`` by their sums if one of them does not sum to one (`numpy.isclose`),
which moves each by up to a part in 10⁵. `pm.logp` and `pm.logcdf`, where a model calls them, have a formula
without bounds for a truncation or a censoring whose bounds are infinite throughout. Its gradient is finite
where that of the general formula is NaN, and a record whose gradient is NaN adds nothing. Nothing in a graph
says that it came from `pm.logp`, so no Potential may have a constant array of records. PyMC 6 gives a
censored count the type of whole numbers if no constant bound is finite, and cuts off the fractions of **all**
observed values.

**Gaussian processes** (:func:`refuse_hsgp`). ``pm.gp.HSGP`` evaluates the functions
:math:`\sin(\sqrt{\lambda_j}\,(x - c + L))` with :math:`\sqrt{\lambda_j} = \pi j / 2L` at each record's x, and
``HSGPPeriodic`` :math:`\sin(\omega j (x - c))`. For c PyMC takes (max + min) / 2 of the x that it is given,
whatever L is. With ``c=``, it takes a multiple of their range for L. The two most extreme records then stand
in the basis of every other record. So the basis is recognised by its form, and c and L have to be declared:
each must be a ``pm.Data`` that is public, or an expression, and no constant. That holds for a basis on a
public grid too, as c stays what it was at the first inputs, and these may have been the records. (The only
numbers looked at are the multiples of π that PyMC writes there.)

**Formula packages** (:func:`formula_mark`). Bambi, for one, centres predictors by their means and scales
priors by the standard deviations of the data. A model is recognised by the names that such a package gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pymc as pm
from pymc.distributions.censored import CensoredRV
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar import basic as scalar
from pytensor.tensor.basic import Alloc, AllocDiag, ARange
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.basic import CategoricalRV, MultinomialRV
from pytensor.tensor.shape import Reshape
from pytensor.tensor.type import discrete_dtypes

from pymc_dpvi.errors import UnsupportedModelError
from pymc_dpvi.graph.amortized import BOUND
from pymc_dpvi.graph.traversal import array_value, is_array, walk

__all__ = ["FORMULA_ADVICE", "formula_mark", "refuse_hsgp", "refuse_inspected"]

_Roots = Callable[[Variable], list[Variable]]


def refuse_inspected(model: pm.Model, arrays: Collection[Variable]) -> None:
    """Refuse constants that PyMC may have gone by, whatever they hold.

    Rows of ``p=``, bounds of censored counts, and record `arrays` in Potentials or behind ``pm.logp``.
    """
    free, held = set(model.free_RVs), set(arrays)

    def roots(var: Variable) -> list[Variable]:
        return [v for v in walk([var], stop=free) if v.owner is None or v in free]

    for outcome in [*model.observed_RVs, *model.potentials]:
        found = walk([outcome], stop=free)
        nodes = {v.owner for v in found if v.owner is not None and v not in free}
        for of in chain.from_iterable(_probabilities(node, roots) for node in nodes):
            if all(isinstance(v, Constant) for v in of) and any(map(_has_rows, of)):
                raise UnsupportedModelError(
                    f"'{outcome.name}' has a categorical or multinomial distribution whose p= is an array "
                    "of several rows. PyMC divides all rows by their sums if one of them does not sum to "
                    "one, so one record would change what others add. Put the array into the model as "
                    "pm.Data('p', p), into which PyMC does not look."
                )
        for of in chain.from_iterable(_bounds_of_counts(node, roots) for node in nodes):
            if any(isinstance(v, Constant) and v in held for v in of):
                raise UnsupportedModelError(
                    f"'{outcome.name}' is a censored count with an array of bounds. PyMC 6 cuts off the "
                    "fractions of all observed values if no bound in it is finite, so one record would "
                    "change what others add. Put the array into the model as pm.Data('upper', upper), into "
                    "which PyMC does not look."
                )
        derived = any(isinstance(node.op, CheckParameterValue) for node in nodes)
        by_hand = outcome in model.potentials
        if (derived or by_hand) and any(isinstance(v, Constant) and v in held for v in found):
            what = "is a Potential with" if by_hand else "calls pm.logp or pm.logcdf with"
            coded = outcome.name.removeprefix(BOUND.format(""))
            if coded != outcome.name:
                what = "has an encoder, and its term has"
            raise UnsupportedModelError(
                f"'{coded}' {what} arrays as long as there are records, that are no pm.Data. In a "
                "pm.logp or pm.logcdf, PyMC goes by the numbers in such an array for some "
                "distributions (truncated ones), so one record would change what others add. Put each array "
                "of records into the model as pm.Data('x', x), into which PyMC does not look, or write the "
                "outcome with observed=. If an array holds no records, put it into pm.Data and name it in "
                "public_data=[...]."
            )


def _bounds_of_counts(node: Apply, roots: _Roots) -> Iterator[list[Variable]]:
    """Yield what the bounds of each censored discrete distribution in a node are made of."""
    if isinstance(node.op, CensoredRV) and node.inputs[0].type.dtype in discrete_dtypes:
        yield from (roots(bound) for bound in node.inputs[1:3])
    yield from _within(node, roots, _bounds_of_counts)


def _probabilities(node: Apply, roots: _Roots) -> Iterator[list[Variable]]:
    """Yield what the probabilities of each categorical or multinomial distribution in a node are made of."""
    if isinstance(node.op, CategoricalRV | MultinomialRV):
        yield roots(node.op.dist_params(node)[-1])
    yield from _within(node, roots, _probabilities)


def _within(node: Apply, roots: _Roots, search: Any) -> Iterator[list[Variable]]:
    """Yield what `search` finds in the inner graph of a node, such as a truncation's."""
    inner = getattr(node.op, "fgraph", None)
    if inner is None:
        return
    outer = dict(zip(inner.inputs, node.inputs, strict=False))

    def within(var: Variable) -> list[Variable]:
        found = [v for v in walk([var]) if v.owner is None]
        return [root for v in found for root in (roots(outer[v]) if v in outer else [v])]

    for each in inner.apply_nodes:
        yield from search(each, within)


def _has_rows(array: Variable) -> bool:
    return any(length != 1 for length in getattr(array.type, "shape", ())[:-1])


def refuse_hsgp(model: pm.Model, records: Collection[Variable], public: Collection[Variable]) -> None:
    """Raise if the centre or the boundary of a basis was not declared public."""
    for term in [*model.observed_RVs, *model.potentials]:
        for kind, boundary, shifted in _bases(walk([term]), records):
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
                "public numbers, one for each column, before gp.prior or gp.prior_linearized, also for a "
                "basis on a public grid, as no number says where it came from: "
                f"{'; '.join(lines)}; give it the inputs as pm.Data, and say public_data={names}. Numbers "
                "that are no pm.Data look like PyMC's."
            )


def _bases(
    found: list[Variable], records: Collection[Variable]
) -> Iterator[tuple[str, Variable | None, Variable]]:
    """Yield the bases in a graph: their class, boundary, and inputs minus the centre."""
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
        # The entries of a record array decide nothing.
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
    """Return what is subtracted; None if nothing is, as where NumPy did it before the model."""
    return var.owner.inputs[1] if _is_scalar(var, scalar.Sub) else None


def _is_declared(var: Variable, public: Collection[Variable]) -> bool:
    """Whether a variable was declared public, or is an expression and no array."""
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


#: What a warning says of a mark.
FORMULA_ADVICE = (
    "Such a package centres predictors and scales priors by numbers of the records, which nothing protects. "
    "Give it a prior for each term, public levels, and no centring (Bambi: center_predictors=False, "
    "auto_scale=False). If that was done, or the model was written by hand, nothing is wrong."
)

_DIMS = ("__factor_dim", "__expr_dim", "__obs__")


def formula_mark(model: pm.Model) -> str | None:
    """Return a name that formula packages give, of a variable or a dim; None if the model has none.

    That is a coefficient ``Intercept``, a group-specific term ``1|group``, or a dim such as ``__obs__`` and
    ``group__factor_dim``. It does not depend on the records.
    """
    names = [str(rv.name) for rv in model.free_RVs]
    dims = [str(dim) for dim in model.coords]
    marked = [n for n in names if n == "Intercept" or "|" in n] + [d for d in dims if d.endswith(_DIMS)]
    return marked[0] if marked else None
