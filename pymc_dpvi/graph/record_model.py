"""What is known of a user's model once it is split by records: its parts, and what of it may leave.

In: what `records` has found. Out: :class:`RecordModel`, which all later steps are given. It answers three
questions. What is the log-density of one record? What holds records, or tells how many there are, so that no
formula of the user's may read it? Is the user's model still the one that was checked?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.multivariate import _LKJCholeskyCovRV
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable, equal_computations
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.errors import UnsupportedModelError
from pymc_dpvi.graph.amortized import Encoded
from pymc_dpvi.graph.declared import Declared
from pymc_dpvi.graph.local_latents import PRIOR, Locals
from pymc_dpvi.graph.model_checks import (
    array_name,
    global_dims,
    record_potentials,
)
from pymc_dpvi.graph.opaque import hides_numbers
from pymc_dpvi.graph.person_covariates import PersonCovariates
from pymc_dpvi.graph.private_constants import refuse_private_constants
from pymc_dpvi.graph.shape_constants import lone_numbers, shape_vectors, written_triangles
from pymc_dpvi.graph.tables import Tables
from pymc_dpvi.graph.traversal import array_shape, array_value, is_array, walk
from pymc_dpvi.graph.units import Units
from pymc_dpvi.graph.unrolled_loops import MOST_NUMBERS, is_long
from pymc_dpvi.graph.within_persons import WithinPersons
from pymc_dpvi.lowering import fast_compile

__all__ = ["RecordModel", "assert_no_record_array"]

_LONG = f"more than {MOST_NUMBERS} constants, operands or operations in a row are in its formula"
_LONG_TOGETHER = (
    f"all Deterministics together have more than {MOST_NUMBERS} constants, operands or operations in a row: "
    "leave some out of the model, and compute them from the released draws"
)


@dataclass(frozen=True)
class RecordModel:
    """One record's log-density, the data-free prior, and the arrays that hold the records."""

    model: pm.Model  # the user's, unchanged
    num_records: int = field(repr=False)  # N, of rows; no part of any release
    record_dims: frozenset[str]  # dims that run over records: they and their coords are never released
    arrays: tuple[Variable, ...] = field(repr=False)  # of the model, of leading length N
    rows: tuple[TensorVariable, ...]  # their one-row placeholders, (1, ...), and those of `local`
    value_vars: tuple[TensorVariable, ...]  # unconstrained values of the free variables: the inputs z
    factors: dict[str, TensorVariable]  # log-density of the row by observed variable or Potential, (1, ...)
    prior_logp: TensorVariable  # scalar: log prior plus Jacobians plus data-free Potentials
    public_arrays: tuple[str, ...]  # what the report lists as public (`describe_public`)
    public: frozenset[Variable]  # arrays that the user declared public
    unit: str  # what a record is, in words
    declared: Declared = field(repr=False)  # what these are when the method is made
    in_range: tuple[TensorVariable, ...] = ()  # conditions: indices from public arrays are in range
    units: Units | None = None  # the rows of each person; None if a record is a row
    tables: Tables | None = None  # where the rows come from; `model` is a view with one table under the other
    held: tuple[Any, ...] = field(default=(), repr=False)  # what the arrays held, if ids are no pm.Data
    local: Locals | None = None  # variables with a value for each person; `model` is a view without them
    within: WithinPersons | None = None  # columns of formulas by person; `model` is a view with them
    covariates: PersonCovariates | None = None  # of persons; `model` is a view with them in rows
    encoded: Encoded | None = None  # variables with encoders; `model` is a view without them
    num_in_sources: int | None = field(default=None, repr=False)  # N, if `model` has made-up rows alone

    @property
    def num_units(self) -> int:
        """How many records there are: persons or rows. For sampling batches, and no part of any release.

        If the records are in sources, and the model has a template of them, those in the sources.
        """
        if self.units is not None:
            return len(self.units)
        return self.num_records if self.num_in_sources is None else self.num_in_sources

    @property
    def whole_model(self) -> pm.Model:
        """The user's model, with local variables if there are some."""
        if self.encoded is not None:
            return self.encoded.user_model
        if self.tables is not None:
            return self.tables.model
        if self.within is not None:
            return self.within.model
        if self.covariates is not None:
            return self.covariates.model
        return self.model if self.local is None else self.local.model

    @property
    def fitted_RVs(self) -> list[TensorVariable]:
        """The free variables that a fit moves."""
        still = () if self.encoded is None else self.encoded.turns
        return [rv for rv in self.model.free_RVs if rv.name not in still]

    @property
    def row_logp(self) -> TensorVariable:
        """Scalar log-density of the record in `rows`."""
        return pt.add(*[f.sum() for f in self.factors.values()])

    def may_be_released(self, var: Variable) -> bool:
        """Whether `var` is a function of the free variables with no private number in it."""
        return self.why_withheld(var) is None

    def why_withheld(self, var: Variable) -> str | None:
        """Say why `var` may not be released, or return None if it is a function with no private number in it.

        It may depend on free variables, single numbers and arrays that were declared public. Any other array
        may be data, even one of zeros: all records may have answered zero. A long formula may be data too
        (`unrolled_loops.is_long`). No length is compared with the number of records, and no entry decides:
        what is withheld would tell of the records. (`written_triangles` compares entries that no record can
        have decided.)
        """
        model = self.model
        dims = self.whole_model.named_vars_to_dims.get(getattr(var, "name", None)) or ()
        if not self.record_dims.isdisjoint(dims):
            return "it has a dim of the records"
        foreign = [d for d in dims if d is not None and d not in self.released_dims]
        if self.units is not None and foreign:
            return (
                f"its dim '{foreign[0]}' may be one of persons: neither a free variable nor an array in "
                "public_data= has it; leave out dims= if it is not"
            )
        behind = self._behind([var])
        if not set(behind) & set(model.free_RVs):
            return "it depends on no free variable"  # a number, wherever it came from
        plain = self.plain(behind)
        private = [v for v in behind if v not in plain and self.is_private(v)]
        if private:
            return self._why_private(private)
        return _LONG if is_long(v for v in behind if v not in model.free_RVs) else None

    def _why_private(self, private: Sequence[Variable]) -> str:
        """Say what of a formula is private: by what it is, never by what it holds."""
        of_records, data = self.of_records, {*self.model.data_vars, *self.whole_model.data_vars}
        if any(v in of_records for v in private):
            return "it depends on the records"
        names = sorted({str(v.name) for v in private if v in data})
        if names:
            return f"it depends on data that nobody declared: if they are public, public_data={names}"
        if any(self._holds_data(v) for v in private):
            return "it holds an operation into which nobody can see"
        return (
            "an array is written into its formula, or a list of positions: use pm.Data and public_data= if "
            "it is public, or compute it from the released draws"
        )

    def released_and_withheld(self) -> tuple[tuple[Variable, ...], dict[str, str]]:
        """Return the Deterministics of the model as it is now that are released, and why others are not.

        None is released if together they may be data.
        """
        why = {d: self.why_withheld(d) for d in self.deterministics}
        fine = tuple(d for d, reason in why.items() if reason is None)
        behind = [v for v in self._behind(fine) if v not in self.model.free_RVs]
        if is_long(behind, [fine]):
            why.update(dict.fromkeys(fine, _LONG_TOGETHER))
            fine = ()
        return fine, {str(d.name): reason for d, reason in why.items() if reason is not None}

    @property
    def released(self) -> tuple[Variable, ...]:
        """Deterministics of the model as it is now that are released."""
        return self.released_and_withheld()[0]

    @property
    def deterministics(self) -> list[TensorVariable]:
        """Deterministics of the model as it is now, also those that were added after the method was made."""
        model = self.model if self.encoded is not None else self.whole_model
        return list(model.deterministics)

    def plain(self, behind: Sequence[Variable]) -> frozenset[Variable]:
        """Return the constant arrays that are no data by how they are read; `behind` are all variables.

        They are shapes, the index tables that unpack an LKJ variable, a joined number, one position.
        """
        tables = written_triangles(behind, self._is_packed)
        return frozenset(shape_vectors(behind) | tables | lone_numbers(behind))

    def _is_packed(self, var: Variable) -> bool:
        """Whether `var` is a packed LKJ variable, or what PyMC writes for it in terms of its value.

        Anything computed from the variable does not count.
        """
        packed = [rv for rv in self.model.free_RVs if isinstance(rv.owner.op, _LKJCholeskyCovRV)]
        written = self.model.replace_rvs_by_values(packed) if packed else ()
        return var in packed or any(equal_computations([var], [v]) for v in written)

    def _behind(self, outputs: Iterable[Variable]) -> list[Variable]:
        """List what outputs depend on, up to the free variables."""
        return walk(outputs, stop=self.model.free_RVs, into_size=True, columns_of=self.all_arrays)

    @property
    def all_arrays(self) -> tuple[Variable, ...]:
        """The record arrays of the model, and those of the user's that they were made of."""
        tables = () if self.tables is None else self.tables.originals
        within = () if self.within is None else self.within.arrays
        persons = () if self.covariates is None else self.covariates.rows_of
        return (*self.arrays, *tables, *within, *persons)

    @property
    def row_counts(self) -> frozenset[int]:
        """How many rows there are, in all and in each table: no part of any release.

        Without the tables' where no length is to be compared: `num_records` is -1.
        """
        known = self.tables is not None and self.num_records >= 0
        return frozenset({self.num_records, *(self.tables.num_rows if known else ())})  # type: ignore[union-attr]

    @property
    def of_records(self) -> frozenset[Variable]:
        """All that holds records, or their number, of this model and of the user's.

        Arrays, ids, observed variables, lengths of dims, and variables with a value for each person or row.
        """
        held = {*self.all_arrays, *self.model.observed_RVs, *self.whole_model.observed_RVs, *_lengths(self)}
        if self.units is not None:
            held.update(i.source for i in self.units.ids if i.source is not None)
        if self.local is not None:
            held.update(self.local.variables, self.local.values_of_model)
        if self.encoded is not None:
            held.update(self.encoded.held)
        return frozenset(held)

    @property
    def brought_by_users(self) -> frozenset[Variable]:
        """All that no formula of the user's own may read during a fit: what holds records, and all data."""
        return self.of_records | {*self.model.data_vars, *self.whole_model.data_vars}

    def is_private(self, var: Variable) -> bool:
        """Whether `var` may hold private numbers: records, or an array that nobody declared public.

        Single numbers are public, but for the number of records. An array is private whatever it holds and
        however long it is: all records may have answered zero, and ``y[y > 5]`` may have one entry.
        """
        if self._holds_data(var):
            return True
        return is_array(var) and var not in self.public and array_value(var).ndim > 0

    def _holds_data(self, var: Variable) -> bool:
        """Whether `var` holds records, is their number, or hides what it holds."""
        return var in self.of_records or (var not in self.model.free_RVs and hides_numbers(var))

    @property
    def released_dims(self) -> frozenset[str]:
        """Dims whose labels are released: those of free variables and of arrays that were declared public.

        The labels of any other dim may be names of the records.
        """
        named = self.model.named_vars_to_dims
        declared = {d for v in self.public for d in named.get(v.name) or () if d is not None}
        local = frozenset() if self.local is None else self.local.dims
        return frozenset((global_dims(self.model) | declared) - self.record_dims - local)

    def check_unchanged(self) -> None:
        """Raise if the model has changed since it was checked.

        That is if it has other variables, or a Potential with an array that would be refused; if a record
        array has another shape, or something public other values (``pm.set_data``).
        """
        model = self.model
        terms = [*model.observed_RVs, *record_potentials(model, self.arrays)]
        values = tuple(model.rvs_to_values[v] for v in model.free_RVs)
        names = {v.name for v in terms} | (set() if self.local is None else {PRIOR})
        whole = self.model if self.local is None else self.local.model
        others = len(whole.free_RVs) - len(values) - (0 if self.local is None else len(self.local.variables))
        changed = self.encoded is not None and not self.encoded.is_unchanged()
        if values != self.value_vars or self.factors.keys() != names or others or changed:
            raise UnsupportedModelError(
                "The model has other variables now than when the method was made, so the checks of the model "
                "hold no longer. Make a new DPADVI."
            )
        for array, row in zip(self.arrays, self.rows[: len(self.arrays)], strict=True):
            if array_shape(array) != (self.num_records, *row.type.shape[1:]):
                raise UnsupportedModelError(
                    f"{array_name(self.model, array)} has another shape now than when the method was made "
                    "(pm.set_data), so the checks of the model hold no longer. Put the data of the fit "
                    "back. A new DPADVI is needed only to fit other data, at a new cost."
                )
        for view in (self.within, self.covariates):
            if view is not None:
                view.check_unchanged()
        if self.tables is not None:
            self.tables.check_unchanged()
        elif self.units is not None:
            self.units.check_unchanged(self.whole_model)
        # No length is compared with N any more. A new array (of a Potential) is refused as undeclared.
        assert_no_record_array(replace(self, num_records=-1))
        self.check_public()

    def check_public(self) -> None:
        """Raise if something public is another now than when the method was made."""
        self.declared.check_unchanged(self.whole_model)

    def check_indices(self) -> None:
        """Raise if a table is empty, or an index that public arrays alone decide is out of range."""
        if self.in_range and not all(pytensor.function([], list(self.in_range), mode=fast_compile())()):
            raise UnsupportedModelError(
                "An index array of the model, on which neither records nor free variables decide, points "
                "beyond the end of what it indexes (or a table is empty, a mask has another shape, or a loop "
                "more steps than its sequences have entries). Look at what it holds. Nothing is spent."
            )

    def data(self) -> list[SharedVariable]:
        """Return the record arrays as new shared variables on the model's own memory (no copy).

        A later ``pm.set_data`` replaces the model's array and does not write into it: these stay as they are.
        If the records are in sources, copies of the made-up rows: what is compiled is for arrays in C order.
        Of several tables, one made of all of them.
        """
        self.check_unchanged()
        if self.tables is not None:
            values = [self.tables.values(a) for a in self.arrays]
        elif self.num_in_sources is not None:
            values = [np.array(array_value(a), order="C") for a in self.arrays]
        else:
            values = [array_value(a) for a in self.arrays]
        if self.units is not None and self.units.source is None and self.tables is None:
            if any(array_value(a) is not v for a, v in zip(self.arrays, self.held, strict=True)):
                raise UnsupportedModelError(
                    "The data of the model were exchanged (pm.set_data) since the method was made, "
                    "and the ids of unit= are no part of the model, so it is not known whose the rows are. "
                    "Make a new DPADVI."
                )
        named = zip(self.arrays, values, strict=True)
        return [pytensor.shared(value, name=a.name or "records", borrow=True) for a, value in named]


def _lengths(record: RecordModel) -> list[Variable]:
    """Return the lengths of the dims that may run over rows or persons: their number.

    Any dim may, but for those of free variables, of declared arrays, and of the columns of records, which are
    part of the schema. No length is compared.
    """
    model, named = record.model, record.model.named_vars_to_dims
    columns = {d for v in (*record.arrays, *model.observed_RVs) for d in (named.get(v.name) or ())[1:]}
    local = frozenset() if record.local is None else record.local.dims
    lengths = record.whole_model.dim_lengths  # as they are now
    dims = set(record.record_dims) | (lengths.keys() - record.released_dims - (columns - local))
    return [lengths[d] for d in dims]


def assert_no_record_array(
    record: RecordModel,
    generative: Sequence[Variable] = (),
    derived: Sequence[Variable] = (),
    start: Sequence[Variable] = (),
) -> None:
    """Raise if something in the one-row graph, the prior or the start may hold records (`private_constants`).

    `generative` and `derived` are those of `densities.Likelihood`, `start` the initial points.
    """
    model = record.model
    likelihood = record_potentials(model, record.arrays)
    refuse_private_constants(
        model,
        record.row_counts,
        held={*record.all_arrays, *_lengths(record)},
        public=record.public,
        generative=generative,
        derived=derived,
        factors=record.factors,
        prior=record.prior_logp,
        data_free=[p for p in model.potentials if p not in likelihood],
        start=start,
    )
