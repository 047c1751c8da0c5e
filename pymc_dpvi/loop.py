r"""The loop over private steps, in chunks, with the average of the last half of the iterates.

Batches, noise and latent draws of many steps are drawn in one go. The iterates after the first half of
the planned steps are averaged with equal weights,
:math:`\bar\xi = \frac{1}{n - n_0}\sum_{t > n_0} \xi_t,\; n_0 = \lfloor n/2\rfloor`: public post-processing,
which takes out most of the noise of the last steps (Polyak and Juditsky 1992).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pymc_dpvi.mechanism import Mechanism, Streams
from pymc_dpvi.step import PrivateStep

__all__ = ["averages_from", "iterate"]

#: Numbers drawn ahead in one go (noise, latent draws, indices): some megabytes.
_CHUNK_NUMBERS = 500_000
#: Steps in a chunk at the most, so that the progress bar and an interrupt are not kept waiting.
_CHUNK_STEPS = 200


def averages_from(n_steps: int) -> int:
    """Return the step after which iterates are averaged."""
    return n_steps // 2


def iterate(
    step: PrivateStep,
    mechanism: Mechanism,
    streams: Streams,
    rng: np.random.Generator,
    num_records: int,
    n_steps: int,
    every_step: bool = False,
) -> Iterator[int]:
    """Run the steps; yield the number of steps done, after every chunk or every step.

    Parameters
    ----------
    step : PrivateStep
        Updates the variational parameters and their average in place.
    mechanism : Mechanism
    streams : Streams
        Where batches and noise come from.
    rng : numpy.random.Generator
        For the latent draws (public).
    num_records : int
    n_steps : int
        Planned steps.
    every_step : bool
        Whether to yield after every step.

    Yields
    ------
    int
        Steps done so far.

    Raises
    ------
    FloatingPointError
        If the variational parameters become non-finite.
    """
    expected = mechanism.sampler.sampling_prob * num_records
    numbers = step.num_noise + int(np.prod(step.draw_shape)) + expected
    longest = int(np.clip(_CHUNK_NUMBERS / numbers, 1, _CHUNK_STEPS))
    for begin in range(0, n_steps, longest):
        size = min(longest, n_steps - begin)
        draws = mechanism.draw(streams, num_records, size, step.num_noise)
        epsilon = rng.standard_normal((size, *step.draw_shape)).astype(step.dtype)
        for t in range(size):
            i = begin + t + 1
            late = i - averages_from(n_steps)
            batch = draws.indices[draws.offsets[t] : draws.offsets[t + 1]]
            step(batch, draws.noise[t], epsilon[t], 1.0 / late if late > 0 else 0.0)
            if every_step:
                yield i
        _check_finite(step.params, begin + size)
        if not every_step:
            yield begin + size


def _check_finite(params: Sequence[Any], i: int) -> None:
    for param in params:
        if not np.isfinite(param.get_value(borrow=True)).all():
            raise FloatingPointError(
                f"The variational parameters '{param.name}' became non-finite by step {i}: the noisy "
                "gradient steps are too large for this model. Use a smaller learning rate "
                "(obj_optimizer=pm.adam(learning_rate=...)), a smaller start_sigma, or a larger epsilon. "
                "What was planned has been charged."
            )
