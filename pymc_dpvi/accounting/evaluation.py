"""What an accountant says of a run: the function that calibration inverts.

A *run* is `n_steps` equal steps: sampler, noise multiplier, relation. :class:`Run` hands it to an accountant,
checks what comes back, and remembers it, because a fit asks again for what its calibration has found.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant

from pymc_dpvi.accounting.accountants import AccountantInfo
from pymc_dpvi.accounting.events import EventSampler, step_event
from pymc_dpvi.accounting.relations import sensitivity_factor
from pymc_dpvi.arguments import check_number
from pymc_dpvi.errors import ArgumentError, CalibrationError
from pymc_dpvi.sampling import FullBatchSampler, PoissonSampler

__all__ = ["MIN_SAMPLING_PROB", "Run", "check_sampler"]

MIN_SAMPLING_PROB = 1e-6

_PLD_MIN_DELTA = 1e-10  # below it dp-accounting's PLD accountants are not believed


def check_sampler(sampler: Any, sampling_prob: Any) -> EventSampler:
    """Return the sampler that the arguments describe.

    Parameters
    ----------
    sampler : str or Sampler
        ``"poisson"``, ``"full_batch"`` or a sampler of `pymc_dpvi.sampling`.
    sampling_prob : float or None
        Probability that a record is in a batch.

    Returns
    -------
    EventSampler

    Raises
    ------
    ArgumentError
        If they do not describe one, or contradict each other.
    """

    def check(name: str, value: Any) -> float:
        return check_number(name, value, low=MIN_SAMPLING_PROB, high=1.0, closed_low=True, closed_high=True)

    if isinstance(sampler, str):
        if sampler == "poisson":
            if sampling_prob is None:
                raise ArgumentError("sampler='poisson' needs sampling_prob, in [1e-6, 1].")
            return PoissonSampler(check("sampling_prob", sampling_prob))
        if sampler == "full_batch":
            if sampling_prob is not None and sampling_prob != 1:
                raise ArgumentError(
                    "sampler='full_batch' uses every record in every step: leave out "
                    "sampling_prob, or use sampler='poisson'."
                )
            return FullBatchSampler()
        if sampler == "fixed_size":
            raise ArgumentError(
                "sampler='fixed_size' needs the batch size and the number of records: pass "
                "sampler=pymc_dpvi.sampling.FixedSizeSampler(batch_size, num_records)."
            )
    elif hasattr(sampler, "dp_event") and hasattr(sampler, "sampling_prob"):
        found = check("sampler.sampling_prob", sampler.sampling_prob)
        if sampling_prob is not None and check("sampling_prob", sampling_prob) != found:
            raise ArgumentError(
                f"sampling_prob={sampling_prob:g} contradicts the sampler's own; leave it out."
            )
        return sampler  # type: ignore[no-any-return]
    raise ArgumentError(
        "sampler must be 'poisson', 'full_batch' or a sampler of pymc_dpvi.sampling; found "
        f"{sampler if isinstance(sampler, str) else type(sampler).__name__!r}."
    )


@dataclass(frozen=True)
class Run:
    """A run but for its noise and length, and who accounts for it.

    Parameters
    ----------
    info : AccountantInfo
        The accountant.
    sampler : EventSampler
        How batches are drawn.
    relation : dp_accounting.NeighboringRelation
        The relation.
    """

    info: AccountantInfo
    sampler: EventSampler
    relation: NeighboringRelation

    @property
    def sensitivity(self) -> float:
        """How far one record moves the sum, in units of its bound."""
        return sensitivity_factor(self.relation)

    def epsilon(self, *, noise_multiplier: float, n_steps: int, delta: float) -> float:
        """Return epsilon at `delta`; may be infinite.

        Parameters
        ----------
        noise_multiplier : float
            Noise standard deviation divided by the bound on one record.
        n_steps : int
            Number of steps.
        delta : float
            Delta.

        Returns
        -------
        float
        """
        ask = _epsilon_cached if self.info.cacheable else _epsilon
        return ask(self.info, self.relation, self._event(noise_multiplier), n_steps, delta)

    def delta(self, *, noise_multiplier: float, n_steps: int, epsilon: float) -> float:
        """Return delta at `epsilon`.

        Parameters
        ----------
        noise_multiplier : float
            Noise standard deviation divided by the bound on one record.
        n_steps : int
            Number of steps.
        epsilon : float
            Epsilon.

        Returns
        -------
        float
        """
        accountant = self.info.make(self.relation).compose(self._event(noise_multiplier), n_steps)
        found = float(accountant.get_delta(epsilon))
        if not 0.0 <= found <= 1.0 + 1e-9:
            raise CalibrationError(_NOT_A_NUMBER.format("delta", self.info.name, n_steps))
        if isinstance(accountant, PLDAccountant):  # a user's own
            found = max(found, _PLD_MIN_DELTA)
        return min(found, 1.0)

    def _event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        return step_event(
            sampler=self.sampler,
            noise_multiplier=noise_multiplier,
            neighboring_relation=self.relation,
            accountant=self.info.make(self.relation),
        )


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


# The evaluations of a search are asked for again by the fit that follows it.
_epsilon_cached = functools.lru_cache(maxsize=512)(_epsilon)
