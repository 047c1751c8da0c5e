r"""Composition of privacy losses by FFT, tilted so that the tail is computed at full accuracy.

The losses of :math:`T` steps add up: their law is the convolution power :math:`p^{*T}`. An FFT computes it
with an *absolute* error of about :math:`10^{-16}\,T`, which drowns a delta of :math:`10^{-12}`. The tilted
law is convolved instead,

.. math:: \tilde p_\ell = p_\ell\, e^{\lambda\ell - \kappa(\lambda)}, \quad
          \kappa(\lambda) = \ln \sum_\ell p_\ell\, e^{\lambda\ell}, \qquad
          p^{*T}_\ell = e^{T\kappa(\lambda) - \lambda\ell}\, \tilde p^{*T}_\ell,

an identity for every :math:`\lambda`. The :math:`\lambda` that minimises the Chernoff bound
:math:`\delta \le c(\lambda)\,e^{T\kappa(\lambda)-\lambda\varepsilon}`,
:math:`c(\lambda) = \lambda^\lambda/(1+\lambda)^{1+\lambda}` (Canonne, Kamath and Steinke 2020, Proposition
12), puts the tilted mean near the epsilon in question. There the FFT's error is small *relative* to delta.

In: laws on one grid, with counts. Out: a :class:`DeltaCurve`, an upper bound of delta in floating point also.
Mass above the window, the FFT's error, relative errors of single probabilities and the error of the loss are
bounded and added (docs/accounting.md, section 3). What it may never do: leave out an error without a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, optimize, signal

from pymc_dpvi.accounting.pld.dominating_pairs import MASS_ERROR, LossLaw

__all__ = ["MAX_WINDOW", "WINDOW_SHARE", "Composition", "DeltaCurve"]

Array = NDArray[np.float64]

MAX_WINDOW = 2**20
"""Most points of an FFT."""

WINDOW_SHARE = 1e-8
"""Share of delta that may lie above the window."""

_UNIT = 2.0**-53
_SUM_ERROR = 1e-9
_WRAPPED = 25.0  # -ln of the share of the tilted law on either side of the window
_MIN_TILT, _MAX_TILT = 1e-7, 1e9


def _log_c(tilt: float) -> float:
    return tilt * math.log(tilt) - (1.0 + tilt) * math.log1p(tilt)


def _normalised(exponents: Array) -> Array:
    weights = np.exp(exponents - exponents.max())
    return weights / weights.sum()  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class DeltaCurve:
    """Upper bound of delta on a grid of epsilons, tight near the point for which it was made.

    `epsilons` ascend and `deltas` do not; both have the shape (num_points,).
    """

    epsilons: Array
    deltas: Array

    def epsilon(self, delta: float) -> float:
        """Return the epsilon, of any sign, at which the curve falls to `delta`; infinity if it does not."""
        at = int(np.searchsorted(-self.deltas, -delta))  # the first point at or below delta
        if at == len(self.deltas):
            return math.inf
        if at == 0:
            return float(self.epsilons[0])
        # between the losses of a discrete law, delta is linear in exp(epsilon)
        step = float(self.epsilons[at] - self.epsilons[at - 1])
        share = (self.deltas[at - 1] - delta) / (self.deltas[at - 1] - self.deltas[at])
        return float(self.epsilons[at - 1]) + math.log1p(float(share) * math.expm1(step))

    def scale(self, epsilon: float) -> float:
        """Return delta over its slope: about how far epsilon falls when delta grows e-fold."""
        at = int(np.clip(np.searchsorted(self.epsilons, epsilon), 1, len(self.epsilons) - 1))
        step = float(self.epsilons[at] - self.epsilons[at - 1])
        drop = float(self.deltas[at - 1] - self.deltas[at])
        return float(self.deltas[at]) * step / max(drop, 1e-300)

    def delta(self, epsilon: float) -> float:
        """Return delta at `epsilon`; one below the grid."""
        return float(self.deltas_at(np.array([epsilon]))[0])

    def deltas_at(self, epsilons: Array) -> Array:
        """Return delta at each of `epsilons`; one below the grid."""
        at = np.searchsorted(self.epsilons, epsilons, side="right")
        inside = np.clip(at, 1, len(self.epsilons) - 1)
        start = self.epsilons[inside - 1]
        share = np.expm1(np.minimum(epsilons - start, self.epsilons[inside] - start))
        share /= np.expm1(self.epsilons[inside] - start)
        deltas = self.deltas[inside - 1] + share * (self.deltas[inside] - self.deltas[inside - 1])
        return np.where(at == 0, 1.0, deltas)


class Composition:
    """The sum of independent privacy losses on one grid, each law composed as many times as its count."""

    def __init__(self, parts: Sequence[tuple[LossLaw, int]]) -> None:
        self.interval = parts[0][0].interval
        if any(law.interval != self.interval for law, _ in parts):
            raise ValueError("all laws of a composition need the same grid")
        self._windows: dict[tuple[float, float], tuple[int, int]] = {}
        self.n_steps = sum(count for _, count in parts)
        self._parts = []
        for law, count in parts:
            kept = law.probs > 0.0
            self._parts.append((law, count, np.log(law.probs[kept]), law.losses[kept], kept))
        self.infinite = min(1.0, sum(count * law.infinite for law, count in parts))
        self.loss_error = sum(count * law.loss_error for law, count in parts)
        self.least = sum(count * float(losses[0]) for _, count, _, losses, _ in self._parts)
        self.greatest = sum(count * float(losses[-1]) for _, count, _, losses, _ in self._parts)

    # ---------------------------------------------------------------------------- the cumulants

    def cumulant(self, tilt: float) -> float:
        """Return the log of the moment generating function of the finite losses."""
        total = 0.0
        for _, count, log_probs, losses, _ in self._parts:
            exponents = log_probs + tilt * losses
            top = float(exponents.max())
            total += count * (top + math.log(float(np.exp(exponents - top).sum())))
        return total

    def _spread(self, tilt: float) -> float:
        """Return the standard deviation of the tilted sum."""
        variance = 0.0
        for _, count, log_probs, losses, _ in self._parts:
            weights = _normalised(log_probs + tilt * losses)
            mean = float((weights * losses).sum())  # no BLAS, whose threads would wait for each other
            variance += count * float((weights * (losses - mean) ** 2).sum())
        return math.sqrt(variance)

    def added_epsilon(self, tilt: float) -> float:
        """Return about what the grid has added to epsilon, at the epsilon that fits `tilt`."""
        added = 0.0
        for law, count, log_probs, losses, kept in self._parts:
            weights = _normalised(log_probs + tilt * losses)
            added += count * float((weights * (law.split[kept] / law.probs[kept])).sum())
        return added * self.interval**2 * 0.5 * (1.0 + tilt)

    def _least(self, bound: Callable[[float], float]) -> tuple[float, float]:
        found = optimize.minimize_scalar(
            lambda log_tilt: bound(math.exp(log_tilt)),
            bounds=(math.log(_MIN_TILT), math.log(_MAX_TILT)),
            method="bounded",
            options={"xatol": 0.02},
        )
        return math.exp(float(found.x)), float(found.fun)

    def tilt_for_delta(self, delta: float) -> tuple[float, float]:
        """Return the tilt at which the Chernoff bound of epsilon is least, and that bound."""
        log_delta = math.log(max(delta - self.infinite, 1e-300))
        tilt, bound = self._least(lambda tilt: (self.cumulant(tilt) + _log_c(tilt) - log_delta) / tilt)
        return tilt, bound + self.n_steps * self._rounding(tilt) / tilt + self.loss_error

    def tilt_for_epsilon(self, epsilon: float) -> tuple[float, float]:
        """Return the tilt at which the Chernoff bound of delta is least, and its log."""
        tilt, log_delta = self._least(lambda tilt: self.cumulant(tilt) + _log_c(tilt) - tilt * epsilon)
        return tilt, min(log_delta, 0.0)

    # ------------------------------------------------------------------------------- the window

    def window(self, tilt: float, log_delta: float) -> tuple[int, int]:
        """Return the first and the last grid index of the window around the tilted mean.

        `log_delta` is about the log of the delta in question.
        """
        key = (tilt, log_delta)
        if key not in self._windows:
            self._windows[key] = self._window(tilt, log_delta)
        return self._windows[key]

    def _window(self, tilt: float, log_delta: float) -> tuple[int, int]:
        here = self.cumulant(tilt)
        end, calm, start = self.greatest, self.greatest, self.least
        wanted = math.log(WINDOW_SHARE) + log_delta
        scale = 1.0 / max(self._spread(tilt), self.interval)
        for step in (1.5, 3.0, 6.0, 12.0):
            for shift in (step * scale, step * tilt):
                above = self.cumulant(tilt + shift)
                end = min(end, (above - wanted) / (tilt + shift))
                calm = min(calm, (above - here + _WRAPPED) / shift)
                start = max(start, (here - self.cumulant(tilt - shift) - _WRAPPED) / shift)
        end = max(end, calm)
        start = min(start, end)
        return math.floor(start / self.interval), math.ceil(end / self.interval) + 1

    def curve(self, tilt: float, log_delta: float) -> DeltaCurve:
        """Return the upper bound of delta(epsilon) over the window, tight near the epsilon that fits `tilt`.

        The mass above the window is at most `WINDOW_SHARE` times exp(`log_delta`), about the delta in
        question.
        """
        if self.n_steps == 1:
            law = self._parts[0][0]
            losses, deltas = law.losses, _one_step(law)
            extra = self.infinite
        else:
            first, last = self.window(tilt, log_delta)
            losses = self.interval * np.arange(first, last + 1, dtype=np.float64)
            probs = self._convolve(tilt, first, last - first + 1)
            # min: so far below the mean, delta is one
            density = probs * np.exp(np.minimum(self.cumulant(tilt) - tilt * losses, 600.0))
            deltas = self._tail_sums(density)
            extra = self.infinite + WINDOW_SHARE * math.exp(log_delta)
        epsilons = losses + self.loss_error
        worst = self._rounding(tilt) * self.n_steps
        if worst > 1.0:
            return DeltaCurve(epsilons, np.ones_like(deltas))
        return DeltaCurve(epsilons, np.minimum((deltas + extra) * math.exp(worst) * (1.0 + _SUM_ERROR), 1.0))

    def _tail_sums(self, density: Array) -> Array:
        """Return delta of the finite losses at each grid point, from their probabilities."""
        beyond = np.cumsum(density[::-1])[::-1]  # sum of those at or above
        after = np.append(beyond[1:], 0.0)  # sum of those above
        # sum_{i > j} p_i (1 - e^{(j-i)h}) = (1 - e^{-h}) sum_{k >= j} e^{-(k-j)h} sum_{i > k} p_i
        weights = [-math.expm1(-self.interval)], [1.0, -math.exp(-self.interval)]
        return signal.lfilter(*weights, after[::-1])[::-1]  # type: ignore[no-any-return]

    def _rounding(self, tilt: float) -> float:
        """Return a bound of the relative error of a tilted probability of one step."""
        size = max(
            float(np.abs(log_probs).max() + tilt * np.abs(losses).max())
            for _, _, log_probs, losses, _ in self._parts
        )
        return MASS_ERROR + 4.0 * _UNIT * (8.0 + size)

    def _convolve(self, tilt: float, first: int, length: int) -> Array:
        """Return the tilted law of the sum on the window, rounded up but for `_rounding`."""
        size = fft.next_fast_len(length, real=True)
        while _greatest_factor(size) > 5:
            size = fft.next_fast_len(size + 1, real=True)
        unit = 1e-15 * (math.log2(size) + 10.0)
        log_abs, angle = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
        log_envelope, relative = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
        origin = 0
        for law, count, log_probs, losses, kept in self._parts:
            exponents = log_probs + tilt * losses
            top = float(exponents.max())
            weights = np.exp(exponents - top)
            weights /= weights.sum()
            places = law.places[kept]
            # the mean is moved to zero: phases stay small, and so do their T-fold rounding errors
            centre = round(float((weights * losses).sum()) / self.interval)
            origin += count * centre
            wrapped = np.bincount((places - centre) % size, weights=weights, minlength=size)
            values = fft.rfft(wrapped)
            modulus = np.abs(values)
            with np.errstate(divide="ignore"):
                log_abs += count * np.log(modulus)
            angle += count * np.angle(values)
            log_envelope += count * np.log(modulus + unit)
            relative += count * unit / (modulus + unit)
        modulus_of_power = np.exp(log_abs)
        power = np.empty(size // 2 + 1, dtype=np.complex128)
        np.multiply(modulus_of_power, np.cos(angle), out=power.real)
        np.multiply(modulus_of_power, np.sin(angle), out=power.imag)
        errors = np.exp(np.minimum(log_envelope, 1.0)) * np.minimum(relative, 2.0)
        error = 2.0 * (float(errors.sum()) + unit * float(modulus_of_power.sum())) / size
        values = np.maximum(fft.irfft(power, size), 0.0) + error
        return np.roll(values, origin - first)[:length]


def _one_step(law: LossLaw) -> Array:
    """Return delta of the finite losses at each of them, which need not be evenly spaced."""
    rises = np.diff(law.losses)
    share, decay = -np.expm1(-rises), np.exp(-rises)
    deltas = np.zeros(len(law.probs))
    found = after = 0.0
    for j in range(len(rises) - 1, -1, -1):
        after += float(law.probs[j + 1])
        found = float(decay[j]) * found + float(share[j]) * after
        deltas[j] = found
    return deltas


def _greatest_factor(number: int) -> int:
    """Return 5 if `number` has no prime factor above 5, else what is left of it."""
    for prime in (2, 3, 5):
        while number % prime == 0:
            number //= prime
    return max(number, 5)
