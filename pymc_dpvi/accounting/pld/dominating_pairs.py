r"""One step's privacy loss on a grid, from above, with relative accuracy in the tails.

A step is described by a dominating pair :math:`(P, Q)` (Zhu, Dong and Wang 2022): no two neighbouring data
sets have outputs that are easier to tell apart. Let :math:`\sigma` be the noise standard deviation in units
of the bound on one record, :math:`q` the sampling probability, and :math:`x` the noisy sum along the record
in question. Then

==================  ==========  ================================================
relation            law         is
==================  ==========  ================================================
add or remove one   :math:`P`   :math:`(1-q)\,N(0,\sigma^2) + q\,N(1,\sigma^2)`
..                  :math:`Q`   :math:`N(0,\sigma^2)`; and the pair reversed
replace one         :math:`P`   :math:`(1-q)\,N(0,\sigma^2) + q\,N(1,\sigma^2)`
..                  :math:`Q`   :math:`(1-q)\,N(0,\sigma^2) + q\,N(-1,\sigma^2)`
==================  ==========  ================================================

and batches of fixed size have the larger curve of a Poisson pair and its reverse (`FixedSizePair`). The
privacy loss :math:`L(x) = \ln(dP/dQ)(x)` rises with :math:`x` and has an explicit inverse. **Connect the
dots** (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022) replaces it by a law on the grid :math:`\{ih\}`:
the mass of a cell :math:`a \le L < b` is shared between the two ends such that :math:`P` and :math:`Q` both
keep their mass. So :math:`\delta(\varepsilon)` falls nowhere, whatever the grid.

In: a pair and a grid step. Out: a :class:`LossLaw`, with bounds on its rounding errors. Proofs:
docs/accounting.md, sections 1 and 2. What it may never do: move mass to a smaller loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from pymc_dpvi.accounting.relations import sensitivity_factor

__all__ = ["MASS_ERROR", "FixedSizePair", "GaussianPair", "LossLaw"]

Array = NDArray[np.float64]

MASS_ERROR = 1e-12
"""Relative error of the mass of a cell; checked against 50 digits in the tests."""

MAX_LOSS = 600.0
"""A step that loses more than this is counted as losing everything."""

_EVEN = 1024
_UNIT = 2.0**-53
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


@dataclass(frozen=True, eq=False)
class LossLaw:
    """A privacy loss on the grid: an upper bound of one step's. Arrays have the shape (num_losses,).

    `places` are the losses, ascending, in units of `interval`; `probs` are their probabilities, and
    `infinite` that of an infinite loss. `loss_error` bounds the error of the losses by the rounding of the
    cells' edges. `split` is the variance that the grid adds at each loss, in units of ``interval**2`` and
    times the probability: it says how fine the grid is, and bounds nothing.
    """

    interval: float
    places: NDArray[np.int64]
    probs: Array
    infinite: float
    split: Array
    loss_error: float

    @property
    def losses(self) -> Array:
        """The losses of the grid."""
        return self.interval * self.places.astype(np.float64)


def _edges(low: float, high: float) -> NDArray[np.int64]:
    """Return edges of cells in grid steps, zero among them, from at most `low` to at least `high`."""

    def outwards(reach: float) -> NDArray[np.int64]:
        pieces, start, width = [], 0, 1
        while start < reach:
            end = _EVEN * width
            pieces.append(np.arange(start + width, end + 1, width, dtype=np.int64))
            start, width = end, 2 * width
        found = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
        return found[: np.searchsorted(found, reach) + 1]

    edges = np.concatenate([-outwards(max(-low, 1.0))[::-1], [0], outwards(max(high, 1.0))])
    return edges[np.searchsorted(edges, low, side="right") - 1 : np.searchsorted(edges, high) + 1]


def _normal_mass(low: Array, high: Array) -> Array:
    """Return the standard normal mass of ``[low, high]``, from the nearer tail."""
    flip = low > 0.0
    return special.ndtr(np.where(flip, -low, high)) - special.ndtr(np.where(flip, -high, low))


def _upper_mass(
    grid: Array, mass_p: Array, mass_q: Array, excess: Array, error: Array
) -> tuple[Array, Array]:
    """Return P - e^loss Q of cells, and a bound on its error.

    It is summed from `excess` (P - Q, with an error of at most `error`) and a multiple of Q or P: no term is
    larger than P or e^loss Q.
    """
    size = np.expm1(np.abs(grid))
    other = np.where(grid >= 0.0, -size * mass_q, size * mass_p)
    scale = np.exp(np.minimum(grid, 0.0))
    return scale * (excess + other), scale * (np.abs(other) * MASS_ERROR + error)


@dataclass(frozen=True)
class GaussianPair:
    """Dominating pair of one Poisson-sampled Gaussian step.

    `sampling_prob` is in (0, 1]; `noise_multiplier` is in units of the bound on one record. Neighbours differ
    in one replaced record if `replace_one`, else in one record more or less.
    """

    sampling_prob: float
    noise_multiplier: float
    replace_one: bool = False

    @property
    def _distance(self) -> float:
        """How far apart the outermost components of P and Q lie: the sensitivity."""
        return sensitivity_factor("replace_one" if self.replace_one else "add_or_remove_one")

    @property
    def directions(self) -> tuple[bool, ...]:
        """The values of `reverse` that matter: both unless the pair is symmetric."""
        return (False,) if self.replace_one or self.sampling_prob == 1.0 else (False, True)

    def spread(self) -> float:
        r"""Return about the loss's standard deviation, :math:`kq\sqrt{e^{1/\sigma^2}-1}` (sensitivity k)."""
        # min: for little noise the far tail dominates the second moment, which says nothing of the bulk
        wide = self.sampling_prob * math.sqrt(math.expm1(min(self.noise_multiplier**-2, 4.0)))
        return self._distance * wide

    def _edges(self, tail: float) -> tuple[float, float]:
        """Return x below and above which every component has less than `tail`."""
        reach = -float(special.ndtri(tail)) * self.noise_multiplier
        return -float(self.replace_one) - reach, 1.0 + reach

    def _exponent(self, x: Any) -> tuple[Any, Any]:
        """Return the log-ratios of N(1) and of N(-1) to N(0) at x."""
        scale = self.noise_multiplier**-2
        return scale * (x - 0.5), scale * (-x - 0.5)

    def loss(self, x: float) -> float:
        """Return the privacy loss at x."""
        q = self.sampling_prob
        up, down = self._exponent(x)

        def log_mixture(y: float) -> float:
            if y > 1.0:
                return y + math.log(q + (1.0 - q) * math.exp(-y))
            shift = q * math.expm1(y)
            return math.log1p(shift) if shift > -1.0 else -math.inf

        return log_mixture(up) - (log_mixture(down) if self.replace_one else 0.0)

    def inverse_loss(self, loss: Array) -> Array:
        """Return the x at which the loss is reached; minus infinity where every loss is greater."""
        q, scale = self.sampling_prob, self.noise_multiplier**-2
        if self.replace_one:
            # qc (u - 1/u) = (1-q) (e^{L/2} - e^{-L/2}) for u = e^{x/s^2 - L/2}, c = e^{-1/(2 s^2)}
            log_ratio = 0.5 * scale + (math.log1p(-q) - math.log(q) if q < 1.0 else -math.inf)
            with np.errstate(divide="ignore"):
                log_sinh = log_ratio + np.log(np.abs(np.sinh(0.5 * loss)))
            far = log_sinh > 300.0
            value = np.where(far, log_sinh + math.log(2.0), np.arcsinh(np.exp(np.where(far, 0.0, log_sinh))))
            return (0.5 * loss + np.sign(loss) * value) / scale
        if q == 1.0:
            return loss / scale + 0.5
        shift = np.expm1(loss) / q
        inside = shift > -1.0
        logs = np.log1p(np.where(inside, shift, 0.0))
        return np.where(inside, logs / scale + 0.5, -math.inf)

    def range(self, tail: float) -> tuple[float, float]:
        """Return the least and the greatest loss, but for tails below `tail` or beyond `MAX_LOSS`."""
        low, high = self._edges(tail)
        return max(self.loss(low), -MAX_LOSS), min(self.loss(high), MAX_LOSS)

    def law(self, interval: float, *, tail: float, reverse: bool) -> LossLaw:
        """Return the privacy loss of (P, Q), or of (Q, P) if `reverse`, on a grid of step `interval`.

        What lies outside of `range(tail)` is rounded up: from below to the least loss, from above to
        infinity.
        """
        low, high = self.range(tail)
        places = _edges(low / interval, high / interval)
        grid = interval * places.astype(np.float64)
        widths = np.diff(grid)
        x = self.inverse_loss(grid)
        mass_p, mass_q, excess, error = self._cells(x)
        below, above = self._outside(x[0], x[-1])
        if reverse:
            # Q - e^{-b} P of a cell, whose loss is from -b to -a: this part goes to -a
            raw, wrong = _upper_mass(grid[1:], mass_p, mass_q, excess, error)
            flip = np.exp(-grid[1:])
            raw, wrong, mass = -flip * raw, flip * wrong, mass_q
        else:
            raw, wrong = _upper_mass(grid[:-1], mass_p, mass_q, excess, error)
            mass = mass_p
        upper = np.clip((raw + wrong) / -np.expm1(-widths), 0.0, mass)
        lower = mass - upper
        split = (widths / interval) ** 2 * lower * upper / np.where(mass > 0.0, mass, 1.0)
        probs, splits = np.zeros(len(grid)), np.zeros(len(grid))
        if reverse:
            probs[1:] += lower
            probs[:-1] += upper
            splits[:-1] = split
            probs[-1] += above[1]  # to the smallest loss, which is above its own
            probs, splits, places, infinite = probs[::-1], splits[::-1], -places[::-1], below[1]
        else:
            probs[:-1] += lower
            probs[1:] += upper
            splits[1:] = split
            probs[0] += below[0]
            infinite = above[0]
        return LossLaw(interval, places, probs, infinite, splits, self._loss_error(grid, x))

    def _components(self) -> list[tuple[float, float, float]]:
        """Return the components (shift, weight in P, weight in Q)."""
        q = self.sampling_prob
        if self.replace_one:
            return [(0.0, 1.0 - q, 1.0 - q), (1.0, q, 0.0), (-1.0, 0.0, q)]
        return [(0.0, 1.0 - q, 1.0), (1.0, q, 0.0)]

    def _outside(self, low: float, high: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the (P, Q) masses below `low` and above `high`."""
        below, above = [0.0, 0.0], [0.0, 0.0]
        for shift, *weights in self._components():
            for i, weight in enumerate(weights):
                below[i] += weight * float(special.ndtr((low - shift) / self.noise_multiplier))
                above[i] += weight * float(special.ndtr((shift - high) / self.noise_multiplier))
        return (below[0], below[1]), (above[0], above[1])

    def _cells(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Return P, Q and P - Q of the cells between edges, and a bound on the error of the last."""
        q, sigma = self.sampling_prob, self.noise_multiplier
        low, high = x[:-1] / sigma, x[1:] / sigma
        far = np.maximum(np.abs(low), np.abs(high)) + 1.0 / sigma
        width = np.where(np.isfinite(low), high - np.where(np.isfinite(low), low, 0.0), math.inf)
        narrow = width * np.maximum(far, 1.0) <= 0.5
        mass_p, mass_q, excess, error = (np.zeros(len(low)) for _ in range(4))

        wide = ~narrow
        for shift, in_p, in_q in self._components():
            mass = _normal_mass((x[:-1][wide] - shift) / sigma, (x[1:][wide] - shift) / sigma)
            mass_p[wide] += in_p * mass
            mass_q[wide] += in_q * mass
            # 1 - q is not rounded in the difference
            excess[wide] += (-q if shift == 0.0 and not self.replace_one else in_p - in_q) * mass
            error[wide] += (in_p + in_q) * mass if shift else q * mass * (not self.replace_one)
        error[wide] *= MASS_ERROR

        half = 0.5 * (high - low)[narrow, None]
        t = 0.5 * (high + low)[narrow, None] + half * _NODES
        weight = half * _WEIGHTS * np.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)
        up, down = self._exponent(sigma * t)
        above = weight * q * np.exp(up)
        rest = weight * (1.0 - q)
        mass_p[narrow] = (rest + above).sum(axis=1)
        if self.replace_one:
            mass_q[narrow] = (rest + weight * q * np.exp(down)).sum(axis=1)
            # e^up - e^down, without the difference where it would cancel
            near = np.abs(t) < 30.0 * sigma
            sinh = 2.0 * math.exp(-0.5 / sigma**2) * np.sinh(np.where(near, t / sigma, 0.0))
            terms = weight * q * np.where(near, sinh, np.exp(up) - np.exp(down))
        else:
            mass_q[narrow] = weight.sum(axis=1)
            terms = weight * q * np.expm1(up)
        excess[narrow] = terms.sum(axis=1)
        error[narrow] = MASS_ERROR * np.abs(terms).sum(axis=1)
        return mass_p, mass_q, excess, error

    def _loss_error(self, grid: Array, x: Array) -> float:
        """Return how far rounding may move the loss at the edges off the grid."""
        finite = np.isfinite(x)
        x, grid = np.abs(x[finite]), grid[finite]
        q, scale = self.sampling_prob, self.noise_multiplier**-2
        own = np.abs(grid)
        if q == 1.0:
            slope: Array | float = self._distance * scale
        elif self.replace_one:  # the log of a sinh, which is exact in relative terms near zero
            slope = self._distance * scale
            own = own + (own + 0.5 * scale - math.log(q)) * np.minimum(scale * x + own, 1.0)
        else:  # exp(L) - (1 - q) cancels near the least loss
            own = own * np.maximum(1.0, np.exp(-grid))
            # the posterior probability of having been in the batch
            slope = scale * np.minimum(q * np.exp(np.minimum(scale * x - grid, 50.0)), 1.0)
        return 16.0 * _UNIT * float(np.max(own + slope * (x + 1.0), initial=0.0))


@dataclass(frozen=True)
class FixedSizePair:
    """Dominating curve of a Gaussian step on a batch of fixed size, under replace-one.

    By Proposition 30 of Zhu, Dong and Wang (2022) it is, at every real epsilon, the larger one of the curves
    of the Poisson pair (P, Q) and of (Q, P), with q = B/N and the noise relative to the sensitivity 2C. For
    epsilon >= 0 that is the first. Below it is the second, whose loss is the mirror image
    (docs/accounting.md, section 2).
    """

    sampling_prob: float
    noise_multiplier: float

    @property
    def _pair(self) -> GaussianPair:
        return GaussianPair(self.sampling_prob, self.noise_multiplier / sensitivity_factor("replace_one"))

    @property
    def directions(self) -> tuple[bool, ...]:
        """The only value of `reverse` that matters: the curve is symmetric."""
        return (False,)

    def spread(self) -> float:
        """Return about the standard deviation of the loss."""
        return self._pair.spread()

    def range(self, tail: float) -> tuple[float, float]:
        """Return the least and the greatest loss, but for less than `tail` at each end."""
        high = self._pair.range(tail)[1]
        return -high, high

    def law(self, interval: float, *, tail: float, reverse: bool) -> LossLaw:
        """Return the privacy loss on the grid; see `GaussianPair.law`."""
        one = self._pair.law(interval, tail=tail, reverse=False)
        positive = one.places > 0
        places, right, splits = one.places[positive], one.probs[positive], one.split[positive]
        shrink = np.exp(-interval * places)
        left = right * shrink
        # All probabilities sum to one; MASS_ERROR is for the errors of the others
        zero = max(1.0 - float(left.sum()) - float(right.sum()) - one.infinite, 0.0) + MASS_ERROR
        split = np.concatenate([(splits * shrink)[::-1], one.split[one.places == 0], splits])
        probs = np.concatenate([left[::-1], [zero], right])
        both = np.concatenate([-places[::-1], [0], places])
        return LossLaw(interval, both, probs, one.infinite, split, one.loss_error)
