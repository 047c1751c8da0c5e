r"""The noise-aware posterior: the optimum and its uncertainty, inferred from the private gradients.

**What the plain posterior lacks.** A private fit ends at :math:`\hat\mu`, not at the optimum :math:`\mu^*` of
the evidence lower bound: noise has displaced it, and may have kept it from getting there. The width of
:math:`q(z)` is that of the posterior given the data, as if :math:`\hat\mu = \mu^*`. So its intervals are
too narrow, or, where the noise has kept :math:`\sigma` from shrinking, too wide. After Alrawajfeh, Jälkö and
Honkela ("Noise-aware differentially private variational inference", AISTATS 2025, arXiv:2410.19371), the
gradients of the fit, which are private already, are taken for what they are: noisy observations of a function
that is linear around the optimum. They regress gradients of the bound on the variational parameters, with
Monte Carlo noise besides. There is a better regressor: the latent draw :math:`z_t` at which the model was
differentiated. It is public randomness pushed through a private iterate, and known.

**The model of the gradients.** Around the optimum the log-likelihood's gradient is :math:`b - \Lambda z` and
the log-prior's :math:`p - Pz`. A step observes (`gradient_trace`)

.. math:: l_t = b - \Lambda z_t + e_t, \qquad \operatorname{Cov} e_t = S = s^2 I + \text{(subsampling)} ,

with known :math:`s^2`. The errors are independent of each other and of the past, and :math:`z_t` depends on
the past alone; so the likelihood of the trace is that of a linear regression, whatever optimiser made the
iterates, converged or not. By Stein's identity the regression's slope is :math:`-E_q[\nabla^2 \log p(x|z)]`
also where the gradient is not linear, which is what an optimal Gaussian :math:`q` has in its covariance:
:math:`H = \Lambda + P` (Opper and Archambeau 2009). Mean-field has :math:`\sigma_j^{-2} = H_{jj}`.

**Posterior given the curvature.** At the mean draw :math:`\bar z` the mean gradient :math:`\bar l` has the
error :math:`S/n`. Under the model with parameter z, the gradient without noise is
:math:`N(\Lambda(z - \bar z), \Lambda)` over data sets, so that
:math:`\bar l \mid z \sim N(\Lambda(z - \bar z), \Lambda + S/n)`, and

.. math:: z \mid \bar l \sim N(m, C), \quad C^{-1} = P + \Lambda(\Lambda + S/n)^{-1}\Lambda, \quad
          m = \bar z + C\,\big(\bar a + \Lambda(\Lambda + S/n)^{-1}\,\bar l\,\big) ,

with the prior's mean gradient :math:`\bar a`. Without noise C is :math:`H^{-1}`, and m is one Newton step
from :math:`\bar z`. For full rank this is released. For mean-field the covariance is
:math:`\operatorname{diag}(1/H_{jj}) + (C - H^{-1})`: the family's own, and what the noise adds. If the
prior is not log-concave around the optimum (P is indefinite, as it can be in hierarchical models), the
displacement gets a flat prior: m is one Newton step from :math:`\bar z`, and
:math:`C = H^{-1} + H^{-1}(S/n)H^{-1}`, with the sandwich variance of the estimated optimum.

**Shrinkage.** Where noise dominates, the step from :math:`\bar z` to m is mostly noise, with covariance

.. math:: V = K (S/n) K^T + \operatorname{Cov}(m) , \qquad K = C \Lambda (\Lambda + S/n)^{-1} ,

the second term over draws of the curvature (below), while :math:`\bar z` is where the optimiser's falling
steps have brought it. So, after James and Stein (1961), with k latent values the step is multiplied by

.. math:: \max\big(0,\; 1 - (k - 2)/T\big) , \qquad T = (m - \bar z)^T V^{-1} (m - \bar z) ,

in which k and T leave out directions without noise. T is about k if the step is noise alone, and large if the
fit has stopped on its way. C stays as it is: the optimum is no better known.

**Where the model is refuted.** Before the data the mean gradient is
:math:`N(\Lambda P^{-1}\bar a,\; \Lambda + S/n + \Lambda P^{-1}\Lambda)`. If the one that was seen is not of
this kind (a test at 1 %), as in networks, where it is large in directions without curvature, then m would be
an extrapolation by a model that does not hold, and is :math:`\bar z`.

**Posterior of the curvature.** It is uncertain as well. In coordinates in which the draws have unit
covariance, :math:`\Lambda = c I + \Delta`: entries of the estimate have known variances v, deviations from
c have the prior :math:`N(0, \tau^2)` with one :math:`\tau` on the diagonal and one beside it, each
half-Cauchy on the scale of the noise; c has the density :math:`1/(c + p)`, uniform in the logarithm of the
precision (p is the prior's). Draws of :math:`(\tau, c, \Delta)`, held positive semi-definite, make the
released posterior a mixture of normals.

**Which steps.** At least the last half of the run, of which the average is; and further blocks before it, as
long as mean gradient and mean curvature are what the regression on later ones predicts (two tests at 5 %),
but not the first eighth. Where noise dominates, the bias of earlier steps is below the noise, and they saw a
wider range of z.

**What it cannot know.** Clipping moves the optimum and bends the gradients. That bias is in :math:`\mu^*`; no
trace of clipped gradients tells of it, and no interval here covers it. Beyond `gradient_trace.GROUP` latent
values, correlations between the groups are not seen; beyond `gradient_trace.MOST_LATENTS` there is no trace.

**The default** of `sample()` where one group holds all latent values. On simulated regressions, after the
default number of steps, its intervals cover what they say at every ε, where the plain ones do not
(``benchmarks/interval_coverage.py``), and its predictions are about as good; with more groups than one they
can be worse (``benchmarks/utility.py``).

Privacy: post-processing of the released sums; costs nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from pymc_dpvi.gradient_trace import GradientTrace, Moments, merged

__all__ = ["NoiseAwarePosterior", "Regression", "regress"]

#: Draws of the curvature: components of the mixture.
COMPONENTS = 128
#: Least precision, in units of the draws' spread: in directions that nothing holds, 30 times as wide.
_FLOOR = 1e-3
#: Level of the test that ends the search for earlier steps.
_LEVEL = 0.1
#: Level of the test of the mean gradient against the prior.
_CONFLICT = 0.01
#: Share of the greatest variance below which a direction counts as free of noise.
_NOISELESS = 1e-8
#: Standard deviations of the fit's draws that stand for the prior's, where that is not known.
_SPREADS = 10.0
_SPARE_ROWS = 10
_GRID = 400


@dataclass(frozen=True)
class Regression:
    """Likelihood's gradient regressed on the latent draw, for one group of k latent values.

    All but the first three are in coordinates in which the draws of z have mean zero and unit covariance.

    Attributes
    ----------
    n : int
        Number of steps.
    centre : ndarray, shape (k,)
        Mean draw.
    root : ndarray, shape (k, k)
        Lower Cholesky factor of the draws' covariance.
    likelihood, prior : ndarray, shape (k,)
        Mean gradients.
    curvature, variance : ndarray, shape (k, k)
        Estimate of Λ, symmetric, and the variance of its entries.
    precision : ndarray, shape (k, k)
        P.
    noise : ndarray, shape (k, k)
        S.
    """

    n: int
    centre: np.ndarray
    root: np.ndarray
    likelihood: np.ndarray
    prior: np.ndarray
    curvature: np.ndarray
    variance: np.ndarray
    precision: np.ndarray
    noise: np.ndarray

    def surprise(self, block: Moments, scatter: np.ndarray, columns: np.ndarray) -> float:
        """Return the p-value of a block's mean gradient and curvature under this regression on others."""
        k = len(self.centre)
        mean = block.mean[columns]
        u = np.linalg.solve(self.root, mean[:k] - self.centre)
        apart = self.root.T @ mean[k : 2 * k] - (self.likelihood - self.curvature @ u)
        noise = np.diag(self.noise)
        variance = noise * (1.0 / block.n + 1.0 / self.n) + self.variance @ u**2
        level = stats.chi2.sf(np.sum(apart**2 / variance), k)
        if block.n <= k:  # too few draws for slopes: their scatter is singular, but for its rounding
            return float(2 * level)
        try:
            half = np.linalg.solve(self.root, scatter[:, : 2 * k])
            spread = np.linalg.inv(np.linalg.solve(self.root, half[:, :k].T))
        except np.linalg.LinAlgError:
            return float(2 * level)
        slopes = -np.einsum("ij,ji->i", spread, half[:, k:] @ self.root)
        variance = noise * np.diag(spread) + np.diag(self.variance)
        z = np.sum(slopes - np.diag(self.curvature)) / np.sqrt(np.sum(np.maximum(variance, 0.0)))
        return float(2 * min(level, 2 * stats.norm.sf(abs(z))))


def regress(
    moments: Moments, scatter: np.ndarray, spread: np.ndarray, columns: np.ndarray
) -> Regression | None:
    """Fit the linear model of the gradients by least squares.

    Parameters
    ----------
    moments : Moments
    scatter : ndarray, shape (k, 3 * k)
    spread : ndarray, shape (k, k)
        Those of the group.
    columns : ndarray
        The group's columns in a row.

    Returns
    -------
    Regression or None
        None if there are too few steps, or if the draws never spread.
    """
    n, k = moments.n, len(columns) // 3
    if n < k + _SPARE_ROWS:
        return None
    z, lik, prior = slice(0, k), slice(k, 2 * k), slice(2 * k, 3 * k)
    try:
        root = np.linalg.cholesky(scatter[:, z] / n)
    except np.linalg.LinAlgError:
        return None
    if not np.isfinite(root).all() or np.diag(root).min() <= 1e-12 * (1.0 + np.abs(root).max()):
        return None
    # Coordinates u with z = centre + root u; a gradient with respect to u is root' times that by z.
    white = np.linalg.solve(root, scatter) / n
    slope, prior_slope = -white[:, lik] @ root, -white[:, prior] @ root
    about_line = root.T @ (spread / n) @ root
    known = moments.noise_variance * (root.T @ root)
    noise = known + _positive((about_line - slope.T @ slope) * (n / (n - k - 1.0)) - known)
    weight = 1.0 / np.diag(noise)
    both = weight[:, None] + weight[None, :]
    # Entries (i, j) and (j, i) are one number, estimated under the noise of coordinates i and j.
    curvature = (slope.T * weight[:, None] + slope * weight[None, :]) / both
    variance = 1.0 / (both * n)
    np.fill_diagonal(variance, np.diag(noise) / n)
    mean = moments.mean[columns]
    return Regression(
        n,
        mean[z],
        root,
        root.T @ mean[lik],
        root.T @ mean[prior],
        curvature,
        variance,
        (prior_slope + prior_slope.T) / 2,
        noise,
    )


def _positive(matrix: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Nearest symmetric matrix, or matrices, without eigenvalues below `least`."""
    values, vectors = np.linalg.eigh((matrix + np.swapaxes(matrix, -1, -2)) / 2)
    return (vectors * np.maximum(values, least)[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def _pick(log_density: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw one grid point from each row of unnormalised log densities."""
    density = np.exp(log_density - log_density.max(axis=-1, keepdims=True))
    below = np.cumsum(density, axis=-1)
    return (rng.random(len(below))[:, None] * below[:, -1:] > below).sum(axis=-1)


def _draw_scale(
    x: np.ndarray, v: np.ndarray, centred: bool, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw τ, given that entries x are N(c, τ² + v), with c = 0 or unknown."""
    unit = np.sqrt(v.mean())
    grid = np.geomspace(0.05, 1e4, _GRID)
    w = 1.0 / ((grid[:, None] * unit) ** 2 + v)
    mean = 0.0 if centred else (w @ x / w.sum(axis=1))[:, None]
    log_density = 0.5 * np.log(w).sum(axis=1) - 0.5 * (w * (x - mean) ** 2).sum(axis=1)
    if not centred:
        log_density -= 0.5 * np.log(w.sum(axis=1))
    log_density += np.log(grid) - np.log1p(grid**2)  # half-Cauchy, on a grid of logarithms
    return np.asarray(unit * grid[_pick(np.broadcast_to(log_density, (draws, _GRID)), rng)])


def _draw_curvature(fit: Regression, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw Λ from its posterior, shape ``(draws, k, k)``."""
    k = len(fit.centre)
    held = max(float(np.mean(np.diag(fit.precision))), _FLOOR)
    a, v = np.diag(fit.curvature), np.diag(fit.variance)
    scale = _draw_scale(a, v, False, draws, rng) if k > 1 else np.zeros(draws)
    w = 1.0 / (scale[:, None] ** 2 + v)
    centre, error = w @ a / w.sum(axis=1), w.sum(axis=1) ** -0.5
    low = np.maximum(centre - 6 * error, 0.0)
    high = np.maximum(centre, 0.0) + 6 * error
    grid = low[:, None] + (high - low)[:, None] * (np.arange(_GRID) + 0.5) / _GRID
    log_density = -0.5 * ((grid - centre[:, None]) / error[:, None]) ** 2 - np.log(grid + held)
    c = grid[np.arange(draws), _pick(log_density, rng)]
    keep = scale[:, None] ** 2 / (scale[:, None] ** 2 + v)
    diagonal = c[:, None] + keep * (a - c[:, None])
    diagonal += np.sqrt(keep * v) * rng.standard_normal((draws, k))
    out = np.zeros((draws, k, k))
    out[:, np.arange(k), np.arange(k)] = diagonal
    if k > 1:
        i, j = np.triu_indices(k, 1)
        o, v = fit.curvature[i, j], fit.variance[i, j]
        scale = _draw_scale(o, v, True, draws, rng)
        keep = scale[:, None] ** 2 / (scale[:, None] ** 2 + v)
        out[:, i, j] = keep * o + np.sqrt(keep * v) * rng.standard_normal((draws, len(o)))
        out[:, j, i] = out[:, i, j]
    return _positive(out)


@dataclass(frozen=True)
class _Mixture:
    """Equally likely normals for one group, in the coordinates of z: components first."""

    mean: np.ndarray
    optimum: np.ndarray  # where the linear model has it: the mean without shrinkage
    believed: np.ndarray  # whether the mean gradient is of the kind that the prior lets expect
    own: np.ndarray  # variances of the mean-field family
    covariance: np.ndarray  # of full rank, with the noise
    noise: np.ndarray  # covariance that the noise adds
    centre: np.ndarray  # mean draw
    spread: np.ndarray  # standard deviations of the draws


def _agreement(fit: Regression, curvature: np.ndarray, error: np.ndarray) -> np.ndarray:
    """p-values of the mean gradient of the likelihood, if the prior is true, one for each curvature."""
    spread = np.linalg.inv(_positive(fit.precision, _FLOOR))
    apart = fit.likelihood - curvature @ spread @ fit.prior
    variance = curvature + error + curvature @ spread @ curvature
    solved = np.linalg.solve(variance, apart[..., None])[..., 0]
    return np.asarray(stats.chi2.sf(np.sum(apart * solved, axis=-1), len(fit.prior)))


def _shrunk(move: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Shrink displacements, shape ``(m, k)``, whose noise has the given covariances."""
    values, vectors = np.linalg.eigh(variance)
    noisy = values > _NOISELESS * values[:, -1:]
    size = (np.swapaxes(vectors, -1, -2) @ move[..., None])[..., 0] ** 2
    test = np.sum(np.divide(size, values, out=np.zeros_like(size), where=noisy), axis=-1)
    excess = np.maximum(noisy.sum(axis=-1) - 2.0, 0.0)
    keep = 1.0 - np.divide(excess, test, out=np.ones_like(test), where=test > excess)
    return move * np.where(excess > 0, keep, 1.0)[:, None]


def _mix(fit: Regression, draws: int, rng: np.random.Generator) -> _Mixture:
    curvature = _draw_curvature(fit, draws, rng)
    error = fit.noise / fit.n
    full = _positive(curvature + fit.precision, _FLOOR)
    inverse = np.linalg.inv(full)
    believed = np.ones(draws, dtype=bool)
    if np.linalg.eigvalsh(fit.precision)[0] >= -_FLOOR:
        shrunk = np.linalg.solve(curvature + error, curvature)  # (Λ + S/n)^-1 Λ
        covariance = np.linalg.inv(_positive(fit.precision + curvature @ shrunk, _FLOOR))
        gain = covariance @ np.swapaxes(shrunk, -1, -2)
        move = covariance @ fit.prior + gain @ fit.likelihood
        believed = _agreement(fit, curvature, error) >= _CONFLICT
    else:
        covariance = inverse + inverse @ error @ inverse
        gain = inverse
        move = inverse @ (fit.prior + fit.likelihood)
    spread = np.cov(move, rowvar=False).reshape(error.shape)  # what the curvature's uncertainty adds
    kept = _shrunk(move, gain @ error @ np.swapaxes(gain, -1, -2) + spread) * believed[:, None]
    back = np.linalg.inv(fit.root)
    return _Mixture(
        fit.centre + kept @ fit.root.T,
        fit.centre + move @ fit.root.T,
        believed,
        1.0 / np.einsum("ij,mik,kj->mj", back, full, back),
        fit.root @ covariance @ fit.root.T,
        _positive(fit.root @ (covariance - inverse) @ fit.root.T),
        fit.centre,
        np.sqrt(np.einsum("ij,ij->i", fit.root, fit.root)),
    )


def _within(part: _Mixture, limit: np.ndarray, held: np.ndarray, whole: bool) -> _Mixture:
    """Scale down what is wider than standard deviations `limit`; where `held`, keep the means as near."""
    wide = np.sqrt(np.einsum("mjj->mj", part.covariance if whole else part.noise))
    scale = np.divide(limit, wide, out=np.ones_like(wide), where=wide > limit)
    both = scale[:, :, None] * scale[:, None, :]

    def near(mean: np.ndarray) -> np.ndarray:
        move = mean - part.centre
        return np.asarray(part.centre + np.where(held | (scale < 1.0), np.clip(move, -limit, limit), move))

    return replace(
        part,
        mean=near(part.mean),
        optimum=near(part.optimum),
        own=np.minimum(part.own, limit**2),
        covariance=part.covariance * both,
        noise=part.noise * both,
    )


class NoiseAwarePosterior:
    """Posterior of the latent vector that knows of the privacy noise: a mixture of normals.

    Parameters
    ----------
    trace : GradientTrace
        What the fit left.
    family : ndarray, optional
        Lower Cholesky factor of the fitted covariance, shape ``(D, D)``, for full rank; without it, the
        family is mean-field. It is used where D is above `gradient_trace.GROUP`, so that the covariance
        cannot be inferred as a whole.
    rng : numpy.random.Generator
        For the mixture's components (public randomness).

    Attributes
    ----------
    available : bool
        Whether the fit made enough steps to infer anything; otherwise nothing else may be asked for.
    n_rows : int
        How many steps it was inferred from.
    n_late : int
        How many of them are of the last half of the last run.
    noise_share : ndarray, shape (D,)
        Share of the known privacy noise in the gradients' scatter about the line; the rest is
        subsampling, and what is not linear.
    bounds_hold : ndarray of bool, shape (D,)
        Where `bounded` has made it narrower.

    Notes
    -----
    Privacy: a function of what `fit` released; costs nothing.
    """

    def __init__(
        self, trace: GradientTrace, rng: np.random.Generator, family: np.ndarray | None = None
    ) -> None:
        self._groups = trace.groups
        self._size = trace.size
        self._family = family
        self._full = family is not None
        blocks = trace.blocks
        try:
            with np.errstate(all="ignore"):
                used, fits = choose_steps(blocks, trace.late_blocks, trace.columns)
                self._parts = [_mix(fit, COMPONENTS, rng) for fit in fits]
        except np.linalg.LinAlgError:  # numbers of a size that leaves none of their digits
            used, fits, self._parts = len(blocks), [], []
        self.n_rows = sum(b.n for b in blocks[used:])
        self.n_late = sum(b.n for b in blocks[len(blocks) - trace.late_blocks :])
        numbers = [x for part in self._parts for x in vars(part).values()]
        self.available = bool(numbers) and all(np.isfinite(x).all() for x in numbers)
        self.bounds_hold = np.zeros(trace.size, dtype=bool)
        if self.available:
            known = merged(blocks[used:], trace.columns).noise_variance
            scatter = [_diagonal(f.root, f.noise) for f in fits]
            self.noise_share = np.minimum(known / np.concatenate(scatter), 1.0)

    @property
    def mean(self) -> np.ndarray:
        """Posterior mean, shape ``(D,)``."""
        return np.concatenate([part.mean.mean(axis=0) for part in self._parts])

    @property
    def optimum(self) -> np.ndarray:
        """Where the linear model has the optimum, without shrinkage and test, shape ``(D,)``."""
        return np.concatenate([part.optimum.mean(axis=0) for part in self._parts])

    @property
    def stayed(self) -> bool:
        """Whether the mean is the mean draw for most curvatures of a group, the model being refuted."""
        return any(np.mean(part.believed) < 0.5 for part in self._parts)

    @property
    def family_stddev(self) -> np.ndarray:
        """Standard deviations at the inferred optimum, without what the noise adds, shape ``(D,)``.

        The medians of the mixture.
        """
        if self._full:
            found = [np.einsum("mjj->mj", part.covariance - part.noise) for part in self._parts]
        else:
            found = [part.own for part in self._parts]
        return np.sqrt(np.concatenate([np.maximum(np.median(f, axis=0), 0.0) for f in found]))

    @property
    def noise_stddev(self) -> np.ndarray:
        """Standard deviation of the optimum, given the trace, shape ``(D,)``; medians as above."""
        added = [np.median(np.einsum("mjj->mj", p.noise), axis=0) + p.mean.var(axis=0) for p in self._parts]
        return np.sqrt(np.concatenate(added))

    @property
    def stddevs(self) -> np.ndarray:
        """Standard deviations with the noise, shape ``(D,)``."""
        return np.hypot(self.family_stddev, self.noise_stddev)

    @property
    def wide_open(self) -> np.ndarray:
        """Where noise may be all there is, shape ``(D,)``.

        Its width is above the approximation's, or that of both is many times the width of the fit's draws.
        """
        spread = np.concatenate([part.spread for part in self._parts])
        return np.asarray((self.noise_stddev > self.family_stddev) | (self.stddevs > _SPREADS * spread))

    def bounded(self, limits: np.ndarray) -> NoiseAwarePosterior:
        """Return this posterior, no wider than the limits where it is `wide_open`.

        Where the noise hides more than the prior leaves open, nothing was learnt, and the posterior is as
        wide as the prior, about the mean draw. The linear model can have it wider by powers of ten: where
        the prior is not log-concave, it is taken for flat. Correlations stay as they are.

        Parameters
        ----------
        limits : ndarray, shape (D,)
            Standard deviations; where one is infinite, ten times that of the fit's draws stands for it.

        Returns
        -------
        NoiseAwarePosterior
        """
        found = copy.copy(self)
        wide, found.bounds_hold = self.wide_open, np.zeros(self._size, dtype=bool)
        found._parts = []
        for group, part in zip(self._groups, self._parts, strict=True):
            limit = np.where(np.isfinite(limits[group]), limits[group], _SPREADS * part.spread)
            limit = np.where(wide[group], limit, np.inf)
            held = self.stddevs[group] > limit
            found._parts.append(_within(part, limit, held, self._full and len(self._parts) == 1))
            found.bounds_hold[group] = held
        return found

    def draw(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw latent vectors.

        Parameters
        ----------
        draws : int
        rng : numpy.random.Generator

        Returns
        -------
        ndarray, shape (draws, D)
        """
        out = np.empty((draws, self._size))
        whole = self._full and len(self._parts) == 1
        for group, part in zip(self._groups, self._parts, strict=True):
            k = group.stop - group.start
            which = rng.integers(COMPONENTS, size=draws)
            values, vectors = np.linalg.eigh(part.covariance if whole else part.noise)
            roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
            out[:, group] = part.mean[which]
            normals = rng.standard_normal((draws, k))
            for m in range(COMPONENTS):  # a gather of the roots would be large
                here = which == m
                out[here, group] += normals[here] @ roots[m].T
            if not self._full:
                out[:, group] += np.sqrt(part.own)[which] * rng.standard_normal((draws, k))
        if self._full and not whole:
            assert self._family is not None
            out += rng.standard_normal((draws, self._size)) @ self._family.T
        return out


def choose_steps(
    blocks: Sequence[Moments], late: int, columns: Sequence[np.ndarray]
) -> tuple[int, list[Regression]]:
    """Choose the blocks of steps to infer from, and fit the regressions.

    Parameters
    ----------
    blocks : sequence of Moments
    late : int
        How many of the last blocks are taken in any case.
    columns : sequence of ndarray
        The groups' columns.

    Returns
    -------
    int
        The first block that is taken.
    list of Regression
        One for each group; empty if the steps do not suffice.
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


def _diagonal(root: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Diagonal of S in the coordinates of z."""
    back = np.linalg.inv(root)
    return np.asarray(np.einsum("ij,ik,kj->j", back, noise, back))
