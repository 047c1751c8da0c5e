"""What one call of `fit` or `refine` cost."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pymc_dpvi.arguments import check_run_id
from pymc_dpvi.errors import ArgumentError

__all__ = ["PrivacyRun"]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


@dataclass(frozen=True)
class PrivacyRun:
    """The cost of one call of `fit` or `refine`, as a report and its JSON state it.

    Parameters
    ----------
    epsilon, delta : float
        The cost of the planned steps.
    n_steps : int
        Number of steps that were planned, and that are charged.
    steps_run : int
        Number of steps that were run; fewer after an early stop or an interrupt, at the same cost.
    sampling_prob : float
        Probability with which one record takes part in one step.
    noise_multiplier : float
        Noise standard deviation divided by the largest norm of all that one record adds to a step: by
        `l2_clip_norm`, times the root of ``1 + tally_weight**2``.
    l2_clip_norm : float
        Bound on the Euclidean norm of one record's gradient in one step. If it is adaptive, the start value:
        later values depend on the records, if only through the noisy sums, and are not in the report.
    tally_weight : float
        Norm of what one record adds to the noisy counts that move an adaptive clip norm, in clip norms; 0 if
        the clip norm is fixed.
    default_sampling : bool
        Whether the sampling probability was chosen by the package, from ε, δ and the number of steps alone.
    run_id : str
        Random, and the same in report, draws and the budget's ledger; empty if the noise is seeded.
    backend : str
        ``"numba"``, ``"c"``, ``"jax"`` or ``"python"``, with the reason if the default failed;
        ``"compile_kwargs"`` for a mode of the user's own. Empty if not known.

    Raises
    ------
    ArgumentError
        If a value is not a number in its range.
    """

    epsilon: float
    delta: float
    n_steps: int
    steps_run: int
    sampling_prob: float
    noise_multiplier: float
    l2_clip_norm: float
    tally_weight: float = 0.0
    default_sampling: bool = False
    run_id: str = ""
    backend: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.default_sampling, bool):
            raise ArgumentError("PrivacyRun: default_sampling must be True or False.")
        check_run_id("PrivacyRun: run_id", self.run_id)
        if not isinstance(self.backend, str):
            raise ArgumentError("PrivacyRun: backend must be a string.")
        for field in dataclasses.fields(self):
            if field.name in ("default_sampling", "run_id", "backend"):
                continue
            value = getattr(self, field.name)
            whole = field.name in ("n_steps", "steps_run")
            kind = "a whole number" if whole else "a number"
            if not _is_number(value) or (whole and int(value) != value) or value < 0:
                raise ArgumentError(f"PrivacyRun: {field.name} must be {kind}, 0 or more.")
            # NumPy scalars would not survive JSON
            object.__setattr__(self, field.name, int(value) if whole else float(value))
        if self.steps_run > self.n_steps:
            raise ArgumentError("PrivacyRun: steps_run is larger than n_steps.")
