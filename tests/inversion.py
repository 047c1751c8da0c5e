r"""The truth about composed Gaussian steps, by another way than the package's: no grid of losses, no FFT.

With :math:`M(z) = E_P[e^{zL}]` of one step's privacy loss, for any :math:`\lambda > 0`,

.. math:: \delta(\varepsilon) = E_P[(1 - e^{\varepsilon - L})_+]
          = \frac1{2\pi i} \int_{\lambda - i\infty}^{\lambda + i\infty}
            \frac{M(z)^T e^{-z\varepsilon}}{z(z+1)}\, dz,

because :math:`\int (1 - e^{-u})_+\, e^{-zu}\, du = 1/(z(z+1))`. Both integrals are trapezoid sums, which
converge exponentially for analytic integrands. At the saddle point of :math:`\lambda` the result is good to
many digits *relative* to delta. The integral over a loss is computed as :math:`M - 1`, without cancellation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize

Array = Any

_DEEP = 60.0  # of the exponent, below which nothing is integrated


@dataclass(frozen=True)
class Step:
    """One step: noise over the bound on one record, and how batches are drawn."""

    sampling_prob: float
    noise: float
    replace_one: bool = False
    reverse: bool = False
    fixed_size: bool = False

    def _log_densities(self, x: Array) -> tuple[Array, Array]:
        q, s2 = self.sampling_prob, self.noise**2
        base = -0.5 * x**2 / s2 - math.log(self.noise * math.sqrt(2.0 * math.pi))

        def mixed(exponent: Array) -> Array:  # ln(1 + q (e^u - 1)) without cancellation
            small = np.minimum(exponent, 30.0)
            return np.where(
                exponent > 30.0,
                exponent + math.log(q) + np.log1p((1.0 - q) / q * np.exp(-np.maximum(exponent, 30.0))),
                np.log1p(q * np.expm1(small)) if q < 1.0 else small,
            )

        p = mixed((2.0 * x - 1.0) / (2.0 * s2))
        other = mixed((-2.0 * x - 1.0) / (2.0 * s2)) if self.replace_one else np.zeros_like(x)
        if self.reverse:
            return base + other, other - p
        return base + p, p - other

    def nodes(self, tilt: float) -> tuple[Array, Array]:
        """Return weights (their sum is one) and losses where the tilted integrand is not negligible."""
        s = self.noise
        step = min(s / 8.0, s * s / 5.0)
        reach = 16.0 * s + 2.0
        low, high = -reach, reach + tilt + 1.0
        if self.reverse:
            low, high = -reach - tilt - 1.0, reach
        if self.fixed_size:
            return self._half_line(high)
        # first coarsely, to see where something is
        x = np.linspace(low, high, 4001)
        logs, loss = self._log_densities(x)
        kept = np.flatnonzero(
            (logs + tilt * loss > (logs + tilt * loss).max() - _DEEP) | (logs > logs.max() - _DEEP)
        )
        x = np.arange(x[max(kept[0] - 1, 0)], x[min(kept[-1] + 1, 4000)], step)
        logs, loss = self._log_densities(x)
        return np.exp(logs) * step, loss

    def _half_line(self, high: float) -> tuple[Array, Array]:
        """Return the symmetric law of Proposition 30: positive losses, and their mirror image."""
        panel = min(self.noise / 2.0, self.noise**2 / 2.0)
        t, w = np.polynomial.legendre.leggauss(16)
        edges = np.arange(0.5, high + panel, panel)  # the loss is zero at 1/2
        x = (edges[:-1, None] + 0.5 * panel * (t + 1.0)).ravel()
        logs, loss = self._log_densities(x)
        weights = np.exp(logs) * np.tile(0.5 * panel * w, len(edges) - 1)
        weights, loss = np.concatenate([weights, weights * np.exp(-loss)]), np.concatenate([loss, -loss])
        return np.append(weights, max(1.0 - weights.sum(), 0.0)), np.append(loss, 0.0)


def log_moment(step: Step, z: Array) -> Array:
    """Return ln M(z) for complex z of one real part."""
    z = np.atleast_1d(z)
    tilt = float(z[0].real)
    weights, loss = step.nodes(tilt)
    found = np.empty(z.shape, dtype=complex)
    block = max(1, 2_000_000 // len(loss))
    for start in range(0, len(z), block):
        exponents = loss[:, None] * z[None, start : start + block]
        if tilt * loss.max() < 200.0:
            found[start : start + block] = np.log1p(weights @ np.expm1(exponents))
        else:  # only for steps that lose nearly all
            with np.errstate(divide="ignore"):
                logs = np.log(weights)
            top = float((logs + tilt * loss).max())
            found[start : start + block] = top + np.log(np.exp(logs[:, None] + exponents - top).sum(axis=0))
    return found


Parts = Sequence[tuple[Sequence[tuple[float, Step]], int]]


def _total(parts: Parts, z: Array) -> Array:
    total = np.zeros(np.shape(z), dtype=complex)
    for mixture, count in parts:
        if len(mixture) == 1:
            total += count * log_moment(mixture[0][1], z)
        else:
            total += count * np.log1p(sum(weight * np.expm1(log_moment(step, z)) for weight, step in mixture))
    return total


def delta_of(parts: Parts, epsilon: float, *, max_points: int = 2**17) -> float:
    """Return delta at `epsilon` of independent steps; NaN where the integral has not converged."""

    def exponent(tilt: float) -> float:
        return (
            float(_total(parts, np.array([tilt + 0j]))[0].real)
            - tilt * epsilon
            - math.log(tilt * (1.0 + tilt))
        )

    at = optimize.minimize_scalar(
        lambda u: exponent(math.exp(u)), bounds=(-12.0, 12.0), method="bounded", options={"xatol": 1e-2}
    )
    tilt, top = math.exp(at.x), float(at.fun)
    width = 0.02 * tilt
    second = (exponent(tilt + width) - 2.0 * top + exponent(tilt - width)) / width**2
    scale = 1.0 / math.sqrt(max(second, 1e-300))  # of the integrand
    interval = min(scale / 4.0, tilt / 4.0)  # poles at 0 and -1
    found, before = 0.0, math.nan
    for _ in range(4):
        y = np.arange(0.0, 12.0 * scale, interval)
        total, start, size = 0.0, 0, max(len(y), 64)
        while start < max_points:
            y = interval * np.arange(start, start + size)
            z = tilt + 1j * y
            values = np.exp(_total(parts, z) - z * epsilon - np.log(z * (1.0 + z)) - top).real
            if start == 0:
                values[0] *= 0.5
            total += float(values.sum())
            start += size
            if np.abs(values[-size // 4 :]).max() * y[-1] / interval < 1e-9 * abs(total):
                break
        else:
            return math.nan
        found = total * interval / math.pi
        if abs(found - before) <= 1e-8 * abs(found):
            return found * math.exp(top)
        before, interval = found, interval / 2.0
    return math.nan
