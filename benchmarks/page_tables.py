"""Tables of the documents that come from what a benchmark wrote: one command line for all of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def write_table(
    name: str, page: str, marks: tuple[str, str], section: Callable[[Any], str], description: str | None
) -> None:
    """Print what `section` makes of ``benchmarks/output/<name>``, or put it between two marks of a page."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    default = ROOT / "benchmarks" / "output" / name
    parser.add_argument("json", type=Path, nargs="?", default=default, help="what the run wrote")
    parser.add_argument("--write", action="store_true", help=f"put it into {page}")
    arguments = parser.parse_args()
    text = section(json.loads(arguments.json.read_text(encoding="utf-8")))
    if not arguments.write:
        print(text)
        return
    path = ROOT / page
    path.write_text(replaced(path.read_text(encoding="utf-8"), text, marks), encoding="utf-8")


def replaced(page: str, text: str, marks: tuple[str, str]) -> str:
    """Put a text between the two marks of a page."""
    begin, end = marks
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must have {begin!r} and {end!r} once each")
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"
