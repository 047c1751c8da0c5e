"""Starting values of a fit: ``start`` and ``start_sigma``, checked and named as PyMC wants them.

A starting value is public: it must not be computed from the records. An expression that can be seen to depend
on them is refused. Numbers cannot be traced back, so the report says that the starting point is not covered
where results on these records guided it.

By default the standard deviations start at 0.1, not at PyMC's 0.69. A posterior of some hundred records is
narrower than that, and steps are too dear to get there. Latent draws from a wide distribution also have large
gradients, which clipping turns into a bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.densities import without_records
from pymc_dpvi.graph.gradients import Latents, in_draws, put
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.synthetic_records import python_function
from pymc_dpvi.graph.traversal import array_shape, is_array, walk
from pymc_dpvi.guide.family import START_SIGMA
from pymc_dpvi.guide.whole import Family

__all__ = ["check_finite_start", "check_starting_values"]

#: Draws around the start that are tried if the prior has no density at the start itself.
_TRIES = 8

#: Starting values are below it: else the square of the prior's gradient may overflow, after the charge.
_LARGEST = 1e100
#: Names that PyMC takes in place of numbers.
_STRATEGIES = ("support_point", "prior")


def check_starting_values(
    record: RecordModel,
    start: Mapping[str, Any] | None,
    start_sigma: Mapping[str, Any] | None,
    family: type[Family],
    sigmas: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """Check `start` and `start_sigma`; return them as keyword arguments of PyMC's approximation.

    Both map names of free variables (or of their value variables) to values: `start` in the variable's own
    space; `start_sigma`, if the family takes it, to standard deviations in the unconstrained space, which are
    `START_SIGMA`, or what `sigmas` has, for variables that it leaves out. `sigmas` has None for a variable
    without a standard deviation. A value must not depend on the records.
    """
    model = record.model
    by_name = {rv.name: model.rvs_to_values[rv].name for rv in model.free_RVs}
    fitted = {rv.name: by_name[rv.name] for rv in record.fitted_RVs}
    own_name = {name: name for name in fitted} | {value: name for name, value in fitted.items()}
    shapes = model.eval_rv_shapes()
    held = {v for v in record.brought_by_users - record.public if v.type.ndim or v in record.of_records}
    for argument, given in (("start", start), ("start_sigma", start_sigma)):
        if given is None:
            continue
        if not isinstance(given, Mapping):
            raise ArgumentError(f"{argument} must be a dict of variable name to value.")
        strange = sorted({type(key).__name__ for key in given if not isinstance(key, str)})
        if strange:
            raise ArgumentError(f"{argument} must have names of variables as keys; found {strange}.")
        unknown = sorted(key for key in given if key not in own_name)
        if unknown:
            raise ArgumentError(
                f"{argument} names {unknown}, which are no free variables of the model; they are "
                f"{sorted(fitted)}."
            )
        for key, value in given.items():
            if isinstance(value, Variable) and _reads_records(record, value, held):
                raise UnsupportedModelError(
                    f"{argument}[{key!r}] depends on the records, and nobody accounts for that. Use "
                    "fixed numbers."
                )
            if isinstance(value, str) and (argument != "start" or value not in _STRATEGIES):
                raise ArgumentError(
                    f"{argument}[{key!r}] must be numbers; found a str that names no way to start."
                )
            if not isinstance(value, str | Variable):
                _check_value(f"{argument}[{key!r}]", value, shapes[own_name[key]], argument == "start_sigma")
    options: dict[str, Any] = {}
    if start is not None:
        options["start"] = dict(start)
    if start_sigma is not None and not family.takes_start_sigma:
        raise ArgumentError("start_sigma is only there for DPADVI (mean-field), as in PyMC.")
    if family.takes_start_sigma:
        given = {by_name.get(key, key): value for key, value in (start_sigma or {}).items()}
        defaults = {name: START_SIGMA for name in by_name.values()} | dict(sigmas or {})
        if points := sorted(own_name[name] for name in given if defaults[name] is None):
            raise ArgumentError(
                f"start_sigma names {points}, which are points in guide= and have no spread. Leave them out."
            )
        options["start_sigma"] = defaults | given
    return options


@quiet_pytensor()
def check_finite_start(record: RecordModel, latents: Latents, start: np.ndarray) -> None:
    """Raise if a variable does not start at a finite number, or where the prior has no density.

    Otherwise the first step of a fit would make the parameters non-finite, after the charge. `start` are
    unconstrained means, shape (D,). No record is looked at: the start and the prior depend on none.
    """
    names = {record.model.rvs_to_values[rv]: rv.name for rv in record.model.free_RVs}
    for var, at in zip(latents.value_vars, latents.slices, strict=True):
        if not np.isfinite(start[at]).all():
            raise UnsupportedModelError(
                f"The variable '{names[var]}' starts at a number that is not finite in the unconstrained "
                "space (NaN, or outside of its support or at the end of it; an ordered variable must not "
                f"start with equal entries). Give it a start within: pm...('{names[var]}', ..., "
                f"initval=...), or start={{'{names[var]}': ...}}."
            )
    z = pt.vector("z", shape=(latents.size,), dtype=pytensor.config.floatX)
    (prior,), draw = in_draws([record.prior_logp], latents)
    density = python_function([z], put([prior], draw, latents.split(z)))
    rng = np.random.default_rng(0)
    tried = [start, *(start + START_SIGMA * rng.normal(size=(_TRIES, latents.size)))]
    if any(np.isfinite(density(point.astype(z.dtype))[0]) for point in tried):
        return
    view = without_records(record.model, record.arrays)
    terms = view.logp(vars=view.free_RVs, sum=False, jacobian=False)
    parts, draw = in_draws([t.sum() for t in terms], latents)
    each = python_function([z], put(parts, draw, latents.split(z)))(start.astype(z.dtype))
    guilty = [
        rv.name for rv, value in zip(record.model.free_RVs, each, strict=True) if not np.isfinite(value)
    ]
    where = f"of {guilty} " if guilty else ""
    raise UnsupportedModelError(
        f"The prior {where}has no finite log-density where the fit starts, so the first step would end it. "
        f"Give the variables a start at which the prior has one, by initval=... or start={...}; if a "
        "parameter of "
        "the prior is another variable, such as a scale, see that this one starts (and stays) in its range."
    )


def _reads_records(record: RecordModel, value: Variable, held: set[Variable]) -> bool:
    """Whether an expression depends on records, their number, or an array as long as they are.

    An example of the last is ``pt.as_tensor(y).mean()``. The number of columns of records is no secret.
    """
    behind = walk([value], into_size=True, columns_of=record.all_arrays)
    if not held.isdisjoint(behind):
        return True
    arrays = [v for v in behind if is_array(v) and v not in record.public]
    return any(not record.row_counts.isdisjoint(array_shape(v)) for v in arrays)


def _check_value(name: str, value: Any, shape: tuple[int, ...], positive: bool) -> None:
    """Raise unless `value` is finite (and positive) and broadcasts to the variable's shape."""
    array = np.asarray(np.nan)
    with suppress(Exception):  # any object may be given, and may raise anything
        found = np.asarray(value)
        if found.dtype.kind in "biuf":
            np.broadcast_to(found, shape)
            array = found.astype(float)
    if not (np.abs(array) < _LARGEST).all() or (positive and not (array > 0).all()):
        wanted = "positive" if positive else "finite"
        raise ArgumentError(f"{name} must be {wanted} numbers below {_LARGEST:g} of shape {shape}.")
