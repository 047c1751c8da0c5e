"""Rows of new records, who were not in the fit: what a user gives, as the arrays that the model has.

In: ``data=``, a dict of arrays by name. Out: arrays of the model's types. The rows are the caller's own, so a
message may say what is wrong with them; it never quotes a value all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_dpvi.errors import ArgumentError

__all__ = ["check_names", "new_rows"]


def check_names(data: Any, wanted: Sequence[str]) -> None:
    """Raise unless `data` is a dict that has these names, and arrays in which nothing is masked."""
    if not isinstance(data, Mapping):
        raise ArgumentError(
            f"data must be a dict of arrays by name, with an array for each of {list(wanted)}; found a "
            f"{type(data).__name__}. Of a pandas table: dict(table[{list(wanted)}])."
        )
    if data.keys() != set(wanted):
        missing, strange = sorted(set(wanted) - data.keys()), sorted(map(str, data.keys() - set(wanted)))
        wrong = [f"missing {missing}"] * bool(missing) + [f"not known {strange}"] * bool(strange)
        raise ArgumentError(
            f"data must have an array for each of {list(wanted)}, and no other; {', '.join(wrong)}."
        )
    for name, values in data.items():
        if np.ma.is_masked(values):
            raise ArgumentError(f"data[{name!r}] has missing (masked) values. Drop the rows that miss one.")


def new_rows(name: str, values: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return the array as numbers of the model's type; raise unless it is such."""
    given = np.asarray(values)
    if given.shape != shape or given.dtype.kind not in "biuf":
        raise ArgumentError(
            f"data[{name!r}] must be numbers of shape {shape}; found {given.dtype} of shape {given.shape}."
        )
    with np.errstate(all="ignore"):
        cast = given.astype(dtype)
    if not np.isfinite(given).all() or not np.allclose(cast, given, rtol=1e-6, atol=0.0):
        raise ArgumentError(
            f"data[{name!r}] must be finite numbers that the model's type, {dtype}, can hold."
        )
    return cast
