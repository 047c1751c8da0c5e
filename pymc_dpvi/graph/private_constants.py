"""Arrays, and operations that may hold data, which would enter a fit whole beside one record's row.

Every record array is replaced by one row before gradients are taken. Any other array of numbers in a graph
that is evaluated enters the fit without a clip and without noise. These are the graphs:

==========  ==================================================================================================
likelihood  the observed variables and Potentials for one record, and what PyMC, or a function of the user's
            (``pm.CustomDist(logp=...)``), made of them: their log-densities
prior       log-densities of the free variables, Jacobians of their transforms, data-free Potentials
start       initial points, and transforms of them
released    Deterministics and other expressions (`records.RecordModel.may_be_released`)
==========  ==================================================================================================

:func:`refuse_private_constants` goes through the first three:

* an array with an axis as long as the records may be records, whatever it holds;
* a shared array (``pm.Data``) has to be declared public, and so has a constant array in the likelihood or
  in a data-free Potential, unless it says next to nothing (`shape_constants`);
* very many single numbers are an array (`scalar_constants`), and so is what a loop over records leaves in the
  structure of a graph (`unrolled_loops`);
* an operation or a constant may hold data that no graph shows (`opaque`).

PyMC itself puts single numbers, index tables and counts 0, 1, 2, ... into a log-density, and all of these
pass (tried on `tests/zoo.py`). So an array that is in the log-density, and not in what it was derived from,
comes from the closure of a ``logp=`` or ``dist=`` function of the user's. The exception is that PyMC
evaluates constants where it can. So where such an array is found, the log-density is derived once more, with
variables in place of the model's constants (`densities.unevaluated`).

Constants in a prior or an initial value are numbers that the user wrote there. They count as public, and
the report lists them (`public_data`). For a prior by a function of the user's, that holds for its arguments.
An array in the function's closure is refused, unless it says next to nothing: nobody who reads the model sees
it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.distributions.continuous import InterpolatedRV
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.dist_math import SplineWrapper
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.op import RandomVariable
from scipy.interpolate import InterpolatedUnivariateSpline

from pymc_dpvi.errors import NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.model_checks import array_name, global_dims, refuse_updates
from pymc_dpvi.graph.opaque import is_opaque_value, opaque_part
from pymc_dpvi.graph.scalar_constants import holds_table
from pymc_dpvi.graph.shape_constants import is_grid, is_structural, shape_vectors
from pymc_dpvi.graph.traversal import array_shape, array_value, is_array, walk
from pymc_dpvi.graph.unrolled_loops import MOST_NUMBERS, spells_data

__all__ = ["refuse_private_constants", "says_nothing"]

_AXIS_ADVICE = (
    "If that axis holds records, transpose the array so that they run along the first axis only; if the "
    "length is the same by chance, put the array into pm.Data(name, ..., dims=...) and give that axis "
    "the dim of a free variable, or name it in public_data=[...] if everybody may know it. An array that a "
    "logp= or dist= function brings along has to be an argument of pm.CustomDist."
)

_LAG = (
    " A slice of the outcomes, such as y[:-1], is a lag: each value then stands in two rows, of which one is "
    "all that is protected. Take lags within each person, as columns, and say unit= (the user guide, "
    "'Several rows of one person')."
)

_MANY = (
    f"There are more than {MOST_NUMBERS} different single numbers in the {{}}, or one expression stands "
    "there that often with other numbers, positions or operands in it, as a loop over an array writes it. So "
    "much is an array of data, and nothing protects it. If everybody may know it, put it into one "
    "pm.Data('name', array), say public_data=['name'], and write the formula with that array (b[group], "
    "pt.switch(answers, b, c)); if it is the records', give the whole array to a variable as observed=..."
)


def refuse_private_constants(
    model: pm.Model,
    lengths: Collection[int],
    *,
    held: Collection[Variable],
    public: Collection[Variable],
    generative: Sequence[Variable],
    derived: Sequence[Variable],
    factors: Mapping[str, Variable],
    prior: Variable,
    data_free: Sequence[Variable],
    start: Sequence[Variable],
) -> None:
    """Raise if an array or an operation is left that may hold private data; the message names it.

    `lengths` are the numbers of rows, and `held` the record arrays and the lengths of their dims. Of these
    only the lengths of trailing axes may be read (a matrix's number of columns). `generative` are the
    observed variables for one record, `derived` their log-densities. Both are searched: PyMC evaluates
    constants as it derives, and the mean of a constant matrix is a number without an axis. `factors` are
    the log-densities in the unconstrained values, by observed variable or Potential; `data_free` the
    Potentials in the log prior; `start` the initial points. Arrays in inner graphs count.
    """
    own = {rv for rv in model.free_RVs}
    initial = [v for v in model.rvs_to_initial_values.values() if isinstance(v, np.ndarray)]
    entrywise = {np.shape(v) for v in initial} | {tuple(rv.type.shape) for rv in own}
    for pot in data_free:
        for var in walk([pot], stop=model.free_RVs, into_size=True, columns_of=held):
            if is_array(var) and var not in public and not says_nothing(var):
                raise UnsupportedModelError(
                    f"The Potential '{pot.name}' has an array of numbers in it but no axis over records, so "
                    "nothing protects the array. If it holds records of people, such as the censored ones, "
                    "put all records into one variable: pm.Censored('y', dist, lower=..., upper=..., "
                    "observed=y) takes the censored and the others; public_data= would publish them. "
                    "Only if everybody may know the array, put it into pm.Data('name', ...) and say "
                    "public_data=['name']. A Potential on records needs one entry per record."
                )
    for graphs, where, into_size in (
        ([*generative, *derived], "likelihood", False),
        (derived, "likelihood", True),
        (list(factors.values()), "likelihood", True),
        ([prior, *own, *data_free], "prior", True),
        (start, "start", True),
    ):
        found = walk(graphs, into_size=into_size, columns_of=held)
        refuse_updates(found)
        shapes = shape_vectors(found)
        strict = not into_size
        for var in found:
            _refuse_opaque(model, var, where, factors)
            if var in held and where == "likelihood":
                raise NotSeparableError(
                    f"{array_name(model, var)} enters the likelihood in a way that does not follow the "
                    "records. Write the likelihood with one row of it per observation."
                )
            if var in held and where == "start":
                raise UnsupportedModelError(
                    f"The initial value of a free variable depends on {_within(array_name(model, var))}, "
                    "which holds the records (or on their number), and nobody accounts for that. Use a fixed "
                    "initval."
                )
            if var in held:
                raise UnsupportedModelError(
                    f"The prior depends on {_within(array_name(model, var))}, which holds the records (or on "
                    "their number). A prior must not look at private data: use a fixed number."
                )
            if not is_array(var) or var in public or var in shapes:
                continue
            if where == "start" and array_shape(var) in entrywise:
                continue  # one number per entry of a free variable, which has no axis over records
            if not _may_stay(model, lengths, var):
                raise NotSeparableError(
                    f"{_named(model, var, where, factors)} has an axis as long as the number of records, "
                    "and it does not follow them as a leading axis of the likelihood would (in the "
                    f"{where}). " + _AXIS_ADVICE
                )
            if says_nothing(var):
                continue
            if isinstance(var, SharedVariable) and var.name:
                raise UnsupportedModelError(
                    f"The pm.Data '{var.name}' enters the {where} but is not indexed by records, so nothing "
                    f"protects it. If everybody may know it, say public_data=['{var.name}']; if it holds "
                    "personal data, expand it to one row per record." + _LAG * _is_sliced(var, found)
                )
            if isinstance(var, SharedVariable) or (strict and not is_grid(array_value(var))):
                raise UnsupportedModelError(
                    f"{_named(model, var, where, factors)} holds numbers in the {where} and is not indexed "
                    "by records, so nothing protects it. If everybody may know it, put it into "
                    "pm.Data('name', array) and say public_data=['name']; if it holds personal data, expand "
                    "it to one row per record. Arrays in a logp= or dist= function count: hand them over as "
                    "arguments of pm.CustomDist."
                )
    for rv in model.free_RVs:
        if isinstance(rv.owner.op, CustomDistRV | CustomSymbolicDistRV):
            _refuse_closure(rv, public, held)
    # Counted apart: what is derived from a graph repeats its numbers, and not always as often.
    if any(holds_table(walk(graphs, columns_of=held)) for graphs in (generative, derived)):
        raise UnsupportedModelError(_MANY.format("likelihood of " + _names(model.observed_RVs)))
    if holds_table(walk(data_free, stop=model.free_RVs, columns_of=held), [data_free]):
        raise UnsupportedModelError(_MANY.format("data-free Potential " + _names(data_free)))
    if spells_data(walk([prior, *own, *start], into_size=True, columns_of=held), [model.free_RVs]):
        raise UnsupportedModelError(_MANY.format("prior"))


def _is_sliced(var: Variable, found: Sequence[Variable]) -> bool:
    """Whether a part of an array is taken by a slice, as in ``y[:-1]``."""
    nodes = [v.owner for v in found if v.owner is not None]
    return any(type(node.op).__name__ == "Subtensor" and node.inputs[0] is var for node in nodes)


def _refuse_closure(rv: Variable, public: Collection[Variable], held: Collection[Variable]) -> None:
    """Raise if a prior's ``logp=`` or ``dist=`` has an array or a table that is not among its arguments."""
    given = set(walk(rv.owner.inputs, into_size=True))
    try:
        density = [pm.logp(rv, rv.type())]
    except NotImplementedError:  # not needed, or `records` refuses the model
        density = []
    found = walk([rv, *density], into_size=True, columns_of=held)
    brought = [v for v in found if v not in given and v not in public and is_array(v)]
    if holds_table([v for v in found if v not in given]) or any(
        not says_nothing(v) and (isinstance(v, SharedVariable) or not is_grid(array_value(v)))
        for v in brought
    ):
        raise UnsupportedModelError(
            f"The prior of '{rv.name}' has an array that its logp= or dist= function brings along, and "
            "nothing protects it. If everybody may know it, hand it over as an argument of pm.CustomDist, or "
            "put it into pm.Data('name', array) and say public_data=['name']. A prior must not look at "
            "private data."
        )


def _named(model: pm.Model, var: Variable, where: str, factors: Mapping[str, Variable]) -> str:
    """Name an array; one from a ``logp=`` function, which is behind no variable, by its log-density."""
    said = array_name(model, var)
    if where != "likelihood" or said != "An unnamed array":
        return said

    def same(other: Variable) -> bool:  # by type: the words must not depend on an entry
        if not is_array(other) or array_shape(other) != array_shape(var):
            return False
        return bool(other.type.dtype == var.type.dtype)

    behind = [name for name, factor in factors.items() if any(map(same, walk([factor], into_size=True)))]
    return f"An unnamed array behind {_first(behind or list(factors))}"


def _within(name: str) -> str:
    """Write a name that begins a sentence for the middle of one."""
    return name[:1].lower() + name[1:]


def _names(variables: Sequence[Variable]) -> str:
    """Name variables, or the first three of many."""
    return _first([v.name for v in variables])


def _first(of: Sequence[str | None]) -> str:
    """Write out names, or the first three of many."""
    names = [repr(name) for name in of]
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")


def says_nothing(var: Variable) -> bool:
    """Whether an array is no data: a single number, or a constant that tells no more than its shape.

    A shared array that looks like it today may be given other values by ``pm.set_data``.
    """
    value = array_value(var)
    return value.ndim == 0 or (isinstance(var, Constant) and is_structural(value))


def _may_stay(model: pm.Model, lengths: Collection[int], var: Variable) -> bool:
    """Whether no axis of a remaining array runs over records.

    An axis that has that length by chance needs a dim that a free variable has too.
    """
    dims = model.named_vars_to_dims.get(var.name) if var.name else None
    axes = [k for k, n in enumerate(array_shape(var)) if n in lengths]
    return all(dims is not None and dims[k] in global_dims(model) for k in axes)


def _refuse_opaque(model: pm.Model, var: Variable, where: str, factors: Mapping[str, Variable]) -> None:
    """Raise if numbers may be hidden in a constant, or in the operation that makes `var`."""
    if is_opaque_value(var):
        raise UnsupportedModelError(
            f"The {where} holds a {type(var.type).__name__}, which is no dense array: what is in it would "
            "enter unprotected. Use dense arrays."
        )
    # The density of a random variable is a graph of its own. At the start it is drawn.
    if var.owner is None or (isinstance(var.owner.op, RandomVariable) and where != "start"):
        return
    if where == "prior" and _is_written_spline(model, var.owner.op):
        return  # of a pm.Interpolated, whose points are constants behind the prior
    if (name := opaque_part(var.owner.op)) is not None:
        own = [repr(n) for n, f in factors.items() if var.owner.op in _operations(f)]
        whose = " of " + ", ".join(own) if own else ""
        raise UnsupportedModelError(
            f"The operation {name} in the {where}{whose} is not one of PyTensor's or PyMC's that computes "
            "from its inputs alone, so it cannot be seen which numbers it holds: data inside it would enter "
            "unprotected. Write it with PyTensor's operations."
            + " An OpFromGraph has to be without a derivative, methods and settings of yours."
            * isinstance(var.owner.op, OpFromGraph)
        )


def _operations(graph: Variable) -> list[Op]:
    return [v.owner.op for v in walk([graph]) if v.owner is not None]


def _is_written_spline(model: pm.Model, op: Any) -> bool:
    """Whether an operation of a prior is the spline of one of the model's ``pm.Interpolated``, and no other.

    Such a spline holds no number of a record. PyMC fits it to `x_points` and `pdf_points`, constants behind
    the prior: numbers that the user wrote, listed in the report, and none as long as the records. Here it is
    fitted to them again, and passes only if knots, coefficients, degree and behaviour beyond its ends are the
    same. It computes with nothing else, and neither does its derivative, which the gradient uses.
    """
    if type(op) is not SplineWrapper or type(op.spline) is not InterpolatedUnivariateSpline:
        return False
    for rv in model.free_RVs:
        points = rv.owner.op.dist_params(rv.owner)[:2] if type(rv.owner.op) is InterpolatedRV else ()
        if not points or not all(isinstance(p, Constant) for p in points):
            continue
        again = InterpolatedUnivariateSpline(*(p.data for p in points), k=1, ext="zeros")
        same = zip(op.spline._eval_args, again._eval_args, strict=True)
        if op.spline.ext == again.ext and all(np.array_equal(a, b) for a, b in same):
            return True
    return False
