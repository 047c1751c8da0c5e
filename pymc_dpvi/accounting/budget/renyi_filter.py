r"""A Rényi filter: many small fits, chosen adaptively, for less than the sum of their epsilons.

Notation as in `composition`. Let :math:`\rho_t(\alpha)` bound the Rényi divergence of order
:math:`\alpha > 1` of step :math:`t` in both directions, and :math:`L = \sum_t \ell_t` be the privacy loss of
the transcript under :math:`P`. Given the history, :math:`E_P[e^{(\alpha-1)\ell_t}] \le
e^{(\alpha-1)\rho_t(\alpha)}`, so that :math:`\exp\{(\alpha-1)\sum_{s\le t}(\ell_s-\rho_s(\alpha))\}` is a
supermartingale that starts at 1. Hence

.. math:: \sum_t \rho_t(\alpha) \le B \text{ surely} \implies E_P[e^{(\alpha-1)L}] \le e^{(\alpha-1)B}

(Feldman and Zrnic 2021, arXiv:2008.11193v4, Theorem 3.1; their Theorem 4.3 is the filter at one order).
Here a step is one noisy sum. The steps that are run, in whatever order fits interleave and wherever they
stop early, are among those that were charged, so that the sum over steps is at most the ledger's.

For real :math:`x`, :math:`(1-e^{\varepsilon-x})_+ \le \kappa_\alpha e^{(\alpha-1)(x-\varepsilon)}` with
:math:`\kappa_\alpha = \frac1\alpha(1-\frac1\alpha)^{\alpha-1}` (the maximum is at
:math:`e^{\varepsilon - x} = 1-\frac1\alpha`), and :math:`\sup_S P(S) - e^\varepsilon Q(S) =
E_P[(1-e^{\varepsilon-L})_+]`. So :math:`B` proves δ' at ε for

.. math:: B_\alpha(\delta') = \varepsilon + \frac{\ln\delta' + \ln\alpha}{\alpha-1} - \ln(1-\tfrac1\alpha)

(the conversion of Canonne, Kamath and Steinke 2020, solved for :math:`B`).

With orders :math:`\alpha_1,\dots,\alpha_k`, fixed when the budget is made, a charge is admitted if *some*
order :math:`j` has :math:`\sum_t\rho_t(\alpha_j) \le B_j = B_{\alpha_j}(\delta/k)` with it. *Claim:* the
transcript is (ε, δ)-private. Let :math:`L^{(j)}` be the loss of the transcript that is cut before the first
admitted charge that takes order :math:`j` beyond :math:`B_j`; whether to cut is known from the history before
that charge, so that the cut transcript is itself an adaptive one with :math:`\sum\rho(\alpha_j) \le B_j`
surely, and :math:`E_P[(1-e^{\varepsilon-L^{(j)}})_+] \le \delta/k`. At the end some order is within its
bound, because the last admitted charge had one and sums only grow. Let :math:`J` be the first such order, a
function of the transcript. On :math:`J=j` nothing was cut, :math:`L=L^{(j)}`, and

.. math:: E_P[(1-e^{\varepsilon-L})_+] = \sum_j E_P[(1-e^{\varepsilon-L})_+ 1_{J=j}]
          \le \sum_j E_P[(1-e^{\varepsilon-L^{(j)}})_+] \le \delta. \qquad ∎

The factor :math:`1/k` is the price of choosing the order after the fact; with one order there is none.
The orders are whole numbers, for which the Rényi divergence of a Poisson-sampled Gaussian is a finite sum.

A single fit is charged more here than its own accountant says, so that the filter pays from a few fits on. A
budget of (1, 1e-6) admits 20 fits of (0.05, 1e-8) by basic composition and more than 360 by the filter
(sampling probability 0.01, 500 steps; `tests/accounting/test_budget.py`).

**Arithmetic.** Divergences are rounded up by a relative :math:`10^{-12}`, bounds down by 1e-13, and added
and compared exactly.
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
_MOST_NOISE = 1e6  # above it nothing is left that a message could recommend
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
    """Return an upper bound of the Rényi divergence of a run, at each order.

    Parameters
    ----------
    orders : sequence of int
    sampler : EventSampler
    noise_multiplier : float
        Noise standard deviation divided by `l2_clip_norm`.
    n_steps : int
    neighboring_relation : dp_accounting.NeighboringRelation

    Returns
    -------
    tuple of float
        Infinite where no finite bound was found.

    Raises
    ------
    UnsupportedEventError
        If Rényi DP has no proven bound for the sampler and relation.
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
    """Rényi divergences are summed at each order; some order must stay within its bound.

    Parameters
    ----------
    orders : tuple of int
    bounds : tuple of float
        One for each order; an order whose bound is not positive admits nothing.
    """

    orders: tuple[int, ...]
    bounds: tuple[float, ...]
    title = "Rényi filter"

    @classmethod
    def make(cls, epsilon: float, delta: float, orders: Sequence[int] | None) -> RenyiFilter:
        """Return the filter of a budget (epsilon, delta); by default with :meth:`default_orders`.

        Raises
        ------
        ArgumentError
            If the orders are no whole numbers of at least 2, or admit nothing.
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

        For many small fits the divergence is nearly proportional to the order, as that of a Gaussian, and
        the order that admits most is known beforehand: the one that maximises the bound divided by the
        order. A second, smaller one is there for little noise, where the divergence of a sampled Gaussian
        grows faster than that from some order on.
        """
        share = delta / len(_DEFAULT_SPREAD)
        grid = sorted({min(MAX_ORDER, max(2, round(1.02**i))) for i in range(584)})
        centre = max(grid, key=lambda order: _bound(epsilon, share, order) / order)
        return tuple(sorted({max(2, round(1 + (centre - 1) * part)) for part in _DEFAULT_SPREAD}))

    def priced(self, charge: Charge, sampler: EventSampler | None) -> Charge:
        """Return `charge` with its Rényi divergences.

        Raises
        ------
        ArgumentError
            If the charge does not say what was run.
        """
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
        """Return what is left at each order, exactly; negative where the order is used up."""
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
        """Fraction of the bound that is used, at the order where it is least."""
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
    """Return the largest whole number below `limit` that fits, or 0; `limit` does not."""
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _smallest(fits: Callable[[float], bool], start: float) -> float | None:
    """Return about the smallest number above `start` that fits, with five decimals; None if there is none."""
    low = high = start
    while not fits(high):
        low, high = high, 2.0 * high
        if high > _MOST_NOISE:
            return None
    while high > low * (1.0 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return math.ceil(high * 1e5) / 1e5
