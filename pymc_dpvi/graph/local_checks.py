"""What a local variable must not be, found before anything is spent.

A person's values have to be independent of other persons' given the global variables, and to enter the
likelihood by person alone: else the model rebuilt for one person would be another one. Each error names
the variable and what to write instead. No check reads a value of the data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.distributions.custom import CustomDistRV
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.errors import NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.indexing import integer_indices
from pymc_dpvi.graph.traversal import array_value, depends_on, is_array, walk
from pymc_dpvi.graph.units import Units

__all__ = [
    "PRIOR",
    "number_of",
    "refuse_arrays_of_persons",
    "refuse_couplings",
    "refuse_other_uses",
    "refuse_places",
]

#: Name of the term of the local variables' prior.
PRIOR = "prior of local variables"
_POINT_MASSES = ("CensoredRV", "DiracDeltaRV")


def refuse_places(
    model: pm.Model, local: Sequence[TensorVariable], bases: Sequence[Variable], length: int
) -> None:
    """Raise if a person's values, or their prior, go by the place in the table.

    Rebuilt for some persons, a slice, a list of parts or a running number of all of them would be another
    one.
    """
    for rv in local:
        if any(type(v.owner.op).__name__ in _POINT_MASSES for v in walk([rv]) if v.owner is not None):
            raise UnsupportedModelError(
                f"The local variable '{rv.name}' is censored or has a hurdle: it is neither continuous nor "
                "discrete, so it cannot be integrated out. Use a continuous one."
            )
    others = [v for v in model.free_RVs if v not in local]
    # The function logp= of a pm.CustomDist stands in no graph of the model.
    written = {rv: rv.type() for rv in local if isinstance(rv.owner.op, CustomDistRV)}
    densities = [pm.logp(rv, value, warn_rvs=False) for rv, value in written.items()]
    own = [*local, *written.values()]
    for var in walk([*bases, *local, *densities], stop=others):
        op = None if var.owner is None else var.owner.op
        along = type(op).__name__ in ("Join", "Split", "CumOp") and _axis(var.owner) == 0
        along &= op is not None and depends_on(var.owner.inputs, own)
        if along or _counts_persons(var, length) or _cuts_persons(var, own):
            raise NotSeparableError(
                f"The values of {', '.join(repr(str(rv.name)) for rv in local)} go by their place among all "
                f"persons ({type(op).__name__}). Take them by person alone, u[person], and write what "
                "differs between persons with an array of one entry per row."
            )


def _axis(node: Any) -> int:
    """Return the axis along which an operation joins, splits or adds up; 0 if it cannot be seen."""
    axis = getattr(node.op, "axis", None)
    if axis is None and type(node.op).__name__ != "CumOp":  # in PyTensor 2 an input
        axis = number_of(node.inputs[0 if type(node.op).__name__ == "Join" else 1])
    return 0 if axis is None else int(axis) % node.outputs[0].type.ndim


def _counts_persons(var: Variable, length: int) -> bool:
    """Whether a variable is a running number whose length is, or may be, that of the table."""
    if var.owner is None or type(var.owner.op).__name__ != "ARange":
        return False
    ends = [number_of(i) for i in var.owner.inputs]
    return any(n is None for n in ends) or len(range(*ends)) == length  # type: ignore[arg-type]


def _cuts_persons(var: Variable, local: Sequence[Variable]) -> bool:
    """Whether a variable is some entries, along the first axis, of something that depends on local ones."""
    node = var.owner
    if node is None or "Subtensor" not in type(node.op).__name__ or not depends_on(node.inputs[:1], local):
        return False
    if "Inc" in type(node.op).__name__:
        return True
    entries = integer_indices(node)
    return entries is None or entries[0] is not None


def refuse_other_uses(
    model: pm.Model, local: Sequence[Variable], found: Mapping[Variable, Any], units: Units
) -> None:
    """Raise if the likelihood reads a local variable in another way than by person."""
    assert units.source is not None
    for term in (*model.observed_RVs, *model.potentials):
        if term in model.potentials and not depends_on([term], [units.source, *model.observed_RVs]):
            continue  # of the prior: `refuse_couplings`
        for var in walk([term], stop=[*model.free_RVs, *found]):
            if var in local:
                raise NotSeparableError(
                    f"The likelihood '{term.name}' reads '{var.name}' otherwise than by person, as "
                    f"{var.name}[{units.source.name}], so one person's value enters other persons' terms. "
                    "Leave out sums, means and slices over persons."
                )


def refuse_couplings(
    model: pm.Model,
    local: Sequence[TensorVariable],
    units: Units,
    public: Collection[Variable],
    covariates: Collection[Variable],
) -> None:
    """Raise if the prior ties persons to each other, to the data, or to what is released."""
    names = ", ".join(f"'{rv.name}'" for rv in local)
    rv_shapes = model.eval_rv_shapes()
    for rv in local:
        if rv.type.ndim - rv.owner.op.ndim_supp == 0:
            raise NotSeparableError(
                f"The prior of '{rv.name}' is one draw for all persons, so that they depend on each other. "
                "Give each person a value that is independent of the others' given the parameters, such as "
                f"pm.Normal('{rv.name}', 0, sigma, dims=...)."
            )
        others = [v for v in model.free_RVs if v is not rv]
        length = rv_shapes[rv.name][:1]
        for var in walk([rv], stop=others):
            if var in covariates:
                continue
            if _runs_over(var, length) or (var not in public and _is_of_data(model, var)):
                what = f"'{var.name}'" if var.name else "an array over persons"
                raise UnsupportedModelError(
                    f"The prior of '{rv.name}' depends on data ({what}). In a model of one table it may "
                    f"read a pm.Data that is as long as '{rv.name}', with the entry of each person, as it "
                    "stands: x = pm.Data('x', table.groupby('person')['x'].first()), and no NumPy array. "
                    "What rows or several tables have belongs into the mean of the rows: write "
                    f"b * x + u[person], with an x of one entry per row. If '{rv.name}' is no such effect "
                    "(a class, a share), give it a flat prior, and add its own in one row of each person: "
                    "pm.Potential('own', first * pm.logp(pm.Bernoulli.dist(logit_p=a + b * x), "
                    f"{rv.name}[person])), where first is a pm.Data, 1 in one row of each person and 0 in "
                    "the others."
                )
    for rv in model.free_RVs:
        if rv not in local and depends_on([rv], local):
            raise NotSeparableError(
                f"The prior of '{rv.name}' depends on {names}, which are local to persons: it would tie "
                "them together."
            )
    observed = [*model.observed_RVs, units.source]
    if any(v.name == PRIOR for v in (*model.observed_RVs, *model.potentials)):
        raise UnsupportedModelError(
            f"The name {PRIOR!r} is this package's own. Give the variable another one."
        )
    for pot in model.potentials:
        if depends_on([pot], local) and not depends_on([pot], observed, stop=model.free_RVs):
            raise NotSeparableError(
                f"The Potential '{pot.name}' depends on {names} of all persons together, and not by rows. "
                "Write it into the prior of each person's value."
            )


def refuse_arrays_of_persons(
    model: pm.Model,
    bases: Sequence[Variable],
    units: Units,
    length: int,
    named: str,
    covariates: Collection[Variable],
) -> None:
    """Raise if what is looked up by person has an array with an entry for each person, also a public one."""
    assert units.source is not None
    for var in walk(bases, stop=model.free_RVs):
        if var is not units.source and var not in covariates and _runs_over(var, (length,)):
            what = f"'{var.name}'" if var.name else "an array over persons"
            raise UnsupportedModelError(
                f"What the likelihood looks up by '{units.source.name}' has an array with an entry for "
                f"each person ({what}). If the model has one table, put it into pm.Data. Or give the model "
                "one entry for each row, x_row = x[person] in NumPy, and write what depends on it beside the "
                f"look-up: b * x_row + {named}[{units.source.name}]. That holds for groups of persons, too: "
                "a[group_row]. public_data= does not help, as a person's entry is a part of that person's "
                "term."
            )


def _runs_over(var: Variable, length: Sequence[int]) -> bool:
    """Whether a variable is an array as long as there are persons: a table of them."""
    return is_array(var) and array_value(var).shape[:1] == tuple(length)


def _is_of_data(model: pm.Model, var: Variable) -> bool:
    return (
        var in model.data_vars
        or var in model.observed_RVs
        or (
            is_array(var)
            and array_value(var).ndim > 0
            and var.name is not None
            and var in model.named_vars.values()
        )
    )


def number_of(index: Variable) -> int | None:
    """Return an index that is a number written in the model; None if it is none.

    It leaves the graph, where `private_constants` would have seen what it comes from. So nothing is computed:
    an entry of an array, a length, or an array of equal entries may tell of the records.
    """
    while index.owner is not None and isinstance(index.owner.op, ScalarFromTensor | TensorFromScalar):
        (index,) = index.owner.inputs
    if not isinstance(index, Constant) or np.ndim(index.data) or index.type.dtype[:1] not in "iu":
        return None
    return int(index.data)
