"""A run, and its cost by an accountant: the function that calibration inverts.

A *run* is `n_steps` equal steps with one sampler and one noise multiplier. :class:`Run` passes it to an
accountant and checks the answer. Answers are remembered: a fit asks again for what calibration has evaluated.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation, PrivacyAccountant
from dp_accounting.pld import PLDAccountant

from pymc_dpvi.accounting.accountants import AccountantInfo
from pymc_dpvi.accounting.events import EventSampler, step_event
from pymc_dpvi.arguments import check_integer, check_number
from pymc_dpvi.errors import ArgumentError, CalibrationError
from pymc_dpvi.sampling import SAMPLER_NAMES, FixedSizeSampler, FullBatchSampler, PoissonSampler

__all__ = [
    "MAX_NOISE_MULTIPLIER",
    "MAX_STEPS",
    "MIN_NOISE_MULTIPLIER",
    "MIN_SAMPLING_PROB",
    "Run",
    "check_noise",
    "check_sampler",
    "check_steps",
]

MAX_STEPS = 10_000_000
MAX_NOISE_MULTIPLIER = 1e8
MIN_NOISE_MULTIPLIER = 0.05
"""Noise below this has an epsilon in the hundreds for one step on the full data."""
MIN_SAMPLING_PROB = 1e-6

_PLD_MIN_DELTA = 1e-10  # below it dp-accounting's PLD accountants under-report
_LARGEST_DENOMINATOR = 10**9


def check_noise(value: Any) -> float:
    """Return a noise multiplier in its range, or raise an ArgumentError."""
    return check_number(
        "noise_multiplier",
        value,
        low=MIN_NOISE_MULTIPLIER,
        high=MAX_NOISE_MULTIPLIER,
        closed_low=True,
        closed_high=True,
    )


def check_steps(value: Any) -> int:
    """Return a number of steps in its range, or raise an ArgumentError."""
    return check_integer("n_steps", value, high=MAX_STEPS)


def check_sampler(sampler: Any, sampling_prob: Any, *, by_rate: bool = False) -> EventSampler:
    """Return the sampler that the arguments describe; an ArgumentError if they describe none or two.

    With `by_rate` they come from a report, which states no number of records: ``"fixed_size"`` is given by
    `sampling_prob`, and `sampling_prob` may be below 1e-6. A fit knows the number of records, and uses
    `sampling.make_sampler`.
    """

    def check(name: str, value: Any) -> float:
        low = 0.0 if by_rate else MIN_SAMPLING_PROB
        return check_number(name, value, low=low, high=1.0, closed_low=not by_rate, closed_high=True)

    if not isinstance(sampler, str) and hasattr(sampler, "dp_event") and hasattr(sampler, "sampling_prob"):
        found = check("sampler.sampling_prob", sampler.sampling_prob)
        if sampling_prob is not None and check("sampling_prob", sampling_prob) != found:
            raise ArgumentError(
                f"sampling_prob={sampling_prob:g} contradicts the sampler's own; leave it out."
            )
        return sampler  # type: ignore[no-any-return]
    if not isinstance(sampler, str) or sampler not in SAMPLER_NAMES:
        names = "'poisson', 'full_batch'" + (", 'fixed_size'" if by_rate else "")
        raise ArgumentError(
            f"sampler must be {names} or a sampler of pymc_dpvi.sampling; found "
            f"{sampler if isinstance(sampler, str) else type(sampler).__name__!r}."
        )
    if sampler == "full_batch":
        if by_rate and sampling_prob is not None:
            check("sampling_prob", sampling_prob)
        if sampling_prob is not None and sampling_prob != 1:
            raise ArgumentError(
                "sampler='full_batch' uses every record in every step: leave out "
                "sampling_prob, or use sampler='poisson'."
            )
        return FullBatchSampler()
    if sampler == "fixed_size" and not by_rate:
        raise ArgumentError(
            "sampler='fixed_size' needs the batch size and the number of records: pass "
            "sampler=pymc_dpvi.sampling.FixedSizeSampler(batch_size, num_records)."
        )
    if sampling_prob is None:
        interval = "(0, 1]" if by_rate else "[1e-6, 1]"
        raise ArgumentError(f"sampler={sampler!r} needs sampling_prob, in {interval}.")
    prob = check("sampling_prob", sampling_prob)
    if sampler == "poisson":
        return PoissonSampler(prob)
    if sampler != "fixed_size":
        raise NotImplementedError(f"sampler {sampler!r} has a name and no way to be accounted for")
    return _fixed_size(prob)


def _fixed_size(rate: float) -> FixedSizeSampler:
    """Return a sampler whose batch is `rate` of the records, or just above: only that ratio has a cost."""
    ratio = Fraction(rate).limit_denominator(_LARGEST_DENOMINATOR)
    if float(ratio) != rate:  # no such ratio of whole numbers: the next larger one
        ratio = Fraction(math.ceil(Fraction(rate) * _LARGEST_DENOMINATOR), _LARGEST_DENOMINATOR)
    return FixedSizeSampler(ratio.numerator, ratio.denominator)


@dataclass(frozen=True)
class Run:
    """Steps whose number, noise and sampler are fixed; an ArgumentError if a number is out of range.

    Relation and accountant are given to the methods. Unlike a `PrivacyRun` (in a report) and a `Charge` (in a
    ledger), a run states no cost.
    """

    sampler: EventSampler
    noise_multiplier: float
    n_steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", check_noise(self.noise_multiplier))
        object.__setattr__(self, "n_steps", check_steps(self.n_steps))

    @classmethod
    def from_names(cls, *, sampler: Any, sampling_prob: Any, noise_multiplier: float, n_steps: int) -> Run:
        """Return the run that a report states; an ArgumentError if it states none."""
        return cls(check_sampler(sampler, sampling_prob, by_rate=True), noise_multiplier, n_steps)

    def step_event(
        self, accountant: PrivacyAccountant, relation: NeighboringRelation
    ) -> dp_accounting.DpEvent:
        """Return the event of one step, in the convention of `accountant`."""
        return step_event(
            sampler=self.sampler,
            noise_multiplier=self.noise_multiplier,
            neighboring_relation=relation,
            accountant=accountant,
        )

    def epsilon(self, delta: float, info: AccountantInfo, relation: NeighboringRelation) -> float:
        """Return epsilon at `delta`; may be infinite."""
        ask = _epsilon_cached if info.cacheable else _epsilon
        return ask(info, relation, self.step_event(info.make(relation), relation), self.n_steps, delta)

    def delta(self, epsilon: float, info: AccountantInfo, relation: NeighboringRelation) -> float:
        """Return delta at `epsilon`."""
        event = self.step_event(info.make(relation), relation)
        accountant = info.make(relation).compose(event, self.n_steps)
        found = float(accountant.get_delta(epsilon))
        if not 0.0 <= found <= 1.0 + 1e-9:
            raise CalibrationError(_NOT_A_NUMBER.format("delta", info.name, self.n_steps))
        if isinstance(accountant, PLDAccountant):  # a user's own
            found = max(found, _PLD_MIN_DELTA)
        return min(found, 1.0)


_NOT_A_NUMBER = (
    "{0} of accountant {1!r} for n_steps={2} is not a number in its range. Use accountant='pld' or 'rdp'."
)


def _epsilon(
    info: AccountantInfo,
    relation: NeighboringRelation,
    event: dp_accounting.DpEvent,
    n_steps: int,
    delta: float,
) -> float:
    accountant = info.make(relation)
    if isinstance(accountant, PLDAccountant) and delta < _PLD_MIN_DELTA:  # a user's own
        raise ArgumentError(
            f"delta={delta:g} is below {_PLD_MIN_DELTA:g}, where dp-accounting's PLD accountants "
            "under-report (rounding in their FFT). Use accountant='pld', this package's own, or a larger "
            "delta."
        )
    found = float(accountant.compose(event, n_steps).get_epsilon(delta))
    if math.isnan(found) or found < 0.0:
        raise CalibrationError(_NOT_A_NUMBER.format("epsilon", info.name, n_steps))
    return found


# A fit asks again for what calibration has evaluated.
_epsilon_cached = functools.lru_cache(maxsize=512)(_epsilon)
