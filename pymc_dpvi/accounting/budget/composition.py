r"""How the costs of several fits on the same data add up, when each may be chosen after seeing the last.

A *filter* (Rogers, Roth, Ullman and Vadhan 2016, arXiv:1605.08294, section 3) admits or refuses the next
charge such that the whole transcript is (ε, δ)-private, however the analyst chooses. There are two filters.
**Basic composition**, in this module, admits a charge if, with it,

.. math:: \sum_t\varepsilon_t \le \varepsilon \quad\text{and}\quad \sum_t\delta_t \le \delta .

Each fit's own (ε, δ) may come from any proven accountant. Proof: docs/accounting.md, section 5. The other
filter is in `renyi_filter`. Privacy loss distributions must never be added up across fits: that proves
nothing for costs that are chosen after seeing results (Regehr et al. 2026, arXiv:2602.15815).

**Arithmetic.** Sums and comparisons are exact. A float stands for the decimal that Python writes for it,
which was typed and which the ledger shows: 0.1 is one tenth, and ten times 0.1 fits into 1. (The binary value
differs by at most a relative :math:`2^{-53}`, far less than the margin of any accountant here.)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

from pymc_dpvi.accounting.accountants import ACCOUNTANT_NAMES
from pymc_dpvi.accounting.budget.charge import Charge
from pymc_dpvi.accounting.budget.ledger_table import rounded
from pymc_dpvi.accounting.calibration import max_steps, noise_multiplier
from pymc_dpvi.accounting.events import EventSampler
from pymc_dpvi.errors import ArgumentError, CalibrationError

__all__ = ["BasicComposition", "Composition", "EpsilonDelta", "RefusedError", "decimal", "float_at_most"]


class EpsilonDelta(NamedTuple):
    """A pair (epsilon, delta)."""

    epsilon: float
    delta: float


class RefusedError(Exception):
    """A charge does not fit; carries the charge and the ledger that it was compared with."""

    def __init__(self, charges: tuple[Charge, ...], charge: Charge) -> None:
        super().__init__()
        self.charges = charges
        self.charge = charge


def decimal(value: float) -> Fraction:
    """Return the number that Python writes for `value`, exactly."""
    return Fraction(repr(float(value)))


def float_at_most(value: Fraction) -> float:
    """Return the largest float whose :func:`decimal` is at most `value`, which is not negative."""
    found = float(value)
    while decimal(found) > value:
        found = math.nextafter(found, 0.0)
    return found


class Composition(Protocol):
    """A rule by which charges add up."""

    @property
    def title(self) -> str:
        """Name for people."""

    def priced(self, charge: Charge, sampler: EventSampler | None) -> Charge:
        """Return `charge` with the costs that the rule adds up."""

    def admits(self, charges: Sequence[Charge]) -> bool:
        """Whether all these charges together are within the budget."""

    def used(self, charges: Sequence[Charge]) -> float:
        """Fraction of the budget that the charges use."""

    def advice(self, charges: Sequence[Charge], refused: Charge, sampler: EventSampler | None) -> str:
        """Say what is left and what would fit in place of `refused`."""

    def summary(self, charges: Sequence[Charge]) -> list[str]:
        """Return the lines below the ledger."""


@dataclass(frozen=True)
class BasicComposition:
    """Epsilons and deltas are summed."""

    epsilon: float
    delta: float
    title = "basic composition"

    def left(self, charges: Sequence[Charge]) -> tuple[Fraction, Fraction]:
        """Return epsilon and delta minus what was charged, exactly."""
        epsilon = decimal(self.epsilon) - sum((decimal(c.epsilon) for c in charges), Fraction(0))
        delta = decimal(self.delta) - sum((decimal(c.delta) for c in charges), Fraction(0))
        return epsilon, delta

    def remaining(self, charges: Sequence[Charge]) -> EpsilonDelta:
        """Return what is left, rounded down."""
        return EpsilonDelta(*map(float_at_most, self.left(charges)))

    def priced(self, charge: Charge, sampler: EventSampler | None) -> Charge:
        """Return `charge` as it is."""
        return charge

    def admits(self, charges: Sequence[Charge]) -> bool:
        """Whether all these charges together are within the budget."""
        return min(self.left(charges)) >= 0

    def used(self, charges: Sequence[Charge]) -> float:
        """Fraction of epsilon or of delta that is used, the larger of the two."""
        epsilon, delta = self.left(charges)
        return float(1 - min(epsilon / decimal(self.epsilon), delta / decimal(self.delta)))

    def advice(self, charges: Sequence[Charge], refused: Charge, sampler: EventSampler | None) -> str:
        """Say what is left, and how many steps, or what noise, it pays for."""
        epsilon, delta = self.remaining(charges)
        said = f"What is left is epsilon={epsilon!r} and delta={delta!r}"
        if epsilon <= 0.0 or delta <= 0.0:
            return f"{said}: it is used up."
        ways = _ways(epsilon, min(delta, refused.delta), refused, sampler)
        return f"{said}; use these, or less." + (f" That pays for {', or for '.join(ways)}." if ways else "")

    def summary(self, charges: Sequence[Charge]) -> list[str]:
        """Return what is spent and what is left."""
        left = self.left(charges)
        spent = (decimal(self.epsilon) - left[0], decimal(self.delta) - left[1])
        return [
            f"spent: epsilon {rounded(spent[0], up=True)}, delta {rounded(spent[1], up=True)}",
            f"left: epsilon {rounded(left[0], up=False)}, delta {rounded(left[1], up=False)}",
        ]


def _ways(epsilon: float, delta: float, refused: Charge, sampler: EventSampler | None) -> list[str]:
    """Return the runs like the refused one that (epsilon, delta) pays for, by its own accountant."""
    noise, n_steps = refused.noise_multiplier, refused.n_steps
    if sampler is None or noise is None or n_steps is None or refused.accountant not in ACCOUNTANT_NAMES:
        return []
    common: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "sampler": sampler,
        "neighboring_relation": refused.neighboring_relation,
        "accountant": refused.accountant,
        "allow_unproven": True,  # the budget has checked the accountant
    }
    at = f"at delta={delta!r} and sampling_prob={sampler.sampling_prob:g}"
    ways = []
    with contextlib.suppress(ArgumentError, CalibrationError):  # out of the range of calibration
        ways.append(
            f"n <= {max_steps(noise_multiplier=noise, **common)} steps with noise_multiplier={noise!r} {at}"
        )
    with contextlib.suppress(ArgumentError, CalibrationError):
        ways.append(
            f"n={n_steps} steps with noise_multiplier >= {noise_multiplier(n_steps=n_steps, **common)!r}"
        )
    return ways
