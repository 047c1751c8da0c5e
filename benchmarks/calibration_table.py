"""The gallery's table of what intervals hold, from what `calibration.py` wrote.

    python benchmarks/calibration.py --range judgement
    python benchmarks/calibration_table.py            # prints it
    python benchmarks/calibration_table.py --write    # puts it into docs/gallery.md, between its two marks

Copy ``benchmarks/output/calibration_judgement.json`` to ``benchmarks/figures`` with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from page_tables import write_table

MARKS = "<!-- table of calibration: benchmarks/calibration_table.py -->", "<!-- end of the table -->"
HEAD = (
    "| | ε | 90 %, truth from the prior | 50 % | 90 %, other truths | SBC p | TARP p | width |"
    " below base rate | the prior is | beats descent |"
)


def main() -> None:
    """Print the table, or write it."""
    write_table("calibration_judgement.json", "docs/gallery.md", MARKS, section, __doc__)


def section(found: Mapping[str, Any]) -> str:
    """Write the rows, noise-aware and plain beside each other."""
    lines = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
    for row in found["cells"]:
        cells = [str(row["family"]).replace("_", " "), f"{row['epsilon']:g}"]
        cells += [_pair(row, name) for name in ("prior_0.9", "prior_0.5", "other_0.9")]
        cells += [_number(row[f"noise_aware_{name}"], ".1g") for name in ("uniform", "jointly_uniform")]
        cells += [_pair(row, name) for name in ("width", "worse_than_base")]
        cells += [_number(row["prior_worse_than_base"], ".2f"), _pair(row, "beats_descent")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _pair(row: Mapping[str, Any], name: str) -> str:
    return " / ".join(_number(row[f"{kind}_{name}"], ".2f") for kind in ("noise_aware", "plain"))


def _number(value: float | str | None, form: str) -> str:
    number = math.nan if value is None else float(value)
    return "–" if math.isnan(number) else format(number, form)


if __name__ == "__main__":
    main()
