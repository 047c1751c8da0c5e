r"""Epsilon of a run, and the noise multiplier that meets a target.

The search for the noise multiplier is one-sided: what it returns has been evaluated, and its
epsilon is at or below the target and within 1e-3 (relative) of it. The function
:math:`z \mapsto \varepsilon(z)` is smooth and close to a power law, so that the secant method in
:math:`(\ln z, \ln\varepsilon)`, kept inside a bracket, needs a few evaluations. It starts at the
central limit theorem of Gaussian differential privacy (Bu, Dong, Long and Su 2020): :math:`T`
Poisson-sampled Gaussian steps are about :math:`\mu`-GDP with

.. math:: \mu = q\,\sqrt{T\,(e^{s^2/z^2} - 1)},

where :math:`s` is 1 under add-or-remove-one and 2 under replace-one, and
:math:`\delta = \Phi(\mu/2 - \varepsilon/\mu) - e^{\varepsilon}\,\Phi(-\mu/2 - \varepsilon/\mu)`
(Balle and Wang 2018). The theorem is an approximation: it proposes, the accountant decides.

The grid step :math:`h` of the privacy loss inflates its variance per step,
:math:`v = q^2(e^{1/z^2}-1)`, by a relative :math:`O(h^2/v)`, always upwards, so that a small
`sampling_prob` or many steps need a finer one. We take
:math:`h = \min(3\cdot10^{-4}, 0.07\sqrt v)`, which keeps epsilon within about 0.05 % of the limit,
and coarsen it where the arrays would outgrow some :math:`10^5` points a step or :math:`10^7` in
all. The search first runs on a grid eight times coarser, which costs little, to find where to
start.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from scipy import special

from pymc_dpvi.accounting.accountants import (
    PLD_MIN_DELTA,
    AccountantInfo,
    accountant_info,
)
from pymc_dpvi.accounting.events import EventSampler, step_event
from pymc_dpvi.accounting.relations import check_relation
from pymc_dpvi.arguments import check_integer, check_number
from pymc_dpvi.errors import ArgumentError, CalibrationError
from pymc_dpvi.sampling import FullBatchSampler, PoissonSampler

__all__ = ["default_sampling_prob", "epsilon", "noise_multiplier"]

MAX_STEPS = 10_000_000
MAX_NOISE_MULTIPLIER = 1e6
MIN_NOISE_MULTIPLIER = 0.05
"""Noise below this has an epsilon in the hundreds for one step on the full data."""

RELATIVE_TOLERANCE = 1e-3
_MAX_GRID_POINTS_STEP = 2e5
_MAX_GRID_POINTS = 8e6
_MAX_DISCRETIZATION = 3e-4
_COARSE = 8.0
_MAX_EVALUATIONS = 80


# --------------------------------------------------------------------------------------------
# Gaussian differential privacy: the exact curve, and the central limit that starts the search
# --------------------------------------------------------------------------------------------


def _gdp_delta(mu: float, eps: float) -> float:
    """Delta of a mu-GDP mechanism at `eps` (Balle and Wang 2018, Theorem 8)."""
    first = float(special.log_ndtr(mu / 2.0 - eps / mu))
    second = eps + float(special.log_ndtr(-mu / 2.0 - eps / mu))
    # exp(first) - exp(second) without the overflow of exp(eps)
    return math.exp(first) * -math.expm1(min(second - first, 0.0))


def _gdp_mu(eps: float, delta: float) -> float:
    """Return the mu at which the Gaussian curve passes through (eps, delta), by bisection."""
    low, high = -30.0, 30.0  # of ln(mu)
    for _ in range(80):
        middle = 0.5 * (low + high)
        if _gdp_delta(math.exp(middle), eps) > delta:
            high = middle
        else:
            low = middle
    return math.exp(low)


def default_sampling_prob(*, epsilon: float, delta: float, n_steps: int) -> float:
    r"""Return a sampling probability that costs next to no accuracy.

    The noise in the estimated mean of the gradient is proportional to :math:`\sigma(q)/q`. By the
    central limit theorem of Gaussian differential privacy (Bu et al. 2020), with :math:`\mu` the
    parameter of the Gaussian curve through (epsilon, delta),

    .. math:: \frac{\sigma(q)}{q} = \frac{\sqrt T}{\mu}\,\sqrt{\frac{x}{\ln(1+x)}},
              \qquad x = \frac{\mu^2}{q^2 T}.

    As :math:`q` grows this falls to :math:`\sqrt T/\mu`, and at
    :math:`q = \mu\sqrt{20/T}`, that is :math:`x = 1/20`, it is 1.2 % above that limit
    (:math:`\sqrt{0.05/\ln 1.05} = 1.0123`). A larger batch only costs time.

    Parameters
    ----------
    epsilon, delta : float
        The target.
    n_steps : int
        Number of steps.

    Returns
    -------
    float
        In [1e-5, 1]. It does not depend on the data, the number of records included.

    Raises
    ------
    ArgumentError
        If an argument is out of range.

    Examples
    --------
    >>> round(default_sampling_prob(epsilon=1.0, delta=1e-6, n_steps=2000), 3)
    0.024
    """
    eps = check_number("epsilon", epsilon, low=0.0, high=math.inf)
    delta = check_number("delta", delta, low=0.0, high=1.0)
    steps = check_integer("n_steps", n_steps, high=MAX_STEPS)
    prob = max(1e-5, _gdp_mu(eps, delta) * math.sqrt(20.0 / steps))
    return prob if prob < 0.9 else 1.0  # nearly everything: no sampling is simpler and no worse


# --------------------------------------------------------------------------------------------
# One evaluation
# --------------------------------------------------------------------------------------------


def _discretization(
    sampling_prob: float, noise_multiplier: float, n_steps: int, relation: NeighboringRelation
) -> float:
    """Grid step of the privacy loss for this run (see the module's docstring)."""
    sensitivity = 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0
    noise = noise_multiplier
    steps = n_steps
    if sampling_prob == 1.0:  # Gaussian steps are composed in closed form
        noise, steps = noise / math.sqrt(n_steps), 1
    # min: the second moment of a badly covered exponential tail is no guide to the bulk
    spread = sampling_prob * math.sqrt(math.expm1(min(1.0 / noise**2, 4.0)))
    fine = min(_MAX_DISCRETIZATION, 0.07 * spread)
    # The largest loss that matters, of one step and of all of them, in grid points
    exponent = 10.0 * sensitivity / noise + 0.5 * (sensitivity / noise) ** 2
    one = max(exponent + math.log(sampling_prob), 0.0) + math.log1p(
        sampling_prob * math.exp(min(exponent, 30.0))
    )
    wide = sensitivity * spread
    everything = one + steps * wide**2 + 16.0 * wide * math.sqrt(steps)
    return max(fine, one / _MAX_GRID_POINTS_STEP, everything / _MAX_GRID_POINTS)


def _compose(
    info: AccountantInfo,
    relation: NeighboringRelation,
    event: dp_accounting.DpEvent,
    n_steps: int,
    delta: float,
    interval: float,
) -> float:
    accountant = info.make(relation, interval)
    if isinstance(accountant, PLDAccountant) and delta < PLD_MIN_DELTA:
        raise ArgumentError(
            f"delta={delta:g} is below {PLD_MIN_DELTA:g}, where PLD accountants under-report "
            "(rounding in their FFT). Use accountant='rdp', or a larger delta."
        )
    found = float(accountant.compose(event, n_steps).get_epsilon(delta))
    if math.isnan(found) or found < 0.0:
        raise CalibrationError(
            f"accountant {info.name!r} returned an epsilon that is not a number for "
            f"n_steps={n_steps}. Use accountant='pld' or 'rdp'."
        )
    return found


# The evaluations of a search are asked for again by the fit that follows it.
_compose_cached = functools.lru_cache(maxsize=512)(_compose)


def _evaluate(
    info: AccountantInfo,
    sampler: EventSampler,
    relation: NeighboringRelation,
    noise: float,
    n_steps: int,
    delta: float,
    *,
    coarseness: float = 1.0,
) -> float:
    interval = coarseness * _discretization(sampler.sampling_prob, noise, n_steps, relation)
    event = step_event(
        sampler=sampler,
        noise_multiplier=noise,
        neighboring_relation=relation,
        accountant=info.make(relation, interval),
    )
    compose = _compose_cached if info.cacheable else _compose
    return compose(info, relation, event, n_steps, delta, interval)


def _check_sampler(sampler: Any, sampling_prob: Any) -> EventSampler:
    """Return the sampler that the arguments describe."""
    if isinstance(sampler, str):
        if sampler == "poisson":
            if sampling_prob is None:
                raise ArgumentError("sampler='poisson' needs sampling_prob, in (0, 1].")
            prob = check_number("sampling_prob", sampling_prob, low=0.0, high=1.0, closed_high=True)
            return PoissonSampler(prob)
        if sampler == "full_batch":
            if sampling_prob is not None and sampling_prob != 1:
                raise ArgumentError(
                    "sampler='full_batch' uses every record in every step: leave out "
                    "sampling_prob, or use sampler='poisson'."
                )
            return FullBatchSampler()
        if sampler == "fixed_size":
            raise ArgumentError(
                "sampler='fixed_size' needs the batch size and the number of records: pass "
                "sampler=pymc_dpvi.sampling.FixedSizeSampler(batch_size, num_records)."
            )
    elif hasattr(sampler, "dp_event") and hasattr(sampler, "sampling_prob"):
        found = check_number(
            "sampler.sampling_prob", sampler.sampling_prob, low=0.0, high=1.0, closed_high=True
        )
        if sampling_prob is not None:
            prob = check_number("sampling_prob", sampling_prob, low=0.0, high=1.0, closed_high=True)
            if prob != found:
                raise ArgumentError(f"sampling_prob={prob:g} contradicts the sampler's own; leave it out.")
        return sampler  # type: ignore[no-any-return]
    raise ArgumentError(
        "sampler must be 'poisson', 'full_batch' or a sampler of pymc_dpvi.sampling; found "
        f"{sampler if isinstance(sampler, str) else type(sampler).__name__!r}."
    )


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
        Delta of the guarantee, in (0, 1).
    noise_multiplier : float
        Noise standard deviation divided by `l2_clip_norm`. It does not depend on the relation,
        the returned epsilon does.
    n_steps : int
        Number of steps.
    sampling_prob : float, optional
        Probability that a record is in a batch; for ``sampler="poisson"``.
    sampler : str or Sampler
        ``"poisson"``, ``"full_batch"`` or a sampler of `pymc_dpvi.sampling`.
    neighboring_relation : str
        ``"add_or_remove_one"`` or ``"replace_one"``.
    accountant : str, dp_accounting.PrivacyAccountant or callable
        ``"pld"`` (default), ``"rdp"``, or one of your own.

    Returns
    -------
    float
        An upper bound of the true epsilon, given that the accountant's bound is proven
        (see :func:`accountant_info`). May be infinite.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or no proven account exists for the combination.

    Privacy
    -------
    Speaks of `n_steps` steps whose `noise_multiplier` and sampler were fixed in advance.

    Examples
    --------
    >>> round(epsilon(delta=1e-5, noise_multiplier=4.0, n_steps=10_000, sampling_prob=0.01), 2)
    0.95
    """
    delta = check_number("delta", delta, low=0.0, high=1.0)
    noise = check_number(
        "noise_multiplier",
        noise_multiplier,
        low=math.nextafter(MIN_NOISE_MULTIPLIER, 0.0),
        high=MAX_NOISE_MULTIPLIER,
        closed_high=True,
    )
    steps = check_integer("n_steps", n_steps, high=MAX_STEPS)
    relation = check_relation(neighboring_relation)
    chosen = _check_sampler(sampler, sampling_prob)
    return _evaluate(accountant_info(accountant), chosen, relation, noise, steps, delta)


# --------------------------------------------------------------------------------------------
# The search
# --------------------------------------------------------------------------------------------


def _exp(x: float) -> float:
    """Return exp(x), which must not fall an ulp outside of the bounds or beside them."""
    if x <= math.log(MIN_NOISE_MULTIPLIER):
        return MIN_NOISE_MULTIPLIER
    return min(math.exp(x), MAX_NOISE_MULTIPLIER)


def _search(evaluate: Callable[[float], float], target: float, start: float) -> float | None:
    """Return a noise multiplier with epsilon in [target (1 - tol), target], or None.

    Only values that `evaluate` has seen are returned. The search ends at
    `MIN_NOISE_MULTIPLIER` if even this meets the target.
    """
    aim = math.log(target * (1.0 - 0.4 * RELATIVE_TOLERANCE))
    points: list[tuple[float, float]] = []  # (ln noise, ln epsilon), the latest last
    low = high = math.nan  # ln noise known to be too small, known to be enough
    x = math.log(min(max(start, MIN_NOISE_MULTIPLIER), MAX_NOISE_MULTIPLIER))
    floor, ceiling = math.log(MIN_NOISE_MULTIPLIER), math.log(MAX_NOISE_MULTIPLIER)
    for _ in range(_MAX_EVALUATIONS):
        noise = _exp(x)
        found = evaluate(noise)
        if found <= target:
            if found >= target * (1.0 - RELATIVE_TOLERANCE) or x <= floor:
                return noise
            high = x
        else:
            if x >= ceiling:
                return None
            low = x
        if 0.0 < found < math.inf:
            points.append((x, math.log(found)))
        if high - low < 1e-12:  # a step in epsilon(noise): the upper side of it
            return _exp(high)
        x = _propose(points, aim, low, high)
        x = min(max(x, floor), ceiling)
    return None if math.isnan(high) else _exp(high)


def _propose(points: list[tuple[float, float]], aim: float, low: float, high: float) -> float:
    """Return the next ln(noise): a secant step if it stays in the bracket, else a halving."""
    guess = math.nan
    if points:
        x1, y1 = points[-1]
        slope = -1.0  # epsilon is about proportional to 1 / noise
        if len(points) > 1 and points[-2][0] != x1:
            slope = (points[-2][1] - y1) / (points[-2][0] - x1)
        if slope < -0.05:
            guess = x1 + (aim - y1) / slope
    if not math.isnan(low) and not math.isnan(high):
        margin = 1e-3 * (high - low)
        if not low + margin < guess < high - margin or len(points) > 12:
            guess = 0.5 * (low + high)
        return guess
    if math.isnan(high):  # too little noise so far: go up, at most tenfold
        floor = low + 1e-4
        return min(max(guess, floor), low + 2.3) if not math.isnan(guess) else low + 1.0
    return max(min(guess, high - 1e-4), high - 2.3) if not math.isnan(guess) else high - 1.0


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    n_steps: int,
    sampling_prob: float | None = None,
    sampler: Any = "poisson",
    neighboring_relation: Any = "add_or_remove_one",
    accountant: Any = "pld",
) -> float:
    """Return the noise multiplier of a run that spends at most (epsilon, delta).

    Parameters
    ----------
    epsilon, delta : float
        The target.
    n_steps : int
        Number of steps.
    sampling_prob : float, optional
        Probability that a record is in a batch; for ``sampler="poisson"``.
    sampler : str or Sampler
        ``"poisson"``, ``"full_batch"`` or a sampler of `pymc_dpvi.sampling`.
    neighboring_relation : str
        ``"add_or_remove_one"`` or ``"replace_one"``.
    accountant : str, dp_accounting.PrivacyAccountant or callable
        ``"pld"`` (default), ``"rdp"``, or one of your own.

    Returns
    -------
    float
        Noise standard deviation divided by `l2_clip_norm`. The function :func:`epsilon` of this
        very number is at most the target, and within 1e-3 (relative) of it, unless the noise is
        already at its floor (`MIN_NOISE_MULTIPLIER`).

    Raises
    ------
    ArgumentError
        If an argument is out of range, or no proven account exists for the combination.
    CalibrationError
        If no noise up to `MAX_NOISE_MULTIPLIER` meets the target. The message says what would.

    Privacy
    -------
    Uses no data. One-sided: never below what the target needs.

    Examples
    --------
    >>> 3.8 < noise_multiplier(epsilon=1.0, delta=1e-5, n_steps=10_000, sampling_prob=0.01) < 3.9
    True
    """
    target = check_number("epsilon", epsilon, low=0.0, high=math.inf)
    delta = check_number("delta", delta, low=0.0, high=1.0)
    steps = check_integer("n_steps", n_steps, high=MAX_STEPS)
    relation = check_relation(neighboring_relation)
    chosen = _check_sampler(sampler, sampling_prob)
    info = accountant_info(accountant)

    sensitivity = 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0
    prob = chosen.sampling_prob
    ratio = _gdp_mu(target, delta) / (prob * math.sqrt(steps))
    if prob == 1.0:  # no sampling: the composition is exactly Gaussian
        start = sensitivity / max(ratio, 1e-300)
    else:
        start = sensitivity / math.sqrt(max(math.log1p(min(ratio, 1e150) ** 2), 1e-300))

    def evaluate(noise: float) -> float:
        return _evaluate(info, chosen, relation, noise, steps, delta)

    def evaluate_coarse(noise: float) -> float:
        return _evaluate(info, chosen, relation, noise, steps, delta, coarseness=_COARSE)

    if info.name == "pld":  # the others have no grid
        start = _search(evaluate_coarse, target, start) or start
    found = _search(evaluate, target, start)
    if found is None:
        raise CalibrationError(_impossible(evaluate, target, delta, steps, prob, sensitivity))
    return found


def _impossible(
    evaluate: Callable[[float], float],
    target: float,
    delta: float,
    n_steps: int,
    sampling_prob: float,
    sensitivity: float,
) -> str:
    """Say which targets are within reach."""
    least = evaluate(MAX_NOISE_MULTIPLIER)
    # mu is proportional to sqrt(n_steps): the steps that this epsilon would pay for
    mu_step = sampling_prob * math.sqrt(math.expm1((sensitivity / MAX_NOISE_MULTIPLIER) ** 2))
    affordable = int(min((_gdp_mu(target, delta) / mu_step) ** 2, n_steps - 1))
    ways = [f"epsilon >= {1.1 * least:.2g} with n={n_steps}"] if math.isfinite(least) else []
    if affordable >= 1:
        ways.append(f"n <= {affordable} with epsilon={target:g}")
    ways.append("a larger delta")
    return (
        f"epsilon={target:g} at delta={delta:g} with n={n_steps} steps and "
        f"sampling_prob={sampling_prob:g} would need a noise_multiplier above "
        f"{MAX_NOISE_MULTIPLIER:g}, which leaves no signal. Try {', or '.join(ways)}."
    )
