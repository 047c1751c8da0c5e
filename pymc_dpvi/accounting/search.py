r"""One-sided inversion of a decreasing and of an increasing function.

Epsilon falls with the noise and with delta and rises with the number of steps, close to a power law in each.
So a secant step in :math:`(\ln x, \ln\varepsilon)` is nearly right. It is kept inside of the bracket that
evaluations have proven. Only what has been evaluated, and found to be at or below the target, is ever
returned: a wrong guess costs time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["RELATIVE_TOLERANCE", "largest_integer", "least_number"]

RELATIVE_TOLERANCE = 1e-3
_MAX_EVALUATIONS = 80
_JUMP = 1e-5  # of a logarithm: where epsilon jumps across the target, nearer is not sought


class _Secant:
    """The last points of ln(epsilon) against ln(x)."""

    def __init__(self, target: float, slope: float) -> None:
        self._aim = math.log(target)
        self._slope = slope  # until two points say better
        self._points: list[tuple[float, float]] = []

    def add(self, x: float, found: float) -> None:
        """Remember a point, if it has a logarithm."""
        if 0.0 < found < math.inf:
            self._points.append((x, math.log(found)))

    def guess(self) -> float:
        """Return where the target is met, or nan."""
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

    `evaluate` gives epsilon as a function of the noise or of delta, and does not increase. `start` is a
    guess. The result is a value that `evaluate` has seen: `low` if it meets the target, and where epsilon
    jumps across the target, the upper side of the jump.
    """
    floor, ceiling = math.log(low), math.log(high)

    def number_at(x: float) -> float:  # not an ulp outside of the bounds or beside them
        return low if x <= floor else high if x >= ceiling else math.exp(x)

    secant = _Secant(target * (1.0 - 0.4 * RELATIVE_TOLERANCE), -1.0)
    bad, good = math.nan, math.nan  # logs known to be too small, known to be enough
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
    if math.isnan(good):  # too little so far: go up, at most tenfold
        return min(max(guess, bad + 1e-4), bad + 2.3) if not math.isnan(guess) else bad + 1.0
    return max(min(guess, good - 1e-4), good - 2.3) if not math.isnan(guess) else good - 1.0


def largest_integer(
    evaluate: Callable[[int], float], target: float, *, start: float, high: int
) -> int | None:
    """Return an n with evaluate(n) <= target < evaluate(n + 1), or `high`, or None if 1 is too many.

    `evaluate` gives epsilon as a function of the number of steps. If it increases, there is one such n; else
    the one returned is still one. `start` is a guess.
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
        # Beside the guess, on the other side of it; further off while this does not change the verdict
        stride = 2 * stride if meets is before else 1
        wish = math.nan if math.isnan(guess) else math.floor(math.exp(min(guess, 40.0)))
        if (good and count % 4 == 3) or not good - stride <= wish <= bad + stride:
            n = math.isqrt(max(good, 1) * bad)
        else:
            n = max(int(wish) + 1, good + stride) if meets else min(int(wish), bad - stride)
        before = meets
        n = min(max(n, good + 1), bad - 1)
    return good or None
