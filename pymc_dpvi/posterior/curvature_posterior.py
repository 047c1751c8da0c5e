r"""Draws of the curvature of the log-likelihood, given the noisy slopes of its gradient.

In: estimates :math:`\hat\Lambda_{jk} \sim N(\Lambda_{jk}, v_{jk})` (k, k), by `gradient_regression`. Out:
draws of :math:`\Lambda = B B^{\top}`, positive semi-definite. B has :math:`\nu = \lfloor 3k/2\rfloor + 2`
columns, normal with :math:`\operatorname{Var} B_{jm} = d_j c_m / \nu`. The prior of d has the scale of
:math:`\operatorname{tr} \Lambda \approx 0.4\, N C^2 / \log(1/p)`, if a share p of N records is beyond the
clip norm C: at the optimum the factor would be 1, and beside it gradients are longer. Hamiltonian Monte Carlo
moves B, Gibbs steps move d, c and the common factor m. See ``docs/noise_aware.md``, section 3.

Privacy: post-processing of the released sums; costs nothing. It must never read a record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pymc_dpvi.engine.running_clip import RunningClip

__all__ = ["CurvatureScale", "draw_curvature"]

#: Standard deviation of the logarithm of one direction's curvature about its share of the trace.
_DIRECTIONS = 1.0
#: The same for the columns of B: some directions may be much steeper than the others.
_COLUMNS = 0.5
#: The trace, in units of what the squared gradients add up to; and the standard deviation of its logarithm.
_OF_SQUARES, _IDENTITY = 0.4, 1.0
#: The same for a fixed clip norm, which tells nothing.
_UNKNOWN = 3.0
_CHAINS = 16
#: Steps until the first draw, steps from one to the next, and leapfrog steps in each.
_WARM_UP, _THIN, _LEAPS = 80, 6, 12
_ACCEPTANCE = 0.75
_GRID = np.linspace(-4.0, 4.0, 81)


@dataclass(frozen=True)
class CurvatureScale:
    """The prior of the trace of Λ, from released counts."""

    trace: float  # its mean, before the common factor
    log_stddev: float  # standard deviation of its logarithm

    @classmethod
    def of_clipping(
        cls, num_records: float, stddev: float, l2_clip_norm: float, share_to_clip: float
    ) -> CurvatureScale:
        """Infer it from a noisy number of records, its noise, the clip norm, and the share beyond it."""
        number = max(num_records, stddev)
        trace = _OF_SQUARES * number * l2_clip_norm**2 / math.log(1.0 / share_to_clip)
        return cls(trace, math.hypot(_IDENTITY, min(stddev / number, 1.0)))

    @classmethod
    def of_running_clip(
        cls, clip: RunningClip, noise_multiplier: float, sampling_prob: float
    ) -> CurvatureScale | None:
        """Infer it from the running clip norm and its counts; None before the first step."""
        seen = clip.records_and_noise(noise_multiplier, sampling_prob)
        return None if seen is None else cls.of_clipping(*seen, clip.l2_clip_norm, clip.share_to_clip)


@np.errstate(all="ignore")  # a trajectory that diverges is not taken
def draw_curvature(
    curvature: np.ndarray,
    variance: np.ndarray,
    root: np.ndarray,
    scale: CurvatureScale | None,
    draws: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw Λ from its posterior, at least `draws` times, (draws or more, k, k).

    `curvature` and `variance` (k, k) are estimates of its entries and their variances, in coordinates u;
    `scale` is in coordinates `root` @ u, with `root` of shape (k, k).
    """
    k = len(curvature)
    if not k:
        return np.zeros((draws, 0, 0))
    noise = np.diag(variance)
    share = np.einsum("ij,ij->j", root, root) / k
    if scale is None:
        seen = np.maximum(np.diag(curvature), np.sqrt(noise))
        scale = CurvatureScale(float(np.exp(np.mean(np.log(seen / share)))), _UNKNOWN)
    # From the mean of a log-normal distribution to its median, which is smaller.
    prior = scale.trace * share * math.exp(-0.5 * _DIRECTIONS**2)
    chain = _Chains(curvature, variance, prior, scale.log_stddev, rng)
    for step in range(_WARM_UP):
        chain.move(0.3 if step < _WARM_UP // 2 else 0.1)
    found: list[np.ndarray] = []
    while len(found) * _CHAINS < draws:
        for _ in range(_THIN):
            chain.move()
        found.append(chain.b @ np.swapaxes(chain.b, 1, 2))
    return np.concatenate(found)


class _Chains:
    """Several chains for (B, d, c, m), a step at a time."""

    def __init__(
        self,
        curvature: np.ndarray,
        variance: np.ndarray,
        prior: np.ndarray,
        log_stddev: float,
        rng: np.random.Generator,
    ) -> None:
        k = len(curvature)
        self._rng, self._curvature, self._log_stddev = rng, curvature, log_stddev
        self._nu = 3 * k // 2 + 2
        self._log_prior = np.log(prior)
        # Each pair of entries is one number.
        self._weight = np.where(np.eye(k) > 0, 1.0, 0.5) / variance
        error = np.sqrt(np.diag(variance))
        shrunk = np.sqrt(prior / (prior + error))
        start = (curvature - np.diag(prior)) * np.outer(shrunk, shrunk) + np.diag(prior)
        # What is known well starts at its estimate, however far from the prior.
        size = np.sqrt(np.maximum(np.minimum(prior, error), np.diag(start)))
        values, vectors = np.linalg.eigh(start / np.outer(size, size))
        b = np.zeros((k, self._nu))
        b[:, :k] = size[:, None] * vectors * np.sqrt(np.maximum(values, 0.05))
        self.b = np.repeat(b[None], _CHAINS, axis=0)
        length = np.einsum("ij,ij->i", b, b)
        self._log_d = np.repeat(np.log(length)[None], _CHAINS, axis=0)
        self._log_c = np.zeros((_CHAINS, self._nu))
        self._m = np.zeros(_CHAINS)
        self._row = np.minimum(error / (2.0 * np.sqrt(length)), np.sqrt(length / self._nu))[:, None]
        self._step = np.full(_CHAINS, 0.3)

    def _energy(self, b: np.ndarray) -> np.ndarray:
        apart = self._curvature - b @ np.swapaxes(b, 1, 2)
        own = np.einsum("mjk,mj,mk->m", b**2, np.exp(-self._log_d), np.exp(-self._log_c))
        return np.asarray(0.5 * np.einsum("ij,mij->m", self._weight, apart**2) + 0.5 * self._nu * own)

    def _slope(self, b: np.ndarray) -> np.ndarray:
        apart = self._weight * (self._curvature - b @ np.swapaxes(b, 1, 2))
        held = self._nu * np.exp(-self._log_d[:, :, None] - self._log_c[:, None])
        return np.asarray(-2.0 * apart @ b + held * b)

    def move(self, adapt: float = 0.0) -> None:
        """Move all chains, and their step sizes towards the acceptance rate `_ACCEPTANCE`."""
        rng, b = self._rng, self.b
        step = self._step[:, None, None] * self._row * rng.uniform(0.8, 1.2, (_CHAINS, 1, 1))
        p = rng.standard_normal(b.shape)
        before = self._energy(b) + 0.5 * np.einsum("mij,mij->m", p, p)
        p -= 0.5 * step * self._slope(b)
        for leap in range(_LEAPS):
            b = b + step * p
            p -= (1.0 if leap < _LEAPS - 1 else 0.5) * step * self._slope(b)
        after = self._energy(b) + 0.5 * np.einsum("mij,mij->m", p, p)
        chance = np.where(np.isfinite(after), np.exp(np.minimum(0.0, before - after)), 0.0)
        self.b = np.where((rng.random(_CHAINS) < chance)[:, None, None], b, self.b)
        self._step *= np.exp(adapt * (chance - _ACCEPTANCE))
        self._scales()

    def _scales(self) -> None:
        """Draw d, c and m."""
        k = self.b.shape[1]
        squares = self._nu * self.b**2
        own = np.einsum("mjk,mk->mj", squares, np.exp(-self._log_c))
        self._log_d = self._log_variances(self._m[:, None] + self._log_prior, _DIRECTIONS, self._nu, own)
        own = np.einsum("mjk,mj->mk", squares, np.exp(-self._log_d))
        self._log_c = self._log_variances(np.full(own.shape, -0.5 * _COLUMNS**2), _COLUMNS, k, own)
        precision = k / _DIRECTIONS**2 + self._log_stddev**-2
        mean = (self._log_d - self._log_prior).sum(axis=1) / (_DIRECTIONS**2 * precision)
        self._m = mean + self._rng.standard_normal(_CHAINS) / math.sqrt(precision)

    def _log_variances(
        self, centre: np.ndarray, stddev: float, count: int, squares: np.ndarray
    ) -> np.ndarray:
        """Draw logarithms of variances on a grid, given the sums of squares of `count` values of each."""
        at = centre[..., None] + stddev * _GRID
        density = -0.5 * _GRID**2 - 0.5 * count * at - 0.5 * squares[..., None] * np.exp(-at)
        below = np.cumsum(np.exp(density - density.max(axis=-1, keepdims=True)), axis=-1)
        chosen = (self._rng.random((*below.shape[:2], 1)) * below[..., -1:] > below).sum(axis=-1)
        jitter = (_GRID[1] - _GRID[0]) * (self._rng.random(chosen.shape) - 0.5)
        return np.asarray(centre + stddev * (_GRID[np.minimum(chosen, len(_GRID) - 1)] + jitter))
