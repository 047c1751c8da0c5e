"""Fits that are written down one by one, so that a run that was ended goes on where it was.

A task is a frozen dataclass of plain values that says what to fit; what comes of it is a dict of numbers.
Each line of the journal holds both, with the settings under which the fit was done: a journal of other
settings, or of other sources of the library, is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from workers import in_processes

from pymc_dpvi.numba_cache import source_hash

__all__ = ["Fit", "differences", "fits_of", "groups", "mean_and_error", "write"]

#: What is to be done (a task's fields) and what came of it, in one dict.
Fit = dict[str, Any]


@dataclass(frozen=True)
class _Named:
    """A function that hands back its argument with the result, and can be sent to another process."""

    function: Callable[[Any], dict[str, Any]]

    def __call__(self, task: Any) -> tuple[Any, dict[str, Any]]:
        return task, self.function(task)


def fits_of(
    tasks: Sequence[Any],
    fit_once: Callable[[Any], dict[str, Any]],
    journal: Path,
    settings: Mapping[str, Any],
    jobs: int,
    console: Console,
    scripts: Sequence[Path] | None = None,
) -> list[Fit]:
    """Do what the journal does not hold yet, and return the fits in the order of the tasks.

    Parameters
    ----------
    tasks : sequence of dataclass instances
        Frozen, of values that JSON knows; a ``str(task)`` is shown as the last one done.
    fit_once : callable
        Takes a task, returns numbers by name. Defined in a module, as it runs in other processes.
    journal : Path
        One JSON object a line; made if it is not there.
    settings : mapping
        What tells this run from one with other constants.
    jobs : int
        Processes.
    console : Console
        For the progress bar.
    scripts : sequence of Path, optional
        What the fits depend on, if they are not the library's: by default its sources, and all scripts here.

    Returns
    -------
    list of dict
        For each task its fields and its numbers.

    Raises
    ------
    SystemExit
        If the journal is of other settings.
    """
    own = {**settings, "benchmarks": _own_hash(scripts)}
    own = json.loads(json.dumps(own if scripts else {**own, "sources": source_hash()[:12]}))
    found = _read(journal, own)
    left = [task for task in tasks if _key(task) not in found]
    console.print(f"{len(tasks)} fits, {len(tasks) - len(left)} of them done; the journal is {journal}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, journal.open("a", encoding="utf-8") as log:
        log.write("\n" * (journal.stat().st_size > 0))  # the last line may be half a line
        bar = progress.add_task("Fitting", total=len(tasks), completed=len(tasks) - len(left))
        for task, numbers in in_processes(_Named(fit_once), left, jobs):
            found[_key(task)] = numbers
            log.write(json.dumps({"settings": own, "task": asdict(task), "found": numbers}) + "\n")
            log.flush()
            progress.update(bar, advance=1, description=str(task))
            if not console.is_terminal:
                console.print(f"done: {task}", highlight=False)
        progress.update(bar, description="Fitted")
    return [{**asdict(task), **found[_key(task)]} for task in tasks]


def _own_hash(scripts: Sequence[Path] | None = None) -> str:
    """Return a hash of scripts, all that are here by default: a fit of another one is another fit."""
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(scripts or [*here.glob("*.py"), *here.glob("papers/*.py")]):
        digest.update(path.relative_to(here).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _key(task: Any) -> str:
    return json.dumps(task if isinstance(task, dict) else asdict(task), sort_keys=True)


def _read(journal: Path, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if not journal.exists():
        return {}
    found = {}
    for line in journal.read_text(encoding="utf-8").splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # an empty line, or the last one of a run that was ended
        if fields["settings"] != settings:
            raise SystemExit(
                f"{journal} holds fits of other settings or sources; move it, or give another --output."
            )
        found[_key(fields["task"])] = fields["found"]
    return found


def groups(fits: Iterable[Fit], names: Sequence[str]) -> dict[tuple[Any, ...], list[Fit]]:
    """Put together the fits that agree in the fields `names`."""
    found: dict[tuple[Any, ...], list[Fit]] = {}
    for fit in fits:
        found.setdefault(tuple(fit[name] for name in names), []).append(fit)
    return found


def mean_and_error(values: Iterable[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error, which is None for a single value, or an infinite one."""
    known = list(values)
    tells = len(known) > 1 and all(map(math.isfinite, known))
    return statistics.fmean(known), statistics.stdev(known) / math.sqrt(len(known)) if tells else None


def differences(doc: str | None) -> str:
    """Return the part of a script's docstring that says what differs from the paper."""
    _, heading, text = (doc or "").partition("What differs from the paper")
    return heading + text.rstrip()


def write(path: Path, command: str, settings: Mapping[str, Any], **content: Any) -> None:
    """Write tables and fits as JSON, with what made them."""
    packages = ("pymc_dpvi", "pymc", "pytensor", "numpy", "numba", "dp-accounting")
    document = {
        "command": command,
        "settings": settings,
        "sources": source_hash()[:12],
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in packages},
        **content,
    }
    path.write_text(json.dumps(_finite(document), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """Write numbers that JSON does not know as words: nan, inf, -inf."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
