r"""From a PyMC model to the log-density of one record.

The model is an ordinary one on the full data,

.. math:: \log p(x_1,\dots,x_N, z) = \log p(z) + \sum_{i=1}^{N} \log p(x_i \mid z),

where a *record* :math:`x_i` is one row along the leading axis that the observed variables share, and
:math:`z` are the unconstrained latent values. :func:`build_record_model` finds the arrays that are
indexed by records and remakes the likelihood with every one of them replaced by a placeholder of one
row (`graphs`). So :math:`\log p(x_i \mid z)` can depend on that row and on :math:`z` alone: this is
what the sensitivity of the mechanism rests on. :func:`assert_no_record_array` checks it on the finished
graph. That the pieces also add up to the model's own log-density is verified by `separability`.

What is *not* a record array counts as public, and the privacy report lists it by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.basic import conditional_logp
from pymc.pytensorf import compile as pm_compile
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.errors import ArgumentError, NotSeparableError, UnsupportedModelError
from pymc_dpvi.graphs import array_shape, array_value, is_array, resize_records, walk
from pymc_dpvi.guards import guard_records, is_structural
from pymc_dpvi.model_checks import (
    array_name,
    check_against_records,
    check_before_records,
    depends_on,
    global_dims,
)

__all__ = [
    "Likelihood",
    "RecordModel",
    "assert_no_record_array",
    "build_record_model",
    "in_values",
    "rebuild_likelihood",
]


@dataclass(frozen=True)
class RecordModel:
    """One record's log-density, the data-free prior, and the arrays that hold the records.

    Attributes
    ----------
    model : pymc.Model
        The user's model, unchanged.
    num_records : int
        N. It is used for sampling batches; it is no part of any release.
    record_dims : frozenset of str
        Names of the dims that run over records; they and their coords are never released.
    arrays : tuple of Variable
        The record arrays (constants and shared variables of the model), leading length N.
    rows : tuple of TensorVariable
        Their one-row placeholders, in the same order, shape ``(1, ...)``.
    value_vars : tuple of TensorVariable
        The unconstrained values of the free variables, in the model's order: the inputs z.
    factors : dict of str to TensorVariable
        Per observed variable or Potential, the log-density of the one row, shape ``(1, ...)``.
    prior_logp : TensorVariable
        Scalar: log prior plus Jacobians plus data-free Potentials.
    public_arrays : tuple of str
        Names and shapes of the arrays in the likelihood that are taken as public.
    public : frozenset of Variable
        The arrays that the user declared public.
    unit : str
        What a record is, in words.
    """

    model: pm.Model
    num_records: int = field(repr=False)
    record_dims: frozenset[str]
    arrays: tuple[Variable, ...] = field(repr=False)
    rows: tuple[TensorVariable, ...]
    value_vars: tuple[TensorVariable, ...]
    factors: dict[str, TensorVariable]
    prior_logp: TensorVariable
    public_arrays: tuple[str, ...]
    public: frozenset[Variable]
    unit: str

    @property
    def row_logp(self) -> TensorVariable:
        """Scalar log-density of the record in `rows`."""
        return pt.add(*[f.sum() for f in self.factors.values()])

    def may_be_released(self, var: Variable) -> bool:
        """Whether a function of the free variables has no private number in it.

        Behind it may stand free variables, single numbers (and zeros, ones, identities) and arrays that
        were declared public, and nothing else: any other array may be data, in whatever form.
        """
        model = self.model
        dims = model.named_vars_to_dims.get(var.name) or (None,) * var.type.ndim  # type: ignore[attr-defined]
        if any(d in self.record_dims for d in dims if d is not None):
            return False
        held = {*self.arrays, *model.observed_RVs, *(model.dim_lengths[d] for d in self.record_dims)}
        behind = walk([var], stop=model.free_RVs, into_size=True, through_shape=False)
        if not set(behind) & set(model.free_RVs):
            return False  # a number of its own, wherever it came from
        return not any(
            v in held or (is_array(v) and v not in self.public and not is_structural(array_value(v)))
            for v in behind
        )

    def data(self) -> list[SharedVariable]:
        """Return the record arrays as new shared variables on the model's own memory (no copy).

        They keep the present values if the user calls ``pm.set_data`` later.
        """
        return [pytensor.shared(array_value(a), name=a.name or "records", borrow=True) for a in self.arrays]


@quiet_pytensor()
def build_record_model(
    model: pm.Model,
    *,
    record_dim: str | None = None,
    public_data: Iterable[str | Variable] = (),
) -> RecordModel:
    """Split a PyMC model into one record's log-density and a data-free prior.

    Parameters
    ----------
    model : pymc.Model
        A model on the full data; free variables are global and continuous.
    record_dim : str, optional
        Name of the dim that runs over records. Needed only where lengths are ambiguous.
    public_data : iterable of str or Variable
        ``pm.Data`` that are known to everybody and do not belong to a record.

    Returns
    -------
    RecordModel

    Raises
    ------
    UnsupportedModelError
        The model has a part that cannot be private as written; the message says what to do.
    NotSeparableError
        The likelihood couples records.
    """
    public = _public_variables(model, public_data)
    check_before_records(model)
    num_records, observed_dims = _record_axis(model, record_dim)
    arrays, dims = _record_arrays(model, num_records, observed_dims, public)
    check_against_records(model, num_records, dims, arrays)

    one = rebuild_likelihood(model, num_records, dims, arrays, rows=1)
    record = RecordModel(
        model=model,
        num_records=num_records,
        record_dims=dims,
        arrays=tuple(arrays),
        rows=one.rows,
        value_vars=tuple(model.rvs_to_values[v] for v in model.free_RVs),
        factors=one.factors,
        prior_logp=_prior(model, arrays),
        public_arrays=tuple(_public_names(model, arrays, num_records)),
        public=frozenset(public),
        unit=_unit(model, observed_dims),
    )
    assert_no_record_array(record)
    factors = guard_records(
        list(one.factors.values()),
        record.rows,
        record.value_vars,
        public,
        lambda v: f"'{v.name}'" if v.name else f"The likelihood of {', '.join(map(repr, one.factors))}",
    )
    return replace(record, factors=dict(zip(one.factors, factors, strict=True)))


@dataclass(frozen=True)
class Likelihood:
    """The likelihood remade for some number of rows.

    Attributes
    ----------
    factors : dict of str to TensorVariable
        Log-density per observed variable and record Potential, shape ``(rows, ...)``, as a function of
        the model's value variables and of `rows`.
    rows : tuple of TensorVariable
        Placeholder per record array, shape ``(rows, ...)``.
    memo : dict of Variable to Variable
        Every variable of the model that follows the records, to its remade one; in terms of `free`.
    free : dict of Variable to Variable
        Placeholder per free variable.
    """

    factors: dict[str, TensorVariable]
    rows: tuple[TensorVariable, ...]
    memo: dict[Variable, Variable]
    free: dict[Variable, Variable]


def rebuild_likelihood(
    model: pm.Model,
    num_records: int,
    dims: frozenset[str],
    arrays: Sequence[Variable],
    *,
    rows: int,
) -> Likelihood:
    """Remake the likelihood with `rows` records instead of `num_records`."""
    placeholders = [
        pt.tensor(
            name=f"{a.name or 'records'}_row",
            dtype=a.type.dtype,
            shape=(rows, *array_shape(a)[1:]),
        )
        for a in arrays
    ]
    # Free variables become placeholders too: PyMC must not try to derive densities through them.
    free = {rv: rv.type(name=f"{rv.name}_value") for rv in model.free_RVs}
    lengths = {
        model.dim_lengths[d]: pt.constant(rows, dtype="int64")
        for d in dims
        if isinstance(model.dim_lengths.get(d), Variable)
    }
    names = {rv: rv.name for rv in model.observed_RVs} | {p: p.name for p in model.potentials}
    observed = list(model.observed_RVs)
    potentials = _record_potentials(model, arrays)
    values = [model.rvs_to_values[rv] for rv in observed]
    new, memo = resize_records(
        [*observed, *potentials, *values],
        {**dict(zip(arrays, placeholders, strict=True)), **free, **lengths},
        num_records=num_records,
        rows=rows,
        resize=observed,
        describe=lambda v: _describe(v, names),
    )
    new_observed = new[: len(observed)]
    new_potentials = new[len(observed) : len(observed) + len(potentials)]
    new_values = new[len(observed) + len(potentials) :]
    rv_values = dict(zip(new_observed, new_values, strict=True))
    logps: dict[Variable, TensorVariable] = {}
    with suppress(NotImplementedError):
        logps = conditional_logp(dict(rv_values), warn_rvs=False)
    if len(logps) < len(rv_values):
        raise UnsupportedModelError(
            f"PyMC cannot derive the log-density of the observed variables {sorted(names.values())}. Use a "
            "distribution that has one, or pm.CustomDist(..., logp=...)."
        )
    terms = [logps[value] for value in rv_values.values()]
    if new_potentials:
        terms += graph_replace(new_potentials, rv_values, strict=False)
    terms = in_values(model, terms, free)
    named = [v.name for v in (*observed, *potentials)]
    for name, term in zip(named, terms, strict=True):
        static = term.type.shape
        if not static or static[0] not in (rows, None):
            raise NotSeparableError(
                f"The log-density of '{name}' for {rows} record(s) has shape {static} instead of one "
                "entry per record. An array whose leading length is the number of records did not follow "
                "the records: give it to the model as data (pm.Data(name, array, dims=...)), or drop the "
                "fixed length from pt.zeros, pt.ones, reshape or shape=."
            )
    return Likelihood(dict(zip(named, terms, strict=True)), tuple(placeholders), memo, free)


def in_values(
    model: pm.Model, graphs: Sequence[Variable], free: dict[Variable, Variable]
) -> list[TensorVariable]:
    """Write graphs of the free variables' placeholders in the model's unconstrained values."""
    constrained = model.replace_rvs_by_values(list(model.free_RVs))
    stand_ins = {free[rv]: c for rv, c in zip(model.free_RVs, constrained, strict=True)}
    return resize_records(graphs, stand_ins, num_records=-1, rows=-1)[0]


def assert_no_record_array(record: RecordModel) -> None:
    """Check that nothing in the one-row graph or in the prior still holds records.

    Only lengths of trailing axes of record arrays may be read (a matrix's number of columns, say). Arrays
    in inner graphs count. ``pm.Data`` that are not indexed by records must be declared public: they are
    data, and nothing in the graph says whose.

    Raises
    ------
    UnsupportedModelError
        If an array is left that may hold private data; `NotSeparableError` in the likelihood.
    """
    model = record.model
    held = {*record.arrays, *(model.dim_lengths[d] for d in record.record_dims)}
    containers = set(model.data_vars)
    likelihood = _record_potentials(model, record.arrays)
    data_free = [p for p in model.potentials if p not in likelihood]
    for graphs, where in (
        (list(record.factors.values()), "likelihood"),
        ([record.prior_logp, *data_free], "prior"),
    ):
        for var in walk(graphs, into_size=True, through_shape=False):
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
            if not is_array(var) or var in record.public or is_structural(array_value(var)):
                continue
            if not _may_stay(record, var):
                raise NotSeparableError(
                    f"{array_name(model, var)} has an axis as long as the number of records, and it does "
                    f"not follow them as a leading axis of the likelihood would (in the {where}). "
                    + _AXIS_ADVICE
                )
            if var in containers:
                raise UnsupportedModelError(
                    f"The pm.Data '{var.name}' enters the {where} but is not indexed by records, so nothing "
                    f"protects it. If everybody may know it, say public_data=['{var.name}']; if it holds "
                    "personal data, expand it to one row per record."
                )
    for pot in data_free:
        for var in walk([pot], stop=model.free_RVs, into_size=True, through_shape=False):
            if is_array(var) and var not in record.public and not is_structural(array_value(var)):
                raise UnsupportedModelError(
                    f"The Potential '{pot.name}' has an array of numbers in it but no axis over records, so "
                    "nothing protects the array. If everybody may know it, put it into pm.Data('name', ...) "
                    "and say public_data=['name']; a Potential on records needs one entry per record."
                )


_AXIS_ADVICE = (
    "If that axis holds records, transpose the array so that they run along the first axis only; if the "
    "length is the same by chance, put the array into pm.Data(name, ..., dims=...) and give that axis "
    "the dim of a free variable, or name it in public_data=[...] if everybody may know it."
)


def _may_stay(record: RecordModel, var: Variable) -> bool:
    """Whether a remaining array has no axis over records."""
    axes = [k for k, n in enumerate(array_shape(var)) if n == record.num_records]
    return all(_is_global_axis(record.model, var, k) for k in axes)


def _is_global_axis(model: pm.Model, var: Variable, axis: int) -> bool:
    """Whether the axis has a name that a free variable has too: then its length is N by chance."""
    dims = model.named_vars_to_dims.get(var.name) if var.name else None
    return dims is not None and dims[axis] in global_dims(model)


def _public_variables(model: pm.Model, public_data: Iterable[str | Variable]) -> set[Variable]:
    if isinstance(public_data, str | Variable):
        public_data = [public_data]
    public: set[Variable] = set()
    for item in public_data:
        var = model.named_vars.get(item) if isinstance(item, str) else item
        if not isinstance(var, Variable) or not is_array(var):
            raise ArgumentError(
                f"public_data must name pm.Data of the model; found {_shown(item)}. The model's data are "
                f"{sorted(d.name for d in model.data_vars)}."
            )
        public.add(var)
    return public


def _shown(value: object) -> str:
    """Show what the user typed if it is a name; else only its type, since it may be data."""
    return repr(value) if isinstance(value, str) else f"a {type(value).__name__}"


def _record_axis(model: pm.Model, record_dim: str | None) -> tuple[int, frozenset[str]]:
    """Return the number of records, and the names of the dims that run over them."""
    lengths: dict[str, int] = {}
    leading_dims: set[str] = set()
    for rv in model.observed_RVs:
        value = model.rvs_to_values[rv]
        roots = [v for v in walk([value]) if is_array(v) and len(array_shape(v))]
        if value.type.ndim == 0 or not roots:
            raise UnsupportedModelError(
                f"The observed variable '{rv.name}' is a single number (a scalar), so there are no "
                "records along a leading axis. Observe an array with one row per record."
            )
        length = value.type.shape[0]
        lengths[rv.name] = _length(value.shape[0]) if length is None else length
        if all(array_shape(v)[0] != lengths[rv.name] for v in roots):
            raise UnsupportedModelError(
                f"The observed values of '{rv.name}' are only a part of the array that holds them (a slice "
                "of pm.Data, for example), so it is not clear which rows are the records. Give the model "
                "the rows to be fitted and no others."
            )
        dims = model.named_vars_to_dims.get(rv.name)
        if dims and dims[0] is not None:
            leading_dims.add(dims[0])
    for pot in model.potentials if not model.observed_RVs else ():
        # A likelihood written as a Potential alone: the arrays behind it say how long the record axis is.
        behind = {array_shape(v)[:1] for v in walk([pot], stop=model.free_RVs) if is_array(v)} - {()}
        if pot.type.ndim > 0 and (length := _length(pot.shape[0])) > 1 and (length,) in behind:
            lengths[pot.name] = length
        dims = model.named_vars_to_dims.get(pot.name)
        if dims and dims[0] is not None:
            leading_dims.add(dims[0])
        if pot.type.ndim == 0 and behind:
            raise NotSeparableError(
                f"The Potential '{pot.name}' is one number for all data, so it cannot be seen that one "
                "record does not enter another record's term. Write it with one entry per record, each "
                "from that record's row and the parameters only."
            )
    if not lengths and record_dim is None:
        raise UnsupportedModelError(
            "The model has no observed variable (and no Potential with one entry per record), so there "
            "are no records to protect. Give one variable observed=..., with one entry per record along "
            "its first axis; for a likelihood that is all Potentials on pm.Data, name record_dim=."
        )
    if record_dim is not None:
        if not isinstance(record_dim, str) or record_dim not in model.dim_lengths:
            raise ArgumentError(
                f"record_dim={_shown(record_dim)} is not a dim of the model; its dims are "
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
                "dim. Transpose the data so that records run along the first axis of every observed "
                "variable."
            )
        leading_dims.add(record_dim)
        if not lengths:
            lengths[record_dim] = _length(model.dim_lengths[record_dim])
    if len(set(lengths.values())) > 1:
        raise UnsupportedModelError(
            f"The observed variables {sorted(lengths)} have different lengths, so one row is not one "
            "record. Bring them to one row per person (for example one matrix with a column each), or "
            "fit them separately and add up the privacy costs."
        )
    num_records = next(iter(lengths.values()))
    if num_records < 2:
        raise UnsupportedModelError(
            f"The observed variable '{next(iter(lengths))}' has fewer than two records. There is nothing "
            "to learn privately from one."
        )
    return num_records, frozenset(leading_dims)


def _length(scalar: Variable) -> int:
    """Evaluate a scalar that depends on shapes only."""
    return int(pm_compile([], scalar, mode="FAST_COMPILE")())


def _record_arrays(
    model: pm.Model, num_records: int, dims: frozenset[str], public: set[Variable]
) -> tuple[list[Variable], frozenset[str]]:
    """Every array of leading length N behind the likelihood, and the dims of those leading axes.

    The only exceptions are arrays declared public, and arrays whose leading dim is also the dim of a
    free variable (as many groups as records, by chance).
    """
    roots = [*model.observed_RVs, *(model.rvs_to_values[rv] for rv in model.observed_RVs)]
    found: list[Variable] = []
    leading = set(dims)
    # Priors are searched too: what is found there is refused, as an array that the prior must not see.
    for var in walk([*roots, *model.potentials, *model.free_RVs], through_shape=False):
        if not is_array(var) or var in public or array_shape(var)[:1] != (num_records,):
            continue
        names = model.named_vars_to_dims.get(var.name) if var.name else None
        dim = names[0] if names else None
        if dim is not None and dim not in dims and dim in global_dims(model):
            continue
        found.append(var)
        if dim is not None:
            leading.add(dim)
    return found, frozenset(leading)


def _record_potentials(model: pm.Model, arrays: Sequence[Variable]) -> list[TensorVariable]:
    held = [*arrays, *model.observed_RVs]
    return [p for p in model.potentials if depends_on([p], held, stop=model.free_RVs)]


def _prior(model: pm.Model, arrays: Sequence[Variable]) -> TensorVariable:
    likelihood = _record_potentials(model, arrays)
    data_free = [p for p in model.potentials if p not in likelihood]
    return model.logp(vars=[*model.free_RVs, *data_free], jacobian=True)


def _public_names(model: pm.Model, arrays: Sequence[Variable], num_records: int) -> list[str]:
    names = []
    for var in walk([*model.observed_RVs, *model.potentials], into_size=False):
        if is_array(var) and var not in arrays and len(array_shape(var)) and array_value(var).size > 1:
            label = var.name if var.name else type(var).__name__.removeprefix("Tensor").lower()
            shape = tuple("N" if s == num_records else s for s in array_shape(var))
            names.append(f"{label} {shape}".replace("'", ""))
    return sorted(set(names))


def _unit(model: pm.Model, dims: frozenset[str]) -> str:
    terms = model.observed_RVs or model.potentials
    observed = ", ".join(f"'{v.name}'" for v in terms)
    dim = f" (dim {', '.join(repr(d) for d in sorted(dims))})" if dims else ""
    return f"one row along the leading axis of {observed}{dim}"


def _describe(var: Variable, names: dict[Variable, str]) -> str:
    """Name a variable, or the nearest named thing it feeds."""
    if var.name:
        return f"'{var.name}'"
    for target, name in names.items():
        if var in set(walk([target])):
            return f"A part of '{name}'"
    return "A part of the likelihood"
