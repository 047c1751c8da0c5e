"""The progress bar: steps, speed and ε, and never a loss, which is not accounted for.

The speed depends on the number of records. If that is not public, the bar shows the speed while the fit runs,
when an onlooker could measure it anyway, and removes it at the end, so that no notebook or log keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.theme import Theme

from pymc_dpvi.arguments import check_flag
from pymc_dpvi.errors import ArgumentError, ModelEvaluationError

__all__ = ["Bar", "StepProgress", "check_bar"]


@dataclass(frozen=True)
class Bar:
    """Whether and how a run's progress is shown."""

    visible: bool
    theme: Any


def check_bar(visible: Any, theme: Any) -> Bar:
    """Return what was asked for; an ArgumentError if no bar can be made so, before anything is spent."""
    check_flag("progressbar", visible)
    if not isinstance(theme, Theme | None):
        raise ArgumentError(f"progressbar_theme must be a rich.theme.Theme; found a {type(theme).__name__}.")
    return Bar(visible, theme)


class StepProgress:
    """A bar over the planned steps of a fit, with their cost in words.

    `keep_speed` says whether it keeps speed and duration when it ends; `theme` is PyMC's
    ``progressbar_theme``.
    """

    def __init__(
        self, n_steps: int, cost: str, visible: bool, theme: Any = None, keep_speed: bool = True
    ) -> None:
        self._keep_speed = keep_speed
        self._bar = Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[cost]}"),
            console=Console(theme=theme),
            disable=not visible,
        )
        self._task = self._bar.add_task("Private fit", total=n_steps, speed="", cost=cost)
        self._begin = time.perf_counter()
        self._done = 0

    def __enter__(self) -> StepProgress:
        """Show the bar, if possible: a fit that has been charged goes on without it."""
        self._or_without(self._bar.start)
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the bar where it is, without speed unless `keep_speed`.

        It goes back to the start if a record may have ended the run: it would tell at which step.
        """
        if kind is not None and issubclass(kind, ModelEvaluationError):
            self._or_without(lambda: self._bar.update(self._task, completed=0, speed=""))
        if not self._keep_speed:
            self._bar.columns = tuple(c for c in self._bar.columns if not isinstance(c, TimeRemainingColumn))
            self._or_without(lambda: self._bar.update(self._task, speed=""))
        self._or_without(self._bar.stop)

    def _or_without(self, show: Callable[[], object]) -> None:
        """Go on without the bar if it cannot be shown, for example on closed output."""
        try:
            show()
        except Exception:
            with suppress(Exception):
                self._bar.live.stop()  # gives stdout back
            self._bar.disable = True

    def advance(self, steps: int) -> None:
        """Say that `steps` more steps are done."""
        self._done += steps
        elapsed = time.perf_counter() - self._begin
        speed = f"{self._done / elapsed:,.0f} steps/s" if elapsed > 0 else ""
        self._or_without(lambda: self._bar.update(self._task, advance=steps, speed=speed))
