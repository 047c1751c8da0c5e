"""Numbers and pages for people: rounded towards caution, as plain text and as HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal

__all__ = ["SCALE_PREDICTORS", "Page", "Section", "Table", "percent", "shown"]

#: Advice for a fit that went wrong, or that saw little but noise.
SCALE_PREDICTORS = (
    "If a predictor runs into the hundreds or thousands (a salary, a year), divide it by a public number, so "
    "that most values lie between -3 and 3: its slope is tiny otherwise, and no step size suits all."
)


def shown(value: float, *, up: bool = False, digits: int = 4) -> str:
    """Return `value` with a few significant digits, rounded up if it bounds something."""
    if not math.isfinite(value):
        return "infinite"
    rounding = ROUND_CEILING if up else ROUND_HALF_EVEN
    # From repr, as 1e-5 is meant, and not the binary number just above it.
    rounded = Context(prec=digits, rounding=rounding).create_decimal(Decimal(repr(float(value))))
    return f"{float(rounded):.{digits}g}"


def percent(value: float) -> str:
    """Return a probability in per cent, with three significant digits, rounded up."""
    # In decimals, so that 0.07 is 7 % and not 7.01 %.
    return f"{shown(float(Decimal(repr(float(value))) * 100), up=True, digits=3)} %"


@dataclass(frozen=True)
class Table:
    """A table of texts: a row has a cell for each column; columns in `right` are aligned to the right.

    Without `columns` it has no head; `caption` is shown in HTML only.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[int] = ()
    caption: str = ""

    def text(self) -> list[str]:
        """Return the lines of the table, with columns aligned."""
        lines = [*([self.columns] if self.columns else ()), *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return [
            "  ".join(
                f"{cell:{'>' if k in self.right else '<'}{width}}"
                for k, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]

    def html(self) -> str:
        """Return the table for a notebook; every text is escaped."""
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        head = f"<thead>{self._row(self.columns, 'th')}</thead>" if self.columns else ""
        body = "".join(self._row(row, "td") for row in self.rows)
        return f"<table>{caption}{head}<tbody>{body}</tbody></table>"

    def _row(self, cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(_cell(cell, tag, k in self.right) for k, cell in enumerate(cells))}</tr>"


def _cell(text: str, tag: str, right: bool = False) -> str:
    return f"<{tag} style='text-align:{'right' if right else 'left'}'>{html.escape(text)}</{tag}>"


@dataclass(frozen=True)
class Section:
    """A heading with sentences, and perhaps a table below them."""

    title: str
    lines: Sequence[str] = ()
    table: Table | None = None


@dataclass(frozen=True)
class Page:
    """A title with facts (label and text), sections below, and a warning above if there is one."""

    title: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section] = ()
    warning: str | None = None

    def text(self) -> str:
        """Return the page as plain text."""
        lines = [] if self.warning is None else [self.warning, ""]
        lines.append(self.title)
        lines.extend(f"  {label:<18} {value}" for label, value in self.facts)
        for section in self.sections:
            lines.append(section.title)
            lines.extend(f"  - {line}" for line in section.lines)
            lines.extend(f"    {line}" for line in (section.table.text() if section.table else ()))
        return "\n".join(lines)

    def html(self) -> str:
        """Return the page for a notebook; every text is escaped."""
        warning = "" if self.warning is None else f"<p><strong>{html.escape(self.warning)}</strong></p>"
        rows = "".join(f"<tr>{_cell(label, 'th')}{_cell(value, 'td')}</tr>" for label, value in self.facts)
        facts = f"<table><caption>{html.escape(self.title)}</caption><tbody>{rows}</tbody></table>"
        return f"<div>{warning}{facts}{''.join(_section_html(s) for s in self.sections)}</div>"


def _section_html(section: Section) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in section.lines)
    items = f"<ul>{items}</ul>" if items else ""
    table = "" if section.table is None else section.table.html()
    return f"<p>{html.escape(section.title)}</p>{items}{table}"
