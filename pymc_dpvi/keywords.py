"""Names of arguments that are not taken, and what to type instead.

Python's own ``TypeError`` says that a name is wrong. Here it is also said which was meant: what other
packages call the same thing, what belongs to `fit` and not to the method, what is refused and why.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import pymc as pm
from pymc.variational.inference import fit as pm_fit

from pymc_dpvi.errors import ArgumentError

__all__ = ["MEANT", "NEEDED", "NOT_IN_FIT", "named", "refuse_dropped", "refuse_unknown"]

P = ParamSpec("P")
T = TypeVar("T")

#: What `fit` does not take, and why.
NOT_IN_FIT = {
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


def refuse_unknown(
    kwargs: Mapping[str, Any], refused: Mapping[str, str], where: str, known: Sequence[str] = ()
) -> None:
    """Raise for keyword arguments that are not taken, with the reason or the known name that was meant."""
    for name in kwargs:
        close = get_close_matches(name, known, 1)
        reason = refused.get(name, f"did you mean {close[0]}=?" if close else None)
        end = "" if reason is not None and reason.endswith("?") else "."
        raise ArgumentError(f"{where} does not take {name}=" + (f": {reason}{end}" if reason else "."))


def refuse_dropped(known: Mapping[str, Any], model: pm.Model) -> None:
    """Raise for arguments of ``pm.fit`` that it drops without a word where it is given a method instance.

    They do not reach ``Inference.fit``, so they are looked up in the frame of ``pm.fit``, if that is what
    called the function of this package that called us. It may change; then nothing is found, and nothing is
    raised.

    Parameters
    ----------
    known : mapping of str to str
        Reasons by name.
    model : pymc.Model
        That of the method.

    Raises
    ------
    ArgumentError
        With what to type instead.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("pymc_dpvi."):
        frame = frame.f_back
    if frame.f_code is not getattr(pm_fit, "__code__", None):
        return
    given = frame.f_locals.get("inf_kwargs")  # with start= and random_seed= in it
    for name in given if isinstance(given, dict) else ():
        reason = known.get(name, f"give {name}= to DPADVI itself")
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
    """Make a method that takes arguments by name alone say which name was meant.

    Parameters
    ----------
    where : str
        What is called, for the message.
    needed : mapping of str to str
        What the arguments without a default are, and what to type.
    refused : mapping of str to str
        What to type instead of names that others have for the same.

    Raises
    ------
    ArgumentError
        In place of Python's own ``TypeError``.
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
