"""What the scripts that do many fits have in common: their command line, and the order of their work.

A script says what is to be fitted (``tasks``), how (``fit_once``) and what is made of it (``report``); the
fits are kept in a journal (`journal`), so that the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from journal import Fit, differences, fits_of, write
from rich.console import Console
from workers import not_compiled, one_thread_each

__all__ = ["carry_out", "command_line", "reproduce", "understood"]

HERE = Path(__file__).resolve().parent


def command_line(doc: str | None, quick: str, output: Path = HERE / "output") -> argparse.ArgumentParser:
    """Return a parser of ``--seeds``, ``--jobs``, ``--quick`` (its help is given) and ``--output``."""
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="fits of each kind")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--output", type=Path, default=output)
    return parser


def understood(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line, make its folder, and set up the processes that are started from now on."""
    chosen = parser.parse_args(arguments)
    if chosen.seeds < 1 or chosen.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    if chosen.quick:
        chosen.seeds, chosen.output = 1, chosen.output / "quick"
        not_compiled()
    chosen.output.mkdir(parents=True, exist_ok=True)
    one_thread_each()
    return chosen


def reproduce(
    script: str,
    doc: str | None,
    quick: str,
    tasks: Callable[[int, bool], Sequence[Any]],
    fit_once: Callable[[Any], dict[str, Any]],
    settings: Mapping[str, Any],
    report: Callable[[Sequence[Fit], Path, Console], Mapping[str, Any]],
    arguments: Sequence[str] | None = None,
) -> None:
    """Run a paper's experiment from the command line.

    Parameters
    ----------
    script : str
        Its name; it stands in ``benchmarks/papers``.
    doc : str
        Its docstring, with what differs from the paper.
    quick : str
        What ``--quick`` does, for the help.
    tasks : callable
        ``(seeds, quick)``: what to fit.
    fit_once, settings
        As in `fits_of`.
    report : callable
        ``(fits, folder, console)``: show and draw; what it returns is written to ``<script>.json``.
    arguments : sequence of str, optional
        In place of the command line.
    """
    chosen = understood(command_line(doc, quick), arguments)
    import matplotlib  # noqa: F401  the pictures come last, and a missing package should not

    todo = tasks(chosen.seeds, chosen.quick)
    size = "--quick" if chosen.quick else f"--seeds {chosen.seeds}"
    carry_out(script, f"papers/{script}.py {size}", doc, todo, fit_once, settings, report, chosen)


def carry_out(
    name: str,
    command: str,
    doc: str | None,
    todo: Sequence[Any],
    fit_once: Callable[[Any], dict[str, Any]],
    settings: Mapping[str, Any],
    report: Callable[[Sequence[Fit], Path, Console], Mapping[str, Any]],
    chosen: argparse.Namespace,
) -> None:
    """Do the fits, or go on with them, report, and write ``<name>.json``; `command` is in ``benchmarks``."""
    console = Console()
    try:
        fits = fits_of(todo, fit_once, chosen.output / f"{name}.jsonl", settings, chosen.jobs, console)
    except KeyboardInterrupt:
        raise SystemExit("Interrupted. The same command goes on where this one was.") from None
    made = report(fits, chosen.output, console)
    write(
        chosen.output / f"{name}.json", f"python benchmarks/{command.rstrip()}", settings, **made, fits=fits
    )
    console.print(differences(doc), highlight=False, markup=False, soft_wrap=True)
    if chosen.quick:
        console.print("QUICK: shortened fits, one of each kind. The figures mean nothing.")
    console.print(f"{len(fits)} fits; written to {chosen.output}")
