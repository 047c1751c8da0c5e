r"""A Rényi filter: many small fits, chosen adaptively, for less than the sum of their epsilons.

Let :math:`\rho_t(\alpha)` bound the Rényi divergence of order :math:`\alpha` of charge :math:`t`, in both
directions. With orders :math:`\alpha_1,\dots,\alpha_k`, fixed when the budget is made, a charge is admitted
if, with it, *some* order has

.. math:: \sum_t\rho_t(\alpha_j) \le B_{\alpha_j}(\delta/k), \qquad
    B_\alpha(\delta') = \varepsilon + \frac{\ln\delta' + \ln\alpha}{\alpha-1} - \ln(1-\tfrac1\alpha) .

Then the transcript is (ε, δ)-private (Feldman and Zrnic 2021, arXiv:2008.11193v4, Theorems 3.1 and 4.3,
extended to several orders; the conversion is that of Canonne, Kamath and Steinke 2020). Proof:
docs/accounting.md, section 6. The factor :math:`1/k` is the price of choosing the order after the fact.
Orders are whole numbers, for which the divergence of a Poisson-sampled Gaussian is a finite sum.

A single fit is charged more here than its own accountant says; the filter is better from a few fits on. A
budget of (1, 1e-6) admits 20 fits of (0.05, 1e-8) by basic composition and more than 360 by the filter
(sampling probability 0.01, 500 steps; `tests/accounting/test_budget.py`).

**Arithmetic.** Divergences are rounded up by a relative :math:`10^{-12}` and bounds down by :math:`10^{-13}`;
sums and comparisons are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation

from pymc_dpvi.accounting.accountants import make_accountant
from pymc_dpvi.accounting.budget.charge import Charge
from pymc_dpvi.accounting.budget.ledger_table import rounded
from pymc_dpvi.accounting.events import EventSampler, step_event
from pymc_dpvi.accounting.papers.rdp import rdp_curve
from pymc_dpvi.accounting.relations import check_relation
from pymc_dpvi.arguments import check_integer
from pymc_dpvi.errors import ArgumentError

__all__ = ["RenyiFilter", "renyi_cost"]

MAX_ORDER = 100_000
_MOST_NOISE = 1e6  # a message recommends no more than this
_DEFAULT_SPREAD = (0.6, 1.0)
_ROUND_UP = 1.0 + 1e-12


def renyi_cost(
    orders: Sequence[int],
    *,
    sampler: EventSampler,
    noise_multiplier: float,
    n_steps: int,
    neighboring_relation: NeighboringRelation,
) -> tuple[float, ...]:
    """Return upper bounds of the Rényi divergence of a run at each order; infinite where none was found.

    Raises an UnsupportedEventError if Rényi DP has no proven bound for the sampler and relation.
    """
    step = step_event(
        sampler=sampler,
        noise_multiplier=noise_multiplier,
        neighboring_relation=neighboring_relation,
        accountant=make_accountant("rdp", neighboring_relation=neighboring_relation),
    )
    curve = rdp_curve(dp_accounting.SelfComposedDpEvent(step, n_steps), orders, neighboring_relation)
    return tuple(float(value) * _ROUND_UP if value >= 0.0 else math.inf for value in curve)


def _bound(epsilon: float, delta: float, order: int) -> float:
    r"""Return :math:`B_\alpha(\delta)`, rounded down."""
    conversion = (math.log(delta) + math.log(order)) / (order - 1)
    shift = math.log1p(-1.0 / order)
    margin = 1e-13 * (epsilon + abs(conversion) + abs(shift))
    return epsilon + conversion - shift - margin


@dataclass(frozen=True)
class RenyiFilter:
    """Rényi divergences are summed at each order; at one order at least, the sum must stay within its bound.

    An order whose bound is not positive admits nothing.
    """

    orders: tuple[int, ...]
    bounds: tuple[float, ...]
    title = "Rényi filter"

    @classmethod
    def make(cls, epsilon: float, delta: float, orders: Sequence[int] | None) -> RenyiFilter:
        """Return the filter of a budget (epsilon, delta); by default with :meth:`default_orders`.

        Raises an ArgumentError if the orders are no whole numbers of at least 2, or admit nothing.
        """
        if orders is None:
            orders = cls.default_orders(epsilon, delta)
        elif isinstance(orders, str) or not isinstance(orders, Sequence) or not orders:
            raise ArgumentError("orders must be a sequence of whole numbers, such as [8, 16].")
        chosen = sorted({check_integer("orders", order, low=2, high=MAX_ORDER) for order in orders})
        bounds = [_bound(epsilon, delta / len(chosen), order) for order in chosen]
        if not any(bound > 0.0 for bound in bounds):
            raise ArgumentError(
                f"At orders {chosen} a Rényi filter of epsilon={epsilon:g} and delta={delta:g} admits "
                "nothing. Use composition='basic'" + (", or leave orders out." if orders else ".")
            )
        return cls(tuple(chosen), tuple(bounds))

    @staticmethod
    def default_orders(epsilon: float, delta: float) -> tuple[int, ...]:
        """Return the orders that are used when none are given.

        The divergence of many small fits is nearly proportional to the order, like a Gaussian's. So the order
        that admits most is about the one that maximises bound / order. The second, smaller order is for
        little noise, where the divergence of a sampled Gaussian grows faster from some order on.
        """
        share = delta / len(_DEFAULT_SPREAD)
        grid = sorted({min(MAX_ORDER, max(2, round(1.02**i))) for i in range(584)})
        centre = max(grid, key=lambda order: _bound(epsilon, share, order) / order)
        return tuple(sorted({max(2, round(1 + (centre - 1) * part)) for part in _DEFAULT_SPREAD}))

    def priced(self, charge: Charge, sampler: EventSampler | None) -> Charge:
        """Return `charge` with its Rényi divergences; an ArgumentError if it does not state the run."""
        if sampler is None or charge.n_steps is None or charge.noise_multiplier is None:
            raise ArgumentError(
                "A budget with composition='renyi_filter' charges Rényi divergences: give n_steps=, "
                "noise_multiplier= and sampler=. A release that is only known by its epsilon and delta needs "
                "a budget with composition='basic'."
            )
        return replace(charge, renyi=self._cost(charge, sampler))

    def _cost(self, charge: Charge, sampler: EventSampler) -> tuple[float, ...]:
        assert charge.n_steps is not None and charge.noise_multiplier is not None
        return renyi_cost(
            self.orders,
            sampler=sampler,
            noise_multiplier=charge.noise_multiplier,
            n_steps=charge.n_steps,
            neighboring_relation=check_relation(charge.neighboring_relation),
        )

    def left(self, charges: Sequence[Charge]) -> list[Fraction]:
        """Return what is left at each order, exactly; negative if the order is used up."""
        found = []
        for j, bound in enumerate(self.bounds):
            costs = [charge.renyi[j] for charge in charges]
            finite = all(map(math.isfinite, costs))
            found.append(Fraction(bound) - sum(map(Fraction, costs), Fraction(0)) if finite else Fraction(-1))
        return found

    def admits(self, charges: Sequence[Charge]) -> bool:
        """Whether some order is within its bound after all these charges."""
        return any(
            left >= 0 and bound > 0.0 for left, bound in zip(self.left(charges), self.bounds, strict=True)
        )

    def used(self, charges: Sequence[Charge]) -> float:
        """Return the fraction of the bound that is used, at the order where it is least."""
        shares = [
            float(1 - left / Fraction(bound))
            for left, bound in zip(self.left(charges), self.bounds, strict=True)
            if bound > 0.0 and left >= 0
        ]
        return min(shares, default=1.0)

    def advice(self, charges: Sequence[Charge], refused: Charge, sampler: EventSampler | None) -> str:
        """Say how many steps, or what noise, would fit in place of `refused`."""
        assert sampler is not None and refused.n_steps is not None and refused.noise_multiplier is not None

        def fits(**changed: Any) -> bool:
            trial = replace(refused, **changed)
            return self.admits([*charges, replace(trial, renyi=self._cost(trial, sampler))])

        ways = []
        if steps := _largest(lambda n: fits(n_steps=n), refused.n_steps):
            ways.append(f"n <= {steps} steps with noise_multiplier={refused.noise_multiplier!r}")
        noise = _smallest(lambda z: fits(noise_multiplier=z), refused.noise_multiplier)
        if noise is not None:
            ways.append(f"noise_multiplier >= {noise:.5f} with n={refused.n_steps} steps")
        if not ways:
            return "It is used up."
        return f"With sampling_prob={sampler.sampling_prob:g} there is room for {', or for '.join(ways)}."

    def summary(self, charges: Sequence[Charge]) -> list[str]:
        """Return how much is used."""
        used = rounded(Fraction(self.used(charges)), up=True)
        return [f"used: {used} of the bound on Rényi divergences (orders {', '.join(map(str, self.orders))})"]


def _largest(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest whole number below `limit`, which does not fit, that fits; 0 if none does."""
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _smallest(fits: Callable[[float], bool], start: float) -> float | None:
    """Return about the least number above `start` that fits, to five decimals; None if there is none."""
    low = high = start
    while not fits(high):
        low, high = high, 2.0 * high
        if high > _MOST_NOISE:
            return None
    while high > low * (1.0 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return math.ceil(high * 1e5) / 1e5
