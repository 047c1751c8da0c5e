r"""The likelihood's gradient as a linear function of the latent draw, regressed from a fit's moments.

In: blocks of moments (`gradient_moments`). Out: a :class:`Regression` for each group of latent values. Around
the optimum, the noisy gradient of a step is

.. math:: l_t = b - \Lambda z_t + e_t, \qquad \operatorname{Cov} e_t = S = s^2 I + \text{(subsampling)} ,

with known :math:`s^2`. It is fitted in coordinates u, :math:`z = \bar z + R u`, in which the draws have unit
covariance. :math:`\Lambda` is :math:`-E[\nabla^2 \log p(x|z)]` (Opper and Archambeau 2009); its estimate is
biased where noise dominates. See ``docs/noise_aware.md``, section 2, also for which steps are used.

Privacy: post-processing of the released sums; costs nothing. It must never read a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from pymc_dpvi.engine.gradient_moments import Moments, merged

__all__ = ["Regression", "choose_steps", "positive", "regress"]

#: Level of the test that ends the search for earlier steps.
_LEVEL = 1e-4
_SPARE_ROWS = 10


@dataclass(frozen=True)
class Regression:
    """The likelihood's gradient regressed on the latent draw, for one group of k latent values."""

    n: int  # steps
    centre: np.ndarray  # mean draw, (k,)
    spread: np.ndarray  # standard deviations of the draws, (k,)
    informed: np.ndarray  # which of the k are in the records' densities, (m,)
    root: np.ndarray  # R, from u to the informed ones of z, (m, m)
    likelihood: np.ndarray  # mean gradient by u, (m,)
    curvature: np.ndarray  # estimate of Λ by u, symmetric, (m, m)
    variance: np.ndarray  # of its entries, (m, m)
    noise: np.ndarray  # S by u, (m, m)
    prior: np.ndarray  # mean gradient of the log-prior by z, (k,)
    precision: np.ndarray  # P by z, minus the slope of the log-prior's gradient, (k, k)

    def surprise(self, block: Moments, scatter: np.ndarray, columns: np.ndarray) -> float:
        """Return the p-value of a block's mean gradient and curvature under this regression, of others."""
        k, m = len(self.centre), len(self.informed)
        mean = block.mean[columns]
        u = np.linalg.solve(self.root, (mean[:k] - self.centre)[self.informed])
        apart = self.root.T @ mean[k + self.informed] - (self.likelihood - self.curvature @ u)
        noise = np.diag(self.noise)
        variance = noise * (1.0 / block.n + 1.0 / self.n) + self.variance @ u**2
        level = stats.chi2.sf(np.sum(apart**2 / variance), m)
        if block.n <= k:  # too few draws for slopes: without rounding, their scatter would be singular
            return float(2 * level)
        own = scatter[np.ix_(self.informed, np.concatenate([self.informed, k + self.informed]))]
        try:
            half = np.linalg.solve(self.root, own)
            spread = np.linalg.inv(np.linalg.solve(self.root, half[:, :m].T))
        except np.linalg.LinAlgError:
            return float(2 * level)
        slopes = -np.einsum("ij,ji->i", spread, half[:, m:] @ self.root)
        variance = noise * np.diag(spread) + np.diag(self.variance)
        z = np.sum(slopes - np.diag(self.curvature)) / np.sqrt(np.sum(np.maximum(variance, 0.0)))
        return float(2 * min(level, 2 * stats.norm.sf(abs(z))))


def regress(
    moments: Moments, scatter: np.ndarray, spread: np.ndarray, columns: np.ndarray
) -> Regression | None:
    """Fit the linear model of the gradients by least squares; None if steps or spread do not suffice.

    `scatter` (k, 3k) and `spread` (k, k) are those of the group, `columns` its columns in a row.
    """
    n, k = moments.n, len(columns) // 3
    if n < k + _SPARE_ROWS:
        return None
    mean = moments.mean[columns]
    (informed,) = np.nonzero((np.diag(spread) > 0.0) | (mean[k : 2 * k] != 0.0))
    covariance = scatter[:, :k] / n
    stddev = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    if not np.isfinite(covariance).all() or not (stddev > 1e-12 * (1.0 + np.abs(mean[:k]))).all():
        return None
    values, vectors = np.linalg.eigh(covariance / np.outer(stddev, stddev))
    if values[0] <= 1e-13:
        return None
    prior_slope = -np.linalg.solve(covariance, scatter[:, 2 * k :] / n)
    if len(informed) < k:
        own = np.ix_(informed, informed)
        values, vectors = np.linalg.eigh((covariance / np.outer(stddev, stddev))[own])
    root = stddev[informed, None] * vectors * np.sqrt(values)
    # A gradient with respect to u is root' times that by z.
    slope = -np.linalg.solve(root, scatter[np.ix_(informed, k + informed)] / n) @ root
    about_line = root.T @ (spread[np.ix_(informed, informed)] / n) @ root
    known = moments.noise_variance * (root.T @ root)
    noise = known + positive((about_line - slope.T @ slope) * (n / (n - k - 1.0)) - known)
    weight = 1.0 / np.diag(noise)
    both = weight[:, None] + weight[None, :]
    # Entries (i, j) and (j, i) are one number, estimated under the noise of coordinates i and j.
    curvature = (slope.T * weight[:, None] + slope * weight[None, :]) / both
    variance = 1.0 / (both * n)
    np.fill_diagonal(variance, np.diag(noise) / n)
    return Regression(
        n,
        mean[:k],
        stddev,
        informed,
        root,
        root.T @ mean[k + informed],
        curvature,
        variance,
        noise,
        mean[2 * k :],
        (prior_slope + prior_slope.T) / 2,
    )


def positive(matrix: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Return the nearest symmetric matrix, or matrices, without eigenvalues below `least`."""
    values, vectors = np.linalg.eigh((matrix + np.swapaxes(matrix, -1, -2)) / 2)
    return (vectors * np.maximum(values, least)[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def choose_steps(
    blocks: Sequence[Moments], late: int, columns: Sequence[np.ndarray]
) -> tuple[int, list[Regression]]:
    """Choose the first block of steps to infer from, and fit one regression for each group.

    The last `late` blocks are always used. The list is empty if the steps do not suffice.
    """
    first = len(blocks) - late
    while True:
        fits = _fits(blocks[first:], columns)
        if first <= (1 if fits else 0):
            break
        if fits:
            block = blocks[first - 1]
            parts = zip(fits, block.scatter, columns, strict=True)
            if min(f.surprise(block, s, c) for f, s, c in parts) * len(fits) < _LEVEL:
                break
        first -= 1
    return first, fits


def _fits(blocks: Sequence[Moments], columns: Sequence[np.ndarray]) -> list[Regression]:
    if not blocks:
        return []
    moments = merged(blocks, columns)
    parts = zip(moments.scatter, moments.spread, columns, strict=True)
    fits = [regress(moments, *part) for part in parts]
    found = [f for f in fits if f is not None]
    return found if len(found) == len(fits) else []
