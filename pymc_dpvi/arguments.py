"""Checks of what a user types, before anything is spent.

Each names the argument, what was found, and what to type instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from pymc_dpvi.errors import ArgumentError

__all__ = ["check_choice", "check_count", "check_number", "check_seed", "refuse_unknown"]


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise unless `value` is one of the strings in `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(f"{name} must be one of {list(choices)}; found {value!r}.")


def check_number(name: str, value: Any, *, low: float, high: float = math.inf, example: float = 1.0) -> float:
    """Return `value` as a float strictly between `low` and `high`, or raise."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise ArgumentError(f"{name} must be a number, such as {example:g}; found {value!r}.")
    number = float(value)
    if not math.isfinite(number) or not low < number < high:
        bound = f"above {low:g}" + (f" and below {high:g}" if math.isfinite(high) else ", finite")
        raise ArgumentError(f"{name} must be {bound}, such as {example:g}; found {value!r}.")
    return number


def check_count(name: str, value: Any, *, at_least: int = 1) -> int:
    """Return `value` as a whole number of at least `at_least`, or raise."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise ArgumentError(f"{name} must be a whole number; found {value!r}.")
    if value < at_least:
        raise ArgumentError(f"{name} must be at least {at_least}; found {value!r}.")
    return int(value)


def check_seed(name: str, value: Any) -> int:
    """Return `value` as a non-negative whole number below 2**63, or raise."""
    seed = check_count(name, value, at_least=0)
    if seed >= 2**63:
        raise ArgumentError(f"{name} must be below 2**63.")
    return seed


def refuse_unknown(kwargs: Mapping[str, Any], refused: Mapping[str, str], where: str) -> None:
    """Raise for keyword arguments that are not taken, with the reason where there is one."""
    for name in kwargs:
        reason = refused.get(name)
        if reason is None:
            raise ArgumentError(f"{where} does not take {name}=.")
        raise ArgumentError(f"{where} does not take {name}=: {reason}.")
