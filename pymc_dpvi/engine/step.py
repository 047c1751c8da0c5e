r"""The compiled step: one batch, one latent draw, one vector of noise, one update.

.. math::

    z_m &= T(\xi, \zeta_m), \qquad m = 1,\dots,M \\
    \tilde s &= \sum_{i\in B} \operatorname{clip}_C\!\big(g_i\big) + \eta
              \qquad\text{(}\texttt{PrivateSum}\text{: the only thing that sees records)}\\
    \nabla_{z_m} &= \tfrac{\sqrt M}{q}\,\tilde s_m + \nabla \log p(z_m) \\
    \nabla_\xi &= \tfrac1M \sum_m \Big(\frac{\partial z_m}{\partial\xi}\Big)^{\!\top} \nabla_{z_m}
                   + \nabla_\xi H(q_\xi)

The scale is 1/q, a public constant: never the realised batch size. Everything after the noisy sum is
post-processing. With an adaptive clip norm (`adaptive_clipping`) the gradients are scaled before and the sum
after, by a public number that the noisy counts of earlier steps decide. The function also keeps the running
average of the iterates, :math:`\bar\xi \leftarrow \bar\xi + w\,(\xi - \bar\xi)`, and hands the latent draws
and the noisy gradients there to a `GradientTrace`.
"""

from __future__ import annotations

import itertools
import signal
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.variational.updates import total_norm_constraint
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.engine.backends import StepFailedError, reason_of
from pymc_dpvi.engine.blas_threads import ONE_THREAD
from pymc_dpvi.engine.gradient_moments import GradientTrace
from pymc_dpvi.engine.microbatch import MicrobatchedSum, in_microbatches
from pymc_dpvi.engine.multistep import Chunk
from pymc_dpvi.engine.private_sum import PrivateSum, private_sum
from pymc_dpvi.engine.running_clip import RunningClip
from pymc_dpvi.errors import ArgumentError, ModelEvaluationError, PrivacyError
from pymc_dpvi.graph.blocks import Block
from pymc_dpvi.graph.families import Family
from pymc_dpvi.graph.gradients import Latents, aligned_gradients, informed, prior_gradients, vanilla_gradients
from pymc_dpvi.graph.records import RecordModel
from pymc_dpvi.graph.traversal import walk
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.optimizers import Optimizer
from pymc_dpvi.randomness.rounded_normal import LATTICE_BITS

__all__ = ["PrivateStep"]


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
    max_grad_norm : float, optional
        Bound on the norm of that gradient (after the noise; costs nothing).
    compile_kwargs : dict
        For PyTensor's ``function``, with ``mode``.
    rows_kwargs : dict, optional
        What is different of it for the rows of a batch.

    Attributes
    ----------
    num_noise : int
        Length of the noise vector of a step.
    calls : int
        Steps made so far.
    chunk : Chunk
        Many such steps, compiled.
    draw_shape : tuple of int
        Shape of a step's standard normal draws, ``(n_mc, D)``.
    running_clip : RunningClip or None
        The clip norm as it stands, if it is adaptive.
    clip_updates : dict
        Its new values after a step, in terms of the release.
    scale : SharedVariable
        What the sum over a batch is multiplied by: one over the sampling probability, which is public.
    trace : GradientTrace
        What the steps left: moments of the latent draws and of the noisy gradients there.
    """

    def __init__(
        self,
        record: RecordModel,
        latents: Latents,
        family: Family,
        mechanism: Mechanism,
        *,
        n_mc: int,
        optimizer: Optimizer,
        max_grad_norm: float | None,
        compile_kwargs: dict[str, Any],
        rows_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        floatx = pytensor.config.floatX
        self.params: list[SharedVariable] = list(family.params)
        self.averages = [pytensor.shared(p.get_value(), name=f"{p.name}_average") for p in self.params]
        self.draw_shape = (n_mc, latents.size)
        indices = pt.lvector("indices")
        count = pt.lscalar("count")
        spacing = pt.dscalar("spacing")
        base_draws = pt.matrix("base_draws", dtype=floatx, shape=(n_mc, latents.size))
        weight = pt.scalar("weight", dtype=floatx)

        sizes = [p.get_value(borrow=True).size for p in self.params]
        size = n_mc * latents.size if mechanism.gradient == "aligned" else sum(sizes)
        self.num_noise = size + mechanism.num_counts
        noise = pt.tensor("noise", dtype="int64", shape=(self.num_noise,))
        data = record.data()
        whole = mechanism.sampler.name == "full_batch"
        batch = [d if whole else d[indices] for d in data]
        batch = [
            b if b.type.shape[1:] == row.type.shape[1:] else pt.specify_shape(b, (None, *row.type.shape[1:]))
            for b, row in zip(batch, record.rows, strict=True)
        ]
        drawn: dict[Variable, Variable] = {family.symbolic_initial: base_draws}
        z, logq = graph_replace(
            [family.symbolic_random, family.symbolic_logq_not_scaled], drawn, strict=False
        )
        entropy = -logq.mean()
        self.running_clip = None if mechanism.adaptive is None else RunningClip(mechanism.adaptive)
        # A variable, as the lattice spacing is, so that other rates and noise need no other compiled step.
        scale = pytensor.shared(np.asarray(1.0 / mechanism.sampler.sampling_prob), name="scale")
        self.scale: SharedVariable = scale
        self.clip_updates: dict[Variable, Variable] = {}
        if mechanism.gradient == "aligned":
            per_record = aligned_gradients(record, batch, latents, z, n_mc)
            noisy = self._released(per_record, size, mechanism, noise, spacing, count)
            if not (own := informed(record, latents)).all():
                # The others' sums are noise about zero, and known to be.
                noisy = noisy * np.tile(own.astype(floatx), n_mc)
            grads = self._pull_back(record, latents, noisy, z, entropy, n_mc, scale)
        else:
            per_record = vanilla_gradients(record, batch, latents, family, base_draws, z, entropy, n_mc)
            noisy = self._released(per_record, size, mechanism, noise, spacing, count)
            ends = np.cumsum([0, *sizes])
            grads = [-noisy[a:b] * scale for a, b in itertools.pairwise(ends)]
        mechanism.check_lattice(record.num_records, self.num_noise)
        grads = [
            g.reshape(p.get_value(borrow=True).shape).astype(p.type.dtype)
            for g, p in zip(grads, self.params, strict=True)
        ]
        if max_grad_norm is not None:
            grads = total_norm_constraint(grads, max_grad_norm)
        self.trace = GradientTrace(latents.size)
        rows = []
        if self.trace.width:
            row = self._row(record, latents, noisy, z, mechanism.gradient, scale, spacing)
            self._check_row(row, noisy, [*record.arrays, *data, indices, count, noise])
            rows.append(row)
        released = [v for v in walk(grads) if v.owner is not None and isinstance(v.owner.op, PrivateSum)]
        updates = self._updates(optimizer, grads)
        self._check_updates(record, updates, [*grads, *released], [*data, indices, count, noise])
        updates.update(self.clip_updates)
        for p, average in zip(self.params, self.averages, strict=True):
            new = updates.get(p, p)
            updates[average] = (average + weight * (new - average)).astype(average.type.dtype)
        # Last, so that the optimiser is handed the release itself.
        rows_kwargs = {**compile_kwargs, **(rows_kwargs or {})}
        graphs = [*updates.values(), *rows]
        new = in_microbatches(graphs, batch, data, None if whole else indices, rows_kwargs)
        for op in {v.owner.op for v in walk(new) if v.owner is not None}:
            if isinstance(op, MicrobatchedSum):
                weakref.finalize(self, op.forget).atexit = False
        row = new[-1] if rows else None
        updates = dict(zip(updates, new, strict=False))
        per_step = [indices, count, noise, base_draws, weight]
        self.chunk = Chunk(per_step, [spacing], updates, compile_kwargs, row=row, width=self.trace.width)
        self._unit = np.asarray(mechanism.noise.spacing)
        self.calls = 0
        self.dtype = np.dtype(floatx)
        self._rehearse(list(updates))
        ONE_THREAD.look()

    def _released(
        self,
        per_record: Sequence[Block],
        size: int,
        mechanism: Mechanism,
        noise: TensorVariable,
        spacing: TensorVariable,
        count: TensorVariable,
    ) -> TensorVariable:
        """Noisy sum of clipped gradients, shape ``(size,)``; an adaptive bound's updates are noted."""
        if self.running_clip is None:
            return private_sum(per_record, noise, mechanism.l2_clip_norm, spacing, count)
        scale = self.running_clip.scale
        released = private_sum(
            [b.scaled(1.0 / scale) for b in per_record],
            noise,
            mechanism.l2_clip_norm,
            spacing,
            count,
            tally_weight=mechanism.tally_weight,
        )
        self.clip_updates = self.running_clip.updates(released[size:], spacing, self.scale)
        return released[:size] * scale

    def _rehearse(self, state: Sequence[SharedVariable]) -> None:
        """Make one step on an empty batch without noise, and take it back.

        What cannot work fails here, before anything is spent: a backend that cannot compile the model, an
        optimiser whose updates have another shape, a start from which the prior leads to infinity. No
        record counts in an empty batch.

        Raises
        ------
        StepFailedError
            If it raises.
        ArgumentError
            If it leads to infinity.
        """
        before = [variable.get_value() for variable in state]
        failure = ""
        try:
            self._call(
                np.zeros(0, dtype=np.int64),
                np.zeros(2, dtype=np.int64),
                np.zeros((1, self.num_noise), dtype=np.int64),
                np.zeros((1, *self.draw_shape), dtype=self.dtype),
                np.zeros(1, dtype=self.dtype),
            )
        except Exception as error:  # raised below, so that it is not chained
            failure = reason_of(error)
        after = [p.get_value() for p in self.params]
        shapes = [p.get_value(borrow=True).shape for p in self.averages]
        for variable, value in zip(state, before, strict=True):
            variable.set_value(value)
        if failure:
            raise StepFailedError(failure)
        if [a.shape for a in after] != shapes:
            raise ArgumentError("obj_optimizer returned updates of another shape than its parameters.")
        if not all(np.isfinite(a).all() for a in after):
            raise ArgumentError(
                "A step on no records makes the variational parameters non-finite: the prior's gradient "
                "at start is too large, or the learning rate of obj_optimizer is. Nothing is spent."
            )

    def _call(self, *arrays: np.ndarray) -> np.ndarray:
        # Numba compiles at the first call, and warns of what is slow.
        with np.errstate(all="ignore"), nullcontext() if self.calls else quiet_pytensor():
            return self.chunk(*arrays, self._unit)

    def _row(
        self,
        record: RecordModel,
        latents: Latents,
        noisy: TensorVariable,
        z: TensorVariable,
        gradient: str,
        scale: TensorVariable,
        spacing: TensorVariable,
    ) -> TensorVariable:
        """Latent draw, noisy gradient of the likelihood, gradient of the prior, noise (`gradient_moments`).

        With several draws, their means. All that is of the records in it is the release.
        """
        n_mc, size = self.draw_shape
        prior = prior_gradients(record, latents, z, n_mc).mean(axis=0)
        if gradient == "aligned":
            # The sum is of gradients divided by sqrt(n_mc).
            likelihood = noisy.reshape((n_mc, size)).mean(axis=0) * (np.sqrt(n_mc) * scale)
        else:
            at = [p.name for p in self.params].index("mu")
            first = sum(p.get_value(borrow=True).size for p in self.params[:at])
            likelihood = noisy[first : first + size] * scale - prior
        noise = spacing * 2.0**LATTICE_BITS * scale
        if self.running_clip is not None:
            noise = noise * self.running_clip.scale
        return pt.concatenate([v.astype("float64") for v in (z.mean(axis=0), likelihood, prior, noise[None])])

    def _check_row(self, row: TensorVariable, noisy: TensorVariable, inside: Sequence[Variable]) -> None:
        """Raise unless all that a row of the trace knows of the step's batch and noise is the release."""
        if set(inside) & set(walk([row], stop=[noisy], into_size=True)):
            raise PrivacyError("The trace of gradients would hold more of the records than the release.")

    def _pull_back(
        self,
        record: RecordModel,
        latents: Latents,
        noisy: TensorVariable,
        z: TensorVariable,
        entropy: TensorVariable,
        n_mc: int,
        scale: TensorVariable,
    ) -> list[TensorVariable]:
        """Gradient of the negative bound with respect to the parameters, from the noisy sum."""
        flat = prior_gradients(record, latents, z, n_mc)
        wrt_z = noisy.reshape((n_mc, latents.size)) * (np.sqrt(n_mc) * scale) + flat
        known: dict[Variable, Variable] = {z: (-wrt_z / n_mc).astype(z.type.dtype)}
        through_z = pytensor.grad(None, self.params, known_grads=known)
        return [
            a + b
            for a, b in zip(
                through_z, pytensor.grad(-entropy, self.params, disconnected_inputs="ignore"), strict=True
            )
        ]

    def _updates(self, optimizer: Optimizer, grads: Sequence[Variable]) -> dict[Variable, Variable]:
        try:
            updates = dict(optimizer(list(grads), list(self.params)))
            if not all(isinstance(v, SharedVariable) for v in updates):
                raise TypeError("the updates are not of shared variables")
            updates = {v: pt.as_tensor(new) for v, new in updates.items()}
        except Exception as error:
            raise ArgumentError(
                "obj_optimizer must be a function of (gradients, parameters) that returns updates, such as "
                f"pm.adam(learning_rate=0.01); calling it raised {type(error).__name__}: {error}"
            ) from error
        return updates

    def _check_updates(
        self,
        record: RecordModel,
        updates: Mapping[Variable, Variable],
        public: Sequence[Variable],
        inside: Sequence[Variable],
    ) -> None:
        """Raise unless all that the updates know of a step's batch and noise is the release.

        The gradients that an optimiser is given are graphs, and what stands behind them can be taken hold
        of: the release, which is public, and behind that the records, the clipped sum's rows, the batch and
        its size, the noise that would have to be taken off. A ``default_update`` is an update too.

        Raises
        ------
        ArgumentError
        """
        held = {*inside, *record.arrays, *record.model.data_vars, *record.model.observed_RVs}
        todo, behind = [*updates, *updates.values()], set[Variable]()
        while todo:
            found = set(walk(todo, stop=public, into_size=True)) - behind
            behind |= found
            changes = [getattr(v, "default_update", None) for v in found if isinstance(v, SharedVariable)]
            todo = [v for v in changes if v is not None]
        if held & behind:
            raise ArgumentError(
                "obj_optimizer brings data of the model, or what stands behind its gradients, into its "
                "updates, unaccounted. It may use its gradients, its parameters and numbers of its own."
            )

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
            In units of the lattice.
        base_draws : ndarray of floatX, shape (n_steps, n_mc, D)
            Standard normal draws (public randomness).
        weights : ndarray, shape (n_steps,)
            Weight of each new iterate in the average; 0 leaves the average alone.

        Raises
        ------
        ModelEvaluationError
            If the model's graph raises on the records. The text tells nothing of them.
        """
        failure = ""
        weights = np.asarray(weights, dtype=self.dtype)
        try:
            with _uninterrupted(), ONE_THREAD:
                rows = self._call(indices, offsets, noise, base_draws, weights)
                self.calls += len(weights)
                self.trace.take(rows)
        except Exception as error:  # its text may hold data; raised below, so that it is not chained
            failure = type(error).__name__
        if failure:
            raise ModelEvaluationError(
                f"The model's log-density raised {failure} on the records. Every operation that passes the "
                "checks was tried on hostile numbers, and this was not seen: keep to yourself that it came, "
                "as a single record may be the cause, and report the model to pymc_dpvi, without the data. "
                "What was planned has been charged."
            )


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let a keyboard interrupt wait, so that the state and the count of steps belong together.

    Otherwise it would nearly always come between the end of the compiled call and the storing of what
    that returned.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])
