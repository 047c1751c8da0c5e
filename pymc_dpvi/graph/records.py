r"""From a PyMC model to the log-density of one record.

The model is an ordinary one on the full data,

.. math:: \log p(x_1,\dots,x_N, z) = \log p(z) + \sum_{i=1}^{N} \log p(x_i \mid z),

where a *record* :math:`x_i` is one row along the leading axis that the observed variables share, and
:math:`z` are the unconstrained latent values. :func:`build_record_model` finds the arrays that are
indexed by records and remakes the likelihood with every one of them replaced by a placeholder of one
row (`rebuild`). So :math:`\log p(x_i \mid z)` can depend on that row and on :math:`z` alone: this is
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
from pymc.distributions.multivariate import _LKJCholeskyCovRV
from pymc.initial_point import make_initial_point_expression
from pymc.logprob.basic import conditional_logp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.replace import graph_replace
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.errors import NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.guards import guard_records
from pymc_dpvi.graph.hsgp import refuse_hsgp
from pymc_dpvi.graph.inspected import refuse_inspected
from pymc_dpvi.graph.marginalised import is_marginal
from pymc_dpvi.graph.model_checks import (
    array_name,
    check_against_records,
    check_before_records,
    check_orientation,
    depends_on,
    global_dims,
)
from pymc_dpvi.graph.opaque import is_opaque_value, opaque_part
from pymc_dpvi.graph.public_arrays import describe_public
from pymc_dpvi.graph.rebuild import array_shape, array_value, is_array, resize_records, substituted, walk
from pymc_dpvi.graph.record_axis import (
    describe_unit,
    find_record_arrays,
    find_record_axis,
    public_variables,
)
from pymc_dpvi.graph.selections import refuse_masks
from pymc_dpvi.graph.single_numbers import (
    constant_parts,
    joined_numbers,
    shape_vectors,
    written_triangles,
)
from pymc_dpvi.graph.unprotected import refuse_unprotected, says_nothing
from pymc_dpvi.graph.written_loops import is_long
from pymc_dpvi.lowering import fast_compile

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
        Names and shapes of the arrays, beside the records, on which the release depends, and the dims whose
        labels it has: all that is taken as public, but for single numbers.
    public : frozenset of Variable
        The arrays that the user declared public.
    unit : str
        What a record is, in words.
    in_range : tuple of TensorVariable
        Whether indices are within range that public arrays alone decide on.
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
    in_range: tuple[TensorVariable, ...] = ()

    @property
    def row_logp(self) -> TensorVariable:
        """Scalar log-density of the record in `rows`."""
        return pt.add(*[f.sum() for f in self.factors.values()])

    def may_be_released(self, var: Variable) -> bool:
        """Whether a function of the free variables has no private number in it.

        Behind it may stand free variables, single numbers and arrays that were declared public, and nothing
        else: any other array may be data, in whatever form. That holds for an array of zeros, or of 0, 1, 2,
        ..., too, since all records may have answered so; written with an operation (``pt.zeros``,
        ``pt.eye``) it is a few single numbers. A long formula may be one too (`written_loops.is_long`).

        No length is compared with the number of records, nor does an entry decide: what is withheld would
        tell whether that number equals a length, or what the records have answered. (`written_triangles`
        looks at entries where no record can have put them.)
        """
        model = self.model
        dims = model.named_vars_to_dims.get(getattr(var, "name", None)) or ()
        if not self.record_dims.isdisjoint(dims):
            return False
        behind = self._behind([var])
        if not set(behind) & set(model.free_RVs):
            return False  # a number of its own, wherever it came from
        plain = self.plain(behind)
        if any(self.is_private(v) for v in behind if v not in plain):
            return False
        return not is_long(v for v in behind if v not in model.free_RVs)

    @property
    def released(self) -> tuple[Variable, ...]:
        """Deterministics of today's model that a release has: each may be, and all of them together.

        A hundred of them are a table as well, whatever is in them (`written_loops.is_long`); then none is
        released.
        """
        model = self.model
        fine = tuple(d for d in model.deterministics if self.may_be_released(d))
        behind = [v for v in self._behind(fine) if v not in model.free_RVs]
        return () if is_long(behind, [fine]) else fine

    def plain(self, behind: Sequence[Variable]) -> frozenset[Variable]:
        """Return the constant arrays of a graph that are no data by the way in which they are read.

        They are its shapes, those by which an LKJ variable is unpacked, and a number joined to a vector.

        Parameters
        ----------
        behind : sequence of Variable
            All variables of the graph.

        Returns
        -------
        frozenset of Variable
        """
        tables = written_triangles(behind, self._is_packed)
        return frozenset(shape_vectors(behind) | tables | joined_numbers(behind))

    def _is_packed(self, var: Variable) -> bool:
        """Whether `var` is an LKJ variable, packed, also as PyMC writes it in terms of its value.

        What follows from one, such as twice its entries, may be written wherever records say.
        """
        packed = [rv for rv in self.model.free_RVs if isinstance(rv.owner.op, _LKJCholeskyCovRV)]
        written = self.model.replace_rvs_by_values(packed) if packed else ()
        return var in packed or any(equal_computations([var], [v]) for v in written)

    def _behind(self, outputs: Iterable[Variable]) -> list[Variable]:
        """List what stands behind outputs, up to the free variables."""
        return walk(outputs, stop=self.model.free_RVs, into_size=True, columns_of=self.arrays)

    def is_private(self, var: Variable) -> bool:
        """Whether `var` is an array that nobody declared public, or an operation may have put one into it.

        Single numbers are public. An array is private whatever it holds and however long it is: all zeros
        may be the answer of every record, and one entry may be what is left of them (``y[y > 5]``).
        """
        if self._holds_data(var):
            return True
        return is_array(var) and var not in self.public and array_value(var).ndim > 0

    def _holds_data(self, var: Variable) -> bool:
        """Whether `var` is records, or an operation or a value that hides its numbers."""
        held = {*self.arrays, *self.model.observed_RVs}
        held |= {self.model.dim_lengths[d] for d in self.record_dims}
        if var in held:
            return True
        if var.owner is not None:
            return var not in self.model.free_RVs and opaque_part(var.owner.op) is not None
        return is_opaque_value(var)

    @property
    def released_dims(self) -> frozenset[str]:
        """Dims whose labels are released: those of free variables and of arrays that were declared public.

        The labels of any other dim may be names of the records.
        """
        named = self.model.named_vars_to_dims
        declared = {d for v in self.public for d in named.get(v.name) or () if d is not None}
        return frozenset((global_dims(self.model) | declared) - self.record_dims)

    def check_unchanged(self) -> None:
        """Raise if the checks that were made when the model was split hold no longer.

        Raises
        ------
        UnsupportedModelError
            If the model has other variables than then, or ``pm.set_data`` changed a shape, or filled an
            array that was a single number with more.
        """
        model = self.model
        if tuple(
            model.rvs_to_values[v] for v in model.free_RVs
        ) != self.value_vars or self.factors.keys() != {
            *(rv.name for rv in model.observed_RVs),
            *(p.name for p in _record_potentials(model, self.arrays)),
        }:
            raise UnsupportedModelError(
                "The model has other variables now than when the method was made, so the checks of the model "
                "hold no longer. Make a new DPADVI."
            )
        for array, row in zip(self.arrays, self.rows, strict=True):
            if array_shape(array) != (self.num_records, *row.type.shape[1:]):
                raise UnsupportedModelError(
                    f"{array_name(self.model, array)} has another shape now than when the method was made "
                    "(pm.set_data), so the checks of the model hold no longer. Make a new DPADVI."
                )
        # No length is compared with N any more: an array that was not there yet is refused as what it is.
        assert_no_record_array(replace(self, num_records=-1))
        self.check_public()

    def check_public(self) -> None:
        """Raise if an index on which neither records nor latent values decide leaves its table.

        Raises
        ------
        UnsupportedModelError
        """
        if self.in_range and not all(pytensor.function([], list(self.in_range), mode=fast_compile())()):
            raise UnsupportedModelError(
                "An index array of the model, on which neither records nor free variables decide, points "
                "beyond the end of what it indexes (or a mask has another shape, or a loop more steps than "
                "its sequences have entries). Look at what pm.set_data has put there. Nothing is spent."
            )

    def data(self) -> list[SharedVariable]:
        """Return the record arrays as new shared variables on the model's own memory (no copy).

        They keep the present values if the user calls ``pm.set_data`` later.

        Raises
        ------
        UnsupportedModelError
            As :meth:`check_unchanged`.
        """
        self.check_unchanged()
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
    public = public_variables(model, public_data)
    check_before_records(model)
    refuse_masks(model, public)
    num_records, observed_dims = find_record_axis(model, record_dim)
    arrays, dims = find_record_arrays(model, num_records, observed_dims, public)
    check_against_records(model, num_records, dims, arrays)
    refuse_inspected(model, arrays)
    refuse_hsgp(model, arrays, public)
    check_orientation(model, num_records, arrays, public)

    one = rebuild_likelihood(model, num_records, dims, arrays, rows=1)
    prior = _prior(model, arrays)
    start = _initial_points(model)
    record = RecordModel(
        model=model,
        num_records=num_records,
        record_dims=dims,
        arrays=tuple(arrays),
        rows=one.rows,
        value_vars=tuple(model.rvs_to_values[v] for v in model.free_RVs),
        factors=one.factors,
        prior_logp=prior,
        public_arrays=(),
        public=frozenset(public),
        unit=describe_unit(model, observed_dims),
    )
    derived = _unevaluated(one, len(model.observed_RVs), len(_record_potentials(model, arrays)))
    assert_no_record_array(record, one.generative, derived, start)
    evaluated = [*one.generative, *derived, *record.released]
    record = replace(
        record,
        public_arrays=tuple(describe_public(model, arrays, evaluated, [prior, *start], record.released_dims)),
    )
    factors, fixed = guard_records(
        list(one.factors.values()),
        record.rows,
        record.value_vars,
        public,
        lambda v: f"'{v.name}'" if v.name else f"The likelihood of {', '.join(map(repr, one.factors))}",
    )
    (prior,), fixed_in_prior = guard_records(
        [record.prior_logp],
        (),
        record.value_vars,
        public,
        lambda v: f"'{v.name}'" if v.name else "The prior",
    )
    record = replace(
        record,
        factors=dict(zip(one.factors, factors, strict=True)),
        prior_logp=prior,
        in_range=(*fixed, *fixed_in_prior),
    )
    record.check_public()
    return record


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
    generative : tuple of Variable
        The observed variables, their values and the record Potentials, remade, before PyMC derived the
        log-density of them; in terms of `rows` and `free`.
    derived : tuple of Variable
        Their log-densities, in terms of `rows` and `free`.
    """

    factors: dict[str, TensorVariable]
    rows: tuple[TensorVariable, ...]
    memo: dict[Variable, Variable]
    free: dict[Variable, Variable]
    generative: tuple[Variable, ...]
    derived: tuple[TensorVariable, ...]


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
        # Not pt.tensor(name=...), which reads a name such as "1|g" or "a, b" as a signature.
        TensorType(a.type.dtype, shape=(rows, *array_shape(a)[1:]))(name=f"{a.name or 'records'}_row")
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
    _refuse_unread(model, arrays, placeholders, new)
    new_observed = new[: len(observed)]
    new_potentials = new[len(observed) : len(observed) + len(potentials)]
    new_values = new[len(observed) + len(potentials) :]
    derived = _log_densities(new_observed, new_potentials, new_values)
    if derived is None:
        raise UnsupportedModelError(
            f"PyMC cannot derive the log-density of the observed variables {sorted(names.values())}. Use a "
            "distribution that has one, or pm.CustomDist(..., logp=...)."
        )
    terms = in_values(model, derived, free)
    # Outcomes that share a marginalised variable have one joint term; pymc_extras gives the others a zero.
    for k, rv in enumerate(observed):
        if is_marginal(rv.owner.op) and isinstance(terms[k], Constant) and terms[k].type.ndim == 0:
            terms[k] = pt.zeros((rows,))
    named = [v.name for v in (*observed, *potentials)]
    for name, term in zip(named, terms, strict=True):
        if _draws(term):
            _refuse_draws(name)
        static = term.type.shape
        if not static or static[0] not in (rows, None):
            raise NotSeparableError(
                f"The log-density of '{name}' for {rows} record(s) does not have one entry per record. An "
                "array whose leading length is the number of records did not follow "
                "the records: give it to the model as data (pm.Data(name, array, dims=...)), or drop the "
                "fixed length from pt.zeros, pt.ones, reshape or shape=."
            )
    factors = dict(zip(named, terms, strict=True))
    return Likelihood(factors, tuple(placeholders), memo, free, tuple(new), tuple(derived))


def _draws(term: Variable) -> bool:
    """Whether a log-density draws random numbers, or has a copy of a variable in place of its value."""
    return any(v.owner is not None and isinstance(v.owner.op, RNGConsumerOp) for v in walk([term]))


def _refuse_draws(name: str) -> None:
    raise UnsupportedModelError(
        f"The log-density of '{name}' has a random variable in it that is none of the model's, so it would "
        "be another one at each call. pm.logp makes a copy of the model's variables where it derives a "
        "density, such as that of pt.exp(pm.Normal.dist(...)): write an outcome with observed=, as in "
        "pm.LogNormal or pm.CustomDist(..., dist=...), and other densities out."
    )


def _refuse_unread(
    model: pm.Model, arrays: Sequence[Variable], rows: Sequence[Variable], graphs: Sequence[Variable]
) -> None:
    """Raise if an array of a static length has fallen out of the likelihood, which read its shape alone.

    It is then a record array for no other reason than its length. (That of ``pm.Data`` is no constant: for
    any other number of records it stays, and is refused as what is not indexed by them.)
    """
    initial = [v for v in model.rvs_to_initial_values.values() if isinstance(v, Variable)]
    # What is behind a prior or an initial value is refused for that.
    read = {*walk(graphs, into_size=True), *walk([*model.free_RVs, *initial])}
    for array, row in zip(arrays, rows, strict=True):
        static = array.type.shape[0] is not None  # type: ignore[attr-defined]
        if static and row not in read and array not in read:
            raise NotSeparableError(
                f"{array_name(model, array)} gives the likelihood its shape alone, and no entry: it is as "
                "long as the records, and it cannot be seen whether it holds them. Write that length as a "
                "number, or take it from an array of records whose entries are read."
            )


def _log_densities(
    observed: Sequence[Variable], potentials: Sequence[Variable], values: Sequence[Variable]
) -> list[TensorVariable] | None:
    """Return the log-densities of observed variables at their values, then the Potentials there."""
    rv_values = dict(zip(observed, values, strict=True))
    logps: dict[Variable, TensorVariable] = {}
    with suppress(NotImplementedError):
        logps = conditional_logp(dict(rv_values), warn_rvs=False)
    if len(logps) < len(rv_values):
        return None
    terms = [logps[value] for value in rv_values.values()]
    return terms + (graph_replace(list(potentials), rv_values, strict=False) if potentials else [])


def _unevaluated(one: Likelihood, num_observed: int, num_potentials: int) -> list[TensorVariable]:
    """Return log-densities whose arrays are those of the model and those of ``logp=`` functions.

    PyMC evaluates some constants on the way, and the outcome could come from anywhere. Where there is such an
    array, the log-densities are derived of graphs that have variables in place of the model's constants.
    """
    found = walk(one.generative)
    strange = set(walk(one.derived, into_size=True)) - set(found)
    strange -= shape_vectors([*found, *walk(one.derived)])
    constants = {v: v.type() for v in constant_parts(found)}
    if not constants or all(says_nothing(v) for v in strange if is_array(v)):
        return list(one.derived)
    again = None
    with suppress(Exception):  # a density that needs to see a constant: then the first one is judged
        graphs = list(one.generative)
        for part in reversed(constants):  # one may follow from another
            graphs = graph_replace(graphs, {part: constants[part]}, strict=False)
        observed, potentials = graphs[:num_observed], graphs[num_observed : num_observed + num_potentials]
        again = _log_densities(observed, potentials, graphs[num_observed + num_potentials :])
    return list(one.derived) if again is None else again


def _initial_points(model: pm.Model) -> list[Variable]:
    """Return the unconstrained values that PyMC starts from, as graphs; none if it cannot make them."""
    start: list[Variable] = []
    with suppress(Exception):  # as it will say itself, when the approximation is made
        start = make_initial_point_expression(
            free_rvs=model.free_RVs,
            rvs_to_transforms=model.rvs_to_transforms,
            initval_strategies=model.rvs_to_initial_values,
            return_transformed=True,
        )
    # PyMC has copied the shared arrays, which the copies still hold.
    initial = [v for v in model.rvs_to_initial_values.values() if isinstance(v, Variable)]
    model_vars = walk([*model.free_RVs, *initial, *model.data_vars], into_size=True)
    originals = {id(v.container): v for v in model_vars if isinstance(v, SharedVariable)}
    copies = {
        v: originals.get(id(v.container), v)
        for v in walk(start, into_size=True)
        if isinstance(v, SharedVariable)
    }
    return list(graph_replace(start, copies, strict=False)) if start and copies else list(start)


def in_values(
    model: pm.Model, graphs: Sequence[Variable], free: dict[Variable, Variable]
) -> list[TensorVariable]:
    """Write graphs of the free variables' placeholders in the model's unconstrained values."""
    constrained = model.replace_rvs_by_values(list(model.free_RVs))
    stand_ins = {free[rv]: c for rv, c in zip(model.free_RVs, constrained, strict=True)}
    # The size of a random variable may be written with them, and is not gone through.
    return list(substituted(resize_records(graphs, stand_ins, num_records=-1, rows=-1)[0], stand_ins))


def assert_no_record_array(
    record: RecordModel,
    generative: Sequence[Variable] = (),
    derived: Sequence[Variable] = (),
    start: Sequence[Variable] = (),
) -> None:
    """Check that nothing in the one-row graph or in the prior still holds records (`unprotected`).

    Parameters
    ----------
    record : RecordModel
    generative : sequence of Variable
        What the log-densities were derived from, `Likelihood.generative`.
    derived : sequence of Variable
        The log-densities as they were derived, `Likelihood.derived`.
    start : sequence of Variable
        Initial points.

    Raises
    ------
    UnsupportedModelError
        If an array is left that may hold private data; `NotSeparableError` in the likelihood.
    """
    model = record.model
    likelihood = _record_potentials(model, record.arrays)
    refuse_unprotected(
        model,
        record.num_records,
        held={*record.arrays, *(model.dim_lengths[d] for d in record.record_dims)},
        public=record.public,
        generative=generative,
        derived=derived,
        factors=record.factors,
        prior=record.prior_logp,
        data_free=[p for p in model.potentials if p not in likelihood],
        start=start,
    )


def _record_potentials(model: pm.Model, arrays: Sequence[Variable]) -> list[TensorVariable]:
    held = [*arrays, *model.observed_RVs]
    return [p for p in model.potentials if depends_on([p], held, stop=model.free_RVs)]


def _prior(model: pm.Model, arrays: Sequence[Variable]) -> TensorVariable:
    likelihood = _record_potentials(model, arrays)
    variables = [*model.free_RVs, *(p for p in model.potentials if p not in likelihood)]
    prior = model.logp(vars=variables, jacobian=True)
    if _draws(prior):
        _refuse_draws(next(v.name for v in variables if _draws(model.logp(vars=[v], jacobian=True))))
    return prior


def _describe(var: Variable, names: dict[Variable, str]) -> str:
    """Name a variable, or the nearest named thing it feeds."""
    if var.name:
        return f"'{var.name}'"
    for target, name in names.items():
        if var in set(walk([target])):
            return f"A part of '{name}'"
    return "A part of the likelihood"
