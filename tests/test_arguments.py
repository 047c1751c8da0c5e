"""Checks of what a user types."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_dpvi.arguments import check_choice, check_integer, check_number, check_seed
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.keywords import MEANT, NEEDED, named, refuse_unknown


def test_choice() -> None:
    check_choice("colour", "red", ("red", "blue"))
    for wrong in ("green", "Red", 1, None, ["red"]):
        with pytest.raises(ArgumentError, match=r"colour must be one of \['red', 'blue'\]"):
            check_choice("colour", wrong, ("red", "blue"))


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int64(1), np.float64(0.5), Fraction(1, 2)])
def test_number(value: Any) -> None:
    found = check_number("epsilon", value, low=0.0)
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize(
    "value", [True, np.True_, "1", None, 1j, [1.0], np.ones(1), np.ones(3), Decimal(1), b"1"]
)
def test_not_a_number(value: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"epsilon must be a finite number in \(0, inf\), such as 1; found an? \w+\."
    ):
        check_number("epsilon", value, low=0.0, example=1.0)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, -np.inf, 2.0, 3.0, 10**400])
def test_number_out_of_range(value: float) -> None:
    with pytest.raises(ArgumentError, match=r"delta must be a finite number in \(0, 2\), such as 0\.1"):
        check_number("delta", value, low=0.0, high=2.0, example=0.1)
    if not 0.0 < value < np.inf:
        with pytest.raises(ArgumentError, match=r"epsilon must be a finite number in \(0, inf\); found"):
            check_number("epsilon", value, low=0.0)


def test_closed_bounds() -> None:
    assert check_number("q", 0, low=0.0, high=1.0, closed_low=True) == 0.0
    assert check_number("q", 1, low=0.0, high=1.0, closed_high=True) == 1.0
    with pytest.raises(ArgumentError, match=r"in \[0, 1\)"):
        check_number("q", 1.0, low=0.0, high=1.0, closed_low=True)
    with pytest.raises(ArgumentError, match=r"in \(0, 1\]"):
        check_number("q", 0.0, low=0.0, high=1.0, closed_high=True)


@pytest.mark.parametrize("value", [1, 7, np.int64(3), np.uint8(2), 10**30])
def test_integer(value: Any) -> None:
    found = check_integer("n", value)
    assert type(found) is int
    assert found == value


@pytest.mark.parametrize("value", [1.0, True, np.False_, "3", None, np.nan, np.arange(2)])
def test_not_an_integer(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"n must be an integer of at least 1; found an? \w+\."):
        check_integer("n", value)


def test_integer_out_of_range() -> None:
    with pytest.raises(ArgumentError, match="n must be an integer of at least 1; found 0"):
        check_integer("n", 0)
    with pytest.raises(ArgumentError, match="at least 5"):
        check_integer("n", 4, low=5)
    with pytest.raises(ArgumentError, match="between 1 and 1,000; found 1001"):
        check_integer("n", 1001, high=1000)
    assert check_integer("n", 0, low=0) == 0
    assert check_integer("n", 1000, high=1000) == 1000


@pytest.mark.parametrize("value", [2**1000, -(2**1000), 10**5000], ids=["2^1000", "-2^1000", "10^5000"])
def test_integer_that_no_float_holds(value: int) -> None:
    for high in (None, 2**2000):
        with pytest.raises(ArgumentError, match=r"n must be an integer .*; found one of \d+ bits\."):
            check_integer("n", value, high=high)
    assert check_integer("n", 2**1000 - 1) == 2**1000 - 1


def test_seed() -> None:
    assert check_seed("seed", 0) == 0
    assert check_seed("seed", 2**63 - 1) == 2**63 - 1
    for wrong in (-1, 2**63, 1.0, "1", True):
        with pytest.raises(ArgumentError, match="seed must be"):
            check_seed("seed", wrong)


def test_refuse_unknown() -> None:
    refuse_unknown({}, {"a": "reason"}, "f")
    with pytest.raises(ArgumentError, match=r"^f does not take a=: reason\.$"):
        refuse_unknown({"a": 1}, {"a": "reason"}, "f")
    with pytest.raises(ArgumentError, match=r"^f does not take b=\.$"):
        refuse_unknown({"b": 1}, {"a": "reason"}, "f")


@pytest.mark.parametrize("check", [check_number, check_integer, check_seed, check_choice])
def test_arrays_are_not_written_out(check: Any) -> None:
    """Somebody who passes the data in place of a number must not find them in the log."""
    options: dict[str, Any] = {"low": 0.0} if check is check_number else {}
    options |= {"choices": ("a",)} if check is check_choice else {}
    for secret in (np.array([7231.4159]), [7231.4159], (7231.4159,), {"a": 7231.4159}):
        with pytest.raises(ArgumentError) as caught:
            check("epsilon", secret, **options)
        assert "7231" not in str(caught.value)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_every_float_is_taken_or_refused(value: float) -> None:
    try:
        found = check_number("epsilon", value, low=0.0, high=1.0)
    except ArgumentError as error:
        assert not 0.0 < value < 1.0
        assert re.match(r"epsilon must be a finite number in \(0, 1\); found", str(error))
    else:
        assert found == value and 0.0 < value < 1.0


class Taker:
    @named("Taker", {"delta": "a number, as in Taker(delta=1)"}, {"eps": "say epsilon="})
    def __init__(self, *, delta: float, epsilon: float = 1.0) -> None:
        self.found = delta, epsilon


def test_names() -> None:
    assert Taker(delta=2.0).found == (2.0, 1.0)
    for kwargs, message in (
        ({"delta": 1.0, "eps": 3.0}, "Taker does not take eps=: say epsilon=."),
        ({"delta": 1.0, "epsilom": 3.0}, "Taker does not take epsilom=: did you mean epsilon=?"),
        ({"delta": 1.0, "zzz": 3.0}, "Taker does not take zzz=."),
        ({"epsilon": 3.0}, "Taker needs delta=: a number, as in Taker(delta=1)."),
    ):
        with pytest.raises(ArgumentError) as caught:
            Taker(**kwargs)
        assert str(caught.value) == message
    with pytest.raises(ArgumentError, match=r"takes its arguments by name: a number, as in Taker\(delta=1\)"):
        Taker(1.0)  # type: ignore[misc]


def test_every_name_that_is_suggested_is_taken() -> None:
    import inspect
    import re

    from pymc_dpvi import DPADVI

    taken = set(inspect.signature(DPADVI.__init__).parameters)
    assert not taken & set(MEANT)
    assert set(NEEDED) <= taken
    for text in MEANT.values():
        names = re.findall(r"(\w+)=", text)
        where = inspect.signature(DPADVI.fit).parameters if "pm.fit" in text else taken
        assert {*names} - {"learning_rate"} <= set(where)
