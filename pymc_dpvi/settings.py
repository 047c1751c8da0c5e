r"""What a user asks of a private fit, and the mechanism and the cost that follow from it.

In: the arguments of `DPADVI` and of `fit`. Out: :class:`PrivacySettings`, fixed when the method is made, and
:class:`FitArguments`; or an `ArgumentError` with what to type instead, before anything is spent. For a number
of steps n the settings give

* a :class:`Mechanism` whose ε at the given δ is at or below the target (:meth:`PrivacySettings.mechanism`),
  or the one with the given noise multiplier;
* its cost (:meth:`PrivacySettings.cost`), which is what is charged and reported.

What it must never do: look at a record. The number of records enters only where the user asked for a batch
size, or for batches of fixed size; it is then public, and the report says so.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import pymc as pm
from pymc.variational.inference import fit as pm_fit

from pymc_dpvi import accounting
from pymc_dpvi.accounting import AccountantInfo, PrivacyBudget
from pymc_dpvi.accounting.evaluation import MAX_STEPS
from pymc_dpvi.arguments import check_choice, check_flag, check_integer, check_number
from pymc_dpvi.errors import ArgumentError, CalibrationError, warn
from pymc_dpvi.mechanism.adaptive_clipping import AdaptiveClip, check_clip_norm
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.progress import check_bar
from pymc_dpvi.release.report import PrivacyReport, PrivacyRun
from pymc_dpvi.sampling import SAMPLER_NAMES, Sampler, make_sampler

__all__ = [
    "MEANT",
    "NEEDED",
    "FitArguments",
    "PrivacySettings",
    "check_fit_arguments",
    "named",
    "refuse_unknown",
]

P = ParamSpec("P")
T = TypeVar("T")

#: A delta that is warned of whatever the number of records, which would have to be below ten thousand.
_LARGE_DELTA = 1e-4
#: Latent draws in a step: each has a gradient of its own in the compiled graph.
_MOST_DRAWS = 1000

#: What `fit` does not take, and why.
_NOT_IN_FIT = {
    "tf_n_mc": "there is no test function in ADVI",
    "test_optimizer": "there is no test function in ADVI",
    "more_tf_params": "there is no test function in ADVI",
    "more_obj_params": "further parameters would get gradients that nobody accounts for",
    "more_updates": "an update could read the records unaccounted",
    "more_replacements": "a replacement could bring in data that are not accounted for; use pm.Data",
    "fn_kwargs": "use compile_kwargs",
    "start": "pm.fit does not hand it on to a method instance; give start= to DPADVI itself",
    "start_sigma": "pm.fit does not hand it on to a method instance; give start_sigma= to DPADVI itself",
    "random_seed": "pm.fit does not hand it on to a method instance; give random_seed= to DPADVI itself",
    **dict.fromkeys(("n_steps", "num_steps", "steps"), "the number of steps is n, as in pm.fit(2000, ...)"),
    **dict.fromkeys(("learning_rate", "lr"), "say obj_optimizer=pm.adam(learning_rate=0.01)"),
    **dict.fromkeys(("epsilon", "delta"), "give it to DPADVI itself: DPADVI(epsilon=1.0, delta=1e-6)"),
}

#: What DPADVI cannot do without.
NEEDED = {
    "delta": "the additive term of the guarantee, far below one over the number of records, "
    "as in DPADVI(epsilon=1.0, delta=1e-6)"
}
#: What other packages, and the papers, call the arguments of DPADVI.
MEANT = {
    "eps": "say epsilon=",
    **dict.fromkeys(
        ("clip", "clip_norm", "clipping_norm", "clipping_threshold", "max_grad_norm"), "say l2_clip_norm="
    ),
    **dict.fromkeys(("q", "sample_rate", "sampling_rate"), "say sampling_prob="),
    **dict.fromkeys(("sigma", "dp_scale"), "say noise_multiplier="),
    "seed": "say random_seed=, for the public draws; the noise takes no seed",
    **dict.fromkeys(
        ("n", "n_steps", "num_steps", "steps"), "give the number of steps to pm.fit, as its first"
    ),
    **dict.fromkeys(
        ("learning_rate", "lr", "optimizer", "obj_optimizer"),
        "give obj_optimizer=pm.adam(learning_rate=0.01) to pm.fit",
    ),
    "obj_n_mc": "give it to pm.fit",
    **dict.fromkeys(("backend", "callbacks", "compile_kwargs"), "give it to pm.fit"),
}


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

    def check_budget(self, budget: Any, insecure_noise_seed: int | None) -> PrivacyBudget | None:
        """Return the budget if such a fit can be charged to it at all."""
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

    def warn_of_large_delta(self, num_records: int) -> None:
        """Warn if δ is no smaller than 1/N; where N is not public, than a number that does not tell it."""
        public = self.num_records_public
        if self.delta >= (1.0 / num_records if public else _LARGE_DELTA):
            known = "not below" if public else "large: choose it below"
            warn(
                f"delta={self.delta:g} is {known} 1 / (number of records). At such a delta a mechanism "
                "may publish a whole record and still satisfy the definition. Use a smaller one."
            )

    def check_sampler(self, num_records: int) -> None:
        """Raise an ArgumentError now if the sampling that was asked for cannot be made."""
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
        """Whether the number of records is public: these settings presuppose it."""
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


@dataclass(frozen=True)
class FitArguments:
    """The arguments of `fit`, checked; see there for their meaning."""

    n: int
    n_mc: int
    include_transformed: bool
    max_grad_norm: float | None
    callbacks: list[Callable[..., Any]]
    every: int  # steps from one call of the callbacks to the next; 0 without any


def check_fit_arguments(
    n: Any,
    score: Any,
    callbacks: Any,
    progressbar: Any,
    progressbar_theme: Any,
    include_transformed: Any,
    obj_n_mc: Any,
    max_grad_norm: Any,
    unknown: Mapping[str, Any],
    *,
    known: Sequence[str],
    model: pm.Model,
) -> FitArguments:
    """Return the arguments of `fit`, or raise an ArgumentError for the first that is bad or not `known`."""
    n = check_integer("n", n, high=MAX_STEPS)
    if score is not None and score is not False:
        raise ArgumentError(
            "score=True is refused: the loss is computed on the records, and releasing it would need "
            "noise and budget of its own. Look at the iterates with pymc.variational.callbacks.Tracker."
        )
    _refuse_dropped(model)
    refuse_unknown(unknown, _NOT_IN_FIT, "DPADVI.fit", known)
    n_mc = check_integer("obj_n_mc", obj_n_mc, high=_MOST_DRAWS)
    include_transformed = check_flag("include_transformed", include_transformed)
    check_bar(progressbar, progressbar_theme)
    if max_grad_norm is not None:
        check_number("total_grad_norm_constraint", max_grad_norm, low=0.0)
    if not isinstance(callbacks, Sequence | None):
        raise ArgumentError(f"callbacks must be a list of functions; found a {type(callbacks).__name__}.")
    callbacks = [] if callbacks is None else list(callbacks)
    for callback in callbacks:
        if not callable(callback):
            raise ArgumentError("callbacks must be functions of (approx, losses, i).")
    every = math.gcd(*(_every(callback) for callback in callbacks))
    return FitArguments(n, n_mc, include_transformed, max_grad_norm, callbacks, every)


def _every(callback: Any) -> int:
    """Return after how many steps a callback wants to be called again."""
    every = getattr(callback, "every", 1)
    return every if isinstance(every, int) and every >= 1 else 1


def refuse_unknown(
    kwargs: Mapping[str, Any], refused: Mapping[str, str], where: str, known: Sequence[str] = ()
) -> None:
    """Raise for keyword arguments that are not taken, with the reason or the known name that was meant."""
    for name in kwargs:
        close = get_close_matches(name, known, 1)
        reason = refused.get(name, f"did you mean {close[0]}=?" if close else None)
        end = "" if reason is not None and reason.endswith("?") else "."
        raise ArgumentError(f"{where} does not take {name}=" + (f": {reason}{end}" if reason else "."))


def _refuse_dropped(model: pm.Model) -> None:
    """Raise for arguments of ``pm.fit`` that it drops without a word where it is given a method instance.

    They do not reach ``Inference.fit``, so they are looked up in the frame of ``pm.fit``, if that is what
    called this package. It may change; then nothing is found, and nothing is raised.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("pymc_dpvi."):
        frame = frame.f_back
    if frame.f_code is not getattr(pm_fit, "__code__", None):
        return
    given = frame.f_locals.get("inf_kwargs")  # with start= and random_seed= in it
    for name in given if isinstance(given, dict) else ():
        reason = _NOT_IN_FIT.get(name, f"give {name}= to DPADVI itself")
        raise ArgumentError(f"pm.fit(..., {name}=) has no effect here: {reason}. Nothing is spent.")
    other = frame.f_locals.get("model")
    if isinstance(other, pm.Model) and other is not model:
        raise ArgumentError(
            "pm.fit has another model than the method, which would be fitted to its own: call pm.fit in the "
            "context of the model that DPADVI was made in, or the method's own fit(n). Nothing is spent."
        )


def named(
    where: str, needed: Mapping[str, str], refused: Mapping[str, str]
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a method that takes arguments by name alone say which name was meant, in place of a TypeError.

    `needed` says what to type for arguments without a default, `refused` for names that others have.
    """

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        known = list(inspect.signature(method).parameters)[1:]

        @wraps(method)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            if len(args) > 1:
                raise ArgumentError(f"{where} takes its arguments by name: {next(iter(needed.values()))}.")
            refuse_unknown({k: None for k in kwargs if k not in known}, refused, where, known)
            for name, what in needed.items():
                if name not in kwargs:
                    raise ArgumentError(f"{where} needs {name}=: {what}.")
            return method(*args, **kwargs)

        return checked

    return decorate
