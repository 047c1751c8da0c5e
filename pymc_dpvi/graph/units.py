"""Whose rows are whose: ``DPADVI(unit=...)``, by which a record is all rows of one person.

In: ids, one for each row, as an array, as the name of a ``pm.Data`` or as that of a dim whose labels they
are; with several tables, the ids of each (`tables`). Out: :class:`Units`, the rows sorted by person. Equal
ids are one person. Ids are compared exactly, as integers or as strings: two persons taken for one would have
twice the influence that is accounted for.

The likelihood stays a product over rows, and each row's log-density is the one of `records`. A person's
gradient is the sum over their rows, and it is this sum that is clipped (`engine.unit_sums`).

What must never leave: an id, the number of persons, anybody's number of rows. So a free variable with an axis
as long as there are persons is refused, unless it is local (`local_latents`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pymc_dpvi.arguments import check_integer
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.public_data import shown
from pymc_dpvi.graph.traversal import array_value, is_array, walk

__all__ = [
    "Ids",
    "Units",
    "check_max_rows",
    "codes_of",
    "dims_of_ids",
    "find_ids",
    "find_units",
    "is_integer",
    "refuse_axes_over_units",
]

_EXAMPLE = (
    "Type unit='person' for a pm.Data of the model with one id per row, or unit=ids for an array of them."
)


@dataclass(frozen=True)
class Ids:
    """Ids of rows, and where they come from: a ``pm.Data`` (`source`), the labels of a `dim`, or neither."""

    values: Any = field(repr=False)
    words: str  # for the report: "the same 'person'"
    source: Variable | None = field(default=None, repr=False)
    dim: str | None = None

    def check_unchanged(self, model: pm.Model) -> None:
        """Raise if ``pm.set_data`` has put other ids into the model."""
        held = self.source is not None and not np.array_equal(array_value(self.source), self.values)
        labels = self.dim is not None and list(model.coords.get(self.dim) or ()) != self.values
        if held or labels:
            name = self.dim if self.source is None else self.source.name
            raise UnsupportedModelError(
                f"The ids in '{name}' are others now than when the method was made "
                "(pm.set_data), so it is not known whose the rows are. Make a new DPADVI."
            )


@dataclass(frozen=True)
class Units:
    """The rows of each person.

    Person p has the rows ``rows[starts[p] : starts[p + 1]]``, in the order of the data. With `max_rows`, a
    person who has more is represented by that many of them, drawn anew in every step. `source` is the
    ``pm.Data`` that holds the ids, if one does, and `ids` are those of each table.
    """

    rows: np.ndarray = field(repr=False)  # int64, (N,)
    starts: np.ndarray = field(repr=False)  # int64, (P + 1,)
    words: str  # whose rows, for the report: "the same 'person'"
    max_rows: int | None = None
    source: Variable | None = field(default=None, repr=False)
    ids: tuple[Ids, ...] = field(default=(), repr=False)

    @classmethod
    def by_codes(cls, codes: np.ndarray, words: str, max_rows: int | None = None, **held: Any) -> Units:
        """Sort rows by person; `codes`, (N,), number the persons from 0, and each has a row."""
        rows = np.argsort(codes, kind="stable").astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(np.bincount(codes))]).astype(np.int64)
        return cls(rows, starts, words, max_rows, **held)

    def __len__(self) -> int:
        """Return the number of persons: for sampling batches, and no part of any release."""
        return len(self.starts) - 1

    def check_unchanged(self, model: pm.Model) -> None:
        """Raise if ``pm.set_data`` has put other ids into the model."""
        for ids in self.ids:
            ids.check_unchanged(model)

    def describe(self, observed: str) -> str:
        """Say what one record is, for the report; `observed` names the observed variables."""
        drawn = (
            ""
            if self.max_rows is None
            else (f"; of more than {self.max_rows} rows, {self.max_rows} are drawn anew in every step")
        )
        return f"all rows of {observed} with {self.words}{drawn}"


def find_units(
    model: pm.Model, unit: Any, max_rows: Any, num_rows: int, public: Collection[Variable]
) -> Units | None:
    """Return the rows of each person; None if a record is a row. The arguments are those of `DPADVI`."""
    max_rows = check_max_rows(unit, max_rows)
    if unit is None:
        return None
    ids = find_ids(model, unit, public)
    codes = codes_of(ids.values, ids.words, num_rows, of_data=ids.source is not None)
    return Units.by_codes(codes, ids.words, max_rows, source=ids.source, ids=(ids,))


def check_max_rows(unit: Any, max_rows: Any) -> int | None:
    """Return `max_rows_per_unit`, which needs `unit`."""
    if max_rows is None:
        return None
    max_rows = check_integer("max_rows_per_unit", max_rows, high=2**31 - 1)
    if unit is None:
        raise ArgumentError(
            "max_rows_per_unit= says how many rows of a person count, so it needs unit=. " + _EXAMPLE
        )
    return max_rows


def find_ids(model: pm.Model, unit: Any, public: Collection[Variable]) -> Ids:
    """Return the ids that `unit` is or names; raise if they are public, or would be released."""
    source, ids, words = _ids(model, unit)
    dim = unit if isinstance(unit, str) and source is None else None
    if dim is not None and dim in _released_dims(model, public):
        raise ArgumentError(
            f"unit={dim!r} is a dim of a free variable or of data that were declared public, whose labels "
            "are released, and the labels are ids. If a pm.Data has an id for each row, name it instead"
            f"{_integer_vectors(model)}. Or give the rows a dim of their own, or type unit=ids."
        )
    if source is not None and source in public:
        raise ArgumentError(
            f"unit={shown(unit)} is also named in public_data: the ids say whose the rows are, and are not "
            "public. Leave it out there."
        )
    if source is not None:
        ids = np.array(array_value(source))
    return Ids(ids, words, source, dim)


def _integer_vectors(model: pm.Model) -> str:
    """List what may be ids, by its type alone."""
    names = [v.name for v in model.data_vars if v.type.ndim == 1 and v.type.dtype.startswith(("int", "uint"))]
    return f" (unit={' or unit='.join(map(repr, sorted(names)))})" if names else ""


def dims_of_ids(model: pm.Model, ids: Iterable[Ids]) -> frozenset[str]:
    """Return dims that the model gives the ids: they run over rows."""
    named = (model.named_vars_to_dims.get(i.source.name) for i in ids if i.source is not None)
    return frozenset(dims[0] for dims in named if dims and dims[0] is not None)


def _released_dims(model: pm.Model, public: Collection[Variable]) -> set[str]:
    named = model.named_vars_to_dims
    return {d for v in (*model.free_RVs, *public) for d in named.get(v.name) or () if d is not None}


def _ids(model: pm.Model, unit: Any) -> tuple[Variable | None, Any, str]:
    """Return the model's variable that holds the ids, if there is one, the ids, and words for them."""
    if isinstance(unit, Variable):
        if unit.name is None or model.named_vars.get(unit.name) is not unit:
            raise ArgumentError(f"unit must be a pm.Data of the model, or its name. {_EXAMPLE}")
        unit = unit.name
    if isinstance(unit, str):
        var = model.named_vars.get(unit)
        if isinstance(var, SharedVariable) and is_array(var):
            return var, array_value(var), f"the same '{unit}'"
        if var is None and unit in model.dim_lengths:
            labels = model.coords.get(unit)
            if labels is None:
                raise ArgumentError(
                    f"unit={unit!r} is a dim without labels, so it says nobody's id. Give it labels, "
                    f"coords={{{unit!r}: ids}}, or type unit=ids."
                )
            return None, list(labels), f"the same label of '{unit}'"
        names = sorted({*(str(d.name) for d in model.data_vars), *model.dim_lengths})
        close = get_close_matches(unit, names, 1)
        raise ArgumentError(
            f"unit={shown(unit)} is no pm.Data and no dim of the model, which has "
            f"{', '.join(map(repr, names)) or 'none'}. "
            + (f"Did you mean unit={close[0]!r}?" if close else _EXAMPLE)
        )
    return None, unit, "the same id in unit="


def codes_of(
    ids: Any, words: str, num_rows: int, *, of_data: bool = False, alone: bool = False
) -> np.ndarray:
    """Return the number of each row's person, from 0 on; int64, (N,).

    `of_data` says that the ids are a ``pm.Data``, and `alone` that there may be one person.
    """
    if hasattr(ids, "to_numpy"):
        ids = ids.to_numpy()
    if not isinstance(ids, np.ndarray | list | tuple):
        raise ArgumentError(f"unit must be ids, one for each row; found a {type(ids).__name__}. {_EXAMPLE}")
    if isinstance(ids, np.ma.MaskedArray):
        if np.ma.getmaskarray(ids).any():
            raise ArgumentError(
                "unit has missing (masked) ids. Drop the rows without an id, or give each of them "
                "one of its own."
            )
        ids = ids.data
    if isinstance(ids, np.ndarray):
        ids = np.asarray(ids)  # a chararray strips spaces: two ids would be one
    if np.ndim(ids) == 0:
        raise ArgumentError(f"unit must be ids, one for each row; found a single one. {_EXAMPLE}")
    # Not np.asarray of strings: NumPy's own would drop null characters at the end, and two ids be one.
    array = (
        ids
        if isinstance(ids, np.ndarray) and ids.dtype.kind != "U"
        else np.array(_objects(ids), dtype=object)
    )
    if array.ndim != 1 or len(array) != num_rows:
        raise ArgumentError(
            "unit must have one id for each row of the observed variables, in their order: a vector as long "
            f"as they are. Found {'another length' if array.ndim == 1 else f'{array.ndim} axes'}. {_EXAMPLE}"
        )
    if array.dtype.kind in "iu":
        if of_data and (array.dtype.itemsize < 4 or (array < 0).any()):
            found = "negative ids" if array.dtype.itemsize >= 4 else f"ids in {8 * array.dtype.itemsize} bits"
            raise ArgumentError(
                f"unit has {found}. pd.factorize and pd.Categorical write -1 for a missing id: drop rows "
                "without one. Or ids were too large: PyMC keeps the integers of a pm.Data in 32 bits, and in "
                "16 with floatX='float32'. Larger ones wrap around, so that two persons may have become one. "
                "Number them, pd.factorize(ids)[0], or give the ids themselves: unit=ids."
            )
        codes = np.unique(array, return_inverse=True)[1]
    elif array.dtype.kind == "O":
        codes = _codes_of_objects(array)
    else:
        found = {"f": "floats", "b": "True and False", "M": "dates", "S": "bytes"}.get(
            array.dtype.kind, array.dtype.type.__name__
        )
        raise ArgumentError(
            f"unit must have integers or strings as ids; found {found}. Drop rows without "
            "an id, and type ids.astype(int) if the others are whole numbers, or ids.astype(str)."
        )
    codes = np.asarray(codes, dtype=np.int64).ravel()
    if codes.max(initial=0) < 1 and not alone:
        raise ArgumentError(
            f"All rows have {words}: they would be one person's, and there is nothing to learn privately "
            "from one. Give each person an id of their own."
        )
    return codes


def _objects(ids: Any) -> np.ndarray:
    out = np.empty(len(ids), dtype=object)
    out[:] = [str(i) if isinstance(i, np.str_) else i for i in ids]
    return out


def _codes_of_objects(ids: np.ndarray) -> np.ndarray:
    """As `codes_of` for ids that are Python objects: all strings, or all integers, by their equality."""
    kinds = {str if isinstance(i, str) else int if is_integer(i) else type(i) for i in ids}
    if kinds not in ({str}, {int}):
        strange = sorted(k.__name__ for k in kinds - {str, int}) or ["both strings and integers"]
        raise ArgumentError(
            "unit must have strings or integers as ids, all of one kind and none missing; found "
            f"{', '.join(strange)}. Drop the rows without an id, or give each of them an id of its own."
        )
    number: dict[Any, int] = {}
    return np.array([number.setdefault(i, len(number)) for i in ids], dtype=np.int64)


def is_integer(value: Any) -> bool:
    """Whether an id is a whole number, of Python's or NumPy's; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def refuse_axes_over_units(
    model: pm.Model,
    units: Units | None,
    look_ups: Collection[Variable] = (),
    lengths: Collection[int] = (),
    dims: Collection[str] = (),
) -> None:
    """Raise if a global variable has a value for each person, or the likelihood reads the ids otherwise.

    `look_ups` are what is taken by person of local variables (`local_latents`). Arrays of persons have these
    `lengths` and `dims`.
    """
    if units is None:
        return
    shapes = model.eval_rv_shapes()
    advice = (
        "A value for each person cannot be released, and their number is private. Put the ids into a "
        "pm.Data, person = pm.Data('person', ids), look it up by that, u[person], and give unit='person': "
        "then it is integrated out. (With "
        "another index beside the ids, take a person's values first: pt.take_along_axis(u[person], items, "
        "axis=1) in place of u[person[:, None], items].) Or leave it out."
    )
    for rv in model.free_RVs:
        named = model.named_vars_to_dims.get(rv.name) or ()
        for axis, entries in enumerate(shapes[rv.name]):
            if entries in (len(units), *lengths) or (axis < len(named) and named[axis] in dims):
                raise UnsupportedModelError(
                    f"The free variable '{rv.name}' has an axis (axis {axis}) as long as there are persons, "
                    f"by unit=. {advice} If the length is the same by chance, give the axis one entry more."
                )
    if units.source is None:
        return
    for term in [*model.observed_RVs, *model.potentials]:
        found = walk([term, model.rvs_to_values.get(term, term)], stop=[*model.free_RVs, *look_ups])
        if units.source in found:
            raise UnsupportedModelError(
                f"The likelihood '{term.name}' reads '{units.source.name}', the ids of the persons. {advice} "
                "What is known of a person (age, treatment) may be looked up, age[person], in a pm.Data with "
                "an entry for each person, if the model has one table. A formula may take other rows of the "
                "same person, at most 200 rows away (a lag). Or give one entry per row."
            )
