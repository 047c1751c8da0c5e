"""Calibration in both directions: what a run costs, and which run a target pays for.

==========================  =============================================  ==========================
function                    given the run, and                             returns, one-sided
==========================  =============================================  ==========================
`epsilon`                   delta                                          an upper bound
`delta`                     epsilon                                        an upper bound
`noise_multiplier`          (epsilon, delta) and the number of steps       noise that is enough
`max_steps`                 (epsilon, delta) and the noise                 steps that are not too many
`default_sampling_prob`     (epsilon, delta) and the number of steps       a batch that is big enough
==========================  =============================================  ==========================

`noise_multiplier` and `max_steps` return only a run that the accountant has evaluated and whose epsilon is at
most the target. Unless it is the least noise of the range, the noise is nearly the least that is enough:
epsilon is at least 0.999 of the target, or 1e-5 (relative) less noise exceeds it. Likewise one step more
exceeds the target, or the number of steps is the largest of the range. The search starts at the central limit
theorem of Gaussian differential privacy (`gdp_limit`), an approximation; the accountant decides.

**Ranges.** `sampling_prob` in [1e-6, 1 - 2^-16] or 1, `n_steps` from 1 to 10,000,000, epsilon in [0.01, 100],
delta in [1e-12, 0.1], `noise_multiplier` in [0.05, 1e8]. Outside, an :class:`ArgumentError` names the
argument. ``benchmarks/calibration_time.py`` measures how long answers take.
"""

from __future__ import annotations

import math
from typing import Any

from dp_accounting import NeighboringRelation

from pymc_dpvi.accounting.accountants import AccountantInfo, accountant_info, require_proven
from pymc_dpvi.accounting.evaluation import (
    MAX_NOISE_MULTIPLIER,
    MAX_STEPS,
    MIN_NOISE_MULTIPLIER,
    Run,
    check_noise,
    check_sampler,
    check_steps,
)
from pymc_dpvi.accounting.events import EventSampler
from pymc_dpvi.accounting.gdp_limit import clt_noise, clt_steps, gdp_mu
from pymc_dpvi.accounting.relations import check_relation, sensitivity_factor
from pymc_dpvi.accounting.search import largest_integer, least_number
from pymc_dpvi.arguments import check_number
from pymc_dpvi.errors import CalibrationError

__all__ = ["default_sampling_prob", "delta", "epsilon", "max_steps", "noise_multiplier"]

EPSILON_RANGE = (0.01, 100.0)
DELTA_RANGE = (1e-12, 0.1)


# The public functions have arguments of these names, which hide the functions themselves.
def _check_epsilon(value: Any, low: float = EPSILON_RANGE[0]) -> float:
    return check_number("epsilon", value, low=low, high=EPSILON_RANGE[1], closed_low=True, closed_high=True)


def _check_delta(value: Any) -> float:
    low, high = DELTA_RANGE
    return check_number("delta", value, low=low, high=high, closed_low=True, closed_high=True)


def _setting(
    sampler: Any, sampling_prob: Any, neighboring_relation: Any, accountant: Any
) -> tuple[EventSampler, AccountantInfo, NeighboringRelation]:
    """Check sampler, relation and accountant, and return them."""
    relation = check_relation(neighboring_relation)
    chosen = check_sampler(sampler, sampling_prob)
    return chosen, accountant_info(accountant), relation


def epsilon(
    *,
    delta: float,
    noise_multiplier: float,
    n_steps: int,
    sampling_prob: float | None = None,
    sampler: Any = "poisson",
    neighboring_relation: Any = "add_or_remove_one",
    accountant: Any = "pld",
) -> float:
    """Return the epsilon that a run spends at `delta`.

    Parameters
    ----------
    delta : float
        Delta of the guarantee, in [1e-12, 0.1].
    noise_multiplier : float
        Noise standard deviation divided by the largest norm of all that one record adds
        (`l2_clip_norm`, unless that is adaptive), whatever the relation.
    n_steps : int
        Number of steps.
    sampling_prob : float, optional
        Probability that a record is in a batch; for ``sampler="poisson"``.
    sampler : str or Sampler
        ``"poisson"``, ``"full_batch"`` or a sampler of `pymc_dpvi.sampling`.
    neighboring_relation : str
        ``"add_or_remove_one"`` or ``"replace_one"``.
    accountant : str, dp_accounting.PrivacyAccountant or callable
        A name (see `ACCOUNTANT_NAMES`), or one of your own.

    Returns
    -------
    float
        An upper bound of the true epsilon, given that the accountant's bound is proven
        (see :func:`accountant_info`). May be infinite.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or no account exists for the combination.

    Notes
    -----
    Privacy: uses no data. Holds for a run whose steps, noise and sampler were fixed in advance.

    Examples
    --------
    >>> round(epsilon(delta=1e-5, noise_multiplier=4.0, n_steps=10_000, sampling_prob=0.01), 2)
    0.95
    """
    at, noise, steps = _check_delta(delta), check_noise(noise_multiplier), check_steps(n_steps)
    chosen, info, relation = _setting(sampler, sampling_prob, neighboring_relation, accountant)
    return Run(chosen, noise, steps).epsilon(at, info, relation)


def delta(
    *,
    epsilon: float,
    noise_multiplier: float,
    n_steps: int,
    sampling_prob: float | None = None,
    sampler: Any = "poisson",
    neighboring_relation: Any = "add_or_remove_one",
    accountant: Any = "pld",
) -> float:
    """Return the delta that a run spends at `epsilon`.

    Parameters
    ----------
    epsilon : float
        Epsilon of the guarantee, in [0, 100]. Delta at 0 bounds the advantage of any membership test.
    noise_multiplier : float
        Noise standard deviation divided by the largest norm of all that one record adds.
    n_steps : int
        Number of steps.
    sampling_prob : float, optional
        Probability that a record is in a batch; for ``sampler="poisson"``.
    sampler : str or Sampler
        ``"poisson"``, ``"full_batch"`` or a sampler of `pymc_dpvi.sampling`.
    neighboring_relation : str
        ``"add_or_remove_one"`` or ``"replace_one"``.
    accountant : str, dp_accounting.PrivacyAccountant or callable
        A name (see `ACCOUNTANT_NAMES`), or one of your own.

    Returns
    -------
    float
        An upper bound of the true delta, given that the accountant's bound is proven; at most 1.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or no account exists for the combination.

    Notes
    -----
    Privacy: uses no data. Holds for a run whose steps, noise and sampler were fixed in advance.

    Examples
    --------
    >>> run = dict(noise_multiplier=4.0, n_steps=10_000, sampling_prob=0.01)
    >>> 1e-5 < delta(epsilon=0.9, **run) < 3e-5
    True
    """
    at = _check_epsilon(epsilon, low=0.0)
    noise, steps = check_noise(noise_multiplier), check_steps(n_steps)
    chosen, info, relation = _setting(sampler, sampling_prob, neighboring_relation, accountant)
    return Run(chosen, noise, steps).delta(at, info, relation)


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    n_steps: int,
    sampling_prob: float | None = None,
    sampler: Any = "poisson",
    neighboring_relation: Any = "add_or_remove_one",
    accountant: Any = "pld",
    allow_unproven: bool = False,
) -> float:
    """Return the noise multiplier of a run that spends at most (epsilon, delta).

    Parameters
    ----------
    epsilon, delta : float
        The target, in [0.01, 100] and [1e-12, 0.1].
    n_steps : int
        Number of steps.
    sampling_prob : float, optional
        Probability that a record is in a batch; for ``sampler="poisson"``.
    sampler : str or Sampler
        ``"poisson"``, ``"full_batch"`` or a sampler of `pymc_dpvi.sampling`.
    neighboring_relation : str
        ``"add_or_remove_one"`` or ``"replace_one"``.
    accountant : str, dp_accounting.PrivacyAccountant or callable
        A name (see `ACCOUNTANT_NAMES`), or one of your own.
    allow_unproven : bool
        Whether the accountant's epsilon need not be a proven upper bound.

    Returns
    -------
    float
        Noise standard deviation divided by the largest norm of all that one record adds; 0.05 or more.
        :func:`epsilon` of this number is at most the target. If the result is not 0.05, it is also
        within 1e-3 (relative) of the target, or 1e-5 (relative) less noise exceeds the target.

    Raises
    ------
    ArgumentError
        If an argument is out of range, no account exists for the combination, or it is not proven.
    CalibrationError
        If no noise multiplier up to 1e8 meets the target. The message says what to change.

    Notes
    -----
    Privacy: uses no data. Rounded up: the noise is never less than the target needs.

    Examples
    --------
    >>> 3.8 < noise_multiplier(epsilon=1.0, delta=1e-5, n_steps=10_000, sampling_prob=0.01) < 3.9
    True
    """
    target, at, steps = _check_epsilon(epsilon), _check_delta(delta), check_steps(n_steps)
    chosen, info, relation = _setting(sampler, sampling_prob, neighboring_relation, accountant)
    require_proven(info, allow_unproven)

    def evaluate(noise: float) -> float:
        return Run(chosen, noise, steps).epsilon(at, info, relation)

    start = clt_noise(
        gdp_mu(target, at),
        sampling_prob=chosen.sampling_prob,
        n_steps=steps,
        sensitivity=sensitivity_factor(relation),
    )
    found = least_number(evaluate, target, start=start, low=MIN_NOISE_MULTIPLIER, high=MAX_NOISE_MULTIPLIER)
    if found is None:
        least = evaluate(MAX_NOISE_MULTIPLIER)
        raise CalibrationError(_impossible(chosen, info, relation, least, target, at, steps))
    return found


def max_steps(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    sampling_prob: float | None = None,
    sampler: Any = "poisson",
    neighboring_relation: Any = "add_or_remove_one",
    accountant: Any = "pld",
    allow_unproven: bool = False,
) -> int:
    """Return how many steps a run may take that spends at most (epsilon, delta).

    Parameters
    ----------
    epsilon, delta : float
        The target, in [0.01, 100] and [1e-12, 0.1].
    noise_multiplier : float
        Noise standard deviation divided by the largest norm of all that one record adds.
    sampling_prob : float, optional
        Probability that a record is in a batch; for ``sampler="poisson"``.
    sampler : str or Sampler
        ``"poisson"``, ``"full_batch"`` or a sampler of `pymc_dpvi.sampling`.
    neighboring_relation : str
        ``"add_or_remove_one"`` or ``"replace_one"``.
    accountant : str, dp_accounting.PrivacyAccountant or callable
        A name (see `ACCOUNTANT_NAMES`), or one of your own.
    allow_unproven : bool
        Whether the accountant's epsilon need not be a proven upper bound.

    Returns
    -------
    int
        :func:`epsilon` of this many steps is at most the target, and that of one more exceeds it, unless
        the result is 10,000,000, the largest.

    Raises
    ------
    ArgumentError
        If an argument is out of range, no account exists for the combination, or it is not proven.
    CalibrationError
        If the first step already costs more than the target.

    Notes
    -----
    Privacy: uses no data. Rounded down: never more steps than the target allows.

    Examples
    --------
    >>> 10_000 < max_steps(epsilon=1.0, delta=1e-5, noise_multiplier=4.0, sampling_prob=0.01) < 12_000
    True
    """
    target, at, noise = _check_epsilon(epsilon), _check_delta(delta), check_noise(noise_multiplier)
    chosen, info, relation = _setting(sampler, sampling_prob, neighboring_relation, accountant)
    require_proven(info, allow_unproven)

    def evaluate(steps: int) -> float:
        return Run(chosen, noise, steps).epsilon(at, info, relation)

    start = clt_steps(
        gdp_mu(target, at),
        sampling_prob=chosen.sampling_prob,
        noise_multiplier=noise,
        sensitivity=sensitivity_factor(relation),
    )
    found = largest_integer(evaluate, target, start=start, high=MAX_STEPS)
    if found is None:
        raise CalibrationError(
            f"one step with noise_multiplier={noise:g} and sampling_prob={chosen.sampling_prob:g} costs "
            f"epsilon={evaluate(1):.3g} at delta={at:g}, more than epsilon={target:g}. Try a larger "
            "noise_multiplier: pymc_dpvi.accounting.noise_multiplier finds one for a given n_steps."
        )
    return found


def default_sampling_prob(*, epsilon: float, delta: float, n_steps: int) -> float:
    r"""Return a sampling probability that costs next to no accuracy.

    The noise in the estimated mean of the gradient is proportional to :math:`\sigma(q)/q`. By the
    central limit theorem of Gaussian differential privacy (Bu et al. 2020), with :math:`\mu` the
    parameter of the Gaussian curve through (epsilon, delta),

    .. math:: \frac{\sigma(q)}{q} = \frac{\sqrt T}{\mu}\,\sqrt{\frac{x}{\ln(1+x)}},
              \qquad x = \frac{\mu^2}{q^2 T}.

    As :math:`q` grows, this falls to :math:`\sqrt T/\mu`. At :math:`q = \mu\sqrt{20/T}`, where
    :math:`x = 1/20`, it is 1.2 % above that limit (:math:`\sqrt{0.05/\ln 1.05} = 1.0123`): larger
    batches would take more time and gain next to nothing.

    Parameters
    ----------
    epsilon, delta : float
        The target.
    n_steps : int
        Number of steps.

    Returns
    -------
    float
        In [1e-5, 0.9), or 1. It does not depend on the data, nor on the number of records.

    Raises
    ------
    ArgumentError
        If an argument is out of range.

    Examples
    --------
    >>> round(default_sampling_prob(epsilon=1.0, delta=1e-6, n_steps=2000), 3)
    0.024
    """
    mu = gdp_mu(_check_epsilon(epsilon), _check_delta(delta))
    prob = max(1e-5, mu * math.sqrt(20.0 / check_steps(n_steps)))
    return prob if prob < 0.9 else 1.0  # above 0.9, the full data are simpler and no worse


def _impossible(
    sampler: EventSampler,
    info: AccountantInfo,
    relation: NeighboringRelation,
    least: float,
    target: float,
    delta: float,
    n_steps: int,
) -> str:
    """Say which targets can be met, where the largest noise multiplier costs epsilon = `least`."""
    # About the number of steps at which the largest noise multiplier meets this target.
    affordable = clt_steps(
        gdp_mu(target, delta),
        sampling_prob=sampler.sampling_prob,
        noise_multiplier=MAX_NOISE_MULTIPLIER,
        sensitivity=sensitivity_factor(relation),
    )
    ways = [f"epsilon >= {1.1 * least:.2g} with n={n_steps}"] if math.isfinite(least) else []
    if 1.0 <= affordable < n_steps:
        ways.append(f"n <= {affordable:.0f} with epsilon={target:g}")
    ways.append("a larger delta")
    if info.name != "pld":
        ways.append("accountant='pld', which is the tightest")
    return (
        f"epsilon={target:g} at delta={delta:g} with n={n_steps} steps and "
        f"sampling_prob={sampler.sampling_prob:g} would need a noise_multiplier above "
        f"{MAX_NOISE_MULTIPLIER:g} by the account of {info.name!r}. Try {', or '.join(ways)}."
    )
