"""Samplers: which records take part in which step, and the event that accounts for it.

A sampler draws batches and states the `dp_accounting.DpEvent` of exactly this way to draw them, so that what
is run is what is accounted. Its public settings are fields of a frozen dataclass; the stream and the number
of records are arguments of `draw`.

Batches of many steps are drawn in one call and come as a flat array with offsets: batch *t* is
``indices[offsets[t]:offsets[t + 1]]``. All of them are in memory, so callers choose ``n_steps`` by the
expected batch size.

**Poisson sampling** (Abadi et al. 2016). Every record takes part in every step by its own coin with
probability *q*: exactly (`subsets`), and in time proportional to the batch. Batches may be empty.

**Sampling without replacement.** Every batch is a uniform subset of one fixed size, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from pymc_dpvi.arguments import check_choice, check_integer, check_number
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.randomness.keystream import KeyStream
from pymc_dpvi.randomness.subsets import (
    LARGEST_PROB,
    SMALLEST_PROB,
    bernoulli_successes,
    cut_into_runs,
    uniform_subsets,
)

__all__ = [
    "SAMPLER_NAMES",
    "FixedSizeSampler",
    "FullBatchSampler",
    "PoissonSampler",
    "Sampler",
    "make_sampler",
]

Batches = tuple[NDArray[np.int64], NDArray[np.int64]]

SAMPLER_NAMES = ("poisson", "fixed_size", "full_batch")


@runtime_checkable
class Sampler(Protocol):
    """What the mechanism and the accounting need of a sampler."""

    @property
    def name(self) -> str:
        """``"poisson"``, ``"fixed_size"`` or ``"full_batch"``."""

    @property
    def sampling_prob(self) -> float:
        """The public probability with which one record takes part in one step."""

    def draw(self, stream: KeyStream, num_records: int, n_steps: int) -> Batches:
        """Draw the batches of `n_steps` steps.

        Returns int64 record numbers, all different within a batch, and offsets (n_steps + 1,): batch t is
        ``indices[offsets[t]:offsets[t + 1]]``. The number of records is not kept, and no error text tells it.
        Raises an ArgumentError if a count is not a whole number, is too large, or differs from the sampler's
        own.
        """

    def dp_event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Return the event of one step that releases `noise_event` on a batch."""


@dataclass(frozen=True)
class PoissonSampler:
    """Every record takes part in every step independently, with the same probability.

    Parameters
    ----------
    sampling_prob : float
        The probability, from ``2^-30`` to ``1 - 2^-16``, or 1 for all records in every step.

    Raises
    ------
    ArgumentError
        If `sampling_prob` is no such number.

    Notes
    -----
    Privacy: the event is ``PoissonSampledDpEvent(sampling_prob, noise_event)``. The batches' sizes are
    private: never divide by them, never publish them.

    Examples
    --------
    >>> sampler = PoissonSampler(sampling_prob=0.01)
    >>> indices, offsets = sampler.draw(KeyStream.from_os(), num_records=1000, n_steps=5)
    >>> first_batch = indices[offsets[0] : offsets[1]]
    """

    sampling_prob: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_prob", _probability(self.sampling_prob))

    @property
    def name(self) -> str:
        """The sampler's name, ``"poisson"``."""
        return "poisson"

    def draw(self, stream: KeyStream, num_records: int, n_steps: int) -> Batches:
        """Draw batches in time proportional to their size; see `Sampler.draw`.

        Records come in ascending order within a batch. A batch may be empty.
        """
        num_records, n_steps = _sizes(num_records, n_steps)
        if self.sampling_prob == 1.0:
            return _everything(num_records, n_steps)
        successes = bernoulli_successes(stream, self.sampling_prob, num_records * n_steps)
        offsets = cut_into_runs(successes, num_records, n_steps)
        return successes, offsets

    def dp_event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Return one step's event: `noise_event` under Poisson sampling, or itself for q = 1."""
        if self.sampling_prob == 1.0:
            return noise_event
        return dp_accounting.PoissonSampledDpEvent(self.sampling_prob, noise_event)


@dataclass(frozen=True)
class FixedSizeSampler:
    """Every step takes a uniformly random subset of one fixed size, without replacement.

    Parameters
    ----------
    batch_size : int
        Size of every batch, from 1 to `num_records`.
    num_records : int
        Number of records. With this sampler it is public, and part of the event.

    Raises
    ------
    ArgumentError
        If a size is not a positive whole number, or the batch is larger than the data.

    Notes
    -----
    Privacy: the event is ``SampledWithoutReplacementDpEvent(num_records, batch_size, noise_event)``.
    Neighbours differ in one replaced record; both have the same, public number of records.
    """

    batch_size: int
    num_records: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", check_integer("batch_size", self.batch_size, low=1))
        object.__setattr__(self, "num_records", check_integer("num_records", self.num_records, low=1))
        if self.batch_size > self.num_records:
            raise ArgumentError(_BATCH_TOO_LARGE)

    @property
    def name(self) -> str:
        """The sampler's name, ``"fixed_size"``."""
        return "fixed_size"

    @property
    def sampling_prob(self) -> float:
        """The probability with which one record takes part in one step."""
        return self.batch_size / self.num_records

    def draw(self, stream: KeyStream, num_records: int, n_steps: int) -> Batches:
        """Draw batches in time proportional to their size; see `Sampler.draw`.

        `num_records` must be the declared one. Records come in no particular order.
        """
        num_records, n_steps = _sizes(num_records, n_steps)
        if num_records != self.num_records:
            raise ArgumentError(_OTHER_NUM_RECORDS)
        size = self.batch_size
        if size == num_records:
            return _everything(num_records, n_steps)
        batches = np.empty((n_steps, size), dtype=np.int64)
        for batch, subset in zip(batches, uniform_subsets(stream, num_records, size, n_steps), strict=True):
            batch[:] = subset
        return batches.reshape(-1), np.arange(n_steps + 1, dtype=np.int64) * size

    def dp_event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Return one step's event, which is `noise_event` itself if the batch is all records."""
        if self.batch_size == self.num_records:
            return noise_event
        return dp_accounting.SampledWithoutReplacementDpEvent(self.num_records, self.batch_size, noise_event)


@dataclass(frozen=True)
class FullBatchSampler:
    """Every step takes all records.

    Notes
    -----
    Privacy: there is no amplification by sampling; the event of a step is the noise event itself.
    """

    @property
    def name(self) -> str:
        """The sampler's name, ``"full_batch"``."""
        return "full_batch"

    @property
    def sampling_prob(self) -> float:
        """The probability with which one record takes part in one step, 1."""
        return 1.0

    def draw(self, stream: KeyStream, num_records: int, n_steps: int) -> Batches:
        """Return all records, ``n_steps`` times; see `Sampler.draw`."""
        return _everything(*_sizes(num_records, n_steps))

    def dp_event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Return `noise_event` itself."""
        return noise_event


def make_sampler(
    name: str,
    *,
    sampling_prob: float | None = None,
    batch_size: int | None = None,
    num_records: int | None = None,
) -> Sampler:
    """Make a sampler by name; an ArgumentError unless the arguments describe exactly one.

    For ``"poisson"``, `batch_size` is the expected one: the probability is ``batch_size / num_records``. For
    ``"fixed_size"`` the batch size is ``sampling_prob * num_records``, rounded, and at least 1.

    Privacy: a Poisson sampler made from `batch_size` publishes ``batch_size / num_records``, and with it the
    number of records. With `sampling_prob` that number stays private. No error text tells it.

    >>> make_sampler("poisson", sampling_prob=0.01)
    PoissonSampler(sampling_prob=0.01)
    >>> make_sampler("fixed_size", batch_size=100, num_records=20_000)
    FixedSizeSampler(batch_size=100, num_records=20000)
    """
    check_choice("sampler", name, SAMPLER_NAMES)
    if sampling_prob is not None:
        sampling_prob = _probability(sampling_prob)
    if batch_size is not None:
        batch_size = check_integer("batch_size", batch_size, low=1)
    if num_records is not None:
        num_records = check_integer("num_records", num_records, low=1)
    if sampling_prob is not None and batch_size is not None:
        raise ArgumentError("sampling_prob and batch_size say the same thing twice; give one of them.")
    if batch_size is not None:
        if num_records is None:
            raise ArgumentError(
                "batch_size needs num_records, to know the sampling probability; "
                "give both, or sampling_prob alone."
            )
        if batch_size > num_records:
            raise ArgumentError(_BATCH_TOO_LARGE)

    if name == "full_batch":
        if sampling_prob not in (None, 1.0) or batch_size not in (None, num_records):
            raise ArgumentError(
                "sampler='full_batch' takes all records in every step; leave out sampling_prob "
                "and batch_size, or use sampler='poisson'."
            )
        return FullBatchSampler()
    if sampling_prob is None and batch_size is None:
        raise ArgumentError(
            f"sampler={name!r} needs sampling_prob (such as 0.01) or batch_size (such as 200)."
        )
    if name == "poisson":
        if sampling_prob is None:
            assert batch_size is not None and num_records is not None
            sampling_prob = batch_size / num_records
        return PoissonSampler(sampling_prob)
    if name != "fixed_size":
        raise NotImplementedError(f"sampler {name!r} has a name and no way to be made")
    if num_records is None:
        raise ArgumentError(
            "sampler='fixed_size' needs num_records, which becomes public; give it, or use sampler='poisson'."
        )
    if batch_size is None:
        assert sampling_prob is not None
        batch_size = max(1, round(sampling_prob * num_records))
    return FixedSizeSampler(batch_size, num_records)


_OTHER_NUM_RECORDS = (
    "num_records differs from the number of records that this FixedSizeSampler was made and accounted "
    "for; make one for these data."
)

_BATCH_TOO_LARGE = (
    "batch_size is larger than the number of records; give a smaller one, "
    "or sampler='full_batch' to use all records in every step."
)


def _everything(num_records: int, n_steps: int) -> Batches:
    indices = np.tile(np.arange(num_records, dtype=np.int64), n_steps)
    return indices, np.arange(n_steps + 1, dtype=np.int64) * num_records


def _sizes(num_records: int, n_steps: int) -> tuple[int, int]:
    num_records = check_integer("num_records", num_records, low=1)
    n_steps = check_integer("n_steps", n_steps, low=0)
    # Positions go beyond the last trial by at most a piece of draws, each of up to 8 * 2^30 trials.
    if num_records * n_steps > 2**61:
        raise ArgumentError("n_steps is too large for one draw; draw fewer steps at a time.")
    return num_records, n_steps


def _probability(value: float) -> float:
    prob = check_number("sampling_prob", value, high=1.0, closed_high=True, example=0.01)
    if prob < SMALLEST_PROB:
        raise ArgumentError(f"sampling_prob must be at least {SMALLEST_PROB:.2g} (2**-30), found {prob:g}.")
    if LARGEST_PROB < prob < 1.0:
        raise ArgumentError(
            f"sampling_prob must be at most {LARGEST_PROB:.7g} (1 - 2**-16), or 1, "
            f"found {prob!r}; use sampling_prob=1."
        )
    return prob
