"""What each accountant says of the same run.

The accountants differ in what they can prove. All proven figures are upper bounds of the same number, so the
smallest of them is the one to quote. A heuristic figure is no bound, even where it is below a proven one. No
data is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dpvi.accounting.accountants import ACCOUNTANT_NAMES, accountant_info
from pymc_dpvi.accounting.calibration import epsilon
from pymc_dpvi.accounting.evaluation import Run
from pymc_dpvi.errors import ArgumentError, CalibrationError

__all__ = ["AccountantFigure", "compare_accountants", "epsilon_by_steps"]


@dataclass(frozen=True)
class AccountantFigure:
    """One accountant's epsilon; None if it does not support the run, with the reason in `refusal`."""

    name: str
    guarantee: str
    source: str
    epsilon: float | None
    refusal: str | None


def compare_accountants(
    run: Run,
    *,
    delta: float,
    neighboring_relation: Any = "add_or_remove_one",
    accountants: Iterable[str] = ACCOUNTANT_NAMES,
) -> tuple[AccountantFigure, ...]:
    """Return the epsilon of one run by several accountants, in the order of their names."""
    figures = []
    for name in accountants:
        info = accountant_info(name)
        found, refusal = None, None
        try:
            found = epsilon(
                delta=delta,
                noise_multiplier=run.noise_multiplier,
                n_steps=run.n_steps,
                sampler=run.sampler,
                neighboring_relation=neighboring_relation,
                accountant=name,
            )
        except (ArgumentError, CalibrationError) as error:
            refusal = str(error)
        figures.append(AccountantFigure(info.name, info.guarantee, info.source, found, refusal))
    return tuple(figures)


def epsilon_by_steps(
    run: Run,
    *,
    delta: float,
    n_steps: Sequence[int],
    neighboring_relation: Any = "add_or_remove_one",
    accountants: Iterable[str] = ACCOUNTANT_NAMES,
) -> dict[str, NDArray[np.float64]]:
    """Return epsilon after each of several numbers of steps, by accountant: arrays of shape (len(n_steps),).

    The run's own number of steps is not used. NaN stands where an accountant refuses; one that refuses
    everywhere is left out. Each value is that of a run planned for so many steps: a longer run that is
    stopped there costs what was planned.
    """
    found = {name: np.full(len(n_steps), np.nan) for name in accountants}
    for k, count in enumerate(n_steps):
        figures = compare_accountants(
            Run(run.sampler, run.noise_multiplier, count),
            delta=delta,
            neighboring_relation=neighboring_relation,
            accountants=found,
        )
        for figure in figures:
            if figure.epsilon is not None:
                found[figure.name][k] = figure.epsilon
    return {name: values for name, values in found.items() if not np.isnan(values).all()}
