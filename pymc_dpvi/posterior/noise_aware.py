r"""The noise-aware posterior: latent values given the noisy gradients of a fit.

In: the moments of a fit's noisy gradients (`gradient_moments`), and the prior. Out: draws, (draws, D), of a
mixture whose width includes the uncertainty from data and from privacy noise. With the mean :math:`\bar l` of
n gradients at the mean draw :math:`\bar z`, their noise S and the curvature :math:`\Lambda`,

.. math:: p(z \mid \bar l, \Lambda) \propto p(z)\,
          N\big(\bar l \mid \Lambda(z - \bar z),\ \Lambda + S/n\big) ,

after Alrawajfeh, Jälkö and Honkela (AISTATS 2025, arXiv:2410.19371). :math:`\Lambda` is drawn from its own
posterior (`curvature_posterior`). With a normal prior each component is normal; with another one, chains draw
from it (`hamiltonian`). The mean stays at the late draws where these are far from the prior, or the gradients
refute the linear model. Derivation and limits: ``docs/noise_aware.md``.

Privacy: post-processing of the released sums; costs nothing. It must never read a record.
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
#: Least effective number of draws of the curvature.
_LEAST = 16.0
#: Level of the test of the mean gradient against the prior.
_CONFLICT = 1e-3
#: Width of a prior that is not known, in standard deviations of the fit's draws.
_SPREADS = 10.0
#: Least precision of a direction, in units of the draws' spread.
_FLOOR = 1e-9
#: Draws from which mean and width are computed if the posterior is not normal.
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
    late: np.ndarray,
    far: np.ndarray,
    scale: CurvatureScale | None,
    before: int,
    rng: np.random.Generator,
) -> _Part:
    """Condition the prior (mean gradient, precision) on the gradients; `far` values stay where `late` is.

    `before` is the number of earlier steps, which are not used.
    """
    gradient, precision = prior
    own = fit.informed
    curvature = draw_curvature(fit.curvature, fit.variance, fit.root, scale, COMPONENTS, rng)
    weights, agreement = _weigh(fit, gradient, precision, curvature, before)
    refuted = bool(np.sum(weights * (agreement >= _CONFLICT)) < 0.5)
    chosen = rng.choice(len(curvature), COMPONENTS, p=weights)
    curvature = curvature[chosen]
    back = np.linalg.inv(fit.root)
    shrunk = _shrunk(fit, curvature, fit.n)
    k = back.T @ positive(curvature @ shrunk) @ back
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
    moved = np.repeat((late - fit.centre)[None], COMPONENTS, axis=0)
    (near,) = np.nonzero(~far)
    if len(near) and not refuted:
        among = np.ix_(np.arange(COMPONENTS), near, near)
        held = positive((full * scaled)[among], _FLOOR)
        force -= full[:, :, far] @ (late - fit.centre)[far]
        moved[:, near] = np.linalg.solve(held, (force * fit.spread)[:, near, None])[..., 0] * fit.spread[near]
    return _Part(fit, k, pull, fit.centre + moved, root, np.sum(alone**2, axis=2), refuted)


def _root(precision: np.ndarray) -> np.ndarray:
    """Return roots of the inverses of symmetric matrices, with eigenvalues held at `_FLOOR`."""
    values, vectors = np.linalg.eigh((precision + np.swapaxes(precision, -1, -2)) / 2)
    return vectors / np.sqrt(np.maximum(values, _FLOOR))[..., None, :]


def _shrunk(fit: Regression, curvature: np.ndarray, n: int) -> np.ndarray:
    """Return (Λ + S/n)^-1 Λ for the mean of n gradients, zero for none."""
    return np.linalg.solve(n * curvature + fit.noise, n * curvature)


def _weigh(
    fit: Regression, gradient: np.ndarray, precision: np.ndarray, curvature: np.ndarray, before: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of curvatures by the density of the mean gradient, and p-values of the mean gradient."""
    own, back = fit.informed, np.linalg.inv(fit.root)
    least = 1e-12 * max(1e-300, float(np.abs(np.diag(precision)).max()))
    known = np.repeat(positive(precision, least)[None], len(curvature), axis=0)
    early = positive(curvature @ _shrunk(fit, curvature, before))
    known[np.ix_(np.arange(len(curvature)), own, own)] += back.T @ early @ back
    wide = np.linalg.inv(known)
    spread = back @ wide[:, own][:, :, own] @ back.T
    expected = (wide @ gradient)[:, own] @ back.T
    apart = fit.likelihood - np.einsum("mij,mj->mi", curvature, expected)
    variance = curvature + fit.noise / fit.n + curvature @ spread @ curvature
    square = np.einsum("mi,mi->m", apart, np.linalg.solve(variance, apart[..., None])[..., 0])
    log_weight = -0.5 * square - 0.5 * np.linalg.slogdet(variance)[1]
    power = 1.0
    while True:
        weights = special.softmax(power * log_weight)
        if np.sum(weights**2) * _LEAST <= 1.0 or power < 1e-3:
            return weights, np.asarray(stats.chi2.sf(square, len(own)))
        power *= 0.8


class NoiseAwarePosterior:
    """Posterior of the latent vector, a mixture, whose width includes the privacy noise.

    Without a `prior`, its gradients in the trace are used; `scale` is what an adaptive clip norm tells of the
    curvature. The attributes below `n_late`, and `draw`, are there only if it is `available`.
    """

    available: bool  # whether the steps suffice to infer anything
    n_rows: int  # steps used
    n_late: int  # those in the last half of the last run
    mean: np.ndarray  # (D,)
    stddevs: np.ndarray  # (D,)
    family_stddev: np.ndarray  # what `stddevs` would be without the noise: medians of the mixture, (D,)
    noise_share: np.ndarray  # share of the privacy noise in the gradients' scatter about the line, (D,)
    far: np.ndarray  # where the mean stays at the late draws, which are far from the prior, (D,)
    stayed: bool  # whether all of a group stays there, because the linear model is refuted

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
        used, before = len(blocks), len(blocks) - trace.late_blocks
        try:
            with np.errstate(all="ignore"):
                used, fits = choose_steps(blocks, trace.late_blocks, trace.columns)
                late = merged(blocks[before:], trace.columns).mean[: trace.size] if fits else np.empty(0)
                exact = self._as_regressed(fits)
                unused = sum(b.n for b in blocks[:used])
                for group, fit in zip(trace.groups, fits, strict=False):
                    normal, far = self._normal(fit, group, exact), self._far(late, group)
                    self._parts.append(_condition(fit, normal, late[group], far, scale, unused, rng))
                    self.far[group] = far
        except np.linalg.LinAlgError:  # of numbers so large or small that no digits are left
            used, fits, self._parts, exact = len(blocks), [], [], True
        self.n_rows = sum(b.n for b in blocks[used:])
        self.n_late = sum(b.n for b in blocks[before:])
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

    def _as_regressed(self, fits: list[Regression]) -> bool:
        """Whether the prior is normal, with the gradients that the trace holds."""
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
            # A flat prior counts as normal, some spreads of the draws wide.
            silent = np.abs(precision).max(axis=1) <= _FLOOR * size
            return fit.prior, precision + np.diag(np.where(silent, size, 0.0))
        centre, stddev = self._prior.centre[group], self._prior.reach[group]
        known = np.isfinite(stddev)
        own = np.where(known, 1.0 / np.where(known, stddev, 1.0) ** 2, size)
        return own * np.where(known, centre - fit.centre, 0.0), np.diag(own)

    def _far(self, late: np.ndarray, group: slice) -> np.ndarray:
        """Whether the late draws of each value are farther from its prior's centre than all prior draws."""
        if self._prior is None:
            return np.zeros(group.stop - group.start, dtype=bool)
        apart = np.abs(late - self._prior.centre)[group]
        return np.asarray(apart > FARTHEST * self._prior.reach[group])  # False where it is not known

    def draw(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw latent vectors, (draws, D)."""
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
        """Move draws of the normal approximation to draws of the posterior with the model's own prior."""
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
