r"""The exact curve of one Gaussian release, in floating point and from above.

A release with sensitivity 1 and noise :math:`1/\mu` is :math:`(\varepsilon, \delta)`-DP if and only if (Balle
and Wang 2018, Theorem 8)

.. math:: \delta \ge \Phi(a) - e^{\varepsilon}\,\Phi(b), \qquad
          a = \frac\mu2 - \frac\varepsilon\mu, \quad b = -\frac\mu2 - \frac\varepsilon\mu.

Since :math:`b^2 - a^2 = 2\varepsilon`, the two terms share the factor :math:`\varphi(a)`: with :math:`t = -a`
and Mills' ratio :math:`R(t) = \Phi(-t)/\varphi(t)`,

.. math:: \delta = \varphi(t)\,\bigl(R(t) - R(t + \mu)\bigr) \le \varphi(t)\,\mu\,\bigl(1 - t R(t)\bigr),

because :math:`-R'(t) = 1 - t R(t)` decreases. For small :math:`\mu` the difference loses digits; the bound on
the right does not. A bound of the rounding is added to each; the smaller of the two is then an upper bound of
delta at any :math:`\mu`.
"""

from __future__ import annotations

import math
import sys

from scipy import special

__all__ = ["gaussian_epsilon", "log_gaussian_delta"]

_ROUNDING = 16.0 * sys.float_info.epsilon
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


def _mills(t: float) -> float:
    return math.sqrt(math.pi / 2.0) * float(special.erfcx(t / math.sqrt(2.0)))


def log_gaussian_delta(mu: float, epsilon: float) -> float:
    """Return an upper bound of ln(delta) of one Gaussian release at `epsilon`, 0 or more.

    `mu` is the sensitivity over the noise standard deviation.
    """
    t = epsilon / mu - mu / 2.0
    log_density = -0.5 * t * t - _LOG_SQRT_2PI
    if t < -5.0:  # delta is nearly 1, and Mills' ratio is huge
        return math.log(float(special.ndtr(-t)) - math.exp(log_density) * _mills(t + mu)) + _ROUNDING
    ratio = _mills(t)
    difference = ratio - _mills(t + mu) + _ROUNDING * ratio
    if t > 0.0:
        difference = min(difference, mu * (1.0 - t * ratio + _ROUNDING))
    # t itself is rounded, and its square is large in the far tail
    return log_density + math.log(difference) + _ROUNDING * (1.0 + t * t + abs(t) * (epsilon / mu + mu))


def gaussian_epsilon(mu: float, delta: float) -> float:
    r"""Return the least epsilon of one Gaussian release at `delta`, to a relative 1e-12 and rounded up.

    The search starts from an upper bound, :math:`\mu^2/2 + \mu\sqrt{2\ln(1/\delta)}` (Bun and Steinke 2016).
    """
    log_delta = math.log(delta)
    if log_gaussian_delta(mu, 0.0) <= log_delta:
        return 0.0
    high = 0.5 * mu * mu + mu * math.sqrt(-2.0 * log_delta)
    high *= 1.0 + 1e-15
    low = 0.0
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        if log_gaussian_delta(mu, middle) <= log_delta:
            high = middle
        else:
            low = middle
    return high
