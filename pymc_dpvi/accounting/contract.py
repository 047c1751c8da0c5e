"""What every accountant of this package has in common: which steps it takes, and how it refuses.

An accountant is a `dp_accounting.PrivacyAccountant`: it has a ledger, a relation that is fixed when it is
made, and ``supports()``, which tries an event before anything changes. The accountants of this package also
have

* ``name``, ``guarantee``, ``source``: class attributes, see :class:`AccountantInfo`;
* ``schemes``: which sampling schemes they take under which neighboring relation. They refuse everything else
  with an :class:`UnsupportedEventError` that names the sub-event, before anything changes;
* one convention: the noise multiplier of an event is the noise standard deviation divided by the norm of what
  one record adds, *whatever the relation*. The accountant applies the sensitivity's factor (`relations`).

Google's accountants do not share one convention: under replace-one the PLD accountant doubles the
sensitivity, the RDP accountant of dp-accounting 0.6 does not (google/differential-privacy issue 378).
:func:`doubles_sensitivity` finds out which of the two an accountant class does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import dp_accounting
from dp_accounting import NeighboringRelation, PrivacyAccountant

from pymc_dpvi.accounting.relations import sensitivity_factor
from pymc_dpvi.arguments import check_number
from pymc_dpvi.errors import ArgumentError

__all__ = [
    "CountingAccountant",
    "GaussianStep",
    "Guarantee",
    "Scheme",
    "Schemes",
    "UnsupportedEventError",
    "doubles_sensitivity",
    "gaussian_step",
    "refuse_unsupported",
    "why_unsupported",
]

Guarantee = Literal["proven", "heuristic", "bayesian"]
Scheme = Literal["full_batch", "poisson", "fixed_size"]
Schemes = Mapping[Scheme, frozenset[NeighboringRelation]]

ADD_OR_REMOVE = frozenset({NeighboringRelation.ADD_OR_REMOVE_ONE})
REPLACE = frozenset({NeighboringRelation.REPLACE_ONE})
BOTH = ADD_OR_REMOVE | REPLACE

_CANARY_STEPS = 10
_CANARY_NOISE = 20.0  # little loss, which is quick to evaluate
_CANARY_DELTA = 1e-5


class UnsupportedEventError(ArgumentError, dp_accounting.UnsupportedEventError):
    """No proven account exists for this sampler, relation and accountant together."""


@dataclass(frozen=True)
class GaussianStep:
    """An event that stands for one noisy sum over a batch.

    `sampling_prob` is the probability with which one record is in the batch; `noise_multiplier` is the noise
    standard deviation divided by the largest norm of what one record adds.
    """

    scheme: Scheme
    sampling_prob: float
    noise_multiplier: float


def gaussian_step(event: dp_accounting.DpEvent) -> GaussianStep | None:
    """Return the step that `event` stands for; None if it is a composition, or no noisy sum over a batch."""
    if isinstance(event, dp_accounting.GaussianDpEvent):
        return GaussianStep("full_batch", 1.0, event.noise_multiplier)
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        scheme: Scheme = "poisson"
        prob = event.sampling_probability
    elif isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
        scheme = "fixed_size"
        prob = event.sample_size / event.source_dataset_size
    else:
        return None
    if not isinstance(event.event, dp_accounting.GaussianDpEvent):
        return None
    return GaussianStep(scheme, prob, event.event.noise_multiplier)


def why_unsupported(
    event: dp_accounting.DpEvent, relation: NeighboringRelation, schemes: Schemes
) -> str | None:
    """Say why an accountant for `schemes` refuses `event`, which is no composition; None if it does not."""
    if isinstance(event, dp_accounting.NoOpDpEvent):
        return None
    step = gaussian_step(event)
    if step is None:
        return "it is not a Gaussian release on the full data or on a sampled batch"
    if relation not in schemes.get(step.scheme, frozenset()):
        taken = "; ".join(
            f"{scheme} under {' or '.join(sorted(r.name.lower() for r in relations))}"
            for scheme, relations in schemes.items()
        )
        return f"it is {step.scheme} under {relation.name.lower()}, and the accountant takes {taken}"
    if not (0.0 < step.noise_multiplier < math.inf and 0.0 <= step.sampling_prob <= 1.0):
        return "its noise multiplier must be positive and its sampling probability in [0, 1]"
    return None


def refuse_unsupported(accountant: PrivacyAccountant, event: Any) -> None:
    """Raise an UnsupportedEventError that names the sub-event, unless `accountant` takes `event`."""
    if not isinstance(event, dp_accounting.DpEvent):
        raise ArgumentError(f"event must be a dp_accounting.DpEvent; found a {type(event).__name__}.")
    error = accountant._maybe_compose(event, 1, False)
    if error is not None:
        raise UnsupportedEventError(
            f"{type(accountant).__name__} does not support {type(error.invalid_event).__name__} under "
            f"{accountant.neighboring_relation.name}: {str(error.error_message).rstrip('.')}. "
            "Use accountant='pld'."
        )


@functools.cache
def doubles_sensitivity(kind: type[PrivacyAccountant], *, without_replacement: bool = False) -> bool:
    """Whether `kind` reports at least the exact epsilon of sensitivity 2C under replace-one.

    It is asked for ten full-batch steps, whose exact epsilon is known (Balle and Wang 2018). With
    `without_replacement` they are given as a `SampledWithoutReplacementDpEvent` of the whole data.
    """
    event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(_CANARY_NOISE)
    if without_replacement:  # every record is in the batch: the same mechanism
        event = dp_accounting.SampledWithoutReplacementDpEvent(1, 1, event)
    relation = NeighboringRelation.REPLACE_ONE
    accountant = kind(neighboring_relation=relation)
    found = accountant.compose(event, _CANARY_STEPS).get_epsilon(_CANARY_DELTA)
    mu = sensitivity_factor(relation) * _CANARY_STEPS**0.5 / _CANARY_NOISE
    exact = dp_accounting.get_epsilon_gaussian(1.0 / mu, _CANARY_DELTA)
    return bool(found >= exact * (1.0 - 1e-9))


class CountingAccountant(PrivacyAccountant):
    """An accountant whose state is how often each kind of step was taken.

    The order of composition does not matter, and a million equal steps take no more time than one. Subclasses
    say which schemes they take, and turn the counts into an epsilon.
    """

    name: ClassVar[str]
    guarantee: ClassVar[Guarantee]
    source: ClassVar[str]
    schemes: ClassVar[Schemes]

    def __init__(
        self, neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
    ) -> None:
        super().__init__(neighboring_relation)
        self._counts: dict[GaussianStep, int] = {}

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> Any:
        if isinstance(event, dp_accounting.SelfComposedDpEvent):
            return self._maybe_compose(event.event, event.count * count, do_compose)
        if isinstance(event, dp_accounting.ComposedDpEvent):
            for part in event.events:
                error = self._maybe_compose(part, count, do_compose)
                if error is not None:
                    return error
            return None
        reason = why_unsupported(event, self.neighboring_relation, self.schemes)
        if reason is not None:
            return self.CompositionErrorDetails(event, reason)
        step = gaussian_step(event)
        if do_compose and step is not None and step.sampling_prob > 0.0:
            self._counts[step] = self._counts.get(step, 0) + count
        return None

    def compose(self, event: dp_accounting.DpEvent, count: int = 1) -> Any:
        """Add `count` times `event`.

        Parameters
        ----------
        event : dp_accounting.DpEvent
            What was released.
        count : int
            How often.

        Returns
        -------
        CountingAccountant
            This accountant.

        Raises
        ------
        UnsupportedEventError
            If the event, or a part of it, is not supported; nothing has changed then.
        """
        refuse_unsupported(self, event)
        return super().compose(event, count)

    @property
    def _sensitivity(self) -> float:
        return sensitivity_factor(self.neighboring_relation)

    def _noise(self, step: GaussianStep) -> float:
        """Return the noise standard deviation over the sensitivity."""
        return step.noise_multiplier / self._sensitivity

    def _epsilon(self, delta: float) -> float:
        """Return epsilon of the counted steps, of which there is at least one."""
        raise NotImplementedError

    def get_epsilon(self, target_delta: float) -> float:
        """Return epsilon at `target_delta`.

        Parameters
        ----------
        target_delta : float
            Delta of the guarantee, in (0, 1).

        Returns
        -------
        float
            0 or more; may be infinite.

        Raises
        ------
        ArgumentError
            If `target_delta` is not in (0, 1).
        """
        delta = check_number("target_delta", target_delta, low=0.0, high=1.0)
        if not self._counts:
            return 0.0
        return max(0.0, self._epsilon(delta))

    def get_delta(self, target_epsilon: float) -> float:
        """Return the least delta at which epsilon is at most the target, within 1e-9 (relative), rounded up.

        Parameters
        ----------
        target_epsilon : float
            Epsilon of the guarantee, 0 or more.

        Returns
        -------
        float
            At most 1.

        Raises
        ------
        ArgumentError
            If `target_epsilon` is negative or not finite.
        """
        target = check_number("target_epsilon", target_epsilon, closed_low=True)
        if not self._counts:
            return 0.0

        def meets(log_delta: float) -> bool:
            return self.get_epsilon(math.exp(log_delta)) <= target

        low, high = -700.0, -1e-12  # of ln(delta)
        if not meets(high):
            return 1.0
        if meets(low):
            return math.exp(low)
        while high - low > 1e-9:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if meets(middle) else (middle, high)
        return math.exp(high)
