r"""The noise-aware posterior: what the private gradients tell of the latent values, and what they do not.

**What the plain posterior lacks.** A private fit ends at :math:`\hat\mu`, not at the optimum of the evidence
lower bound: noise has displaced it, and may have kept it from getting there. The width of :math:`q(z)` is
that of the posterior given the data, as if it had not, and a mean-field q leaves out correlations. So its
intervals are too narrow. After Alrawajfeh, Jälkö and Honkela ("Noise-aware differentially private
variational inference", AISTATS 2025, arXiv:2410.19371), the gradients of the fit, which are private already,
are taken for what they are: noisy observations of a function that is linear around the optimum. They regress
on the variational parameters; here it is on the latent draws, which are known (`gradient_regression`).

**Given the curvature.** At the mean draw :math:`\bar z` the mean of n gradients of the log-likelihood,
:math:`\bar l`, has the error :math:`S/n`. If z are the parameters, the gradient without noise is
:math:`N(\Lambda(z - \bar z), \Lambda)` over data sets, so that

.. math:: p(z \mid \bar l, \Lambda) \propto p(z)\,
          N\big(\bar l \mid \Lambda(z - \bar z),\ \Lambda + S/n\big) ,

with the model's own prior p. Without noise this is the usual posterior (Laplace's); where noise is all there
is, it is the prior. For a normal prior with the precision P it is normal, with

.. math:: C^{-1} = P + K, \quad K = \Lambda(\Lambda + S/n)^{-1}\Lambda, \quad
          m = \bar z + C\,\big(\bar a + \Lambda(\Lambda + S/n)^{-1}\,\bar l\,\big) ,

:math:`\bar a` being the prior's mean gradient. For another prior, of a hierarchical model say, Hamiltonian
Monte Carlo draws from it, with one chain for each draw.

**The curvature** is drawn from its own posterior (`curvature_posterior`), each draw with the weight
:math:`p(\bar l \mid \Lambda)`: a gradient that no parameter within the prior could have under a small
:math:`\Lambda` speaks for a larger one. A few weights are kept from having it all, by a power of them that
leaves at least 16 draws. So the released posterior is a mixture.

**Where the prior is refuted.** The linear model holds near the draws. If the mean draw of a latent value lies
more than 3.5 widths of its prior from the prior's centre, or, where the prior's tails are heavy, farther than
all of some hundred draws from it (`Prior.reach`), the fit has gone where no parameter is expected,
as with a predictor that is zero for most records; the prior would throw it back along a line that no gradient
was seen on, and drag along what correlates with it. So that value stays at the mean draw, and others move
given that it does.

**Where the model is refuted.** Before the data :math:`\bar l` is normal about
:math:`\Lambda P^{-1}\bar a` with the covariance :math:`\Lambda + S/n + \Lambda P^{-1}\Lambda`. If the one
that was seen is not of this kind for most curvatures (a test at 0.1 %), as in networks, where it is large in
directions without curvature, then m would be an extrapolation by a model that does not hold, and is
:math:`\bar z`.

**What it cannot know.** Clipping moves the optimum and bends the gradients; no trace of clipped gradients
tells of it. Where the posterior is wide the gradient is not linear over it. Beyond `gradient_moments.GROUP`
latent values, correlations between the groups are not seen, and the prior is taken for normal; beyond
`gradient_moments.MOST_LATENTS` there is no trace.

**The default** of `sample()` where one group holds all latent values. ``benchmarks/calibration.py`` measures
what its intervals hold, on problems drawn at random.

Privacy: post-processing of the released sums; costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from pymc_dpvi.engine.gradient_moments import GradientTrace, merged
from pymc_dpvi.posterior.curvature_posterior import CurvatureScale, draw_curvature
from pymc_dpvi.posterior.gradient_regression import Regression, choose_steps, positive
from pymc_dpvi.posterior.hamiltonian import hamiltonian_draws
from pymc_dpvi.posterior.prior_density import FARTHEST, Prior

__all__ = ["NoiseAwarePosterior"]

#: Components of the mixture, and draws of the curvature that they are chosen from.
COMPONENTS = 128
#: Draws that have the weight of all, at least.
_LEAST = 16.0
#: Level of the test of the mean gradient against the prior.
_CONFLICT = 1e-3
#: Standard deviations of the fit's draws that stand for the prior's, where that is not known.
_SPREADS = 10.0
#: Least precision of a direction, in units of the draws' spread.
_FLOOR = 1e-9
#: Draws by which a posterior that is not normal is described.
_DESCRIBED_BY = 256
#: Chains that are run at a time.
_MOST_CHAINS = 1024


@dataclass(frozen=True)
class _Part:
    """Equally likely components for one group of k latent values, of which m are informed."""

    fit: Regression
    k: np.ndarray  # precision that the gradients give, shape (components, m, m)
    pull: np.ndarray  # gradient of the log of their density at the centre, shape (components, m)
    mean: np.ndarray  # of the normal approximation, shape (components, k)
    root: np.ndarray  # its covariance is root @ root.T, shape (components, k, k)
    family: np.ndarray  # variances without noise, shape (components, k)
    refuted: bool


def _condition(
    fit: Regression,
    prior: tuple[np.ndarray, np.ndarray],
    far: np.ndarray,
    scale: CurvatureScale | None,
    rng: np.random.Generator,
) -> _Part:
    """Draw curvatures, weigh them, and condition the prior (mean gradient and precision) on the gradients.

    Values that are `far` from their prior stay at the mean draw.
    """
    gradient, precision = prior
    size, own = len(fit.centre), fit.informed
    curvature = draw_curvature(fit.curvature, fit.variance, fit.root, scale, COMPONENTS, rng)
    error = fit.noise / fit.n
    shrunk = np.linalg.solve(curvature + error, curvature)  # (Λ + S/n)^-1 Λ
    weights, agreement = _weigh(fit, gradient, precision, curvature, error)
    refuted = bool(np.sum(weights * (agreement >= _CONFLICT)) < 0.5)
    chosen = rng.choice(len(curvature), COMPONENTS, p=weights)
    curvature, shrunk = curvature[chosen], shrunk[chosen]
    back = np.linalg.inv(fit.root)
    k = np.swapaxes(back, 0, 1) @ positive(curvature @ shrunk) @ back
    pull = (np.swapaxes(shrunk, 1, 2) @ fit.likelihood) @ back
    full = np.repeat(precision[None], COMPONENTS, axis=0)
    without_noise = full.copy()
    at = np.ix_(np.arange(COMPONENTS), own, own)
    full[at] += k
    without_noise[at] += back.T @ curvature @ back
    scaled = np.outer(fit.spread, fit.spread)
    root = fit.spread[:, None] * _root(full * scaled)
    alone = fit.spread[:, None] * _root(without_noise * scaled)
    force = np.repeat(gradient[None], COMPONENTS, axis=0)
    force[:, own] += pull
    moved = np.zeros((COMPONENTS, size))
    (near,) = np.nonzero(~far)
    if len(near) and not refuted:
        among = np.ix_(np.arange(COMPONENTS), near, near)
        held = positive((full * scaled)[among], _FLOOR)
        moved[:, near] = np.linalg.solve(held, (force * fit.spread)[:, near, None])[..., 0] * fit.spread[near]
    return _Part(fit, k, pull, fit.centre + moved, root, np.sum(alone**2, axis=2), refuted)


def _root(precision: np.ndarray) -> np.ndarray:
    """Return roots of the inverses of symmetric matrices, however badly conditioned."""
    values, vectors = np.linalg.eigh((precision + np.swapaxes(precision, -1, -2)) / 2)
    return vectors / np.sqrt(np.maximum(values, _FLOOR))[..., None, :]


def _weigh(
    fit: Regression, gradient: np.ndarray, precision: np.ndarray, curvature: np.ndarray, error: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of curvatures by the density of the mean gradient, and p-values of its being so long."""
    own = fit.informed
    wide = np.linalg.inv(positive(precision, 1e-12 * max(1e-300, float(np.abs(np.diag(precision)).max()))))
    back = np.linalg.inv(fit.root)
    spread = back @ wide[np.ix_(own, own)] @ back.T
    apart = fit.likelihood - curvature @ (back @ (wide @ gradient)[own])
    variance = curvature + error + curvature @ spread @ curvature
    square = np.einsum("mi,mi->m", apart, np.linalg.solve(variance, apart[..., None])[..., 0])
    log_weight = -0.5 * square - 0.5 * np.linalg.slogdet(variance)[1]
    power = 1.0
    while True:
        weights = special.softmax(power * log_weight)
        if np.sum(weights**2) * _LEAST <= 1.0 or power < 1e-3:
            return weights, np.asarray(stats.chi2.sf(square, len(own)))
        power *= 0.8


class NoiseAwarePosterior:
    """Posterior of the latent vector that knows of the privacy noise: a mixture.

    Parameters
    ----------
    trace : GradientTrace
        What the fit left.
    rng : numpy.random.Generator
        For the mixture's components (public randomness).
    prior : Prior, optional
        Of the model; without it, its gradients in the trace stand for it.
    scale : CurvatureScale, optional
        What an adaptive clip norm tells of the curvature.

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
    mean : ndarray, shape (D,)
        Posterior mean.
    stddevs : ndarray, shape (D,)
        Posterior standard deviations.
    family_stddev : ndarray, shape (D,)
        What they would be without noise: medians of the mixture.
    far : ndarray of bool, shape (D,)
        Where the mean is the mean draw, being far from the prior.
    stayed : bool
        Whether it is throughout, the model being refuted.

    Notes
    -----
    Privacy: a function of what `fit` released; costs nothing.
    """

    def __init__(
        self,
        trace: GradientTrace,
        rng: np.random.Generator,
        prior: Prior | None = None,
        scale: CurvatureScale | None = None,
    ) -> None:
        self._groups, self._size, self._prior = trace.groups, trace.size, prior
        blocks = trace.blocks
        fits: list[Regression] = []
        self._parts: list[_Part] = []
        self.far = np.zeros(trace.size, dtype=bool)
        used = len(blocks)
        try:
            with np.errstate(all="ignore"):
                used, fits = choose_steps(blocks, trace.late_blocks, trace.columns)
                exact = self._as_regressed(fits)
                for group, fit in zip(trace.groups, fits, strict=False):
                    normal, far = self._normal(fit, group, exact), self._far(fit, group)
                    self._parts.append(_condition(fit, normal, far, scale, rng))
                    self.far[group] = far
        except np.linalg.LinAlgError:  # numbers of a size that leaves none of their digits
            used, fits, self._parts, exact = len(blocks), [], [], True
        self.n_rows = sum(b.n for b in blocks[used:])
        self.n_late = sum(b.n for b in blocks[len(blocks) - trace.late_blocks :])
        numbers = [x for p in self._parts for x in (p.k, p.pull, p.mean, p.root, p.family)]
        self.available = bool(numbers) and all(np.isfinite(x).all() for x in numbers)
        if not self.available:
            return
        self.stayed = any(part.refuted for part in self._parts)
        #: Whether the prior is not normal, and chains draw from the posterior.
        self._chains = not exact and len(self._parts) == 1 and not self.stayed and not self.far.any()
        known = merged(blocks[used:], trace.columns).noise_variance
        self.noise_share = np.concatenate([_noise_share(f, known) for f in fits])
        self.family_stddev = np.sqrt(np.concatenate([np.median(p.family, axis=0) for p in self._parts]))
        if self._chains:
            drawn = self.draw(_DESCRIBED_BY, rng)
            self.mean, self.stddevs = drawn.mean(axis=0), drawn.std(axis=0)
        else:
            own = [np.sum(p.root**2, axis=2).mean(axis=0) + p.mean.var(axis=0) for p in self._parts]
            self.mean = np.concatenate([p.mean.mean(axis=0) for p in self._parts])
            self.stddevs = np.sqrt(np.concatenate(own))

    @property
    def noise_stddev(self) -> np.ndarray:
        """What the noise adds to the standard deviations, shape ``(D,)``."""
        return np.sqrt(np.maximum(self.stddevs**2 - self.family_stddev**2, 0.0))

    def _as_regressed(self, fits: list[Regression]) -> bool:
        """Whether the prior is the normal one that its gradients in the trace say."""
        if self._prior is None or len(fits) != 1:
            return True
        (fit,) = fits
        rng = np.random.default_rng(0)
        z = fit.centre + 3.0 * fit.spread * rng.standard_normal((16, self._size))
        _, gradient = self._prior.density(z)
        line = fit.prior - (z - fit.centre) @ fit.precision
        size = np.abs(line).max(axis=0) + np.abs(np.diag(fit.precision)) * fit.spread
        return bool((np.abs(gradient - line).max(axis=0) <= 1e-5 * size + 1e-12).all())

    def _normal(self, fit: Regression, group: slice, exact: bool) -> tuple[np.ndarray, np.ndarray]:
        """Mean gradient and precision of the normal prior that is conditioned on the gradients."""
        size = (1.0 / (_SPREADS * fit.spread)) ** 2
        indefinite = np.linalg.eigvalsh(fit.precision / np.sqrt(np.outer(size, size)))[0] < -1e-6
        if self._prior is None or (exact and not indefinite):
            precision = positive(fit.precision) if indefinite else fit.precision
            # Where the prior says nothing, the posterior is as wide as some spreads of the draws.
            silent = np.abs(precision).max(axis=1) <= _FLOOR * size
            return fit.prior, precision + np.diag(np.where(silent, size, 0.0))
        centre, stddev = self._prior.centre[group], self._prior.reach[group]
        known = np.isfinite(stddev)
        own = np.where(known, 1.0 / np.where(known, stddev, 1.0) ** 2, size)
        return own * np.where(known, centre - fit.centre, 0.0), np.diag(own)

    def _far(self, fit: Regression, group: slice) -> np.ndarray:
        """Whether the mean draw of each value lies where its prior lets nobody expect it."""
        if self._prior is None:
            return np.zeros(len(fit.centre), dtype=bool)
        apart = np.abs(fit.centre - self._prior.centre[group])
        return np.asarray(apart > FARTHEST * self._prior.reach[group])  # False where it is not known

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
        for group, part in zip(self._groups, self._parts, strict=True):
            which = rng.integers(COMPONENTS, size=draws)
            root = part.root
            normals = rng.standard_normal((draws, part.mean.shape[1]))
            for m in range(COMPONENTS):  # a gather of the roots would be large
                here = which == m
                out[here, group] = part.mean[m] + normals[here] @ root[m].T
            if self._chains:
                for first in range(0, draws, _MOST_CHAINS):
                    some = slice(first, first + _MOST_CHAINS)
                    out[some] = self._from_chains(part, root[which[some]], which[some], out[some], rng)
        return out

    def _from_chains(
        self, part: _Part, root: np.ndarray, which: np.ndarray, start: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Move draws of the normal approximation until they are of the model's own prior."""
        assert self._prior is not None
        density, own, k, pull = self._prior.density, part.fit.informed, part.k[which], part.pull[which]

        def posterior(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value, slope = density(z)
            apart = (z - part.fit.centre)[:, own]
            held = np.einsum("mij,mj->mi", k, apart)
            slope = slope.copy()
            slope[:, own] += pull - held
            return value + np.sum((pull - 0.5 * held) * apart, axis=1), slope

        return hamiltonian_draws(posterior, start, root, rng)


def _noise_share(fit: Regression, known: float) -> np.ndarray:
    """Share of the known noise in the gradients' scatter about the line, of each latent value."""
    back = np.linalg.inv(fit.root)
    share = np.ones(len(fit.centre))
    scatter = np.einsum("ji,jk,ki->i", back, fit.noise, back)
    share[fit.informed] = np.minimum(known / scatter, 1.0)
    return share
