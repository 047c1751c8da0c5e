"""Checks of the arguments of `fit`, and of the names of all arguments, with other packages' names for them.

In: what a user gave. Out: :class:`FitArguments`, or an `ArgumentError` that says what to type instead, before
anything is spent. What it must never do: read a record.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import pymc as pm
from pymc.variational.inference import fit as pm_fit

from pymc_dpvi.accounting.evaluation import MAX_STEPS
from pymc_dpvi.arguments import check_flag, check_integer, check_number
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.progress import Bar, check_bar

__all__ = ["MEANT", "NEEDED", "FitArguments", "check_fit_arguments", "named", "refuse_unknown"]

P = ParamSpec("P")
T = TypeVar("T")

#: Most latent draws in a step: each has a gradient of its own in the compiled graph.
_MOST_DRAWS = 1000

_MOST_CORES = 1024

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

#: Arguments of DPADVI without a default.
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
        [
            *("group", "groups", "user", "user_id", "person", "persons", "person_id", "id", "ids", "cluster"),
            *("subject", "subjects", "subject_id", "patient", "patients", "patient_id", "individual"),
        ],
        "say unit=, whose the rows are",
    ),
    **dict.fromkeys(
        ("n", "n_steps", "num_steps", "steps"), "give the number of steps to pm.fit, as its first"
    ),
    **dict.fromkeys(
        ("learning_rate", "lr", "optimizer", "obj_optimizer"),
        "give obj_optimizer=pm.adam(learning_rate=0.01) to pm.fit",
    ),
    "obj_n_mc": "give it to pm.fit",
    **dict.fromkeys(("backend", "callbacks", "compile_kwargs", "cores"), "give it to pm.fit"),
    **dict.fromkeys(("n_jobs", "threads", "num_threads"), "give cores= to pm.fit"),
}


@dataclass(frozen=True)
class FitArguments:
    """The arguments of `fit`, checked; see there for their meaning."""

    n: int
    n_mc: int
    include_transformed: bool
    max_grad_norm: float | None
    callbacks: list[Callable[..., Any]]
    cores: int | None
    every: int  # steps from one call of the callbacks to the next; 0 without any
    bar: Bar


def check_fit_arguments(
    n: Any,
    score: Any,
    callbacks: Any,
    progressbar: Any,
    progressbar_theme: Any,
    include_transformed: Any,
    obj_n_mc: Any,
    max_grad_norm: Any,
    cores: Any,
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
    bar = check_bar(progressbar, progressbar_theme)
    if max_grad_norm is not None:
        check_number("total_grad_norm_constraint", max_grad_norm, low=0.0)
    if cores is not None:
        cores = check_integer("cores", cores, high=_MOST_CORES)
    if not isinstance(callbacks, Sequence | None):
        raise ArgumentError(f"callbacks must be a list of functions; found a {type(callbacks).__name__}.")
    callbacks = [] if callbacks is None else list(callbacks)
    for callback in callbacks:
        if not callable(callback):
            raise ArgumentError("callbacks must be functions of (approx, losses, i).")
    every = math.gcd(*(_every(callback) for callback in callbacks))
    return FitArguments(n, n_mc, include_transformed, max_grad_norm, callbacks, cores, every, bar)


def _every(callback: Any) -> int:
    """Return after how many steps a callback is called again."""
    every = getattr(callback, "every", 1)
    return every if isinstance(every, int) and every >= 1 else 1


def refuse_unknown(
    kwargs: Mapping[str, Any], refused: Mapping[str, str], where: str, known: Sequence[str] = ()
) -> None:
    """Raise for keyword arguments that are not taken, with the reason, or the known name that is close."""
    for name in kwargs:
        close = get_close_matches(name, known, 1)
        reason = refused.get(name, f"did you mean {close[0]}=?" if close else None)
        end = "" if reason is not None and reason.endswith("?") else "."
        raise ArgumentError(f"{where} does not take {name}=" + (f": {reason}{end}" if reason else "."))


def _refuse_dropped(model: pm.Model) -> None:
    """Raise for arguments of ``pm.fit`` that it ignores when it gets a method instance.

    They do not reach ``Inference.fit``. So they are looked up in the frame of ``pm.fit``, if that has called
    this package. If PyMC changes, nothing is found, and nothing is raised.
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
    """Decorate a method with keyword arguments to raise an ArgumentError with advice, not a TypeError.

    `needed` says what to type for arguments without a default, `refused` for other packages' names.
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
