"""The file format of a privacy report: strict JSON with a version. All older versions can be read.

Version 7 added ``on_workers``, version 6 ``by_unit``, version 5 ``backend`` to the runs, version 4
``run_id``, version 3 ``tally_weight`` and ``default_sampling``; before it, every clip norm was fixed. Version
2 added ``noise`` and ``budget``; before it, noise was drawn in floating point, and there were no budgets.
"""

from __future__ import annotations

import json
import math
from typing import Any

from pymc_dpvi.errors import ArgumentError

__all__ = ["header", "read", "to_number", "write"]

_FORMAT = "pymc_dpvi.PrivacyReport"
_VERSION = 7
_BEFORE: dict[int, dict[str, Any]] = {
    1: {"noise": "gaussian_float64", "budget": None, "by_unit": False, "on_workers": False},
    **{version: {"by_unit": False, "on_workers": False} for version in (2, 3, 4, 5)},
    6: {"on_workers": False},
    _VERSION: {},
}


def header() -> dict[str, Any]:
    """Return the fields that name format and version."""
    return {"format": _FORMAT, "format_version": _VERSION}


def write(fields: dict[str, Any]) -> str:
    """Return JSON of plain dicts, lists, strings and numbers; an infinite number is written as ``"inf"``."""
    return json.dumps(_finite(fields), allow_nan=False)


def read(text: str) -> dict[str, Any]:
    """Return the fields of a report in the newest version, not checked any further.

    An ArgumentError if `text` is no report, or of a version that is not known.
    """
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        raise ArgumentError("text is not JSON.") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ArgumentError("text is not a privacy report of pymc_dpvi.")
    version = found.get("format_version")
    if type(version) is not int or version not in _BEFORE:
        raise ArgumentError(
            f"the report has format_version {version!r}; this version of pymc_dpvi reads "
            f"{sorted(_BEFORE)}. A newer pymc_dpvi may be needed."
        )
    return {**found, **_BEFORE[version]}


def to_number(value: Any) -> Any:
    """Return `value`, or infinity for ``"inf"``."""
    return math.inf if value == "inf" else value


def _finite(value: Any) -> Any:
    """Return `value` with infinite numbers as ``"inf"``, which strict JSON can carry."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value
