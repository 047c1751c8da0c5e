r"""Tests whose false-alarm probability is exact, far out in the tails.

A check raises a false alarm with a probability of at most :data:`FALSE_ALARM`. A p-value of 1e-9 takes a
statistic whose law is exact that far out; a central limit theorem is not. Hence, under the hypothesis,

* counts :math:`k` with a known law become *normal scores*: with a public :math:`V \sim U(0, 1)`,
  :math:`U = F(k - 1) + V \Pr[k]` is exactly uniform (the randomised probability integral transform), and
  :math:`\Phi^{-1}(U)` exactly normal;
* a sum of squares of normal scores is :math:`\chi^2`;
* for independent normal vectors :math:`a, b`, given :math:`a`, the product
  :math:`\langle a, b\rangle / \lVert a\rVert` is standard normal;
* probabilities of success have the exact intervals of Clopper and Pearson (1934).

Several tests of one check share its false-alarm probability by Bonferroni's inequality, which needs no
independence: the smallest p-value is multiplied by their number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = [
    "FALSE_ALARM",
    "chi2_pvalues",
    "clopper_pearson",
    "corrected",
    "normal_pvalues",
    "normal_scores",
    "product_pvalues",
    "repetition_pvalue",
]

FALSE_ALARM = 1e-9
"""Largest probability with which a check fails although nothing is wrong."""

Array = NDArray[np.float64]

# Two draws of the noise of one coordinate agree with probability at most 2^-39 / (2 sqrt(pi)) on a lattice
# of 2^-39 standard deviations or finer, and twice that up to their sign.
_SAME = 2.0**-39 / np.sqrt(np.pi)


def corrected(*pvalues: Any) -> float:
    """Combine p-values, numbers or arrays, into one by Bonferroni's inequality; NaN counts as zero."""
    flat = np.concatenate([np.ravel(np.asarray(p, dtype=float)) for p in pvalues])
    flat = np.where(np.isnan(flat), 0.0, flat)
    return float(min(1.0, flat.min() * flat.size))


def normal_pvalues(z: Any) -> Array:
    """Two-sided p-values of numbers that should be standard normal."""
    return np.minimum(1.0, 2.0 * stats.norm.sf(np.abs(z)))


def chi2_pvalues(z: Any, axis: int | None = None) -> Array:
    """Two-sided p-values of sums of squares along `axis` of numbers that should be standard normal."""
    z = np.asarray(z, dtype=float)
    total, count = np.sum(z * z, axis=axis), z.size if axis is None else z.shape[axis]
    law = stats.chi2(count)
    return np.minimum(1.0, 2.0 * np.minimum(law.cdf(total), law.sf(total)))


def product_pvalues(a: Any, b: Any, axis: int | None = None) -> Array:
    """Two-sided p-values for products of independent standard normal vectors along `axis`."""
    size = np.sqrt(np.sum(np.square(a), axis=axis))
    with np.errstate(invalid="ignore", divide="ignore"):
        return normal_pvalues(np.sum(np.multiply(a, b), axis=axis) / size)


def normal_scores(counts: Any, law: Any, rng: np.random.Generator) -> Array:
    """Turn counts into exact standard normals if they have this discrete law; infinite if impossible."""
    counts = np.asarray(counts)
    inside = law.pmf(counts)
    share = rng.uniform(size=counts.shape) * inside
    below = law.cdf(counts - 1) + share
    above = law.sf(counts) + (inside - share)
    with np.errstate(invalid="ignore"):
        scores = np.where(below < 0.5, stats.norm.ppf(below), stats.norm.isf(above))
    return np.where(inside > 0, scores, np.inf)


def clopper_pearson(successes: Any, trials: int, error: float) -> tuple[Array, Array]:
    """Return lower and upper bounds of a probability, each wrong with probability at most `error`."""
    k = np.asarray(successes, dtype=float)
    with np.errstate(invalid="ignore"):
        low = np.where(k > 0, stats.beta.ppf(error, k, trials - k + 1), 0.0)
        high = np.where(k < trials, stats.beta.isf(error, k + 1, trials - k), 1.0)
    return low, high


def repetition_pvalue(z: Any) -> float:
    """P-value of how often a number occurs twice, up to its sign, among independent deviates.

    One pair is enough to find noise that was used twice. On the lattice, independent deviates are seldom
    equal, and the number of equal pairs is close to Poisson.
    """
    flat = np.sort(np.abs(np.ravel(z)))
    equal = int(np.count_nonzero(flat[1:] == flat[:-1]))
    return float(stats.poisson.sf(equal - 1, flat.size * (flat.size - 1) / 2 * _SAME))
