r"""From a PyMC model to the log-density of one record.

The model is an ordinary one on the full data,

.. math:: \log p(x_1,\dots,x_N, z) = \log p(z) + \sum_{i=1}^{N} \log p(x_i \mid z),

where a *row* :math:`x_i` is one along the leading axis that the observed variables share, and :math:`z` are
the unconstrained latent values. A *record* is one row, or all rows of one person (`units`).
:func:`build_record_model` reads as the list of what is checked, in order. It finds the arrays that are
indexed by records, and rebuilds the likelihood with every one of them replaced by a placeholder of one row.
So :math:`\log p(x_i \mid z)` can depend on that row and on :math:`z` alone: the sensitivity of the
mechanism rests on this. `separability` checks that the terms add up to the model's own log-density.

Any other array is declared public by the user, or harmless (`private_constants`), or the model is refused.
The privacy report lists what counts as public (`public_data`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pymc as pm
from pytensor.graph.basic import Variable

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.graph.declared import Declared
from pymc_dpvi.graph.densities import initial_points, log_prior, rebuild_likelihood, unevaluated
from pymc_dpvi.graph.guards import guard_records
from pymc_dpvi.graph.local_latents import split_local
from pymc_dpvi.graph.model_checks import (
    check_against_records,
    check_before_records,
    check_orientation,
    refuse_discrete,
)
from pymc_dpvi.graph.person_covariates import by_row
from pymc_dpvi.graph.precomputed import refuse_hsgp, refuse_inspected
from pymc_dpvi.graph.public_data import describe_public, public_variables
from pymc_dpvi.graph.record_axis import describe_unit, find_record_arrays, find_record_axis
from pymc_dpvi.graph.record_model import RecordModel, assert_no_record_array
from pymc_dpvi.graph.selections import refuse_masks
from pymc_dpvi.graph.tables import by_ids, stack_tables
from pymc_dpvi.graph.traversal import array_value
from pymc_dpvi.graph.units import dims_of_ids, find_units, refuse_axes_over_units
from pymc_dpvi.graph.within_persons import within_persons

__all__ = ["build_record_model"]


@quiet_pytensor()
def build_record_model(
    model: pm.Model,
    *,
    record_dim: str | None = None,
    public_data: Iterable[str | Variable] = (),
    unit: Any = None,
    max_rows_per_unit: int | None = None,
    guide: Any = None,
) -> RecordModel:
    """Split a PyMC model into one record's log-density and a data-free prior, or refuse it.

    `record_dim` names the dim that runs over rows, needed only where lengths are ambiguous; `public_data`
    names ``pm.Data`` that are known to everybody and belong to no record; `unit` and `max_rows_per_unit`
    say whose the rows are (`units`), and `guide` how local variables are integrated out (`local_rules`).

    Each check relies on those before it. None looks at the value of a record, with one exception: whether a
    constant array in the model is as regular as a grid is judged by its entries (docs/limitations.md, 1).
    `inference` checks its arguments before; after, it checks the starting values (`start`), and compares the
    split with the model itself on synthetic records (`separability`).
    """
    # 1. public_data= names arrays of the model. All checks below ask what is public.
    public = public_variables(model, public_data)
    # 2. Nothing that is refused whatever a record is: missing values, discrete variables, pm.Minibatch,
    #    total_size, sparse data.
    check_before_records(model)
    if unit is None:
        refuse_discrete(model)  # by person, it may be local
    # 3. No part of the data has a length that depends on values. This comes before any length is worked out,
    #    so that the refusal is the same whatever the values are.
    refuse_masks(model, public)
    # 4. The observed variables share one leading axis: a record is one row along it.
    #    Or all rows of one person: then a variable with a value for each person is local, and integrated out.
    #    These may be in several tables, which are put one under the other.
    groups = by_ids(model, unit) if isinstance(unit, Mapping) else {}
    tables = None
    if len(groups) > 1:
        model, tables = stack_tables(model, groups.values(), max_rows_per_unit, record_dim, public)
    elif groups:
        ((_, unit),) = groups.values()
    num_records, observed_dims = find_record_axis(model, record_dim)
    if tables is None:
        units = find_units(model, unit, max_rows_per_unit, num_records, public)
        observed_dims |= dims_of_ids(model, () if units is None else units.ids)
    else:
        units, observed_dims = tables.units, observed_dims | tables.dims
    #    A formula over the rows of one person is a column, which is evaluated for each person alone.
    model, within = (model, None) if tables is not None else within_persons(model, units, num_records, public)
    #    Covariates of persons, in an array with an entry for each, are put into rows.
    model, covariates = (model, None) if tables is not None else by_row(model, units)
    rows_of = {} if covariates is None else covariates.rows_of
    if within is not None:
        within.refuse_tables(rows_of)
    local = split_local(model, units, guide, public, rows_of)
    model = model if local is None else local.view()
    refuse_discrete(model)
    look_ups, lengths = ((), set()) if local is None else (list(local.look_ups), {local.length})
    lengths |= {len(array_value(a)) for a in rows_of}
    of_persons = frozenset() if covariates is None else covariates.dims
    refuse_axes_over_units(model, units, look_ups, lengths, of_persons)
    # 5. The arrays that run along it. An array that is not found here must pass 10.
    arrays, dims = find_record_arrays(model, num_records, observed_dims, public)
    dims |= of_persons
    arrays = [a for a in arrays if a not in rows_of]
    arrays += [a for a in rows_of.values() if a not in arrays]
    if tables is not None:
        arrays.append(tables.which)
    # 6. No latent value per record, no prior or start from records, no draw or Potential for all records
    #    together.
    check_against_records(model, num_records, dims, arrays, units is not None)
    # 7. PyMC has not read numbers of the records while the model was written: no graph would show it.
    #    Covariates of persons are read where they stand, too, as in the prior of a local variable.
    refuse_inspected(model, [*arrays, *rows_of])
    refuse_hsgp(model, [*arrays, *rows_of], public)
    # 8. No array has its records in columns: it would stay whole when the others become one row.
    check_orientation(model, num_records, arrays, public)
    # 9. The likelihood can be written for one record, and its density follows from numbers, not from draws.
    one = rebuild_likelihood(model, num_records, dims, arrays, rows=1, local=local, tables=tables)
    prior = log_prior(model, arrays)
    start = initial_points(model)
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
        declared=Declared({}, {}),
        unit=describe_unit(model, observed_dims, units),
        units=units,
        tables=tables,
        held=() if units is None or units.source is not None else tuple(array_value(a) for a in arrays),
        local=local,
        within=within,
        covariates=covariates,
    )
    # 10. Nothing in these graphs holds other records, or numbers of theirs: the proof that a record enters
    #     its own term alone.
    derived = [*unevaluated(model, one), *one.of_local]
    formulas = [] if within is None else within.graphs
    assert_no_record_array(record, [*one.generative, *formulas], derived, start)
    # 11. What is left counts as public, and the report lists it.
    evaluated = [*one.generative, *formulas, *derived, *record.released]
    listed = describe_public(model, record.all_arrays, evaluated, [prior, *start], record.released_dims)
    # 12. No value of a record can make its term raise, run on, or read memory beside an array.
    declared = Declared.of(record.whole_model, public, record.released_dims)
    record = _guarded(replace(record, public_arrays=tuple(listed), declared=declared))
    # 13. Nor can an index that no record and no latent value decides.
    record.check_indices()
    return record


def _guarded(record: RecordModel) -> RecordModel:
    """Put all indices into range, and refuse operations that are not known to be harmless (`guards`)."""

    def name(otherwise: str) -> Callable[[Variable], str]:
        return lambda v: f"'{v.name}'" if v.name else otherwise

    terms = f"The likelihood of {', '.join(map(repr, record.factors))}"
    factors, fixed = guard_records(
        list(record.factors.values()),
        record.rows,
        record.value_vars,
        record.public,
        name(terms),
        twice=record.local is not None,
    )
    (prior,), fixed_in_prior = guard_records(
        [record.prior_logp], (), record.value_vars, record.public, name("The prior")
    )
    return replace(
        record,
        factors=dict(zip(record.factors, factors, strict=True)),
        prior_logp=prior,
        in_range=(*fixed, *fixed_in_prior),
    )
