"""The gallery's table of what intervals hold, from what `calibration.py` wrote.

    python benchmarks/calibration.py --range judgement
    python benchmarks/calibration_table.py            # prints it
    python benchmarks/calibration_table.py --write    # puts it into docs/gallery.md, between its two marks

Copy ``benchmarks/output/calibration_judgement.json`` to ``benchmarks/figures`` with it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- table of calibration: benchmarks/calibration_table.py -->", "<!-- end of the table -->"
HEAD = (
    "| | ε | 90 %, truth from the prior | 50 % | 90 %, other truths | SBC p | width | below base rate |"
    " beats descent |"
)


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    default = ROOT / "benchmarks" / "output" / "calibration_judgement.json"
    parser.add_argument("json", type=Path, nargs="?", default=default, help="what the run wrote")
    parser.add_argument("--write", action="store_true", help="put it into docs/gallery.md")
    arguments = parser.parse_args()
    text = section(json.loads(arguments.json.read_text(encoding="utf-8")))
    if not arguments.write:
        print(text)
        return
    page = ROOT / "docs" / "gallery.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END, maxsplit=1)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def section(found: Mapping[str, Any]) -> str:
    """Write the rows, noise-aware and plain beside each other."""
    lines = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
    for row in found["cells"]:
        cells = [str(row["family"]).replace("_", " "), f"{row['epsilon']:g}"]
        cells += [_pair(row, name) for name in ("prior_0.9", "prior_0.5", "other_0.9")]
        cells.append(_number(row["noise_aware_uniform"], ".1g"))
        cells += [_pair(row, name) for name in ("width", "worse_than_base", "beats_descent")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _pair(row: Mapping[str, Any], name: str) -> str:
    return " / ".join(_number(row[f"{kind}_{name}"], ".2f") for kind in ("noise_aware", "plain"))


def _number(value: float | str | None, form: str) -> str:
    number = math.nan if value is None else float(value)
    return "–" if math.isnan(number) else format(number, form)


if __name__ == "__main__":
    main()
