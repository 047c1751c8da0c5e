r"""The settings of a private fit, and the mechanism and the cost that follow from them.

In: the arguments of `DPADVI`. Out: :class:`PrivacySettings`, fixed when the method is made, or an
`ArgumentError` with what to type instead, before anything is spent. (`keywords` checks those of `fit`.) For a
number of steps n the settings give

* a :class:`Mechanism` whose ε at the given δ is at or below the target (:meth:`PrivacySettings.mechanism`),
  or the one with the given noise multiplier;
* its cost (:meth:`PrivacySettings.cost`), which is charged and reported.

What it must never do: read a record. The number of records is used only for a `batch_size`, or for batches of
fixed size; it is then public, and the report says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pymc_dpvi import accounting
from pymc_dpvi.accounting import AccountantInfo, PrivacyBudget
from pymc_dpvi.accounting.relations import RELATIONS
from pymc_dpvi.arguments import check_choice, check_flag, check_number
from pymc_dpvi.errors import ArgumentError, CalibrationError
from pymc_dpvi.mechanism.adaptive_clipping import AdaptiveClip, check_clip_norm
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.release.report import PrivacyReport, PrivacyRun
from pymc_dpvi.sampling import SAMPLER_NAMES, Sampler, make_sampler

__all__ = ["PrivacySettings"]


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """The arguments of `DPADVI` that decide on mechanism and cost, checked; see there for their meaning."""

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
        check_choice("neighboring_relation", self.neighboring_relation, tuple(RELATIONS))
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
        info = self.accountant_info
        accounting.require_proven(info, self.allow_unproven)
        if info.guarantee == "bayesian" and isinstance(self.l2_clip_norm, AdaptiveClip):
            raise ArgumentError(
                f"accountant={info.name!r} knows how far records move the sum of gradients, and not how far "
                "they move the counts that an adaptive clip norm releases. Use l2_clip_norm=1.0, say."
            )

    @property
    def accountant_info(self) -> AccountantInfo:
        """What is known about the accountant."""
        return accounting.accountant_info(self.accountant)

    @property
    def _chooses_sampling(self) -> bool:
        """Whether the package chooses the sampling probability."""
        return self.sampler != "full_batch" and self.sampling_prob is None and self.batch_size is None

    def check_budget(self, budget: Any, insecure_noise_seed: int | None) -> PrivacyBudget | None:
        """Return the budget, or raise an ArgumentError if no such fit can be charged to it."""
        if budget is None:
            return None
        if not isinstance(budget, PrivacyBudget):
            raise ArgumentError(
                f"budget must be a PrivacyBudget; found a {type(budget).__name__}. Make one with "
                "PrivacyBudget(epsilon=3.0, delta=1e-6) and give it to every fit on these data."
            )
        if insecure_noise_seed is not None:
            raise ArgumentError(
                "insecure_noise_seed= and budget= contradict each other: noise that can be known protects "
                "nobody, and no charge would bound what such a fit gives away. Leave one of them out."
            )
        accounting.require_proven(self.accountant_info, budget.allow_unproven)
        return budget

    def check_sampler(self, num_records: int) -> None:
        """Raise an ArgumentError now if the sampling that was asked for is impossible."""
        if (self.sampler == "poisson" and self.sampling_prob is not None) or self.batch_size is not None:
            self._make_sampler(1, num_records)

    def check_unit(self, by_unit: bool) -> None:
        """Raise an ArgumentError if records are all rows of a person, and that does not go with these."""
        if by_unit and self.gradient == "vanilla":
            raise ArgumentError(
                "gradient='vanilla' gives each row a share of the prior, so it cannot be used with unit=. "
                "Leave it out: the default, 'aligned', needs no such share."
            )

    def check_sources(
        self,
        unit: Any = None,
        encoders: Any = None,
        client: Any = None,
        sampling_prob: float | None = None,
    ) -> None:
        """Raise an ArgumentError if records in sources do not go with these, or with the sampling."""
        if client is not None and unit is not None:
            raise ArgumentError(
                "client= and unit= do not go together: the rows of a person may be on several workers. Leave "
                "client= out, and this process reads the rows of the persons in a batch."
            )
        if client is not None and encoders:
            raise ArgumentError(
                "client= does not go with Amortized in guide=: each record has noise of its own, whose key "
                "does not leave this process. Leave client= out, and this process reads the records."
            )
        if self.sampler == "full_batch" or 1.0 in (self.sampling_prob, sampling_prob):
            raise ArgumentError(
                "records= with all records in every step would read everything, step by step. Leave "
                "sampler= and sampling_prob= out, or give a sampling_prob such as 0.001."
            )

    def check_guide(self) -> None:
        """Raise an ArgumentError if the guide has families, and gradients are not by latent values."""
        if self.gradient == "vanilla":
            raise ArgumentError(
                "gradient='vanilla' clips gradients by all variational parameters, and is there for one "
                "family for all variables. Leave it out: the default, 'aligned', works with every family."
            )

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
        """Choose sampler and noise for `n_steps`; an ArgumentError or CalibrationError if there are none."""
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
        return Mechanism(
            sampler=sampler,
            l2_clip_norm=self.first_clip_norm,
            noise_multiplier=multiplier,
            neighboring_relation=self.neighboring_relation,
            gradient=self.gradient,
            adaptive=self.l2_clip_norm if isinstance(self.l2_clip_norm, AdaptiveClip) else None,
        )

    @property
    def first_clip_norm(self) -> float:
        """The clip norm of the first step."""
        clip = check_clip_norm(self.l2_clip_norm)  # checked before; here for its type
        return clip.start if isinstance(clip, AdaptiveClip) else clip

    def cost(self, mechanism: Mechanism, n_steps: int) -> PrivacyRun:
        """Return what `n_steps` of `mechanism` cost, as planned and with none run yet; ε is finite."""
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
        """Whether these settings presuppose that the number of records is public."""
        return (
            self.batch_size is not None
            or self.gradient == "vanilla"
            or self.sampler == "fixed_size"
            or self.neighboring_relation == "replace_one"
        )

    def report(self, run: PrivacyRun, before: PrivacyReport | None, **facts: Any) -> PrivacyReport:
        """Return the report `before` with `run` added; `facts` are fields that the settings do not know."""
        if before is not None:
            return before.with_run(run)
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
