r"""One-sided inversion of a decreasing and of an increasing function.

Epsilon falls with the noise and with delta and rises with the number of steps, nearly as a power of each. So
a secant step in :math:`(\ln x, \ln\varepsilon)` is nearly right; it is kept inside the bracket that earlier
evaluations prove. Only what was evaluated, and met the target, is returned: a wrong guess costs time, nothing
else.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["RELATIVE_TOLERANCE", "largest_integer", "least_number"]

RELATIVE_TOLERANCE = 1e-3
_MAX_EVALUATIONS = 80
_JUMP = 1e-5  # in ln(x): the search ends here where epsilon jumps across the target


class _Secant:
    """The last points of ln(epsilon) against ln(x)."""

    def __init__(self, target: float, slope: float) -> None:
        self._aim = math.log(target)
        self._slope = slope  # until there are two points
        self._points: list[tuple[float, float]] = []

    def add(self, x: float, found: float) -> None:
        """Remember a point whose epsilon has a logarithm."""
        if 0.0 < found < math.inf:
            self._points.append((x, math.log(found)))

    def guess(self) -> float:
        """Return about the ln(x) at which the target is met, or nan."""
        if not self._points:
            return math.nan
        x1, y1 = self._points[-1]
        slope = self._slope
        if len(self._points) > 1 and self._points[-2][0] != x1:
            slope = (self._points[-2][1] - y1) / (self._points[-2][0] - x1)
        if slope / self._slope < 0.05:  # flat, or of the wrong sign
            return math.nan
        return x1 + (self._aim - y1) / slope


def least_number(
    evaluate: Callable[[float], float], target: float, *, start: float, low: float, high: float
) -> float | None:
    """Return a number with epsilon in [target (1 - tolerance), target], or None if `high` does not meet it.

    `evaluate` gives epsilon as a function of the noise or of delta, and does not increase; `start` is a
    guess. The result was evaluated. It may be `low` with an epsilon further below the target, or lie just
    above a jump of epsilon across the target.
    """
    floor, ceiling = math.log(low), math.log(high)

    def number_at(x: float) -> float:  # rounding must not lead past the bounds
        return low if x <= floor else high if x >= ceiling else math.exp(x)

    secant = _Secant(target * (1.0 - 0.4 * RELATIVE_TOLERANCE), -1.0)
    bad, good = math.nan, math.nan  # logarithms: too small, and large enough
    x = math.log(min(max(start, low), high))
    for count in range(_MAX_EVALUATIONS):
        found = evaluate(number_at(x))
        if found <= target:
            if found >= target * (1.0 - RELATIVE_TOLERANCE) or x <= floor:
                return number_at(x)
            good = x
        else:
            if x >= ceiling:
                return None
            bad = x
        secant.add(x, found)
        if good - bad < _JUMP:
            return number_at(good)
        halve = count > 12 and count % 2 == 1  # a secant that converges needs no more
        x = min(max(_next(secant.guess(), bad, good, halve=halve), floor), ceiling)
    return None if math.isnan(good) else number_at(good)


def _next(guess: float, bad: float, good: float, *, halve: bool) -> float:
    """Return the next logarithm: a secant step if it stays in the bracket, else a halving."""
    if not math.isnan(bad) and not math.isnan(good):
        margin = 1e-3 * (good - bad)
        return guess if bad + margin < guess < good - margin and not halve else 0.5 * (bad + good)
    if math.isnan(good):  # none is enough yet: go up, at most tenfold
        return min(max(guess, bad + 1e-4), bad + 2.3) if not math.isnan(guess) else bad + 1.0
    return max(min(guess, good - 1e-4), good - 2.3) if not math.isnan(guess) else good - 1.0


def largest_integer(
    evaluate: Callable[[int], float], target: float, *, start: float, high: int
) -> int | None:
    """Return an n with evaluate(n) <= target < evaluate(n + 1), or `high`, or None if 1 is too many.

    `evaluate` gives epsilon as a function of the number of steps; `start` is a guess. If `evaluate` does not
    increase throughout, several n may fit, and one of them is returned.
    """
    secant = _Secant(target, 0.5)  # epsilon grows about as the root of n
    good, bad = 0, high + 1  # no step costs nothing
    n = round(min(max(start, 1.0), float(high)))
    stride, before = 1, None
    for count in range(4 * _MAX_EVALUATIONS):
        found = evaluate(n)
        meets = found <= target
        good, bad = (n, bad) if meets else (good, n)
        if bad - good == 1:
            break
        secant.add(math.log(n), found)
        guess = secant.guess()
        # Next: just beyond the guess, to bracket it; twice as far beyond while the verdict stays the same.
        stride = 2 * stride if meets is before else 1
        wish = math.nan if math.isnan(guess) else math.floor(math.exp(min(guess, 40.0)))
        if (good and count % 4 == 3) or not good - stride <= wish <= bad + stride:
            n = math.isqrt(max(good, 1) * bad)
        else:
            n = max(int(wish) + 1, good + stride) if meets else min(int(wish), bad - stride)
        before = meets
        n = min(max(n, good + 1), bad - 1)
    return good or None
