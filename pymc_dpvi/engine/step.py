"""The compiled step: one update of the variational parameters, or many in one call.

`step_graph` says what a step computes. Here it is compiled, tried on no records before anything is spent, and
called.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from pymc_dpvi.compat import quiet_pytensor, untraced
from pymc_dpvi.engine.assisted_chunk import AssistedChunk
from pymc_dpvi.engine.backends import StepFailedError, reason_of
from pymc_dpvi.engine.blas_threads import ONE_THREAD
from pymc_dpvi.engine.cluster import Cluster
from pymc_dpvi.engine.gradient_moments import GradientTrace
from pymc_dpvi.engine.interrupts import uninterrupted
from pymc_dpvi.engine.multistep import Chunk
from pymc_dpvi.engine.silence import silence
from pymc_dpvi.engine.split_step import SplitChunk, has_long_vectors, is_long
from pymc_dpvi.engine.step_graph import StepGraph
from pymc_dpvi.engine.sums_of_step import in_microbatches, nodes_of_sums
from pymc_dpvi.engine.threads import available_cores
from pymc_dpvi.errors import ArgumentError, ModelEvaluationError, WorkersError
from pymc_dpvi.graph.gradients import Latents
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.guide.whole import Family
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.optimizers import Optimizer

__all__ = ["PrivateStep"]

_RAISED = (
    "The model's log-density raised {} on the records. Every operation that passes the checks was tried on "
    "hostile numbers, and this was not seen: keep to yourself that it came, as a single record may be the "
    "cause, and report the model to pymc_dpvi, without the data. What was planned has been charged."
)


class PrivateStep:
    """One private update of the variational parameters, compiled.

    Parameters
    ----------
    record : RecordModel
    latents : Latents
    family : Family
        The variational family; its shared parameters are updated in place.
    mechanism : Mechanism
    n_mc : int
        Number of latent draws a step.
    optimizer : Optimizer
        Gets the noisy gradient of the negative evidence lower bound.
    in_clip_norms : bool
        Whether it gets that gradient in units of an adaptive clip norm.
    max_grad_norm : float, optional
        Bound on the norm of that gradient (after the noise; costs nothing).
    compile_kwargs : dict
        For PyTensor's ``function``, with ``mode``.
    rows_kwargs : dict, optional
        Those that differ for the rows of a batch.
    cores : int, optional
        Number of threads that add up a batch. By default it is `available_cores` where a step is long by all
        that is public (`split_step.is_long`), and otherwise the step is one compiled function.
    public_batch : float, optional
        Expected number of rows in a batch, if it is public; infinite if it is only known to be large.
    cluster : Cluster, optional
        The workers that hold the records; those of `record` are made up then.

    Attributes
    ----------
    num_noise : int
        Length of the noise vector of a step.
    calls : int
        Steps made so far.
    chunk : Chunk
        Many such steps, compiled.
    failed : tuple or None
        Type and text of the error that ended a run, which a record may have caused; None if none did.
    draw_shape : tuple of int
        Shape of a step's base draws, ``(n_mc, D)``.
    running_clip : RunningClip or None
        The clip norm, if it is adaptive.
    clip_updates : dict
        Its new values after a step, in terms of the release.
    scale : SharedVariable
        Factor of the sum over a batch: one over the sampling probability, which is public.
    trace : GradientTrace
        Moments of the latent draws and of the noisy gradients there.
    """

    @untraced()
    def __init__(
        self,
        record: RecordModel,
        latents: Latents,
        family: Family,
        mechanism: Mechanism,
        *,
        n_mc: int,
        optimizer: Optimizer,
        in_clip_norms: bool = False,
        max_grad_norm: float | None,
        compile_kwargs: dict[str, Any],
        rows_kwargs: Mapping[str, Any] | None = None,
        cores: int | None = None,
        public_batch: float | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        graph = StepGraph(record, latents, family, mechanism, n_mc, max_grad_norm)
        self.params, self.averages, self.scale = graph.params, graph.averages, graph.scale
        self.draw_shape, self.num_noise = graph.draw_shape, graph.num_noise
        self.running_clip, self.clip_updates = graph.running_clip, graph.clip_updates
        self.trace = GradientTrace(latents.size)
        rows = [graph.row()] if self.trace.width else []
        updates = graph.updates(optimizer, in_clip_norms)
        # Last, so that the optimiser is handed the release itself.
        rows_kwargs = {**compile_kwargs, **(rows_kwargs or {})}
        indices = None if graph.is_whole else graph.indices
        of_rows = [*graph.batch, *graph.of_rows], graph.data, indices, rows_kwargs, record.units is not None
        new = in_microbatches([*updates.values(), *rows], *of_rows, public_batch)
        sums = [node.op for node in nodes_of_sums(new)]
        for op in sums:
            weakref.finalize(self, op.forget).atexit = False
        fits = mechanism.pieces_fit(self.num_noise)
        if cluster is not None:
            cores = 1
        if cores is not None and not fits:
            asked = f"cores={cores}" if cluster is None else "client="
            raise ArgumentError(
                f"{asked} needs noise for which rounding the sum piece by piece is proven to be fine: "
                f"noise_multiplier={mechanism.noise_multiplier:g} is too large for so many latent values. "
                f"Leave {asked.partition('=')[0]}= out, or use a larger epsilon."
            )
        if cores is None and fits and is_long(sums, public_batch, compile_kwargs):
            cores = available_cores()
        if cores is not None:  # threads are told where an array begins, and not how it lies in memory
            for variable in graph.data:
                variable.set_value(np.ascontiguousarray(variable.get_value(borrow=True)), borrow=True)
        self._data = [(variable, variable.get_value(borrow=True)) for variable in graph.data]
        row = new[-1] if rows else None
        updates = dict(zip(updates, new, strict=False))
        make: Callable[..., Chunk] = Chunk
        if cores is not None:
            by_columns = cluster is not None or has_long_vectors(new)
            make = partial(SplitChunk, cluster=cluster) if by_columns else AssistedChunk
            make = partial(make, cores=cores)
        self.chunk = make(
            graph.per_step, [graph.spacing], updates, compile_kwargs, row=row, width=self.trace.width
        )
        self._spacing = np.asarray(mechanism.noise.spacing)
        self.calls = 0
        self.failed: tuple[type[ModelEvaluationError], str] | None = None
        self.dtype = np.dtype(pytensor.config.floatX)
        self._rehearse(list(updates))
        self.rest()
        ONE_THREAD.look()

    def _rehearse(self, state: Sequence[SharedVariable]) -> None:
        """Make one step on an empty batch, in which no record counts, without noise, and take it back.

        What cannot work fails here, before anything is spent: a backend that cannot compile the model
        (StepFailedError), an optimiser whose updates have another shape, a start from which the prior leads
        to infinity (ArgumentError).
        """
        before = [variable.get_value() for variable in state]
        failure = unreached = ""
        try:
            self._call(
                np.zeros(0, dtype=np.int64),
                np.zeros(2, dtype=np.int64),
                np.zeros((1, self.num_noise), dtype=np.int64),
                np.zeros((1, *self.draw_shape), dtype=self.dtype),
                np.zeros(1, dtype=self.dtype),
            )
        except WorkersError as error:
            unreached = str(error)
        except Exception as error:  # raised below, so that it is not chained
            failure = reason_of(error)
        after = [p.get_value() for p in self.params]
        shapes = [p.get_value(borrow=True).shape for p in self.averages]
        for variable, value in zip(state, before, strict=True):
            variable.set_value(value)
        if unreached:
            raise WorkersError(f"{unreached} Nothing is spent.")
        if failure:
            raise StepFailedError(failure)
        if [a.shape for a in after] != shapes:
            raise ArgumentError("obj_optimizer returned updates of another shape than its parameters.")
        if not all(np.isfinite(a).all() for a in after):
            raise ArgumentError(
                "A step on no records makes the variational parameters non-finite: the prior's gradient "
                "at start is too large, or the learning rate of obj_optimizer is. Nothing is spent."
            )

    def records_are(self, arrays: Sequence[np.ndarray] | None) -> None:
        """Let the next steps see these rows in place of the model's record arrays; None puts those back.

        They are not copied, and have the types and row shapes of the model's arrays, in C order.
        """
        for k, (variable, own) in enumerate(self._data):
            variable.set_value(own if arrays is None else arrays[k], borrow=True)

    def _call(self, *arrays: np.ndarray) -> np.ndarray:
        # Numba compiles at the first call, with warnings of slow code.
        with ExitStack() as quiet:
            quiet.enter_context(silence())
            if not self.calls:
                quiet.enter_context(quiet_pytensor())
            return self.chunk(*arrays, self._spacing)

    def __call__(
        self,
        indices: np.ndarray,
        offsets: np.ndarray,
        noise: np.ndarray,
        base_draws: np.ndarray,
        weights: np.ndarray,
    ) -> None:
        """Make several steps, one after the other.

        Parameters
        ----------
        indices, offsets : ndarray of int64
            As in `Chunk`; a batch may be empty.
        noise : ndarray of int64, shape (n_steps, num_noise)
            In spacings of the lattice.
        base_draws : ndarray of floatX, shape (n_steps, n_mc, D)
            Standard normal, from public randomness.
        weights : ndarray, shape (n_steps,)
            Weight of each new iterate in the average; 0 leaves the average alone.

        Raises
        ------
        ModelEvaluationError
            If the model's graph raises on the records. The text tells nothing of them.
        """
        weights = np.asarray(weights, dtype=self.dtype)
        self.failed = None
        with uninterrupted(), ONE_THREAD:
            try:
                rows = self._call(indices, offsets, noise, base_draws, weights)
                self.calls += len(weights)
                self.trace.take(rows)
            except WorkersError as error:
                self.failed = WorkersError, f"{error} What was planned has been charged."
            except Exception as error:  # its text may hold data; raised below, so that it is not chained
                self.failed = ModelEvaluationError, _RAISED.format(type(error).__name__)
        self.raise_failed()

    def raise_failed(self) -> None:
        """Raise the error that ended a run, if one did: an interrupt may have taken its place."""
        if self.failed is not None:
            kind, text = self.failed
            raise kind(text)

    def share_out(self, own: Callable[[], object], others: Sequence[Callable[[], object]]) -> None:
        """Do `own`, and meanwhile or afterwards the others, on the threads if a step has long vectors."""
        with silence():
            self.chunk.share_out(own, others)

    def rest(self) -> None:
        """Let go of threads, until the next step."""
        self.chunk.rest()
