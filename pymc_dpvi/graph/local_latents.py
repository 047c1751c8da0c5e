r"""Latent values of a person: which variables are local, and one person's density of them.

A free variable is *local* if the likelihood takes its entries by person, ``u[person]``, where ``person``
is the ``pm.Data`` of ``unit=``. It is never released. A person's term is

.. math:: \log \int \prod_{r \in R_p} p(x_r \mid u, z)\; p(u \mid z)\, du ,

a function of the rows of one person and of z, so that the sensitivity of the mechanism rests on the same
proof.

*One row.* Where the model looks something up by person, what it looks up, such as ``mu + sigma * u``, is
rebuilt for as many persons as rows, each row with a person of its own. So in the graph of one row the
person's values are a row of one more record array, ``local``; whether the row is a person's first is
another one, ``first``, so that :math:`\log p(u \mid z)` can be the first row's. `engine.local_sums` makes
both.

*The view.* All other modules see a model of the global variables alone (`Locals.view`): to them local
ones are not free, and whatever depends on one is private.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.type import TensorType, discrete_dtypes
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.indexing import LOOKING_UP, integer_indices
from pymc_dpvi.graph.local_checks import (
    PRIOR,
    number_of,
    refuse_arrays_of_persons,
    refuse_couplings,
    refuse_other_uses,
    refuse_places,
)
from pymc_dpvi.graph.local_rules import Places, places_of, rules_of
from pymc_dpvi.graph.rebuild import resize_records
from pymc_dpvi.graph.traversal import array_shape, depends_on, is_array, substituted, walk
from pymc_dpvi.graph.units import Units
from pymc_dpvi.lowering import fast_compile

__all__ = ["PRIOR", "Locals", "by_ids_of", "look_ups", "split_local", "table_length", "with_priors"]

#: Distributions of counts from zero, which may be truncated.
_COUNTS = ("PoissonRV", "NegBinomialRV")


@dataclass(frozen=True)
class Locals:
    """The local variables of a model, continuous ones first.

    `look_ups` maps what is taken by person to its table and the other indices; `length` is that of all
    tables.
    """

    model: pm.Model  # the user's
    variables: tuple[TensorVariable, ...]
    shapes: tuple[tuple[int, ...], ...]  # of one person's value
    value_shapes: tuple[tuple[int, ...], ...]  # unconstrained
    look_ups: Mapping[Variable, tuple[Variable, tuple[Any, ...]]]
    length: int = field(repr=False)  # it may be the number of persons
    places: Places
    #: See `person_covariates`.
    covariates: Mapping[Variable, Variable] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variables, as the user wrote them."""
        return tuple(str(v.name) for v in self.variables)

    @property
    def dims(self) -> frozenset[str]:
        """Dims that run over persons."""
        named = self.model.named_vars_to_dims
        return frozenset(d for v in self.variables for d in (named.get(v.name) or ())[:1] if d is not None)

    @property
    def values_of_model(self) -> tuple[Variable, ...]:
        """Their unconstrained values in the user's model."""
        return tuple(self.model.rvs_to_values[v] for v in self.variables)

    @property
    def size(self) -> int:
        """Number of unconstrained values of a person."""
        return sum(int(np.prod(s, dtype=int)) for s in self.value_shapes)

    def view(self) -> pm.Model:
        """Return the model with the global variables alone; it shares everything else with the user's."""
        view = object.__new__(type(self.model))
        view.__dict__.update(self.model.__dict__)
        view.free_RVs = [rv for rv in self.model.free_RVs if rv not in self.variables]
        # A person's values are searched for, from the same start for everybody.
        initial = self.model.rvs_to_initial_values
        view.rvs_to_initial_values = {rv: v for rv, v in initial.items() if rv not in self.variables}
        return view

    def placeholders(self, rows: int) -> tuple[TensorVariable, TensorVariable]:
        """Return placeholders for persons' unconstrained values, (rows, size), and for `first`, (rows,)."""
        kinds = ("local", (rows, self.size)), ("first", (rows,))
        local, first = (TensorType(pytensor.config.floatX, shape=shape)(name=name) for name, shape in kinds)
        return local, first

    def placeholders_at_places(self) -> tuple[TensorVariable, TensorVariable]:
        """Return placeholders for one row: its person's places, (1, K, size), and their weights, (1, K)."""
        count = self.places.count
        kinds = ("placed", (1, count, self.size)), ("weights", (1, count))
        placed, weights = (TensorType(pytensor.config.floatX, shape=s)(name=name) for name, s in kinds)
        return placed, weights

    def values(self, local: TensorVariable) -> dict[Variable, Variable]:
        """Cut persons' values, (rows, size), into those of the variables' value variables."""
        rows, at, out = local.type.shape[0], 0, {}
        for rv, shape in zip(self.variables, self.value_shapes, strict=True):
            value = self.model.rvs_to_values[rv]
            size = int(np.prod(shape, dtype=int))
            part = local[:, at : at + size].reshape((rows, *shape))
            out[value] = (pt.round(part) if rv.dtype in discrete_dtypes else part).astype(value.type.dtype)
            at += size
        return out

    def rebuilt(
        self, graphs: Sequence[Variable], replacements: Mapping[Variable, Variable], rows: int
    ) -> list[Any]:
        """Rebuild graphs over persons for some number of them, one for each row."""
        lengths = {
            v: pt.constant(rows, dtype="int64")
            for v in (self.model.dim_lengths.get(d) for d in self.dims)
            if isinstance(v, Variable)
        }
        named = self.model.named_vars_to_dims
        for rv, shape in zip(self.variables, self.shapes, strict=True):
            for dim, n in zip((named.get(rv.name) or ())[1:], shape, strict=False):
                length = self.model.dim_lengths.get(dim)
                if isinstance(length, Variable):
                    lengths.setdefault(length, pt.constant(n, dtype="int64"))
        new, _ = resize_records(
            list(graphs),
            {**replacements, **lengths},
            num_records=self.length,
            rows=rows,
            resize=self.variables,
        )
        return new

    def tables(self, stand_ins: Mapping[Variable, Variable], rows: int) -> dict[Variable, Variable]:
        """Return what stands in for each look-up by person, given stand-ins of the variables, (rows, ...)."""
        bases = self.rebuilt([base for base, _ in self.look_ups.values()], stand_ins, rows)
        return {
            out: base[(slice(None), *rest)] if rest else base
            for (out, (_, rest)), base in zip(self.look_ups.items(), bases, strict=True)
        }

    def constrained(self, local: TensorVariable) -> list[Any]:
        """Return the persons' values of each variable in its own space, (rows, ...)."""
        own = self.model.replace_rvs_by_values(list(self.variables))
        return self.rebuilt(own, self.values(local), int(local.type.shape[0]))  # type: ignore[arg-type]

    def log_prior(
        self,
        local: TensorVariable,
        first: TensorVariable,
        own: Mapping[Variable, Variable],
        free: Mapping[Variable, Variable],
    ) -> tuple[TensorVariable, list[Variable]]:
        """Return the log prior of persons' values with Jacobians, (rows,), where `first` is one, else 0.

        It is a graph of `local` and of stand-ins of the variables, `own`, and of the others, `free`. What is
        rebuilt for it is returned, too.
        """
        rows = int(local.type.shape[0])  # type: ignore[arg-type]
        values = self.values(local)
        parts: list[TensorVariable] = []
        rebuilt: list[Variable] = []
        for rv in self.variables:
            others = {v: stand_in for v, stand_in in own.items() if v is not rv}
            (new,) = self.rebuilt([rv], {**free, **others}, rows)
            terms = [pm.logp(new, own[rv], warn_rvs=False)]
            if (transform := self.model.rvs_to_transforms[rv]) is not None:
                value = values[self.model.rvs_to_values[rv]]
                terms.append(transform.log_jac_det(value, *new.owner.inputs))
            rebuilt.append(new)
            for term in terms:
                part = term.sum(axis=tuple(range(1, term.type.ndim))) if term.type.ndim > 1 else term
                parts.append(part if part.type.shape == (rows,) else pt.broadcast_to(part, (rows,)))
        total = pt.add(*parts) if len(parts) > 1 else parts[0]
        return pt.switch(pt.gt(first, 0.5), total, 0.0), rebuilt


def split_local(
    model: pm.Model,
    units: Units | None,
    guide: Any,
    public: Collection[Variable] = (),
    covariates: Mapping[Variable, Variable] | None = None,
) -> Locals | None:
    """Find the local variables of a model; None if there are none.

    `public` are arrays declared to be, and `covariates` those of `person_covariates`.
    """
    covariates = covariates or {}
    free = list(model.free_RVs)
    everything = [str(rv.name) for rv in free]
    found = {} if units is None or units.source is None else look_ups(model, units.source)
    if not found:
        rules_of(guide, (), everything)
        return None
    shapes = model.eval_rv_shapes()
    lengths = {table_length(base, free, shapes) for base, _ in found.values()}
    if len(lengths) > 1 or None in lengths:
        raise UnsupportedModelError(
            f"The likelihood takes entries by '{units.source.name}' from tables of different lengths"  # type: ignore[union-attr]
            ", so it cannot be seen which of them have one entry for each person. Give all variables of "
            "persons one dim."
        )
    (length,) = lengths
    by_person = [rv for rv in free if rv.type.ndim and shapes[rv.name][0] == length]
    tables = [base for base, _ in found.values()]
    local = sorted(with_priors(tables, by_person, free), key=lambda rv: rv.dtype in discrete_dtypes)
    if not local:
        raise UnsupportedModelError(
            "The likelihood looks something up by person that is no variable with one entry for each "
            "person (a table with a row more by pt.concatenate, say, or one whose first axis is another). "
            "Give a free variable one entry for each person along its first axis, and look that up: "
            "u[person]. For (chol @ z).T with a z of shape (2, persons), write z @ chol.T with a z of shape "
            "(persons, 2)."
        )
    assert units is not None and length is not None
    refuse_arrays_of_persons(model, tables, units, length, str(local[0].name), covariates)
    refuse_places(model, local, tables, length)
    refuse_other_uses(model, local, found, units)
    refuse_couplings(model, local, units, public, covariates)
    if len(local) == len(free):
        raise UnsupportedModelError(
            f"All free variables ({', '.join(map(repr, everything))}) are local to a person, so nothing is "
            "left to release. Give their prior parameters that are variables: a mean, and a spread."
        )
    own = tuple(tuple(int(n) for n in shapes[rv.name][1:]) for rv in local)
    values = tuple(tuple(int(n) for n in shapes[model.rvs_to_values[rv].name][1:]) for rv in local)
    rules = rules_of(guide, [str(rv.name) for rv in local], everything)

    def classes(weights: Variable) -> int | None:
        static = weights.type.shape[-1]  # type: ignore[attr-defined]
        return _length(weights, -1, free, shapes) if static is None else int(static)

    places = _places(local, values, rules, classes, length)
    return Locals(model, tuple(local), own, values, found, length, places, covariates)


def with_priors(bases: Sequence[Variable], by_person: Sequence[Any], free: Sequence[Any]) -> list[Any]:
    """Return which variables with an entry for each person stand behind `bases`, or behind priors of such."""
    local: list[Any] = []
    behind = list(bases)
    while more := [rv for rv in by_person if rv not in local and rv in walk(behind, stop=free)]:
        local += more
        behind = [i for rv in more for i in rv.owner.inputs]
    return [rv for rv in free if rv in local]


def _is_ids(index: Any, source: Variable) -> bool:
    """Whether an index is the ids, or the ids as another type of integers."""
    while isinstance(index, Variable) and index is not source and index.owner is not None:
        op = index.owner.op
        is_cast = isinstance(op, Elemwise) and isinstance(op.scalar_op, Cast)
        if not is_cast or index.type.dtype not in ("int32", "int64"):  # a shorter one could wrap around
            return False
        index = index.owner.inputs[0]
    return index is source


def look_ups(model: pm.Model, source: Variable) -> dict[Variable, tuple[Variable, tuple[Any, ...]]]:
    """Map what the likelihood takes by person from free variables to its table and the other indices."""
    found = by_ids_of(model, source)
    return {out: table for out, table in found.items() if depends_on([table[0]], model.free_RVs)}


def by_ids_of(model: pm.Model, source: Variable) -> dict[Variable, tuple[Variable, tuple[Any, ...]]]:
    """Map what the likelihood takes by person to its table and the other indices."""
    terms = [*model.observed_RVs, *(model.rvs_to_values[rv] for rv in model.observed_RVs), *model.potentials]
    found: dict[Variable, tuple[Variable, tuple[Any, ...]]] = {}
    for var in walk(terms, stop=model.free_RVs):
        node = var.owner
        if node is None or type(node.op).__name__ not in LOOKING_UP or not (entries := integer_indices(node)):
            continue
        if not _is_ids(entries[0], source):
            continue
        rest = [None if e is None else number_of(e) for e in entries[1:]]
        if any(e is not None and n is None for e, n in zip(entries[1:], rest, strict=True)):
            raise UnsupportedModelError(
                f"The likelihood takes entries by '{source.name}' and by another index together. Take a "
                f"person's values first, u[{source.name}], and of them what belongs to the row. A number "
                f"may stand there as it is, u[{source.name}, 1], but not one that is computed."
            )
        found[var] = (node.inputs[0], tuple(slice(None) if n is None else n for n in rest))
    return found


def table_length(base: Variable, free: Sequence[Variable], shapes: Mapping[str, Any]) -> int | None:
    """Return how many entries a table has; None if it cannot be seen."""
    static = base.type.shape[0]  # type: ignore[attr-defined]
    if static is not None and static > 1:
        return int(static)
    if base in free:
        return int(shapes[str(base.name)][0])
    return _length(base, 0, free, shapes)


def _length(var: Variable, axis: int, free: Sequence[Variable], shapes: Mapping[str, Any]) -> int | None:
    """Return the length of an axis, which may come from dims; None if it cannot be seen. No entry is read."""
    known = {v: tuple(int(n) for n in shapes[v.name]) for v in free}
    shared = (v for v in walk([var], stop=free) if isinstance(v, SharedVariable) and is_array(v))
    known |= {v: array_shape(v) for v in shared if v.type.ndim}
    stand_ins = {v: pt.zeros(shape, dtype=v.type.dtype) for v, shape in known.items()}
    with suppress(Exception):  # lengths that depend on values
        (made,) = substituted([var], stand_ins)
        return int(pytensor.function([], made.shape[axis], mode=fast_compile())())
    return None


def _places(
    local: Sequence[TensorVariable],
    shapes: Sequence[tuple[int, ...]],
    rules: Mapping[str, Any],
    classes: Callable[[Variable], int | None],
    length: int,
) -> Places:
    """Return where a person's integrand is evaluated; `classes` tells how many weights there are."""
    sizes = [int(np.prod(shape, dtype=int)) for shape in shapes]
    discrete = {str(rv.name): rv for rv in local if rv.dtype in discrete_dtypes}
    if wrong := [name for name in rules if name in discrete]:
        raise ArgumentError(
            f"guide[{wrong[0]!r}] is a rule for continuous values; all of a discrete one's are added up. "
            "Leave it out."
        )
    if len(set(rules.values())) > 1:
        raise ArgumentError(
            "guide has different rules for local variables; a person's values are integrated together. "
            "Name one."
        )
    values: list[range] = []
    for rv, size in zip(local, sizes, strict=True):
        base: Any = getattr(rv.owner.op, "base_rv_op", None)  # PyMC makes floats of some truncated counts
        if rv.dtype in discrete_dtypes or getattr(base, "dtype", "") in discrete_dtypes:
            values += [_support(rv, classes, length)] * size
    return places_of(sum(sizes) - len(values), next(iter(rules.values()), None), values)


def _number(parameter: Variable) -> int | None:
    """Return a whole number that is written in the model, for all persons the same; None if it is none."""
    while parameter.owner is not None and isinstance(parameter.owner.op, DimShuffle):
        (parameter,) = parameter.owner.inputs
    return number_of(parameter)


def _support(rv: TensorVariable, classes: Callable[[Variable], int | None], length: int) -> range:
    """Return the values of a discrete variable; `length` is that of all tables of persons."""
    op: Any = rv.owner.op
    kind = type(op).__name__
    if kind == "BernoulliRV":
        return range(2)
    if kind == "CategoricalRV" and (n := classes(op.dist_params(rv.owner)[0])) is not None:
        if n == length:  # weights as long as there are persons would be taken for a table of them
            raise UnsupportedModelError(
                f"The local variable '{rv.name}' has as many classes as entries. Give it one entry more, "
                "which nobody has, or fewer classes."
            )
        return range(n)
    if kind == "BinomialRV" and (n := _number(op.dist_params(rv.owner)[0])) is not None and n >= 0:
        return range(n + 1)
    is_count = kind == "TruncatedRV" and type(op.base_rv_op).__name__ in _COUNTS
    if is_count and rv.dtype in discrete_dtypes:
        least, most = map(_number, rv.owner.inputs[-2:])
        least = max(0, least or 0)
        if most is not None and most >= least:
            return range(least, most + 1)
    raise UnsupportedModelError(
        f"The local variable '{rv.name}' is discrete, and its values cannot be listed. Use pm.Bernoulli, "
        "pm.Categorical, or pm.Binomial with a number for n; or say where a count ends, by a number: "
        f"pm.Truncated('{rv.name}', pm.Poisson.dist(rate), upper=50, dims=...)."
    )
