r"""Rényi divergence of a Gaussian step on a batch of fixed size, from above.

Wang, Balle and Kasiviswanathan (2019), Theorem 27: :math:`\gamma N` of :math:`N` records are drawn without
replacement, one record is replaced, and the Gaussian noise is :math:`\sigma` times the distance that this
moves the sum. For whole orders

.. math::
   (\alpha-1)\,\varepsilon_\alpha \le \ln\Bigl(1 + \sum_{j=2}^\alpha \binom{\alpha}{j} \gamma^j\,
       \min\{4 B_j,\; 2\,e^{j(j-1)/2\sigma^2}\}\Bigr), \qquad
   B_j = \sqrt{\Delta_{2\lfloor j/2\rfloor}\,\Delta_{2\lceil j/2\rceil}}, \qquad
   \Delta_j = \mathbb E\,(r - 1)^j ,

with :math:`r = \exp(x/\sigma - 1/2\sigma^2)`, the likelihood ratio at a standard normal :math:`x`. The left
hand side is convex in :math:`\alpha` (their Corollary 10): between whole orders, linear interpolation is a
bound. :math:`\Delta_j` is computed as an integral, in which nothing cancels; docs/accounting.md, section 7,
bounds its error and the rounding.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["fixed_size_divergence"]

Array = NDArray[np.float64]

_ROUNDING = 1e-10
_STEP = 0.2
_NODES: Array = np.arange(-50.0, 250.0, _STEP)
_FARTHEST_PEAK = 200.0


@functools.lru_cache(maxsize=8)
def _log_differences(noise_multiplier: float, count: int) -> Array:
    """Return ln of Delta_2, Delta_4, ..., Delta_(2 count); infinite where only the other bound is used."""
    orders = 2.0 * np.arange(1, count + 1)
    found = np.full(count, math.inf)
    needed = orders <= _FARTHEST_PEAK * noise_multiplier
    loss = _NODES / noise_multiplier - 0.5 / noise_multiplier**2
    with np.errstate(divide="ignore"):  # a node where the loss is zero
        log_distance = np.where(
            loss > 1.0,
            loss + np.log1p(-np.exp(-np.maximum(loss, 1.0))),
            np.log(np.abs(np.expm1(np.minimum(loss, 1.0)))),
        )
    exponents = orders[needed, None] * log_distance - 0.5 * _NODES**2
    found[needed] = special.logsumexp(exponents, axis=1) + math.log(_STEP / math.sqrt(2.0 * math.pi))
    return found


def _log_moment(sampling_prob: float, noise_multiplier: float, order: int) -> float:
    """Return the bound of (order - 1) times the divergence at a whole order."""
    if order == 1:
        return 0.0
    j = np.arange(2, order + 1)
    half = 2 ** math.ceil(math.log2(order)) // 2 + 1  # the same for many orders
    even = _log_differences(noise_multiplier, half)
    differences = math.log(4.0) + 0.5 * (even[j // 2 - 1] + even[(j + 1) // 2 - 1])
    ratios = math.log(2.0) + 0.5 * j * (j - 1.0) / noise_multiplier**2
    log_binomials = special.gammaln(order + 1.0) - special.gammaln(j + 1.0) - special.gammaln(order - j + 1.0)
    terms = log_binomials + j * math.log(sampling_prob) + np.minimum(differences, ratios)
    return float(np.logaddexp(0.0, special.logsumexp(terms))) * (1.0 + _ROUNDING)


def fixed_size_divergence(sampling_prob: float, noise_multiplier: float, order: float) -> float:
    """Return an upper bound of the Rényi divergence of one step under replacement of a record.

    `sampling_prob` is batch size over number of records; `noise_multiplier` is the noise standard deviation
    over the distance that replacing a record moves the sum.
    """
    if sampling_prob == 1.0:
        return 0.5 * order / noise_multiplier**2
    below = math.floor(order)
    moment = _log_moment(sampling_prob, noise_multiplier, below)
    if order > below:
        above = _log_moment(sampling_prob, noise_multiplier, below + 1)
        moment += (order - below) * (above - moment)
    return moment / (order - 1.0)
