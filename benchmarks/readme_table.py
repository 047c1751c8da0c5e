"""README's table of accuracies, from what the last run of the main job wrote.

    python -m tox run -e demo -- --output benchmarks/output
    python benchmarks/readme_table.py            # prints it
    python benchmarks/readme_table.py --write    # puts it into README.md, between its two marks

Copy ``benchmarks/output/accuracy.png`` to ``benchmarks/figures`` with it: it is of the same run.
"""

from __future__ import annotations

from typing import Any

from page_tables import write_table

MARKS = "<!-- table of accuracies: benchmarks/readme_table.py -->", "<!-- end of the table -->"


def main() -> None:
    """Print the table, or write it."""
    write_table("logistic_regression.json", "README.md", MARKS, section, __doc__)


def section(run: dict[str, Any]) -> str:
    """Write a run in Markdown: how it was made, the table, and how far single fits are apart."""
    rows = run["table"]
    if run["quick"] or run["insecure_noise_seed"] is not None:
        raise ValueError("README's figures are those of a full run with noise that nobody knows")
    fits = {row["epsilon"] is None: row["fits"] for row in rows}
    python, pymc = (".".join(v.split(".")[:2]) for v in (run["python"], run["versions"]["pymc"]))
    epsilons = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    found = {(row["dataset"], row["epsilon"]): row for row in rows}
    delta = f"{run['delta']:g}".replace("e-0", "e-")
    lines = [
        f"Test accuracy, mean ± s.e. of {_number(fits[False])} private fits ({_number(fits[True])} ordinary "
        f"ones), δ = {delta}, as `tox run -e demo` printed it (Python {python}, PyMC {pymc}).",
        "The private fits take the library's defaults: nothing was tuned on these data. Their noise is not "
        "seeded, so that",
        "the figures vary within their standard error:",
        "",
        "| | ADVI (not private) | " + " | ".join(f"ε = {e:g}" for e in epsilons) + " |",
        "|---" * (len(epsilons) + 2) + "|",
    ]
    for name in names:
        cells = [_cell(found[name, e]) for e in (None, *epsilons)]
        lines.append(f"| {name.capitalize()} | {' | '.join(cells)} |")
    least = epsilons[0]
    lines += ["", f"At ε = {least:g} single fits are {_ranges(run['fits'], names, least)}."]
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    error = "" if row["accuracy_se"] is None else f" ± {row['accuracy_se']:.4f}"
    return f"{row['accuracy']:.4f}{error}"


def _ranges(fits: list[dict[str, Any]], names: list[str], epsilon: float) -> str:
    parts = []
    for name in names:
        own = [f["accuracy"] for f in fits if (f["dataset"], f["epsilon"]) == (name, epsilon)]
        parts.append(f"between {min(own):.3f} and {max(own):.3f} on {name.capitalize()}")
    return ", ".join(parts)


def _number(n: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[n] if n < len(words) else str(n)


if __name__ == "__main__":
    main()
