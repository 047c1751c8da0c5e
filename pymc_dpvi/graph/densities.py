"""The log-densities that a fit evaluates: of some number of records, of the prior, and where a fit starts.

In: a PyMC model, and which of its arrays run along the records (`record_axis`). Out: graphs of the model's
unconstrained values and of placeholders for the records, one term per observed variable or Potential, shape
(rows, ...). PyMC derives a log-density only after the records have been replaced by placeholders (`rebuild`),
so it sees none of their numbers. `private_constants` judges what else stands in these graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pymc as pm
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_expression
from pymc.logprob.basic import conditional_logp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.errors import NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.local_latents import PRIOR, Locals
from pymc_dpvi.graph.marginalised import is_marginal
from pymc_dpvi.graph.model_checks import draws, record_potentials, refuse_draws, refuse_shape_alone
from pymc_dpvi.graph.private_constants import says_nothing
from pymc_dpvi.graph.rebuild import resize_records
from pymc_dpvi.graph.scalar_constants import constant_parts
from pymc_dpvi.graph.shape_constants import shape_vectors
from pymc_dpvi.graph.tables import Tables
from pymc_dpvi.graph.traversal import array_shape, is_array, substituted, walk

__all__ = [
    "Likelihood",
    "in_values",
    "initial_points",
    "log_prior",
    "rebuild_likelihood",
    "unevaluated",
    "without_records",
]


@dataclass(frozen=True)
class Likelihood:
    """The likelihood remade for some number of rows."""

    factors: dict[str, TensorVariable]  # by observed variable or Potential, (rows, ...), in z and `rows`
    rows: tuple[TensorVariable, ...]  # placeholder per record array, (rows, ...)
    memo: dict[Variable, Variable]  # from what was remade to what it became, in `rows` and `free`
    free: dict[Variable, Variable]  # placeholder per free variable
    # Observed variables, Potentials and observed values, remade, and the log-densities that PyMC derived of
    # them, both in `rows` and `free`.
    generative: tuple[Variable, ...]
    derived: tuple[TensorVariable, ...]
    # The same of local variables: the log-density of their prior, what it was rebuilt from, their values.
    of_local: tuple[Variable, ...] = ()
    # Placeholders of local variables, and what they are of the unconstrained values among `rows`.
    constrained: dict[Variable, Variable] = field(default_factory=dict)


def rebuild_likelihood(
    model: pm.Model,
    num_records: int,
    dims: frozenset[str],
    arrays: Sequence[Variable],
    *,
    rows: int,
    local: Locals | None = None,
    tables: Tables | None = None,
) -> Likelihood:
    """Remake the likelihood with `rows` records instead of `num_records`.

    With `local` variables, each row has a person of its own; `model` is then the view of the global ones.
    With `tables`, it is the view of all of them, and the last of `arrays` says which a row belongs to.
    """
    placeholders = [
        # Not pt.tensor(name=...), which reads a name such as "1|g" or "a, b" as a signature.
        TensorType(a.type.dtype, shape=(rows, *array_shape(a)[1:]))(name=f"{a.name or 'records'}_row")
        for a in arrays
    ]
    # Free variables become placeholders too: PyMC must not try to derive densities through them.
    free: dict[Variable, Variable] = {rv: rv.type(name=f"{rv.name}_value") for rv in model.free_RVs}
    by_person: dict[Variable, Variable] = {}
    constrained: dict[Variable, Variable] = {}
    if local is not None:
        at, first = local.placeholders(rows)
        of_arrays = dict(zip(arrays, placeholders, strict=True))
        covariates = {array: of_arrays[rows_of] for array, rows_of in local.covariates.items()}
        own = {
            rv: TensorType(rv.type.dtype, shape=(rows, *shape))(name=f"{rv.name}_value")
            for rv, shape in zip(local.variables, local.shapes, strict=True)
        }
        by_person = local.tables({**free, **own, **covariates}, rows)
        constrained = dict(zip(own.values(), local.constrained(at), strict=True))
    lengths = {
        model.dim_lengths[d]: pt.constant(rows, dtype="int64")
        for d in dims
        if isinstance(model.dim_lengths.get(d), Variable)
    }
    names = {rv: rv.name for rv in model.observed_RVs} | {p: p.name for p in model.potentials}
    observed = list(model.observed_RVs)
    potentials = record_potentials(model, arrays)
    values = [model.rvs_to_values[rv] for rv in observed]
    new, memo = resize_records(
        [*observed, *potentials, *values],
        {**dict(zip(arrays, placeholders, strict=True)), **free, **lengths, **by_person},
        num_records=num_records,
        rows=rows,
        resize=observed,
        describe=lambda v: _describe(v, names),
    )
    refuse_shape_alone(model, arrays, placeholders, new)
    derived = _log_densities(new, len(observed), len(potentials))
    if derived is None:
        raise UnsupportedModelError(
            f"PyMC cannot derive the log-density of the observed variables {sorted(names.values())}. Use a "
            "distribution that has one, or pm.CustomDist(..., logp=...)."
        )
    of_local: list[Variable] = []
    if local is not None:
        density, rebuilt = local.log_prior(at, first, own, {**free, **covariates})
        of_local = [density, *rebuilt, *constrained.values()]
    terms = in_values(model, [*derived, *of_local[:1]], free, constrained)
    # Outcomes that share a marginalised variable have one joint term; pymc_extras gives the others a zero.
    for k, rv in enumerate(observed):
        if is_marginal(rv.owner.op) and isinstance(terms[k], Constant) and terms[k].type.ndim == 0:
            terms[k] = pt.zeros((rows,))
    names_of_terms = [v.name for v in (*observed, *potentials)]
    if tables is not None:
        which, named = placeholders[-1], zip(names_of_terms, terms, strict=False)
        terms[: len(names_of_terms)] = [tables.own(name, term, which) for name, term in named]
    if local is not None:
        names_of_terms.append(PRIOR)
        placeholders += [at, first]
    factors = dict(zip(names_of_terms, terms, strict=True))
    for name, term in factors.items():
        if draws(term):
            refuse_draws(name)
        static = term.type.shape
        if not static or static[0] not in (rows, None):
            raise NotSeparableError(
                f"The log-density of '{name}' for {rows} record(s) does not have one entry per record. An "
                "array whose leading length is the number of records did not follow "
                "the records: give it to the model as data (pm.Data(name, array, dims=...)), and to a "
                "pm.CustomDist as an argument, logp=lambda value, ..., array; or drop the fixed length from "
                "pt.zeros, pt.ones, reshape or shape=."
            )
    made = tuple(new), tuple(derived), tuple(of_local), constrained
    return Likelihood(factors, tuple(placeholders), memo, free, *made)


def _describe(var: Variable, names: Mapping[Variable, str]) -> str:
    """Name a variable, or the nearest named thing it feeds."""
    if var.name:
        return f"'{var.name}'"
    for target, name in names.items():
        if var in set(walk([target])):
            return f"A part of '{name}'"
    return "A part of the likelihood"


def _log_densities(
    graphs: Sequence[Variable], num_observed: int, num_potentials: int
) -> list[TensorVariable] | None:
    """Return the log-densities of observed variables at their values, then the Potentials there.

    `graphs` are the observed variables, the Potentials and the values. None if PyMC cannot derive them.
    """
    end = num_observed + num_potentials
    rv_values = dict(zip(graphs[:num_observed], graphs[end:], strict=True))
    potentials = list(graphs[num_observed:end])
    logps: dict[Variable, TensorVariable] = {}
    with suppress(NotImplementedError):
        logps = conditional_logp(dict(rv_values), warn_rvs=False)
    if len(logps) < len(rv_values):
        return None
    terms = [logps[value] for value in rv_values.values()]
    return terms + (graph_replace(potentials, rv_values, strict=False) if potentials else [])


def in_values(
    model: pm.Model,
    graphs: Sequence[Variable],
    free: Mapping[Variable, Variable],
    local: Mapping[Variable, Variable] | None = None,
) -> list[TensorVariable]:
    """Write graphs of the free variables' placeholders in the model's unconstrained values.

    `local` maps placeholders of local variables to what they are of their unconstrained ones.
    """
    constrained = model.replace_rvs_by_values(list(model.free_RVs))
    stand_ins = {free[rv]: c for rv, c in zip(model.free_RVs, constrained, strict=True)} | dict(local or {})
    # Then also in the sizes of random variables, which `resize_records` does not go through.
    return list(substituted(resize_records(graphs, stand_ins, num_records=-1, rows=-1)[0], stand_ins))


def unevaluated(model: pm.Model, one: Likelihood) -> list[TensorVariable]:
    """Return log-densities whose arrays are those of the model and those of ``logp=`` functions.

    PyMC evaluates some constants as it derives, and the array that it gets could come from anywhere. If there
    may be one, the log-densities are derived again, with variables in place of the model's constants.
    """
    found = walk(one.generative)
    strange = set(walk(one.derived, into_size=True)) - set(found)
    strange -= shape_vectors([*found, *walk(one.derived)])
    constants = {v: v.type() for v in constant_parts(found)}
    if not constants or all(says_nothing(v) for v in strange if is_array(v)):
        return list(one.derived)
    again = None
    with suppress(Exception):  # a density that needs to see a constant: then the first ones are judged
        graphs = list(one.generative)
        for part in reversed(constants):  # one may follow from another
            graphs = graph_replace(graphs, {part: constants[part]}, strict=False)
        num_observed = len(model.observed_RVs)
        num_potentials = len(one.factors.keys() - {PRIOR}) - num_observed
        again = _log_densities(graphs, num_observed, num_potentials)
    return list(one.derived) if again is None else again


def without_records(model: pm.Model, arrays: Sequence[Variable]) -> pm.Model:
    """Return a view of the model that has no likelihood.

    PyMC derives the densities of all variables when it is asked for some, and computes on constants as it
    does so. Whether it can turns on the numbers in them.
    """
    likelihood, observed = record_potentials(model, arrays), set(model.observed_RVs)
    view = object.__new__(type(model))
    view.__dict__.update(model.__dict__)
    view.observed_RVs = []
    view.potentials = [p for p in model.potentials if p not in likelihood]
    view.rvs_to_values = {rv: v for rv, v in model.rvs_to_values.items() if rv not in observed}
    view.values_to_rvs = {v: rv for rv, v in view.rvs_to_values.items()}
    return view


def log_prior(model: pm.Model, arrays: Sequence[Variable]) -> TensorVariable:
    """Return the log prior with Jacobians and data-free Potentials, a scalar."""
    view = without_records(model, arrays)
    variables = [*view.free_RVs, *view.potentials]
    prior = view.logp(vars=variables, jacobian=True)
    if draws(prior):
        refuse_draws(next(v.name for v in variables if draws(view.logp(vars=[v], jacobian=True))))
    return prior


def initial_points(model: pm.Model) -> list[Variable]:
    """Return the unconstrained values that PyMC starts from, as graphs; [] if it cannot make them."""
    start: list[Variable] = []
    with suppress(Exception):  # PyMC raises it itself when the approximation is made
        start = make_initial_point_expression(
            free_rvs=model.free_RVs,
            rvs_to_transforms=model.rvs_to_transforms,
            initval_strategies=model.rvs_to_initial_values,
            return_transformed=True,
        )
    # PyMC has copied the shared variables: put those of the model back, which share their containers.
    initial = [v for v in model.rvs_to_initial_values.values() if isinstance(v, Variable)]
    model_vars = walk([*model.free_RVs, *initial, *model.data_vars], into_size=True)
    originals = {id(v.container): v for v in model_vars if isinstance(v, SharedVariable)}
    copies = {
        v: originals.get(id(v.container), v)
        for v in walk(start, into_size=True)
        if isinstance(v, SharedVariable)
    }
    return list(graph_replace(start, copies, strict=False)) if start and copies else list(start)
