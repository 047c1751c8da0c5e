"""What would enter a step beside one record's row: arrays, and operations that may hold data.

Every record array is replaced by one row before gradients are taken. So whatever else is an array of numbers
in the log-density of one record, or in the prior, enters every step whole, without a clip and without noise.
:func:`refuse_unprotected` goes through all of it:

* an array with an axis as long as the records may be records, whatever it holds;
* a shared array (``pm.Data``) has to be declared public, and so has a constant array in the likelihood,
  unless it says next to nothing (`guards.is_structural`, `guards.is_grid`);
* an operation or a constant may hold data where no graph shows them (`opaque`: a black-box likelihood,
  ``pytensor.wrap_py``, a fitted spline).

Constants in a prior are numbers that the user wrote there. They count as public, and the report lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor

from pymc_dpvi.errors import NotSeparableError, UnsupportedModelError
from pymc_dpvi.graphs import array_shape, array_value, is_array, walk
from pymc_dpvi.guards import is_grid, is_structural
from pymc_dpvi.model_checks import array_name, global_dims, is_written_spline
from pymc_dpvi.opaque import is_opaque_value, opaque_part

__all__ = ["refuse_unprotected", "says_nothing"]

_AXIS_ADVICE = (
    "If that axis holds records, transpose the array so that they run along the first axis only; if the "
    "length is the same by chance, put the array into pm.Data(name, ..., dims=...) and give that axis "
    "the dim of a free variable, or name it in public_data=[...] if everybody may know it."
)


#: Axes that an array has at most, and so entries of a vector of lengths.
_MOST_AXES = 8


def refuse_unprotected(
    model: pm.Model,
    num_records: int,
    *,
    held: Collection[Variable],
    public: Collection[Variable],
    generative: Sequence[Variable],
    factors: Sequence[Variable],
    prior: Variable,
    data_free: Sequence[Variable],
) -> None:
    """Raise if an array or an operation is left that may hold private data.

    Only lengths of trailing axes of record arrays may be read (a matrix's number of columns, say). Arrays
    in inner graphs count.

    Parameters
    ----------
    model : pymc.Model
    num_records : int
    held : collection of Variable
        The record arrays and the lengths of their dims.
    public : collection of Variable
        What was declared public.
    generative : sequence of Variable
        The observed variables for one record, before their log-densities were derived. PyMC computes what
        it can of constants on the way, and the mean of a constant matrix is a number without an axis.
    factors : sequence of Variable
        One record's log-densities.
    prior : Variable
        The log prior.
    data_free : sequence of Variable
        Potentials in it.

    Raises
    ------
    UnsupportedModelError, NotSeparableError
        Naming the array or the operation.
    """
    for pot in data_free:
        for var in walk([pot], stop=model.free_RVs, into_size=True, through_shape=False):
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
        (generative, "likelihood", False),
        (factors, "likelihood", True),
        ([prior, *model.free_RVs, *data_free], "prior", True),
    ):
        found = walk(graphs, into_size=into_size, through_shape=False)
        lengths = _lengths(found)
        for var in found:
            _refuse_opaque(model, var, where)
            if var in held and where == "likelihood":
                raise NotSeparableError(
                    f"{array_name(model, var)} enters the likelihood in a way that does not follow the "
                    "records. Write the likelihood with one row of it per observation."
                )
            if var in held:
                raise UnsupportedModelError(
                    f"The prior depends on {array_name(model, var)}, which holds the records (or on their "
                    "number). A prior must not look at private data: use a fixed number."
                )
            if not is_array(var) or var in public or var in lengths:
                continue
            if not _may_stay(model, num_records, var):
                raise NotSeparableError(
                    f"{array_name(model, var)} has an axis as long as the number of records, and it does "
                    f"not follow them as a leading axis of the likelihood would (in the {where}). "
                    + _AXIS_ADVICE
                )
            if says_nothing(var):
                continue
            if isinstance(var, SharedVariable):
                raise UnsupportedModelError(
                    f"The pm.Data '{var.name}' enters the {where} but is not indexed by records, so nothing "
                    f"protects it. If everybody may know it, say public_data=['{var.name}']; if it holds "
                    "personal data, expand it to one row per record."
                )
            if graphs is generative and not is_grid(array_value(var)):
                raise UnsupportedModelError(
                    f"{array_name(model, var)} holds numbers in the likelihood and is not indexed by "
                    "records, so nothing protects it. If everybody may know it, put it into "
                    "pm.Data('name', array) and say public_data=['name']; if it holds personal data, "
                    "expand it to one row per record."
                )


def says_nothing(var: Variable) -> bool:
    """Whether an array is no data: a single number, or a constant that tells no more than its shape.

    A shared array that looks like it today may be given other values by ``pm.set_data``.
    """
    value = array_value(var)
    return value.size <= 1 or (isinstance(var, Constant) and is_structural(value))


def _may_stay(model: pm.Model, num_records: int, var: Variable) -> bool:
    """Whether no axis of a remaining array runs over records.

    An axis may have that length by chance: it then has a name that a free variable has too.
    """
    dims = model.named_vars_to_dims.get(var.name) if var.name else None
    axes = [k for k, n in enumerate(array_shape(var)) if n == num_records]
    return all(dims is not None and dims[k] in global_dims(model) for k in axes)


def _lengths(found: Sequence[Variable]) -> set[Variable]:
    """Return the constants that are only lengths: of a reshape, or taken one by one."""
    readers: dict[Variable, set[bool]] = {}
    nodes = [v.owner for v in found if v.owner is not None]
    while nodes:
        node = nodes.pop()
        nodes += getattr(getattr(node.op, "fgraph", None), "apply_nodes", ())
        for k, i in enumerate(node.inputs):
            if isinstance(i, Constant) and is_array(i) and array_value(i).dtype == np.int64:
                one = isinstance(node.op, Subtensor) and node.outputs[0].type.ndim == 0
                readers.setdefault(i, set()).add(one or (isinstance(node.op, Reshape) and k == 1))
    return {v for v, only in readers.items() if only == {True} and array_value(v).size <= _MOST_AXES}


def _refuse_opaque(model: pm.Model, var: Variable, where: str) -> None:
    """Raise if numbers may be hidden in a constant, or in the operation that makes `var`."""
    if is_opaque_value(var):
        raise UnsupportedModelError(
            f"The {where} holds a {type(var.type).__name__}, which is no dense array: what is in it would "
            "enter unprotected. Use dense arrays."
        )
    # The density of a random variable is a graph of its own.
    if var.owner is None or isinstance(var.owner.op, RandomVariable):
        return
    if where == "prior" and is_written_spline(model, var.owner.op):
        return  # of a pm.Interpolated, whose points are constants behind the prior
    if (name := opaque_part(var.owner.op)) is not None:
        raise UnsupportedModelError(
            f"The operation {name} in the {where} is not one of PyTensor's or PyMC's that computes from its "
            "inputs alone, so it cannot be seen which numbers it holds: data inside it would enter "
            "unprotected. Write it with PyTensor's operations."
        )
