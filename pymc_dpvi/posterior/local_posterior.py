r"""Local values of *new* persons, given what was released: post-processing of the release alone.

For each draw z of the released posterior, a new person with rows :math:`x` has

.. math:: p(u \mid x, z) \propto p(u \mid z) \prod_r p(x_r \mid u, z) .

A discrete u is drawn from it. Of a continuous one, some points are drawn from a normal about the mode, a
little wider than the curvature there says, and one of them by its weight (sampling and importance
resampling, Rubin 1987). If there are both, each combination of the discrete ones has such points, and one
point is drawn of all. The mode is found as in a step (`engine.local_modes`).

What it must never do: read a record of the fit. The rows are the caller's, and nobody accounts for what
the result says of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_dpvi.engine import local_sums
from pymc_dpvi.engine.local_search import find_modes
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.gradients import Latents, local_terms, put
from pymc_dpvi.graph.model_checks import array_name
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.synthetic_records import python_function
from pymc_dpvi.graph.tables import Tables
from pymc_dpvi.graph.traversal import array_shape, array_value
from pymc_dpvi.graph.units import Units, codes_of
from pymc_dpvi.posterior.new_rows import check_names, new_rows

__all__ = ["LocalPosterior"]

#: Points of a person: at least, and for each value.
_PROPOSALS, _FOR_EACH = 64, 16
_WIDER = 0.25  # by how much, in one dimension


class LocalPosterior:
    """Draws of the local values of new persons."""

    def __init__(self, record: RecordModel, latents: Latents, data: Mapping[str, Any]) -> None:
        if record.local is None or record.units is None:
            raise UnsupportedModelError(
                "The model has no local variables: variables with a value for each person, u[person], with "
                "unit='person'. sample() has all that there is."
            )
        assert record.units.source is not None
        record.check_public()
        #: What is drawn of the release for each draw of local values.
        self.variables = list(record.model.free_RVs)
        self.names = record.local.names
        person = str(record.units.source.name)
        self.dims = {
            name: [person, *(f"{name}_dim_{k}" for k in range(1, 1 + len(shape)))]
            for name, shape in zip(record.local.names, record.local.shapes, strict=True)
        }
        self._local = record.local
        rows, persons, self._units = _rows_of(record, data)
        self._rows = [r[self._units.rows] for r in rows]  # person by person
        self._starts = self._units.starts
        self.coords = {person: persons}
        z = pt.matrix("z", shape=(1, latents.size), dtype=pytensor.config.floatX)
        batch = [r.type.clone(shape=(None, *r.type.shape[1:]))() for r in record.rows]
        self._terms = python_function([*batch, z], local_terms(record, batch, latents, z))
        own, _ = self._local.placeholders(len(self._units))
        values = put(self._local.constrained(own), latents.value_vars, latents.split(z[0]))
        self._constrained = python_function([own, z], values)

    def draw(self, z: np.ndarray, values: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
        """Draw the values of each variable, (persons, ...), at one latent vector (D,)."""
        z = z[None].astype(pytensor.config.floatX)
        rule, persons = self._local.places, len(self._units)
        combinations, size = rule.values, rule.continuous
        modes, curvature = find_modes(lambda at, u: self._evaluate(at, u, z), self._starts, rule)
        wide = 1.0 + _WIDER / np.sqrt(max(size, 1))
        count = max(_PROPOSALS, _FOR_EACH * size) if size else 1
        x = rng.standard_normal((len(modes), count, size)) * wide
        points = np.empty((len(modes), count, self._local.size))
        for s, own in enumerate(x):  # each search has points of its own
            c = s % len(combinations)
            one = modes[s : s + 1], curvature[s : s + 1]
            points[s] = local_sums.place_nodes(*one, own, combinations[c : c + 1], False)[0]
        points = points.reshape(persons, -1, self._local.size)
        logs = (0.5 * np.sum(x**2, axis=2) / wide**2).reshape(persons, -1)
        logs += local_sums.begin_logs(curvature, len(combinations), count)
        logs = logs + self._log_densities(points, z)
        logs = np.where(np.isnan(logs), -np.inf, logs)
        top = logs.max(axis=1, keepdims=True)
        if not np.isfinite(top).all():
            some = int(np.count_nonzero(~np.isfinite(top)))
            raise ArgumentError(
                f"The rows in data= of {some} of the persons have no density under the released posterior. "
                "Look for outcomes outside of the support of their distribution."
            )
        # Gumbel's trick: the largest of log-weights with such noise is drawn by the weights.
        chosen = np.argmax(logs + rng.gumbel(size=logs.shape), axis=1)
        local = points[np.arange(persons), chosen].astype(pytensor.config.floatX)
        return [np.asarray(v) for v in self._constrained(local, z)]

    def _evaluate(self, places: np.ndarray, local: np.ndarray, z: np.ndarray) -> list[np.ndarray]:
        """Return log-densities and derivatives of rows, by their places, at local values, (rows, size)."""
        first = np.zeros(len(self._units.rows))
        first[self._starts[:-1]] = 1.0
        made = (a.astype(pytensor.config.floatX) for a in (local, first[places]))
        with np.errstate(all="ignore"):
            return list(self._terms(*(r[places] for r in self._rows), *made, z))

    def _log_densities(self, points: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return each person's log-density at their points, (persons, K)."""
        count = points.shape[1]
        whose = np.repeat(np.arange(len(self._units)), np.diff(self._starts))
        rows = np.arange(len(whose))
        values = self._evaluate(np.repeat(rows, count), points[whose].reshape(-1, points.shape[2]), z)[0]
        return np.add.reduceat(np.asarray(values, dtype=float).reshape(-1, count), self._starts[:-1], axis=0)


def _rows_of(record: RecordModel, data: Any) -> tuple[list[np.ndarray], list[Any], Units]:
    """Return the arrays of new rows as the model has them, the persons' ids, and whose the rows are."""
    assert record.units is not None and record.units.source is not None
    if record.tables is not None:
        return _rows_of_tables(record, record.tables, data)
    source = record.units.source
    within = record.within
    columns = () if within is None else within.columns
    read = [a for a in record.arrays if a is not source and a not in columns]
    if within is not None:
        read += [a for a in within.arrays if a is not source and a not in read]
    check_names(data, _names(record.model, [source, *read]))
    person = str(source.name)
    if np.size(data[person]) == 0:
        raise ArgumentError(f"data[{person!r}] must have an id for each row; found none.")
    codes = codes_of(data[person], "the same id", np.size(data[person]), alone=True)
    new = _new(read, data, codes.size)
    new[source] = np.zeros(codes.size, dtype=array_value(source).dtype)
    persons, units = _persons(np.asarray(data[person], dtype=object), codes)
    for array in () if record.covariates is None else record.covariates.rows_of.values():
        _check_one_entry(new[array], units, str(array.name), person)
    if within is not None:
        new |= zip(columns, within.values(new, units), strict=True)
    return [new[a] for a in record.arrays], persons, units


def _rows_of_tables(
    record: RecordModel, tables: Tables, data: Any
) -> tuple[list[np.ndarray], list[Any], Units]:
    """As `_rows_of`, of several tables; a new person may have no row in some, and a table none at all."""
    sources: list[Variable] = []
    for table in tables.tables:
        if table.ids.source is None:
            raise UnsupportedModelError(
                f"The ids of the rows of {', '.join(map(repr, table.terms))} are no pm.Data, so data= cannot "
                "hold them. Put them into pm.Data, and name it in unit=."
            )
        sources.append(table.ids.source)
    reads = [[a for a in t.arrays if a is not s] for t, s in zip(tables.tables, sources, strict=True)]
    check_names(data, _names(tables.model, [*sources, *chain(*reads)]))
    for s in sources:
        if np.ndim(data[str(s.name)]) != 1:
            raise ArgumentError(f"data[{str(s.name)!r}] must have one id for each row: a vector, or [].")
    ids = np.concatenate([np.asarray(data[str(s.name)], dtype=object) for s in sources])
    if ids.size == 0:
        raise ArgumentError(f"data[{str(sources[0].name)!r}] must have an id for each row; found none.")
    codes = codes_of(ids, "the same id", ids.size, alone=True)
    lengths = [len(data[str(s.name)]) for s in sources]
    given: dict[Variable, np.ndarray] = {}
    for read, length in zip(reads, lengths, strict=True):
        given |= _new(read, data, length)
    return [tables.stacked(a, given, lengths, codes) for a in record.arrays], *_persons(ids, codes)


def _names(model: pm.Model, arrays: Sequence[Variable]) -> list[str]:
    """Name arrays, each once."""
    for array in arrays:
        if array.name is None:
            raise UnsupportedModelError(
                f"{array_name(model, array)} has no name, so data= cannot hold it. Put it into pm.Data."
            )
    return list(dict.fromkeys(str(a.name) for a in arrays))


def _new(arrays: Sequence[Any], data: Mapping[str, Any], length: int) -> dict[Variable, np.ndarray]:
    """Return new rows of arrays in the model's types."""
    return {a: new_rows(a.name, data[a.name], (length, *array_shape(a)[1:]), a.type.dtype) for a in arrays}


def _check_one_entry(rows: np.ndarray, units: Units, name: str, person: str) -> None:
    """Raise if rows of one person have different entries of what the model has once for each person."""
    apart = np.flatnonzero(np.diff(np.repeat(np.arange(len(units)), np.diff(units.starts))) == 0)
    ordered = rows[units.rows]
    if not np.array_equal(ordered[apart], ordered[apart + 1], equal_nan=rows.dtype.kind == "f"):
        raise ArgumentError(
            f"data[{name!r}] has different entries in rows of one person, and the model has one for each "
            f"person. Repeat a person's entry in all rows that have the same id in {person!r}."
        )


def _persons(ids: np.ndarray, codes: np.ndarray) -> tuple[list[Any], Units]:
    units = Units.by_codes(codes, "the same id")
    return [ids[units.rows[a]] for a in units.starts[:-1]], units
