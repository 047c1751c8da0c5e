r"""Running moments of the noisy gradients, from which the optimum is inferred.

Step t of a fit evaluates the model at a latent draw :math:`z_t` and yields (`step_graph`)

.. math:: l_t = \tilde s_t / q, \qquad a_t = \nabla \log p(z_t), \qquad s_t ,

the noisy gradient of the log-likelihood, the gradient of the log-prior, and the standard deviation of the
privacy noise in a coordinate of :math:`l_t`. A step with several latent draws gives their means. T steps make
T rows :math:`r_t = (z_t, l_t, a_t, s_t)`. Kept are the moments that a regression on :math:`z_t` takes,

.. math:: n, \qquad \bar r = \frac1n \sum_t r_t, \qquad M = \sum_t (z_t-\bar z)(r_t-\bar r)^{\!\top}, \qquad
    \sum_t (l_t-\bar l)(l_t-\bar l)^{\!\top},

in eight blocks of consecutive steps, so that the steps on the way to the optimum can be told from those
around it, and a coarse path of :math:`z_t` and of :math:`l_t + a_t` for plots. Two sets of rows merge by

.. math:: M = M_1 + M_2 + \frac{n_1 n_2}{n_1+n_2} (\bar z_1-\bar z_2)(\bar r_1-\bar r_2)^{\!\top} .

Within a block, products of :math:`r_t - r_1` are added up, and :math:`n (\bar r - r_1)(\bar r - r_1)^\top` is
subtracted at its end. Since :math:`r_1` is one of the rows, at least the n-th part of the sum is left.
Moments are kept within groups of at most `GROUP` neighbouring latent values, and of fewer for more than
`_MANY` of them: memory is O(D · GROUP), not O(T · D), and the sums take less time than the step. Beyond
`MOST_LATENTS` nothing is kept, as the moments would be many times as large as the model.

Privacy: post-processing. A row is a function of the noisy sums, which are released anyway, of the public
prior and of public base draws. Rows are added up in portions that do not depend on how long a step takes, so
that not even the rounding of the sums does.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["GROUP", "MOST_LATENTS", "GradientTrace", "Moments", "PathPoint", "merged"]

#: Most latent values whose joint moments are kept: enough for most models whose intervals are read.
GROUP = 64
#: Beyond so many latent values, groups are smaller.
_MANY, _SMALL_GROUP = 1024, 16
#: Most latent values for which anything is kept.
MOST_LATENTS = 4096
#: Blocks of steps in a run, and points of the path in a block.
BLOCKS = 8
_POINTS = 8
#: Rows that are added up at once: least (for a fast matrix product) and most, and the numbers in them.
_PORTION, _LONGEST_PORTION, _PORTION_NUMBERS = 256, 1024, 1 << 16


@dataclass(frozen=True)
class Moments:
    """Moments of some rows.

    Attributes
    ----------
    n : int
        Number of rows.
    mean : ndarray, shape (3 * D + 1,)
        Of the latent draws, the gradients of log-likelihood and log-prior, and the noise.
    scatter : tuple of ndarray, shape (k, 3 * k)
        For each group of k latent values, the sum of products of the latent draws with the group's columns,
        about the mean.
    spread : tuple of ndarray, shape (k, k)
        For each group, that of the likelihood's gradients with each other.
    noise_variance : float
        Mean square of the noise's standard deviation.
    """

    n: int
    mean: np.ndarray
    scatter: tuple[np.ndarray, ...]
    spread: tuple[np.ndarray, ...]
    noise_variance: float


@dataclass(frozen=True)
class PathPoint:
    """Means over a few steps.

    Attributes
    ----------
    step : int
        The last of these steps.
    n : int
        How many they are.
    mean, variance : ndarray, shape (D,)
        Mean and spread of their latent draws.
    gradient : ndarray, shape (D,)
        Mean of the noisy gradients there, of log-likelihood and log-prior together.
    noise_variance : float
        Mean square of the noise's standard deviation in a coordinate of a step's gradient.
    """

    step: int
    n: int
    mean: np.ndarray
    variance: np.ndarray
    gradient: np.ndarray
    noise_variance: float


def _products(
    u: np.ndarray, v: np.ndarray, columns: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return what a pair of rows u, v adds to `Moments.scatter` and to `Moments.spread`."""
    draws = [c[: len(c) // 3] for c in columns]
    gradients = [c[len(c) // 3 : 2 * len(c) // 3] for c in columns]
    scatter = [np.outer(u[z], v[c]) for z, c in zip(draws, columns, strict=True)]
    return scatter, [np.outer(u[g], v[g]) for g in gradients]


def _merge(a: Moments, b: Moments, columns: Sequence[np.ndarray]) -> Moments:
    n = a.n + b.n
    apart = b.mean - a.mean
    scatter, spread = _products(a.n * b.n / n * apart, apart, columns)
    return Moments(
        n,
        a.mean + apart * (b.n / n),
        tuple(s + t + p for s, t, p in zip(a.scatter, b.scatter, scatter, strict=True)),
        tuple(s + t + p for s, t, p in zip(a.spread, b.spread, spread, strict=True)),
        a.noise_variance + (b.noise_variance - a.noise_variance) * (b.n / n),
    )


def _merge_points(a: PathPoint, b: PathPoint) -> PathPoint:
    n = a.n + b.n
    share, apart = b.n / n, b.mean - a.mean
    return PathPoint(
        b.step,
        n,
        a.mean + apart * share,
        a.variance * (1 - share) + b.variance * share + apart**2 * share * (1 - share),
        a.gradient + (b.gradient - a.gradient) * share,
        a.noise_variance + (b.noise_variance - a.noise_variance) * share,
    )


def _finite(rows: np.ndarray) -> np.ndarray:
    """Whether all entries of each row, and the sum of their squares, are finite."""
    return np.isfinite(np.einsum("ij,ij->i", rows, rows))


class _Sums:
    """Sums of products of rows minus the block's first row, for one block of a run's steps."""

    def __init__(self, block: int, origin: np.ndarray, groups: Sequence[slice]) -> None:
        self.block, self.origin = block, origin
        self._size, self._groups = len(origin) // 3, groups
        self._n, self._total, self._noise = 0, np.zeros(len(origin)), 0.0
        lengths = [g.stop - g.start for g in groups]
        self._scatter = [np.zeros((k, 3 * k)) for k in lengths]
        self._spread = [np.zeros((k, k)) for k in lengths]

    def add(self, rows: np.ndarray, total: np.ndarray) -> None:
        """Add rows from which the origin has been subtracted; `total` is their sum."""
        size = self._size
        parts = [rows[:, k * size : (k + 1) * size] for k in range(3)]
        for group, scatter, spread in zip(self._groups, self._scatter, self._spread, strict=True):
            draws, gradients = parts[0][:, group], parts[1][:, group]
            k = len(spread)
            for j, part in enumerate(parts):
                scatter[:, j * k : (j + 1) * k] += draws.T @ part[:, group]
            spread += gradients.T @ gradients
        self._n += len(rows)
        self._total += total
        self._noise += float(np.sum((rows[:, -1] + self.origin[-1]) ** 2))

    def moments(self, columns: Sequence[np.ndarray]) -> Moments:
        """Return the moments about the mean."""
        mean = self._total / self._n
        with np.errstate(all="ignore"):  # of a fit that diverges
            scatter, spread = _products(self._total, mean, columns)
            return Moments(
                self._n,
                mean + self.origin,
                tuple(s - p for s, p in zip(self._scatter, scatter, strict=True)),
                tuple(s - p for s, p in zip(self._spread, spread, strict=True)),
                self._noise / self._n,
            )


class GradientTrace:
    """Moments of the rows of one or several runs with the same noise, of `size` latent values.

    Attributes: `groups`, slices of neighbouring latent values whose joint moments are kept; `columns`, for
    each group, its columns in a row (latent draws, likelihood's gradient, prior's gradient).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        count = -(-size // (GROUP if size <= _MANY else _SMALL_GROUP)) if size <= MOST_LATENTS else 0
        ends = np.linspace(0, size, count + 1).round().astype(int)  # none if count is 0
        self.groups = tuple(slice(int(a), int(b)) for a, b in itertools.pairwise(ends))
        self.columns = tuple(
            np.concatenate([np.arange(g.start, g.stop) + k * size for k in range(3)]) for g in self.groups
        )
        self._blocks: list[Moments] = []
        self._open: _Sums | None = None  # of the last block
        self._path: list[PathPoint] = []
        self._before = 0  # blocks of earlier runs
        self._begun = 0  # rows of earlier runs
        self._planned = 1
        self._taken = 0
        portion = int(np.clip(_PORTION_NUMBERS // max(1, self.width), _PORTION, _LONGEST_PORTION))
        self._waiting = np.empty((portion, self.width))
        self._n_waiting = 0

    @property
    def width(self) -> int:
        """Length of a row, 3 D + 1; 0 if nothing is kept."""
        return 3 * self.size + 1 if self.size <= MOST_LATENTS else 0

    def begin(self, n_steps: int) -> None:
        """Expect a run of so many steps; the rows of earlier runs are kept in coarser blocks."""
        self._flush()
        self._close()
        while len(self._blocks) > BLOCKS:
            pairs = [self._blocks[k : k + 2] for k in range(0, len(self._blocks), 2)]
            self._blocks = [merged(pair, self.columns) for pair in pairs]
        while len(self._path) > BLOCKS * _POINTS:
            pairs_ = [self._path[k : k + 2] for k in range(0, len(self._path), 2)]
            self._path = [_merge_points(p[0], p[1]) if len(p) == 2 else p[0] for p in pairs_]
        self._before = len(self._blocks)
        self._begun += self._taken
        self._planned, self._taken = n_steps, 0

    def take(self, rows: np.ndarray) -> None:
        """Take up the rows of the next steps, shape ``(n_steps, width)``."""
        if not self.width:
            return
        at = 0
        while at < len(rows):
            # Portions end with a block, or when they are full, wherever a call ends.
            block_end = self._block_end()
            size = min(len(rows) - at, len(self._waiting) - self._n_waiting, block_end - self._taken)
            self._waiting[self._n_waiting : self._n_waiting + size] = rows[at : at + size]
            self._n_waiting += size
            self._taken += size
            at += size
            if self._n_waiting == len(self._waiting) or self._taken == block_end:
                self._flush()

    def _block_end(self) -> int:
        """Return the step of this run with which the present block ends; the last one has no end."""
        block = self._taken * BLOCKS // self._planned
        return -(-(block + 1) * self._planned // BLOCKS) if block < BLOCKS - 1 else sys.maxsize

    def _flush(self) -> None:
        if self._n_waiting:
            with np.errstate(all="ignore"):  # of a fit that diverges
                self._take_up()

    def _take_up(self) -> None:
        rows = self._waiting[: self._n_waiting]
        first = self._taken - self._n_waiting
        block = min(first * BLOCKS // self._planned, BLOCKS - 1)
        points = np.arange(first, self._taken) * (BLOCKS * _POINTS) // self._planned
        points = np.minimum(points, BLOCKS * _POINTS - 1)
        self._n_waiting = 0
        if self._open is None or block != self._open.block:
            fine = _finite(rows)
            if not fine.any():
                return
            self._close()
            self._open = _Sums(block, rows[fine.argmax()].copy(), self.groups)
        rows -= self._open.origin
        total = np.ones(len(rows)) @ rows
        if not np.isfinite(total @ total):  # a prior may have no gradient at a far draw
            fine = _finite(rows)
            rows, points = rows[fine], points[fine]
            total = np.ones(len(rows)) @ rows
        self._follow(rows, points, self._open.origin)
        self._open.add(rows, total)

    def _close(self) -> None:
        if self._open is not None:
            self._blocks.append(self._open.moments(self.columns))
            self._open = None

    def _follow(self, rows: np.ndarray, points: np.ndarray, origin: np.ndarray) -> None:
        size = self.size
        for point, first, n in zip(*np.unique(points, return_index=True, return_counts=True), strict=True):
            last = self._begun + -(-(int(point) + 1) * self._planned // (BLOCKS * _POINTS))
            part = rows[first : first + n]
            draws = part[:, :size]
            square = np.einsum("ij,ij->j", draws, draws) / n
            mean = part.mean(axis=0)
            variance = np.maximum(square - mean[:size] ** 2, 0.0)
            noise_variance = float(np.mean((part[:, -1] + origin[-1]) ** 2))
            mean += origin
            gradient = mean[size : 2 * size] + mean[2 * size : -1]
            new = PathPoint(last, int(n), mean[:size], variance, gradient, noise_variance)
            if self._path and self._path[-1].step == last:
                self._path[-1] = _merge_points(self._path[-1], new)
            else:
                self._path.append(new)

    @property
    def num_rows(self) -> int:
        """How many rows there were so far."""
        return self._begun + self._taken

    @property
    def blocks(self) -> tuple[Moments, ...]:
        """Moments of consecutive steps, the oldest first."""
        self._flush()
        now = [] if self._open is None else [self._open.moments(self.columns)]
        return (*self._blocks, *now)

    @property
    def path(self) -> tuple[PathPoint, ...]:
        """Where the latent draws were, the oldest first."""
        self._flush()
        return tuple(self._path)

    @property
    def gradient_norms(self) -> np.ndarray:
        """Norms of the noisy gradients, averaged over the steps of a point of the path: one for each step."""
        path = self.path
        norms = [float(np.linalg.norm(point.gradient)) for point in path]
        return np.repeat(np.asarray(norms, dtype=float), [point.n for point in path])

    @property
    def late_blocks(self) -> int:
        """How many of the last blocks cover the last half of the last run's rows."""
        run = self.blocks[self._before :]
        rows, half = 0, sum(b.n for b in run) // 2
        for count, block in enumerate(reversed(run), start=1):
            rows += block.n
            if rows >= half:
                return count
        return len(run)


def merged(blocks: Sequence[Moments], columns: Sequence[np.ndarray]) -> Moments:
    """Merge the moments of one or several blocks; `columns` as in `GradientTrace`."""
    total = blocks[0]
    for block in blocks[1:]:
        total = _merge(total, block, columns)
    return total
