r"""The loop over private steps, with the average of the last half of the iterates.

Batches, noise and base draws are drawn for many steps at once. The iterates after the first half of the
planned steps are averaged with equal weights,
:math:`\bar\xi = \frac{1}{n - n_0}\sum_{t > n_0} \xi_t,\; n_0 = \lfloor n/2\rfloor`: post-processing, which
takes out most of the noise of the last steps (Polyak and Juditsky 1992).
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from pymc_dpvi.engine.base_draws import BaseDraws
from pymc_dpvi.engine.read_ahead import read_ahead
from pymc_dpvi.engine.source_records import SourceRecords
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.engine.unit_batches import in_rows
from pymc_dpvi.errors import ModelEvaluationError, PrivacyError
from pymc_dpvi.graph.units import Units
from pymc_dpvi.mechanism.mechanism import Draws, Mechanism, Streams
from pymc_dpvi.pages import SCALE_PREDICTORS

__all__ = ["averages_from", "iterate"]

#: Most numbers drawn at once (noise and base draws, or indices): some megabytes.
_CHUNK_NUMBERS = 500_000
#: Most steps drawn at once, so that the progress bar goes on.
_CHUNK_STEPS = 200
_FORKED = "A private fit cannot go on in a forked process."
_NO_ROOM = (
    "The batches of some steps could not be held in memory. Use a smaller sampling_prob or batch_size. "
    "What was planned has been charged."
)
#: Seconds that one compiled call should take; an interrupt waits for its end.
_CALL_SECONDS = 0.05


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
    every: int = 0,
    before: int = 0,
    units: Units | None = None,
    sources: SourceRecords | None = None,
) -> Generator[int, None, None]:
    """Run the steps; yield the number of steps done, now and then.

    The step updates the variational parameters and their average in place. Batches and noise come from
    `streams`, base draws (public) from `rng`. If `every` is positive, yield after the first step, after each
    step whose number in all runs (`before` steps earlier) is a multiple of it, and after the last. With
    `units`, `num_records` is the number of persons, and the step gets their rows (`unit_batches`). With
    `sources`, it gets rows of these (`read_ahead`). A FloatingPointError if the variational parameters become
    non-finite. Before an error that a record may have caused is raised, it is noted as ``step.failed``: an
    interrupt may take its place while threads and files are closed.
    """
    # What is seen from outside, such as the step at which an error is found, must not depend on the number of
    # records: that decides only for how many steps batches are drawn at once.
    numbers = step.num_noise + int(np.prod(step.draw_shape))
    longest = int(np.clip(_CHUNK_NUMBERS / numbers, 1, _CHUNK_STEPS))
    expected = mechanism.sampler.sampling_prob * (num_records if units is None else len(units.rows))
    steps_at_once = int(np.clip(_CHUNK_NUMBERS / max(1.0, expected), 1, longest))
    drawer = BaseDraws(rng, longest, step.draw_shape)
    process = os.getpid()
    stride = 1

    def refuse_forks() -> None:
        if os.getpid() != process:  # where there is no other thread, and would be waited for
            raise PrivacyError(_FORKED)

    def drawn() -> Generator[Draws, None, None]:
        for begin in range(0, n_steps, longest):
            for first in range(begin, min(begin + longest, n_steps), steps_at_once):
                size = min(steps_at_once, begin + longest - first, n_steps - first)
                draws, failed = None, False
                try:
                    draws = mechanism.draw(streams, num_records, size, step.num_noise)
                    if units is not None:
                        draws = in_rows(draws, units, streams.sampling)
                except MemoryError:  # its text tells how large a batch is; raised below, not chained
                    failed = True
                if failed or draws is None:
                    step.failed = ModelEvaluationError, _NO_ROOM
                    raise ModelEvaluationError(_NO_ROOM)
                yield draws

    with closing(drawn() if sources is None else read_ahead(drawn(), step, sources, expected)) as batches:
        for begin in range(0, n_steps, longest):
            first, end = begin, min(begin + longest, n_steps)
            refuse_forks()
            base_draws, drawing = drawer.begun(end - begin)
            coming: list[Draws] = []
            step.share_out(partial(_take, batches, coming), drawing)
            base_draws = base_draws.astype(step.dtype, copy=False)
            while first < end:
                refuse_forks()
                draws = coming.pop() if coming else next(batches)
                size = len(draws.noise)
                own_draws = base_draws[first - begin : first - begin + size]
                weights = _weights(first, size, n_steps)
                t = 0
                while t < size:
                    refuse_forks()
                    stop = min(t + min(stride, _until_asked(first + t, every, before)), size)
                    start = time.perf_counter()
                    step(
                        draws.indices,
                        draws.offsets[t : stop + 1],
                        draws.noise[t:stop],
                        own_draws[t:stop],
                        weights[t:stop],
                    )
                    stride = _next_stride(stop - t, time.perf_counter() - start)
                    t = stop
                    done = first + t
                    if every and (done in (1, n_steps) or (before + done) % every == 0):
                        yield done
                first += size
            refuse_forks()
            checks = [partial(_check_finite, param, end) for param in step.params]
            if checks:
                step.share_out(checks[0], checks[1:])
            if not every:
                yield end


def _take(batches: Iterator[Draws], to: list[Draws]) -> None:
    to.append(next(batches))


def _until_asked(done: int, every: int, before: int) -> int:
    """Return the number of steps until the next `yield`."""
    if not every:
        return _CHUNK_STEPS
    return every - (before + done) % every if done else 1


def _weights(first: int, size: int, n_steps: int) -> np.ndarray:
    """Weights of iterates ``first + 1, ..., first + size`` in the running average."""
    late = np.arange(first + 1, first + size + 1) - averages_from(n_steps)
    return np.where(late > 0, 1.0 / np.maximum(late, 1), 0.0)


def _next_stride(steps: int, seconds: float) -> int:
    """Return how many steps to make in the next call, after `steps` took so many `seconds`.

    A call cannot be interrupted. The first one also compiles, so the number may grow fast.
    """
    return int(np.clip(steps * _CALL_SECONDS / max(seconds, 1e-9), 1, 20 * steps))


def _check_finite(param: Any, i: int) -> None:
    if not np.isfinite(param.get_value(borrow=True)).all():
        raise FloatingPointError(
            f"The variational parameters '{param.name}' became non-finite by step {i}: the noisy "
            "gradient steps are too large for this model. Use a smaller learning rate "
            "(obj_optimizer=pm.adam(learning_rate=...)), a smaller start_sigma, or a larger epsilon. "
            f"{SCALE_PREDICTORS} What was planned has been charged."
        )
