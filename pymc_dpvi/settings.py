r"""The terms of a private fit: what was asked for, the mechanism that keeps it, and what it costs.

Terms are fixed when the method is made, from public arguments alone. For a number of steps n they give

* a :class:`Mechanism` whose ε at the given δ is at or below the target (:meth:`PrivacyTerms.mechanism`), or
  the one with the given noise multiplier;
* its cost (:meth:`PrivacyTerms.cost`), which is what is charged and reported.

No record is looked at. The number of records enters only where the user asked for a batch size, or for
batches of fixed size; it is then public, and the report says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pymc_dpvi import accounting
from pymc_dpvi.accounting import AccountantInfo
from pymc_dpvi.arguments import check_choice, check_flag, check_number
from pymc_dpvi.errors import ArgumentError, CalibrationError
from pymc_dpvi.mechanism.adaptive_clipping import AdaptiveClip, check_clip_norm
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.release.report import PrivacyReport, PrivacyRun
from pymc_dpvi.sampling import SAMPLER_NAMES, Sampler, make_sampler

__all__ = ["PrivacyTerms"]


@dataclass(frozen=True, kw_only=True)
class PrivacyTerms:
    """What a user asks of a private fit.

    Parameters
    ----------
    delta : float
        Privacy target δ.
    epsilon : float, optional
        Privacy target ε. Exactly one of it and `noise_multiplier` is given.
    noise_multiplier : float, optional
        Noise standard deviation divided by the largest norm of what a record adds to a step.
    sampling_prob, batch_size : float and int, optional
        Sampling probability, or expected batch size; with neither it follows from ε, δ and n.
    l2_clip_norm : float, "adaptive" or AdaptiveClip
        C, bound on one record's gradient, or how it follows the gradients' norms.
    sampler : {"poisson", "fixed_size", "full_batch"}
    neighboring_relation : {"add_or_remove_one", "replace_one"}
    gradient : {"aligned", "vanilla"}
    accountant : str, dp_accounting.PrivacyAccountant or callable
    allow_unproven : bool
        Whether the accountant may be one whose bound is not proven.

    Raises
    ------
    ArgumentError
        If an argument has a bad value, or two of them contradict each other.
    """

    delta: float
    epsilon: float | None
    noise_multiplier: float | None
    sampling_prob: float | None
    batch_size: int | None
    l2_clip_norm: float | Literal["adaptive"] | AdaptiveClip
    sampler: Literal["poisson", "fixed_size", "full_batch"]
    neighboring_relation: Literal["add_or_remove_one", "replace_one"]
    gradient: Literal["aligned", "vanilla"]
    accountant: Any
    allow_unproven: bool = False

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ArgumentError("Give exactly one of epsilon= and noise_multiplier=.")
        if self.sampling_prob is not None and self.batch_size is not None:
            raise ArgumentError("Give at most one of sampling_prob= and batch_size=.")
        check_choice("gradient", self.gradient, ("aligned", "vanilla"))
        check_choice("sampler", self.sampler, SAMPLER_NAMES)
        check_choice("neighboring_relation", self.neighboring_relation, ("add_or_remove_one", "replace_one"))
        bounds: dict[str, dict[str, Any]] = {
            "delta": {"high": 1.0, "example": 1e-6},
            "epsilon": {},
            "noise_multiplier": {},
        }
        for name, allowed in bounds.items():
            value = getattr(self, name)
            if value is not None or name == "delta":
                object.__setattr__(self, name, check_number(name, value, **allowed))
        object.__setattr__(self, "l2_clip_norm", check_clip_norm(self.l2_clip_norm))
        if self.sampler == "fixed_size" and self.neighboring_relation != "replace_one":
            raise ArgumentError(
                "sampler='fixed_size' makes the number of records public, so it needs "
                "neighboring_relation='replace_one'; or use sampler='poisson'."
            )
        check_flag("allow_unproven", self.allow_unproven)
        accounting.require_proven(self.accountant_info, self.allow_unproven)

    @property
    def accountant_info(self) -> AccountantInfo:
        """What is known about the accountant."""
        return accounting.accountant_info(self.accountant)

    @property
    def _chooses_sampling(self) -> bool:
        """Whether the sampling probability is left to us."""
        return self.sampler != "full_batch" and self.sampling_prob is None and self.batch_size is None

    def check_sampler(self, num_records: int) -> None:
        """Raise now if the sampling that was asked for cannot be made.

        Raises
        ------
        ArgumentError
        """
        if (self.sampler == "poisson" and self.sampling_prob is not None) or self.batch_size is not None:
            self._make_sampler(1, num_records)

    def _make_sampler(self, n_steps: int, num_records: int) -> Sampler:
        sampling_prob = self.sampling_prob
        if self._chooses_sampling:
            if self.epsilon is None:
                raise ArgumentError(
                    "With noise_multiplier=, give sampling_prob= or batch_size= too: the default is chosen "
                    "from epsilon."
                )
            sampling_prob = accounting.default_sampling_prob(
                epsilon=self.epsilon, delta=self.delta, n_steps=n_steps
            )
        return make_sampler(
            self.sampler,
            sampling_prob=sampling_prob,
            batch_size=self.batch_size,
            num_records=num_records,
        )

    def mechanism(self, n_steps: int, num_records: int) -> Mechanism:
        """Choose sampler and noise for a number of steps.

        Parameters
        ----------
        n_steps : int
            Steps of the fit.
        num_records : int
            Used where a batch size was asked for, and for batches of fixed size.

        Returns
        -------
        Mechanism

        Raises
        ------
        ArgumentError, CalibrationError
        """
        sampler = self._make_sampler(n_steps, num_records)
        multiplier = self.noise_multiplier
        if self.epsilon is not None:
            multiplier = accounting.noise_multiplier(
                epsilon=self.epsilon,
                delta=self.delta,
                n_steps=n_steps,
                sampler=sampler,
                neighboring_relation=self.neighboring_relation,
                accountant=self.accountant,
                allow_unproven=self.allow_unproven,
            )
        assert multiplier is not None
        clip = check_clip_norm(self.l2_clip_norm)  # checked before; here for its type
        return Mechanism(
            sampler=sampler,
            l2_clip_norm=clip.start if isinstance(clip, AdaptiveClip) else clip,
            noise_multiplier=multiplier,
            neighboring_relation=self.neighboring_relation,
            gradient=self.gradient,
            adaptive=clip if isinstance(clip, AdaptiveClip) else None,
        )

    def cost(self, mechanism: Mechanism, n_steps: int) -> PrivacyRun:
        """Return what a number of steps of `mechanism` cost, as planned and with none run yet.

        Raises
        ------
        CalibrationError
            If ε would be infinite.
        """
        epsilon = mechanism.epsilon(n_steps, self.delta, self.accountant)
        if not np.isfinite(epsilon):
            raise CalibrationError(
                f"noise_multiplier={mechanism.noise_multiplier:g} bounds no epsilon at delta="
                f"{self.delta:g} over {n_steps} steps. Use a larger one, or give epsilon= instead."
            )
        return PrivacyRun(
            epsilon=epsilon,
            delta=self.delta,
            n_steps=n_steps,
            steps_run=0,
            sampling_prob=mechanism.sampler.sampling_prob,
            noise_multiplier=mechanism.noise_multiplier,
            l2_clip_norm=mechanism.l2_clip_norm,
            tally_weight=mechanism.tally_weight,
            default_sampling=self._chooses_sampling,
        )

    @property
    def num_records_public(self) -> bool:
        """Whether the number of records is public: the terms presuppose it."""
        return (
            self.batch_size is not None
            or self.gradient == "vanilla"
            or self.sampler == "fixed_size"
            or self.neighboring_relation == "replace_one"
        )

    def report(self, run: PrivacyRun, before: PrivacyReport | None, **facts: Any) -> PrivacyReport:
        """Return the report with `run` charged to it.

        Parameters
        ----------
        run : PrivacyRun
            What is charged.
        before : PrivacyReport, optional
            The report so far; None at the first run.
        **facts
            Fields of :class:`PrivacyReport` that the terms do not know: ``unit``, ``versions``, ...
        """
        if before is not None:
            return replace(before, runs=(*before.runs, run))
        info = self.accountant_info
        return PrivacyReport(
            neighboring_relation=self.neighboring_relation,
            sampler=self.sampler,
            gradient=self.gradient,
            accountant=info.name,
            guarantee=info.guarantee,
            num_records_public=self.num_records_public,
            noise="lattice",
            runs=(run,),
            **facts,
        )
