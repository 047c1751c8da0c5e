r"""The central limit theorem of Gaussian differential privacy, where every search starts.

:math:`T` Poisson-sampled Gaussian steps of sensitivity :math:`s` are about :math:`\mu`-GDP (Dong, Roth and Su
2022) with :math:`\mu = q\sqrt{T(e^{s^2/\sigma^2} - 1)}` (Bu, Dong, Long and Su 2020). If every record is in
every batch, :math:`\mu = s\sqrt T/\sigma` exactly. The approximation may be too large or too small: it
proposes where to look, and must never decide. :math:`s` is `relations.sensitivity_factor`, :math:`\sigma` the
noise multiplier.
"""

from __future__ import annotations

import math

from pymc_dpvi.accounting.gaussian import log_gaussian_delta

__all__ = ["clt_noise", "clt_steps", "gdp_mu"]


def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the mu at which the Gaussian curve passes through (epsilon, delta), by bisection."""
    log_delta = math.log(delta)
    low, high = -20.0, 10.0  # of ln(mu)
    for _ in range(60):
        middle = 0.5 * (low + high)
        if log_gaussian_delta(math.exp(middle), epsilon) > log_delta:
            high = middle
        else:
            low = middle
    return math.exp(low)


def clt_noise(mu: float, *, sampling_prob: float, n_steps: float, sensitivity: float) -> float:
    """Return about the noise multiplier at which a run is mu-GDP."""
    ratio = mu / (sampling_prob * math.sqrt(n_steps))
    if sampling_prob == 1.0:  # no sampling: the composition is exactly Gaussian
        return sensitivity / max(ratio, 1e-300)
    return sensitivity / math.sqrt(max(math.log1p(min(ratio, 1e150) ** 2), 1e-300))


def clt_steps(mu: float, *, sampling_prob: float, noise_multiplier: float, sensitivity: float) -> float:
    """Return about the number of steps after which a run is mu-GDP."""
    loss = (sensitivity / noise_multiplier) ** 2
    per_step = loss if sampling_prob == 1.0 else sampling_prob**2 * math.expm1(min(loss, 700.0))
    return mu**2 / max(per_step, 1e-300)
