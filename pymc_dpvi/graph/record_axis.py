"""Where the records are: the record axis, and the arrays that run along it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import compile as pm_compile
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.raise_op import CheckAndRaise

from pymc_dpvi.errors import ArgumentError, NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.indexing import numbers_rows, row_position
from pymc_dpvi.graph.model_checks import global_dims, hint_of_orientation
from pymc_dpvi.graph.opaque import opaque_part
from pymc_dpvi.graph.public_data import shown
from pymc_dpvi.graph.selections import function_of_lengths
from pymc_dpvi.graph.traversal import array_shape, array_value, is_array, substituted, walk
from pymc_dpvi.graph.units import Units

__all__ = ["describe_unit", "find_record_arrays", "find_record_axis"]

_SPARSE_GP = (
    " A sparse Gaussian process with its marginal likelihood is one draw for all records: write f as a basis "
    "at inducing points that are public (cov(X, Xu) @ weights), or with pm.gp.HSGP and a public centre."
)


def find_record_axis(model: pm.Model, record_dim: str | None) -> tuple[int, frozenset[str]]:
    """Return the number of records, and the names of the dims that run over them."""
    lengths: dict[str, int] = {}
    leading_dims: set[str] = set()
    for rv in model.observed_RVs:
        value = model.rvs_to_values[rv]
        roots = [v for v in walk([value]) if is_array(v) and len(array_shape(v))]
        if value.type.ndim == 0 or not roots:
            raise UnsupportedModelError(
                f"The observed variable '{rv.name}' is a single number (a scalar), so there are no "
                "records along a leading axis. Observe an array with one row per record. If it is no data "
                "but holds parameters together, such as a sum near zero, or a public count, such as of an "
                "earlier study, write it as a pm.Potential('c', pm.logp(pm.Normal.dist(0, 0.01), b.sum())), "
                "pm.Potential('c', pm.logp(pm.Binomial.dist(122, p), 103))."
            )
        length = value.type.shape[0]
        lengths[rv.name] = _length(value, rv.name) if length is None else length
        if all(array_shape(v)[0] != lengths[rv.name] for v in roots):
            raise UnsupportedModelError(
                f"The observed values of '{rv.name}' are only a part of the array that holds them, or "
                "computed from it (a slice of pm.Data, for example, or counts), so it is not clear which "
                "rows are the records. Give the model the rows to be fitted and no others, one for each "
                "person. (A lag, y[:-1] beside y[1:], puts a value into two rows, also where NumPy makes it: "
                "let a series be one wide row, or all rows of one person, by unit=.)"
            )
        dims = model.named_vars_to_dims.get(rv.name)
        if dims and dims[0] is not None:
            leading_dims.add(dims[0])
    for pot in model.potentials if not model.observed_RVs else ():
        # A likelihood written as a Potential alone: the arrays behind it say how long the record axis is.
        behind = {array_shape(v)[:1] for v in walk([pot], stop=model.free_RVs) if is_array(v)} - {()}
        if (
            pot.type.ndim > 0
            and (length := _length(pot, pot.name, model.free_RVs)) > 1
            and (length,) in behind
        ):
            lengths[pot.name] = length
        dims = model.named_vars_to_dims.get(pot.name)
        if dims and dims[0] is not None:
            leading_dims.add(dims[0])
        if pot.type.ndim == 0 and behind:
            raise NotSeparableError(
                f"The Potential '{pot.name}' is one number for all data, so it cannot be seen that one "
                "record does not enter another record's term. Write it with one entry per record, each "
                "from that record's row and the parameters only."
                + _SPARSE_GP
                * pot.name.startswith("marginalapprox_loglik_")
            )
    if not lengths:
        _refuse_black_boxes(model)
    if not lengths and record_dim is None:
        raise UnsupportedModelError(
            "The model has no observed variable (and no Potential with one entry per record), so there "
            "are no records to protect. Give one variable observed=..., with one entry per record along "
            "its first axis; for a likelihood that is all Potentials on pm.Data, name record_dim=."
        )
    if record_dim is not None:
        if not isinstance(record_dim, str) or record_dim not in model.dim_lengths:
            raise ArgumentError(
                f"record_dim={shown(record_dim)} is not a dim of the model; its dims are "
                f"{sorted(model.dim_lengths)}."
            )
        if record_dim in global_dims(model):
            raise ArgumentError(
                f"record_dim={record_dim!r} is a dim of a free variable; records run along the first dim of "
                f"the observed variables, here {sorted(leading_dims) or 'unnamed'}."
            )
        strange = leading_dims - {record_dim}
        if strange:
            raise UnsupportedModelError(
                f"record_dim={record_dim!r}, but an observed variable has {sorted(strange)} as its first "
                "dim. Transpose the data so that records run along the first axis of every observed variable."
            )
        leading_dims.add(record_dim)
        if not lengths:
            lengths[record_dim] = int(pm_compile([], model.dim_lengths[record_dim], mode="FAST_COMPILE")())
    if len(set(lengths.values())) > 1:
        raise UnsupportedModelError(
            f"The observed variables {sorted(lengths)} have different lengths, so one row is not one "
            "record. Groups of other people, as in an A/B test, are one variable with all outcomes, and "
            "parameters by the group, mu[group]. Rows that are censored belong to the others: pm.Censored "
            "takes both in one variable. What one person did goes into one row (for example a matrix with a "
            "column each). Or say of each variable whose its rows are, with ids for each length: "
            f"unit={{'cost': 'who_came', 'smoker': 'who_answered'}}.{hint_of_orientation(model)}"
        )
    num_records = next(iter(lengths.values()))
    if num_records < 2:
        raise UnsupportedModelError(
            f"The observed variable '{next(iter(lengths))}' has fewer than two records. There is nothing "
            f"to learn privately from one.{hint_of_orientation(model)}"
        )
    return num_records, frozenset(leading_dims)


def _refuse_black_boxes(model: pm.Model) -> None:
    """Raise if a Potential of a model without records has an operation that may hide them."""
    for pot in model.potentials:
        for var in walk([pot], stop=model.free_RVs):
            if var.owner is not None and (name := opaque_part(var.owner.op)) is not None:
                raise UnsupportedModelError(
                    f"The Potential '{pot.name}' is computed by the operation {name}, which is not one of "
                    "PyTensor's or PyMC's that computes from its inputs alone: the records in it are not "
                    "seen, so nothing can protect them. Write it with PyTensor's operations on pm.Data that "
                    "have one row per record, with one entry per record."
                )


def _length(var: Variable, name: str, free: Sequence[Variable] = ()) -> int:
    """Return the length of the first axis, without looking at a value of the data or drawing from a prior.

    A length that depends on values, as that of ``x[keep]`` does, is refused: single records would decide it.
    """
    if is_array(var):
        return array_shape(var)[0]
    arrays = [v for v in walk([var]) if is_array(v) and v.type.ndim]
    declared = {array_shape(a)[0] for a in arrays if not isinstance(a, Constant)}
    if declared:  # a constant as long as none of them says how arrays lie: a shape, the counts of a split
        arrays = [a for a in arrays if not isinstance(a, Constant) or array_shape(a)[0] in declared]
    stand_ins = [a.type() for a in arrays]
    # An improper prior (pm.HalfFlat) has no draws.
    instead = {rv: pt.ones(rv.shape, dtype=rv.type.dtype) for rv in free}  # type: ignore[attr-defined]
    (length,) = graph_replace(
        [substituted([var], instead)[0].shape[0]], dict(zip(arrays, stand_ins, strict=True)), strict=False
    )
    fn, reads_entries = function_of_lengths(stand_ins, [length])
    if reads_entries:
        raise NotSeparableError(
            f"The length of '{name}' depends on values of the data (a mask, for example), so which entry "
            "is whose turns on another record's values. Select the records before the model, each by its "
            "own values, and give it those and no others."
        )
    return int(fn(*(array_value(a) for a in arrays))[0])


def find_record_arrays(
    model: pm.Model, num_records: int, dims: frozenset[str], public: set[Variable]
) -> tuple[list[Variable], frozenset[str]]:
    """Return every array of leading length N behind likelihood, prior and initial values, and their dims.

    There are four exceptions: arrays declared public, arrays whose leading dim is a free variable's too (as
    many groups as records, by chance), arrays that only the conditions of checks read, and constants
    0, 1, 2, ... that only number the rows.
    """
    roots = [*model.observed_RVs, *(model.rvs_to_values[rv] for rv in model.observed_RVs)]
    found: list[Variable] = []
    leading = set(dims)
    # Priors and initial values are searched too: they must not see records, so what is found is refused.
    initial = [v for v in model.rvs_to_initial_values.values() if isinstance(v, Variable)]
    # The conditions of the likelihood's checks (``Assert``) fall out when it is rebuilt for one record.
    unread = _conditions([*roots, *model.potentials])
    unread -= {*walk([*model.free_RVs, *initial], columns_of=None)}
    everything = [*roots, *model.potentials, *model.free_RVs, *initial]
    counting = _row_numbers(everything, num_records)
    for var in walk(everything, unread, columns_of=None):
        if var in unread or var in counting or not is_array(var) or var in public:
            continue
        if array_shape(var)[:1] != (num_records,):
            continue
        names = model.named_vars_to_dims.get(var.name) if var.name else None
        dim = names[0] if names else None
        if dim is not None and dim not in dims and dim in global_dims(model):
            continue
        found.append(var)
        if dim is not None:
            leading.add(dim)
    return found, frozenset(leading)


def _row_numbers(outputs: Iterable[Variable], num_records: int) -> set[Variable]:
    """Return constants 0, 1, ... that do no more than name each record's own row, ``x[np.arange(n), k]``."""
    naming, otherwise = set[Variable](), set[Variable]()
    for var in walk(outputs, columns_of=None):
        if var.owner is not None:
            at = row_position(var.owner)
            for position, index in enumerate(var.owner.inputs):
                names = position == at and isinstance(index, Constant) and numbers_rows(index, num_records)
                (naming if names else otherwise).add(index)
    return naming - otherwise


def _conditions(outputs: Iterable[Variable]) -> set[Variable]:
    """Return the conditions of the checks behind `outputs` that are read in no other way."""
    reached: set[Variable] = set()
    conditions: set[Variable] = set()
    stack = list(outputs)
    while stack:
        var = stack.pop()
        if var in reached:
            continue
        reached.add(var)
        if var.owner is not None and isinstance(var.owner.op, CheckAndRaise):
            stack.append(var.owner.inputs[0])
            conditions.update(var.owner.inputs[1:])
        elif var.owner is not None:
            stack += var.owner.inputs
    return conditions - reached


def describe_unit(model: pm.Model, dims: frozenset[str], units: Units | None = None) -> str:
    """Say what one record is, for the report."""
    terms = model.observed_RVs or model.potentials
    observed = ", ".join(f"'{v.name}'" for v in terms)
    dim = f" (dim {', '.join(repr(d) for d in sorted(dims))})" if dims else ""
    if units is not None:
        return units.describe(f"{observed}{dim}")
    return f"one row along the leading axis of {observed}{dim}"
