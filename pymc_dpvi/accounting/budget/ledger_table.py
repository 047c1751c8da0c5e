"""The ledger of a privacy budget as a table, for a terminal and for a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from fractions import Fraction

from pymc_dpvi.accounting.budget.charge import Charge
from pymc_dpvi.pages import Table

__all__ = ["as_html", "as_text", "heading", "rounded"]

_HEADINGS = (
    "",
    "when (UTC)",
    "label",
    "epsilon",
    "delta",
    "accountant",
    "n_steps",
    "sampling_prob",
    "noise_multiplier",
    "run id",
)
_RIGHT = (0, 3, 4, 6, 7, 8)


def rounded(value: Fraction, *, up: bool) -> str:
    """Return `value` with six significant digits: costs are rounded up, what is left down."""
    context = Context(prec=6, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    digits = context.divide(context.create_decimal(0) + value.numerator, value.denominator)
    return f"{float(digits):.6g}"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _row(number: int, charge: Charge) -> tuple[str, ...]:
    """Return one line of the table."""
    accountant = charge.accountant
    if charge.guarantee not in ("proven", "declared"):
        accountant = f"{accountant} ({charge.guarantee})"
    return (
        str(number),
        charge.when.removesuffix("+00:00").replace("T", " "),
        charge.label,
        rounded(Fraction(repr(charge.epsilon)), up=True),
        rounded(Fraction(repr(charge.delta)), up=True),
        accountant,
        "" if charge.n_steps is None else str(charge.n_steps),
        _shown(charge.sampling_prob),
        _shown(charge.noise_multiplier),
        charge.run_id,
    )


def heading(name: str, neighboring_relation: str | None, charges: Sequence[Charge]) -> list[str]:
    """Return the lines above the table; if the budget states no relation, they name the first charge's."""
    relation = neighboring_relation or (charges[0].neighboring_relation if charges else None)
    lines = [
        f"Privacy budget {name}",
        f"protects against: {relation or 'what the first charge protects against'}",
    ]
    if records := sorted({c.record for c in charges if c.record} - {"one row"}):
        lines.append(f"a record is all rows with {' or '.join(records)}")
    unproven = sorted({c.accountant for c in charges if c.guarantee not in ("proven", "declared")})
    if unproven:
        names = ", ".join(unproven)
        lines.insert(0, f"NOT A GUARANTEE: it has charges by accountants that prove no bound ({names}).")
    return lines


def _table(charges: Sequence[Charge]) -> Table:
    return Table(_HEADINGS, [_row(i, charge) for i, charge in enumerate(charges, start=1)], _RIGHT)


def as_text(above: Sequence[str], charges: Sequence[Charge], below: Sequence[str]) -> str:
    """Return the lines above, the table and the lines below as plain text."""
    return "\n".join([*above, *(_table(charges).text() if charges else ["no charges yet"]), *below])


def as_html(above: Sequence[str], charges: Sequence[Charge], below: Sequence[str]) -> str:
    """Return the lines above, the table and the lines below as HTML; every text is escaped."""

    def paragraphs(lines: Sequence[str]) -> str:
        return "".join(f"<p>{html.escape(text)}</p>" for text in lines)

    return f"<div>{paragraphs(above)}{_table(charges).html()}{paragraphs(below)}</div>"
