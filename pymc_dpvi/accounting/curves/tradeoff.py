r"""What an attacker can do with a release: the privacy profile and its trade-off function.

Let :math:`P` and :math:`Q` be the outputs on two neighbouring data sets. The **privacy profile** is

.. math:: \delta(\varepsilon) = \sup_{P, Q} H_{e^\varepsilon}(P \| Q),
          \qquad H_\gamma(P \| Q) = \sup_S \; P(S) - \gamma\,Q(S),

the smallest :math:`\delta` at each :math:`\varepsilon` for which the mechanism is
:math:`(\varepsilon, \delta)`-DP. Since neighbours can be swapped,
:math:`\delta(-\varepsilon) = 1 - e^{-\varepsilon}(1 - \delta(\varepsilon))`.

**Trade-off function** (Dong, Roth and Su 2022, Proposition 2.12): at a false positive rate :math:`a` no
attack has a larger true positive rate than

.. math:: \mathrm{TPR}(a) = \min_{\varepsilon \ge 0}
          \min\{\delta(\varepsilon) + e^{\varepsilon} a,\;
          1 - e^{-\varepsilon}(1 - \delta(\varepsilon) - a)\},
          \qquad f(a) = 1 - \mathrm{TPR}(a).

The largest :math:`\mathrm{TPR}(a) - a`, the membership **advantage**, is :math:`\delta(0)`, the total
variation distance. For full batches :math:`f(a) = \Phi(\Phi^{-1}(1 - a) - \mu)` with
:math:`\mu = k\sqrt T / z`, where :math:`k` is the sensitivity's factor (`relations`).

**Odds** of the truth, for an attacker who sees the release, grow by a factor :math:`e^L`. For
:math:`\varepsilon_2 > \varepsilon`

.. math:: P[L > \varepsilon_2] \le \frac{\delta(\varepsilon)}{1 - e^{\varepsilon - \varepsilon_2}} .

**Groups.** The profile for :math:`k` records is at most
:math:`\delta_k(\varepsilon) = \min_{a + b = \varepsilon} \delta(a) + e^a\,\delta_{k-1}(b)` over real
:math:`a, b` (Dong, Roth and Su 2022, Theorem 2.14). Proofs of all this: docs/accounting.md, section 8.

**Rounding.** A profile is kept as finitely many points, each an upper bound. All functions here take minima
over them, or chords between them (:math:`H_\gamma` is convex in :math:`\gamma`), so a coarser grid can only
raise the bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_dpvi.arguments import check_integer, check_number
from pymc_dpvi.errors import ArgumentError

__all__ = ["PrivacyProfile"]

Array = NDArray[Any]

_MAX_EPSILON = 600.0
"""Beyond it exp(epsilon) nears the end of the range of floats; delta is taken to stay where it is."""

_MAX_GROUP_POINTS = 3000
_BLOCK = 1 << 21


def _exp(x: Array | float) -> Any:
    with np.errstate(over="ignore"):
        return np.exp(x)


@dataclass(frozen=True, eq=False)
class PrivacyProfile:
    r"""Upper bounds of :math:`\delta(\varepsilon)` on an even grid from 0.

    Parameters
    ----------
    epsilons : array_like, shape (n_points,)
        0, h, 2h, ...; at least two.
    deltas : array_like, shape (n_points,)
        A valid delta for each of them. Where an earlier one is smaller, that is used.

    Raises
    ------
    ArgumentError
        If the grid is not even, or a delta is not in [0, 1].

    Notes
    -----
    Privacy: uses no data.
    """

    epsilons: Array
    deltas: Array

    def __post_init__(self) -> None:
        epsilons = np.array(self.epsilons, dtype=float)
        deltas = np.array(self.deltas, dtype=float)
        if epsilons.ndim != 1 or epsilons.size < 2 or epsilons.shape != deltas.shape or epsilons[0] != 0:
            raise ArgumentError("epsilons and deltas must be as long as each other, and epsilons start at 0.")
        even = np.arange(epsilons.size) * epsilons[1]
        if not (epsilons[1] > 0 and np.allclose(epsilons, even, rtol=1e-9, atol=0)):
            raise ArgumentError("epsilons must be 0, h, 2h, ... for some h > 0.")
        if not ((deltas >= 0) & (deltas <= 1)).all():
            raise ArgumentError("deltas must be between 0 and 1.")
        deltas = np.minimum.accumulate(deltas)
        for name, array in (("epsilons", epsilons), ("deltas", deltas)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def from_epsilon_delta(cls, epsilon: float, delta: float, *, n_points: int = 2001) -> PrivacyProfile:
        """Return all that follows from one pair (epsilon, delta), if nothing else is known.

        Parameters
        ----------
        epsilon, delta : float
            The guarantee.
        n_points : int
            Length of the grid, which ends at `epsilon`.

        Returns
        -------
        PrivacyProfile
            That of randomised response, the worst mechanism with this guarantee (Kairouz, Oh and
            Viswanath 2015, Theorem 3.1).
        """
        epsilon = check_number("epsilon", epsilon, low=0.0, closed_low=True)
        delta = check_number("delta", delta, low=0.0, high=1.0, closed_low=True, closed_high=True)
        grid = np.linspace(0.0, max(epsilon, 1e-9), check_integer("n_points", n_points, low=2))
        # (e^eps - e^x) / (1 + e^eps) without overflow
        below = -np.expm1(np.minimum(grid - epsilon, 0.0)) / (1.0 + math.exp(-epsilon))
        return cls(grid, np.minimum(delta + (1.0 - delta) * below, 1.0))

    @property
    def step(self) -> float:
        """Distance between neighbouring grid points."""
        return float(self.epsilons[1])

    # ------------------------------------------------------------------------ the curve itself

    def delta(self, epsilon: ArrayLike) -> Any:
        """Return an upper bound of delta.

        Parameters
        ----------
        epsilon : float or array_like
            Any real numbers.

        Returns
        -------
        float or ndarray
        """
        asked = np.asarray(epsilon, dtype=float)
        size = np.abs(asked)
        index = np.minimum((size / self.step).astype(np.int64), self.epsilons.size - 2)
        low, high = self.deltas[index], self.deltas[index + 1]
        # Chord in e^epsilon. A point that rounding puts left of its interval gets the value at the left end.
        share = np.expm1(np.clip(size - self.epsilons[index], 0.0, self.step)) / math.expm1(self.step)
        found = low + np.minimum(share, 1.0) * (high - low)
        found = np.where(asked < 0, 1.0 - np.exp(-size) * (1.0 - found), found)
        return float(found) if found.ndim == 0 else found

    def epsilon(self, delta: float) -> float:
        """Return an upper bound of epsilon at `delta`; infinity if the profile stays above `delta`.

        Parameters
        ----------
        delta : float
            In [0, 1].

        Returns
        -------
        float
        """
        delta = check_number("delta", delta, low=0.0, high=1.0, closed_low=True, closed_high=True)
        index = int(np.searchsorted(-self.deltas, -delta))  # the first point at or below delta
        if index == self.deltas.size:
            return math.inf
        if index == 0:
            return 0.0
        before, after = self.deltas[index - 1], self.deltas[index]
        share = (before - delta) / (before - after)
        return min(
            float(self.epsilons[index - 1] + math.log1p(share * math.expm1(self.step))),
            float(self.epsilons[index]),
        )

    # ------------------------------------------------------------------------ attacks

    @property
    def advantage(self) -> float:
        """Largest difference of true and false positive rate that any attack can have."""
        return float(self.deltas[0])

    def true_positive_rate(self, false_positive_rate: ArrayLike) -> Any:
        """Return the largest true positive rate of any attack.

        Parameters
        ----------
        false_positive_rate : float or array_like
            In [0, 1].

        Returns
        -------
        float or ndarray
        """
        rate = np.asarray(false_positive_rate, dtype=float)
        if not ((rate >= 0) & (rate <= 1)).all():
            raise ArgumentError("false_positive_rate must be between 0 and 1.")
        flat, found = rate.ravel(), np.empty(rate.size)
        up, down = _exp(self.epsilons), np.exp(-self.epsilons)
        block = max(1, _BLOCK // self.epsilons.size)
        for start in range(0, flat.size, block):
            a = flat[start : start + block, None]
            with np.errstate(invalid="ignore"):  # 0 times infinity
                line = np.nan_to_num(self.deltas + up * a, nan=1.0)
            other = 1.0 - down * (1.0 - self.deltas - a)
            found[start : start + block] = np.minimum(line, other).min(axis=1)
        found = np.clip(found, flat, 1.0)
        return float(found[0]) if rate.ndim == 0 else found.reshape(rate.shape)

    def false_negative_rate(self, false_positive_rate: ArrayLike) -> Any:
        """Return the trade-off function: the smallest false negative rate of any attack.

        Parameters
        ----------
        false_positive_rate : float or array_like
            In [0, 1].

        Returns
        -------
        float or ndarray
            A lower bound: every attack misses at least so often.
        """
        return 1.0 - self.true_positive_rate(false_positive_rate)

    # ------------------------------------------------------------------------ odds

    def odds_factor(self, probability: float) -> float:
        """Return a factor that the odds of the truth exceed with at most this probability.

        Parameters
        ----------
        probability : float
            Taken over the randomness of the mechanism; in (0, 1].

        Returns
        -------
        float
            Infinite if the profile does not fall below `probability`.
        """
        p = check_number("probability", probability, low=0.0, high=1.0, closed_high=True)
        enough = self.deltas < p
        if not enough.any():
            return math.inf
        # delta / (1 - e^(eps - eps2)) <= p, solved for eps2
        exponents = self.epsilons[enough] - np.log1p(-self.deltas[enough] / p)
        return float(_exp(exponents.min()))

    def odds_probability(self, factor: float) -> float:
        """Return an upper bound of the probability that the odds of the truth grow more than `factor`-fold.

        Parameters
        ----------
        factor : float
            Larger than 1.

        Returns
        -------
        float
        """
        wanted = math.log(check_number("factor", factor, low=1.0))
        below = self.epsilons < wanted
        bounds = self.deltas[below] / -np.expm1(self.epsilons[below] - wanted)
        return float(min(1.0, bounds.min()))

    def posterior(self, prior: float, probability: float) -> float:
        """Return the largest probability that an attacker gives to the truth after seeing the release.

        Parameters
        ----------
        prior : float
            What the attacker gave to the truth before, in (0, 1).
        probability : float
            As for `odds_factor`: releases of at most this probability are left aside.

        Returns
        -------
        float
        """
        prior = check_number("prior", prior, low=0.0, high=1.0)
        odds = self.odds_factor(probability) * prior / (1.0 - prior)
        return 1.0 / (1.0 + 1.0 / odds)

    # ------------------------------------------------------------------------ groups and sums

    def group(self, records: int) -> PrivacyProfile:
        """Return the profile for a person who contributed several records.

        Parameters
        ----------
        records : int
            Number of records of the person, k.

        Returns
        -------
        PrivacyProfile
            Valid for any mechanism with this profile; exact, up to the grid, for the Gaussian mechanism.
        """
        k = check_integer("records", records, high=_MAX_GROUP_POINTS // 4)
        if k == 1:
            return self
        # Every stride-th point: each is valid. The result reaches to k times the greatest epsilon.
        stride = -(-(self.epsilons.size - 1) * k // _MAX_GROUP_POINTS)
        end = min(_MAX_EPSILON, k * float(self.epsilons[-1]))
        grid = np.arange(0, math.ceil(end / (stride * self.step)) + 1) * (stride * self.step)
        grid = grid[grid <= max(_MAX_EPSILON, stride * self.step)]
        weights = _exp(np.concatenate([-grid[:0:-1], grid]))
        power = _mirrored(grid, self.delta(grid))
        found = None
        while k:  # by squaring: 1, 2, 4, ... records
            if k % 2:
                found = power if found is None else _chain(power, weights, found)
            k //= 2
            if k:
                power = _chain(power, weights, power)
        assert found is not None
        return PrivacyProfile(grid, np.minimum(found[grid.size - 1 :], 1.0))

    def then(self, epsilon: float, delta: float) -> PrivacyProfile:
        r"""Return the profile of this mechanism followed by anything that is (epsilon, delta)-DP.

        With :math:`p = e^{\varepsilon_r}/(1 + e^{\varepsilon_r})`,

        .. math:: \delta(\varepsilon) \le \delta_r + (1 - \delta_r)\{
                  p\,\delta_1(\varepsilon - \varepsilon_r)
                  + (1 - p)\,\delta_1(\varepsilon + \varepsilon_r)\},

        because randomised response dominates what follows, and dominating pairs compose adaptively
        (Zhu, Dong and Wang 2022, Theorem 10).

        Parameters
        ----------
        epsilon, delta : float
            Limits, set in advance, of what follows. What follows may depend on this mechanism's output.

        Returns
        -------
        PrivacyProfile
        """
        epsilon = check_number("epsilon", epsilon, low=0.0, closed_low=True)
        delta = check_number("delta", delta, low=0.0, high=1.0, closed_low=True, closed_high=True)
        points = self.epsilons.size + math.ceil(epsilon / self.step)
        grid = np.arange(min(points, 20 * self.epsilons.size)) * self.step
        likely = 1.0 / (1.0 + math.exp(-epsilon))
        mixed = likely * self.delta(grid - epsilon) + (1.0 - likely) * self.delta(grid + epsilon)
        return PrivacyProfile(grid, np.clip(delta + (1.0 - delta) * mixed, 0.0, 1.0))


def _mirrored(grid: Array, deltas: Array) -> Array:
    """Return delta on the grid and its negatives."""
    negative = 1.0 - np.exp(-grid) * (1.0 - deltas)
    return np.concatenate([negative[:0:-1], deltas])


def _chain(first: Array, weights: Array, second: Array) -> Array:
    """Return the minimum over a + b = c of first(a) + weights(a) second(b), for all c of the grid."""
    size = first.size
    middle = size // 2
    found = np.empty(size)
    for c in range(size):
        # with a at position i, b = c - a stands at position c + middle - i
        low, high = max(0, c + middle - size + 1), min(size - 1, c + middle)
        a = slice(low, high + 1)
        b = slice(c + middle - high, c + middle - low + 1)
        found[c] = (first[a] + weights[a] * second[b][::-1]).min()
    return found
