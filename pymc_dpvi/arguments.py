"""Checks of a user's arguments, before anything is spent.

A check returns the value in its plain Python type, or raises an :class:`ArgumentError` with the name of the
argument, what was found, and what to type instead. Booleans and strings are refused although Python would
convert them: ``epsilon=True`` is a mistake, not a budget of one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from pymc_dpvi.errors import ArgumentError

__all__ = [
    "check_choice",
    "check_flag",
    "check_integer",
    "check_number",
    "check_run_id",
    "check_seed",
]


def _kind(value: object) -> str:
    """Name the type of a value without the value."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in tuple('aeio') or name == 'ndarray' else 'a'} {name}"


def check_choice(name: str, value: Any, choices: Sequence[str], or_else: str = "") -> None:
    """Raise unless `value` is one of the strings in `choices`; `or_else` says what else is possible."""
    if not isinstance(value, str) or value not in choices:
        found = repr(value) if type(value) is str else _kind(value)
        wanted = f"one of {list(choices)}" if len(choices) > 1 else repr(choices[0])
        raise ArgumentError(f"{name} must be {wanted}{or_else}; found {found}.")


def check_flag(name: str, value: Any) -> bool:
    """Return `value` as a bool, or raise if it is anything else, such as an array or a string."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(f"{name} must be True or False; found {_kind(value)}.")
    return bool(value)


def check_number(
    name: str,
    value: Any,
    *,
    low: float = 0.0,
    high: float = math.inf,
    closed_low: bool = False,
    closed_high: bool = False,
    example: float | None = None,
) -> float:
    """Return `value` as a finite float between `low` and `high`, or raise; bounds are open unless closed.

    `example` is a value to type instead, for the message.
    """
    brackets = ("[" if closed_low else "(", "]" if closed_high else ")")
    wanted = f"a finite number in {brackets[0]}{low:g}, {high:g}{brackets[1]}"
    if example is not None:
        wanted += f", such as {example:g}"
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise ArgumentError(f"{name} must be {wanted}; found {_kind(value)}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    inside = low < number < high or (closed_low and number == low) or (closed_high and number == high)
    if not math.isfinite(number) or not inside:
        raise ArgumentError(f"{name} must be {wanted}; found {number!r}.")
    return number


def check_integer(name: str, value: Any, *, low: int = 1, high: int | None = None) -> int:
    """Return `value` as an int between `low` and `high`, or raise; 10.0 is no integer here."""
    wanted = f"an integer of at least {low}" if high is None else f"an integer between {low} and {high:,}"
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} must be {wanted}; found {_kind(value)}.") from None
    if number.bit_length() > 1000:  # float64 would overflow, and Python writes a few thousand digits at most
        raise ArgumentError(f"{name} must be {wanted}; found one of {number.bit_length()} bits.")
    if number < low or (high is not None and number > high):
        raise ArgumentError(f"{name} must be {wanted}; found {number}.")
    return number


def check_seed(name: str, value: Any) -> int:
    """Return `value` as an integer from 0 to 2**63 - 1, or raise."""
    return check_integer(name, value, low=0, high=2**63 - 1)


def check_run_id(name: str, value: Any) -> None:
    """Raise unless `value` is empty or an id as fits make it: an id is released, and no other text may be."""
    if not isinstance(value, str) or not set(value) <= set("0123456789abcdef") or len(value) not in (0, 16):
        raise ArgumentError(f"{name} must be 16 hexadecimal digits, or empty.")
