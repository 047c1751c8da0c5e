r"""The mechanism: what batch, clip, noise and event are, in one frozen object that holds no data.

One step releases

.. math:: \tilde s = \sum_{i\in B} \operatorname{clip}_C(g_i) + \mathcal N(0, \sigma^2 C^2 I)

for a random batch B, rounded to a lattice (`randomness.lattice_noise`). With an adaptive clip norm it also
releases three noisy counts, as columns of the same sum (`adaptive_clipping`). One record then adds a vector
of norm at most :math:`C\sqrt{1+\kappa^2}`, and the noise is larger by the same factor.
:meth:`Mechanism.draw`, which makes the batches and the noise, and :meth:`Mechanism.epsilon`, which computes
their cost, use the same fields, so that they cannot differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pymc_dpvi import accounting
from pymc_dpvi.accounting.relations import sensitivity_factor
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.mechanism.adaptive_clipping import AdaptiveClip
from pymc_dpvi.mechanism.limits import (
    LARGEST_SUM,
    MAX_BATCH,
    MAX_EXPECTED_BATCH,
    MAX_PARAMS,
    MAX_RECORDS,
    PIECE_RECORDS,
    TALLY_COLUMNS,
)
from pymc_dpvi.randomness.keystream import KeyStream
from pymc_dpvi.randomness.lattice_noise import LatticeNoise
from pymc_dpvi.randomness.rounded_normal import LATTICE_BITS
from pymc_dpvi.sampling import Sampler

__all__ = ["Draws", "Mechanism", "Streams"]


@dataclass(frozen=True)
class Streams:
    """The two independent key streams of a fit: one draws batches, the other noise."""

    sampling: KeyStream
    noise: KeyStream

    @classmethod
    def make(cls, insecure_seed: int | None) -> Streams:
        """Make streams from the operating system, or from a seed, which must never protect real data."""
        if insecure_seed is None:
            return cls(KeyStream.from_os(), KeyStream.from_os())
        return cls(
            KeyStream.from_insecure_seed(insecure_seed, "sampling"),
            KeyStream.from_insecure_seed(insecure_seed, "noise"),
        )

    @property
    def secure(self) -> bool:
        """Whether both keys are secrets of the operating system's generator."""
        return self.sampling.secure and self.noise.secure


@dataclass(frozen=True)
class Draws:
    """Batches and noise for several steps.

    `indices` holds all batches end to end: batch t is ``indices[offsets[t]:offsets[t + 1]]``. `noise`,
    (n_steps, num_noise), is in units of the lattice, `LatticeNoise.spacing`. All are int64.
    """

    indices: np.ndarray
    offsets: np.ndarray
    noise: np.ndarray


@dataclass(frozen=True)
class Mechanism:
    """Subsampled Gaussian mechanism on clipped per-record gradients.

    `l2_clip_norm` is C, in units of the gradient: nats per unit of the unconstrained latent values. If the
    clip norm is adaptive, it is the start value: later gradients are scaled to it before they are clipped.

    `noise_multiplier` is the noise standard deviation of a coordinate divided by `record_norm`, whatever the
    relation. `gradient` says what is clipped, `adaptive` how the clip norm follows the records.
    """

    sampler: Sampler
    l2_clip_norm: float
    noise_multiplier: float
    neighboring_relation: Literal["add_or_remove_one", "replace_one"]
    gradient: Literal["aligned", "vanilla"]
    adaptive: AdaptiveClip | None = None

    def __post_init__(self) -> None:
        if self.adaptive is not None and self.adaptive.start != self.l2_clip_norm:
            raise ArgumentError("l2_clip_norm of an adaptive mechanism is its start value.")

    @property
    def tally_weight(self) -> float:
        """κ: the norm of what a record adds to the counts, in clip norms; 0 if nothing is counted."""
        return 0.0 if self.adaptive is None else self.adaptive.tally_weight

    @property
    def num_counts(self) -> int:
        """How many numbers a step releases besides the sum of gradients."""
        return 0 if self.adaptive is None else TALLY_COLUMNS

    @property
    def record_norm(self) -> float:
        """Largest Euclidean norm of all that one record adds to a step: C, or C√(1 + κ²)."""
        return self.l2_clip_norm * math.sqrt(1.0 + self.tally_weight**2)

    @property
    def sensitivity(self) -> float:
        """Largest Euclidean distance by which one record can move the unnoised sum."""
        return self.record_norm * sensitivity_factor(self.neighboring_relation)

    @property
    def noise(self) -> LatticeNoise:
        """The noise of one coordinate."""
        return LatticeNoise(self.noise_multiplier * self.record_norm)

    def check_lattice(self, num_records: int, num_noise: int) -> None:
        """Raise unless the proof covers noise vectors of this length, and their numbers fit into 64 bits.

        Under replace-one the number of records is public, and an expected batch must fit in. Otherwise one
        record must fit in, and the check tells only whether there are more records than the proof covers at
        this sampling probability, a difference for which no guarantee is given. The kernel holds larger sums
        inside the range, at no cost in privacy.
        """
        if num_noise > MAX_PARAMS or not self._covers(num_records):
            raise UnsupportedModelError(
                f"At most {MAX_BATCH:,} records of one batch ({MAX_EXPECTED_BATCH:,} expected ones in a "
                f"Poisson batch, of {MAX_RECORDS:,} in all) and {MAX_PARAMS:,} gradient entries (latent "
                "values times obj_n_mc) can be summed with a proven bound of the rounding errors. Use a "
                "smaller sampling_prob or batch_size, or a smaller model."
            )
        if self.noise.stddev / self.l2_clip_norm * math.sqrt(num_noise) > 2.0**30:
            raise ArgumentError(
                f"noise_multiplier={self.noise_multiplier:g} is too large for {num_noise} gradient entries: "
                "rounding to 2^-40 noise standard deviations would be coarse beside the clip norm. The noise "
                "drowns the gradient long before; use a larger epsilon or a smaller noise_multiplier."
            )
        room = LARGEST_SUM * 2.0**-LATTICE_BITS * self.noise_multiplier
        public = self.neighboring_relation == "replace_one"
        batch = self.sampler.sampling_prob * num_records if public else 1.0
        if room < batch:
            raise ArgumentError(
                f"noise_multiplier={self.noise_multiplier:g} is too small: a sum over {room:.3g} records "
                "would leave the 64-bit integers in which the noise is added. Use a smaller epsilon, a "
                "larger noise_multiplier or a smaller batch."
            )

    def pieces_fit(self, num_noise: int) -> bool:
        """Whether the proof covers a sum that is rounded piece by piece (`engine.lattice_sums`)."""
        fine = self.noise.stddev / self.l2_clip_norm * math.sqrt(num_noise) <= 2.0**21
        return fine and PIECE_RECORDS <= LARGEST_SUM * 2.0**-LATTICE_BITS * self.noise_multiplier

    def _covers(self, num_records: int) -> bool:
        """Whether no batch has more than `MAX_BATCH` records, or one with negligible probability."""
        if num_records <= MAX_BATCH:
            return True
        expected = self.sampler.sampling_prob * num_records
        most = MAX_EXPECTED_BATCH if self.sampler.name == "poisson" else MAX_BATCH
        return expected <= most and num_records <= MAX_RECORDS

    def draw(self, streams: Streams, num_records: int, n_steps: int, num_noise: int) -> Draws:
        """Draw the batches and the noise of `n_steps` steps."""
        indices, offsets = self.sampler.draw(streams.sampling, num_records, n_steps)
        return Draws(indices, offsets, self.noise.draw(streams.noise, (n_steps, num_noise)))

    def epsilon(self, n_steps: int, delta: float, accountant: Any) -> float:
        """Return the ε of `n_steps` steps at `delta`, by the accountant."""
        return accounting.epsilon(
            delta=delta,
            noise_multiplier=self.noise_multiplier,
            n_steps=n_steps,
            sampler=self.sampler,
            neighboring_relation=self.neighboring_relation,
            accountant=accountant,
        )
