"""Numbers and pages for people."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dpvi.pages import Page, Section, Table, percent, shown


@settings(max_examples=200)
@given(st.floats(1e-12, 1e6))
def test_bounds_are_rounded_up(value: float) -> None:
    found = float(shown(value, up=True))
    assert value <= found <= value * 1.0011


@settings(max_examples=200)
@given(st.floats(1e-9, 1.0))
def test_per_cent_are_rounded_up(value: float) -> None:
    found = float(percent(value).removesuffix(" %")) / 100
    assert value * (1 - 1e-12) <= found <= value * 1.011


@pytest.mark.parametrize(
    ("text", "value"), [("1e-05", 1e-5), ("1", 1.0), ("0.3", 0.3), ("1.001", 1.00001), ("infinite", math.inf)]
)
def test_round_numbers_are_kept(text: str, value: float) -> None:
    assert shown(value, up=True) == text


def test_per_cent() -> None:
    assert (percent(0.07), percent(1.0), percent(0.0), percent(1e-3)) == ("7 %", "100 %", "0 %", "0.1 %")
    assert percent(0.12345) == "12.4 %"


PAGE = Page(
    "Title",
    [("one", "1"), ("two <b>", "2")],
    [
        Section("First", ["a", "b <i>"]),
        Section("Second", (), Table(("x", "long heading"), [("11", "1"), ("<u>", "2")])),
    ],
    warning="Careful <now>",
)


def test_a_page_as_text() -> None:
    assert PAGE.text().splitlines() == [
        "Careful <now>",
        "",
        "Title",
        "  one                1",
        "  two <b>            2",
        "First",
        "  - a",
        "  - b <i>",
        "Second",
        "    x    long heading",
        "    11   1",
        "    <u>  2",
    ]
    assert Page("Title", []).text() == "Title"


def test_a_table_with_numbers_and_one_without_a_head() -> None:
    table = Table(("n", "name"), [("1", "a"), ("10", "b")], right=(0,), caption="<numbers>")
    assert table.text() == [" n  name", " 1  a", "10  b"]
    found = table.html()
    assert "<caption>&lt;numbers&gt;</caption><thead><tr><th style='text-align:right'>n</th>" in found
    assert "<td style='text-align:right'>10</td><td style='text-align:left'>b</td>" in found
    bare = Table((), [("a", "b")])
    assert bare.text() == ["a  b"]
    assert "thead" not in bare.html() and "caption" not in bare.html()


def test_a_page_as_html_is_escaped() -> None:
    found = PAGE.html()
    for tag in ("<b>", "<i>", "<u>", "<now>"):
        assert tag not in found
    for part in ("two &lt;b&gt;", "<li>b &lt;i&gt;</li>", "&lt;u&gt;", "Careful &lt;now&gt;"):
        assert part in found
    assert found.index("Careful") < found.index("Title") < found.index("First") < found.index("Second")
