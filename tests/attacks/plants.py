"""Bugs of the kind that the attacker looks for, planted one by one: it must find every one.

A `Plant` changes something of the package while the attack runs, and says on which subject it is seen, by
which attack, and what is found. `test_attacks` plants them.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from pytensor.graph.basic import Constant

from attacks.operations import operation_data
from attacks.subjects import GRID, SUBJECTS, Subject
from pymc_dpvi import DPADVI, inference
from pymc_dpvi.engine import clipping
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph import guards, record_model, records
from pymc_dpvi.graph.amortized import Encoded
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.shape_constants import written_shapes
from pymc_dpvi.graph.traversal import array_value, walk
from pymc_dpvi.posterior import released_draws
from pymc_dpvi.runs import Runs

__all__ = ["PLANTS", "Plant", "planted"]

SMALL = SUBJECTS["columns: decay_by_lag"]


@dataclass(frozen=True)
class Plant:
    """A bug.

    Attributes
    ----------
    found : str
        Part of what the attacker says of it.
    changes : tuple of (object, str, value)
        What of the package is replaced.
    kind : {"rows", "fits"}
        The attack that sees it.
    subject : Subject
        On which model.
    ends : bool
        Whether the process survives it.
    """

    found: str
    changes: tuple[tuple[Any, str, Any], ...]
    kind: str = "rows"
    subject: Subject = SMALL
    ends: bool = True


@contextmanager
def planted(name: str, subject: Subject | None = None) -> Iterator[Subject]:
    """Plant a bug; yield the subject on which it is seen."""
    plant = PLANTS[name]
    with ExitStack() as stack:
        for owner, attribute, value in plant.changes:
            stack.enter_context(patch.object(owner, attribute, value))
        yield plant.subject


# ------------------------------------------------------------------------------------------------
# In the rows of a step
# ------------------------------------------------------------------------------------------------


def in_rows(bug: Callable[[tuple[np.ndarray, ...], list[np.ndarray]], Any]) -> tuple[Any, str, Any]:
    """Let something happen to what the rows of a piece, and their gradients, hold."""
    real = MicrobatchedSum.__init__

    def make(self: MicrobatchedSum, mark: Any, per_record: Any, num_record_arrays: int, *rest: Any) -> None:
        def changed(*inputs: Any) -> list[np.ndarray]:
            found = [np.array(a) for a in per_record(*inputs)]
            bug(inputs[:num_record_arrays], found)
            return found

        real(self, mark, changed, num_record_arrays, *rest)

    return MicrobatchedSum, "__init__", make


def hostile(rows: tuple[np.ndarray, ...]) -> bool:
    """Whether a piece has a hostile record, of the model `SMALL`."""
    return any(not np.isfinite(r).all() for r in rows)


def raises(rows: tuple[np.ndarray, ...], found: list[np.ndarray]) -> None:
    if hostile(rows):
        raise OverflowError


def warns(rows: tuple[np.ndarray, ...], found: list[np.ndarray]) -> None:
    if hostile(rows):
        warnings.warn("overflow encountered", RuntimeWarning, stacklevel=2)


def never_ends(rows: tuple[np.ndarray, ...], found: list[np.ndarray]) -> None:
    while hostile(rows):
        time.sleep(1.0)


def dies(rows: tuple[np.ndarray, ...], found: list[np.ndarray]) -> None:
    if hostile(rows):
        os.abort()


def is_slow(rows: tuple[np.ndarray, ...], found: list[np.ndarray]) -> None:
    if hostile(rows):
        time.sleep(1.2)


def last_digits(rows: tuple[np.ndarray, ...], found: list[np.ndarray]) -> None:
    """As a matrix product on the whole piece may do: the others' last digits turn on this record."""
    if rows[0].sum() > 1e8:
        for array in found:
            array[:2] = np.nextafter(array[:2], np.inf)


def no_guard(node: Any, marked: Any, where: Any) -> None:
    """Take any operation for a harmless one."""


def no_clip(norms: np.ndarray, bound: float) -> np.ndarray:
    return np.ones_like(norms)


def integer_power(data: Any) -> Any:
    import pymc as pm

    with pm.Model() as model:
        t = pm.Normal("t", 0, 1)
        k = pm.Data("k", data["k"])
        pm.Normal("y", t * (k + 1) ** k, 1.0, observed=data["x"])
    return model


# ------------------------------------------------------------------------------------------------
# In what leaves a fit
# ------------------------------------------------------------------------------------------------


def largest(record: RecordModel) -> float:
    """Return a number of the records."""
    return max(float(np.nanmax(array_value(a))) for a in record.arrays)


def after(owner: Any, name: str, more: Callable[..., Any]) -> tuple[Any, str, Any]:
    """Do something more, with the same arguments, before a method."""
    real = getattr(owner, name)

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        more(self, *args)
        return real(self, *args, **kwargs)

    return owner, name, changed


def logs(self: Runs, *args: Any) -> None:
    logging.getLogger("pymc_dpvi.engine.step").warning("the largest value is %g", largest(self._record))


def writes(self: Runs, *args: Any) -> None:
    Path(f"cache-{largest(self._record):g}.bin").touch()


def tells(self: DPADVI, *args: Any, **kwargs: Any) -> None:
    raise ArgumentError(f"run_profiling is refused on data up to {largest(self._record):g}.")


def refuses(self: Runs, *args: Any) -> None:
    if largest(self._record) > 1e8:
        raise ArgumentError("The data are badly scaled.")


real_describe = records.describe_public
real_data = RecordModel.data
real_reason = RecordModel.why_withheld
real_posterior = released_draws.posterior_data
real_build = records.build_record_model


def described(model: Any, arrays: Any, *rest: Any) -> list[str]:
    return [*real_describe(model, arrays, *rest), f"up to {max(array_value(a).max() for a in arrays)}"]


def centred(self: RecordModel) -> list[Any]:
    """Centre the records, as somebody may think helpful."""
    data = real_data(self)
    for shared in data:
        value = shared.get_value()
        if value.dtype.kind == "f":
            with np.errstate(all="ignore"):
                shared.set_value(value - value.mean(axis=0))
    return data


def by_length(self: RecordModel, var: Any) -> str | None:
    return "as many as records" if self.num_records == GRID else real_reason(self, var)


def by_number(self: RecordModel, var: Any) -> str | None:
    reason = real_reason(self, var)
    return None if reason is None else f"{reason}: {self.num_records} of them"


def with_the_number(*args: Any, attrs: Mapping[str, Any], **kwargs: Any) -> Any:
    return real_posterior(*args, attrs={**attrs, "num_batches": SEEN[-1]}, **kwargs)


#: Numbers of records, as the bug `with_the_number` finds them.
SEEN: list[int] = []


def prior_of_data(model: Any, **kwargs: Any) -> RecordModel:
    """Centre a prior at the data's mean, as weakly informative defaults do."""
    record = real_build(model, **kwargs)
    at = 1e-3 * float(np.nan_to_num(array_value(record.arrays[0]).astype(float)).clip(-1e6, 1e6).mean())
    return replace(record, prior_logp=record.prior_logp + at * record.value_vars[0].sum())


def started_at_data(self: DPADVI, *args: Any, **kwargs: Any) -> None:
    real_init(self, *args, **kwargs)
    mean = float(np.clip(array_value(self._record.arrays[0]).astype(float), -1e6, 1e6).mean())
    mu = self.approx.params[0]
    mu.set_value(mu.get_value() + 1e-6 * mean)


real_init = DPADVI.__init__


def by_mask(model: Any, public: Any) -> None:
    """Say how many records a mask lets through, as a shape that does not fit would."""
    for var in walk(model.observed_RVs):
        if isinstance(var, Constant) and getattr(var.type, "dtype", "") == "bool" and var.type.ndim:
            raise UnsupportedModelError(f"{int(array_value(var).sum())} records do not fit the outcome.")


def any_array(model: Any, arrays: Any) -> None:
    """Let PyMC's functions go by the numbers of the records."""


GUARDED = Subject("an integer power", integer_power, operation_data)
CURVE = SUBJECTS["columns: curve_on_a_grid"]
CODES = SUBJECTS["columns: codes"]

PLANTS: dict[str, Plant] = {
    "an operation that raises is let through": Plant(
        "raises ValueError", ((guards, "_check_total", no_guard),), subject=GUARDED
    ),
    "a kernel raises": Plant("raises OverflowError", (in_rows(raises),)),
    "a kernel warns": Plant("says RuntimeWarning", (in_rows(warns),)),
    "a kernel never ends": Plant("does not end within", (in_rows(never_ends),), ends=False),
    "a kernel kills the process": Plant("the process dies", (in_rows(dies),), ends=False),
    "a kernel takes its time": Plant("longer", (in_rows(is_slow),)),
    "others' last digits": Plant("moves the gradients of 2 other records", (in_rows(last_digits),)),
    "no clip": Plant("share is", ((clipping, "clip_factors", no_clip),)),
    "no clip of codes": Plant("share is", ((clipping, "clip_factors", no_clip),), subject=CODES),
    "a code counts as a variable for all": Plant(
        "another errors: node z", ((Encoded, "held", property(lambda self: ())),), "fits", CODES
    ),
    "a value in the log": Plant("another said", (after(Runs, "_warn", logs),), "fits"),
    "a file named by a value": Plant("another files", (after(Runs, "_warn", writes),), "fits"),
    "a value in an error": Plant("another errors: profile", ((DPADVI, "run_profiling", tells),), "fits"),
    "a value in the report": Plant("another report", ((records, "describe_public", described),), "fits"),
    "a refusal that looks at values": Plant("another fit", (after(Runs, "_warn", refuses),), "fits"),
    "centred records": Plant(
        "moves the gradients of other records", ((RecordModel, "data", centred),), "fits"
    ),
    "a prior from the data": Plant(
        "moves the prior", ((inference, "build_record_model", prior_of_data),), "fits"
    ),
    "a start from the data": Plant("another start", ((DPADVI, "__init__", started_at_data),), "fits"),
    "withheld by a length": Plant(
        "another withheld", ((RecordModel, "why_withheld", by_length),), "fits", CURVE
    ),
    "a reason that counts": Plant(
        "another withheld",
        ((RecordModel, "why_withheld", by_number),),
        "fits",
        SUBJECTS["columns: counts_in_a_deterministic"],
    ),
    "withheld by an entry": Plant(
        "another withheld",
        ((record_model, "shape_vectors", written_shapes),),
        "fits",
        SUBJECTS["columns: counts_in_a_deterministic"],
    ),
    "refused by what a mask lets through": Plant(
        "another refusal",
        ((records, "refuse_masks", by_mask),),
        "fits",
        SUBJECTS["columns: chosen_by_a_mask"],
    ),
    **{
        f"looked into: {name}": Plant(
            "moves the gradients of other records",
            ((records, "refuse_inspected", any_array),),
            "fits",
            SUBJECTS[f"columns: {name}"],
        )
        for name in ("bounds_behind_logp", "rows_of_probabilities")
    },
    "the number of records in an attribute": Plant(
        "another released",
        (
            after(Runs, "_warn", lambda self, *args: SEEN.append(self._record.num_records)),
            (released_draws, "posterior_data", with_the_number),
        ),
        "fits",
    ),
}
