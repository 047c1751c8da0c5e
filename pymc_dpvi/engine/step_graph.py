r"""The graph of a step: one batch, one latent draw, one vector of noise, one update.

.. math::

    z_m &= T(\xi, \zeta_m), \qquad m = 1,\dots,M \\
    \tilde s &= \sum_{i\in B} \operatorname{clip}_C\!\big(g_i\big) + \eta
              \qquad\text{(}\texttt{PrivateSum}\text{: the only operation on records)}\\
    \nabla_{z_m} &= \tfrac{\sqrt M}{q}\,\tilde s_m + \nabla \log p(z_m) \\
    \nabla_\xi &= \tfrac1M \sum_m \Big(\frac{\partial z_m}{\partial\xi}\Big)^{\!\top} \nabla_{z_m}
                   + \nabla_\xi H(q_\xi)

The scale is 1/q, a public constant: never the realised batch size. Everything after the noisy sum is
post-processing. With an adaptive clip norm (`adaptive_clipping`), gradients are divided and the sum is
multiplied by a number that follows from the noisy counts of earlier steps. The graph also keeps the running
average of the iterates, :math:`\bar\xi \leftarrow \bar\xi + w\,(\xi - \bar\xi)`, and makes a row for the
`GradientTrace`: latent draw, noisy gradient of the likelihood, gradient of the prior, noise.

What it may never do: let records, the batch, its size or the noise reach what a step changes or leaves
behind, other than through the noisy sum. `StepGraph.row` checks the row, `StepGraph.updates` the optimiser's
updates. The clip norm and the averages are functions of the noisy sum and of the new parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.variational.updates import total_norm_constraint
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.engine.gradient_moments import MOST_LATENTS
from pymc_dpvi.engine.private_sum import PrivateSum, private_sum
from pymc_dpvi.engine.running_clip import RunningClip
from pymc_dpvi.errors import ArgumentError, PrivacyError
from pymc_dpvi.graph.blocks import Block
from pymc_dpvi.graph.gradients import (
    AtPlaces,
    Latents,
    aligned_gradients,
    at_places,
    informed,
    local_terms,
    log_densities,
    prior_gradients,
    vanilla_gradients,
)
from pymc_dpvi.graph.opaque import hides_numbers
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.traversal import walk
from pymc_dpvi.guide.whole import Family
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.optimizers import Optimizer
from pymc_dpvi.randomness.rounded_normal import LATTICE_BITS

__all__ = ["StepGraph"]


class StepGraph:
    """What one step computes, as graphs of its inputs and of shared variables.

    Parameters, and attributes with the same names, are those of `PrivateStep`. `per_step` are the inputs that
    differ from step to step (batch, its size, noise, base draws, weight in the average), `spacing` is the
    other one; `data` are the record arrays, `batch` their rows, `of_rows` what is made for each row;
    `averages` are those of the parameters; `noisy` is the gradients' noisy sum; `grads` are the gradients of
    the negative evidence lower bound.
    """

    def __init__(
        self,
        record: RecordModel,
        latents: Latents,
        family: Family,
        mechanism: Mechanism,
        n_mc: int,
        max_grad_norm: float | None,
    ) -> None:
        self.record, self.latents, self.mechanism = record, latents, mechanism
        self.params: list[SharedVariable] = list(family.params)
        self.averages = [pytensor.shared(p.get_value(), name=f"{p.name}_average") for p in self.params]
        self.sizes = [p.get_value(borrow=True).size for p in self.params]
        self.n_mc = n_mc
        self.draw_shape = (n_mc, family.num_base_draws)
        self.is_aligned = mechanism.gradient == "aligned"
        self.size = n_mc * latents.size if self.is_aligned else sum(self.sizes)
        self.num_noise = self.size + mechanism.num_counts
        rule = mechanism.adaptive
        self.running_clip = None if rule is None else RunningClip(rule, latents.size > MOST_LATENTS)
        self.clip_updates: dict[Variable, Variable] = {}
        # A variable, like the spacing, so that other rates and noise need no other compiled step.
        scale = pytensor.shared(np.asarray(1.0 / mechanism.sampler.sampling_prob), name="scale")
        self.scale: SharedVariable = scale
        floatx = pytensor.config.floatX
        self.indices, self.count, self.spacing = (
            pt.lvector("indices"),
            pt.lscalar("count"),
            pt.dscalar("spacing"),
        )
        self.noise = pt.tensor("noise", dtype="int64", shape=(self.num_noise,))
        self.base_draws = pt.matrix("base_draws", dtype=floatx, shape=self.draw_shape)
        self.weight = pt.scalar("weight", dtype=floatx)
        self.per_step = [self.indices, self.count, self.noise, self.base_draws, self.weight]
        self.is_whole = mechanism.sampler.name == "full_batch" and record.units is None
        self.data = record.data()
        rows = record.rows[: len(self.data)]
        self.batch = [self._rows(d, row) for d, row in zip(self.data, rows, strict=True)]
        # What is made for each row as it is needed (`local_sums`).
        self.of_rows: list[TensorVariable] = []
        self.at_places: AtPlaces | None = None
        if record.local is not None:
            self.at_places = at_places(record, latents)
            made = (*record.rows[len(rows) :], *record.local.placeholders_at_places())
            self.of_rows = [row.type.clone(shape=(None, *row.type.shape[1:]))(name=row.name) for row in made]

        drawn: dict[Variable, Variable] = {family.symbolic_initial: self.base_draws}
        self.z, entropy = graph_replace(
            [family.symbolic_random, family.symbolic_entropy], drawn, strict=False
        )
        if self.is_aligned:
            per_record = aligned_gradients(*self._differentiated(), self.z, n_mc)
            self.noisy = self._noisy_sum(per_record)
            if not (own := informed(record, latents)).all():
                # A latent value that is not in the likelihood has gradient zero: public, so without noise.
                self.noisy = self.noisy * np.tile(own.astype(floatx), n_mc)
            grads = self._pull_back(entropy)
        else:
            per_record = vanilla_gradients(
                record, self.batch, latents, family, self.base_draws, self.z, entropy, n_mc
            )
            self.noisy = self._noisy_sum(per_record)
            ends = np.cumsum([0, *self.sizes])
            grads = [-self.noisy[a:b] * self.scale for a, b in itertools.pairwise(ends)]
        mechanism.check_lattice(record.num_units, self.num_noise)
        self.grads = [
            g.reshape(p.get_value(borrow=True).shape).astype(p.type.dtype)
            for g, p in zip(grads, self.params, strict=True)
        ]
        if max_grad_norm is not None:
            self.grads = total_norm_constraint(self.grads, max_grad_norm)

    def _rows(self, data: TensorVariable, row: TensorVariable) -> TensorVariable:
        """Rows of the batch, each of the shape of a row of `row`."""
        rows = data if self.is_whole else data[self.indices]
        shape = row.type.shape[1:]
        return rows if rows.type.shape[1:] == shape else pt.specify_shape(rows, (None, *shape))

    def _differentiated(self) -> tuple[RecordModel, list[TensorVariable], Latents]:
        """Return the model whose rows are differentiated, a batch of its rows, and its latents."""
        if self.at_places is None:
            return self.record, self.batch, self.latents
        return self.at_places.weighed, [*self.batch, *self.of_rows[1:]], self.at_places.latents

    def _noisy_sum(self, per_record: Sequence[Block]) -> TensorVariable:
        """Noisy sum of clipped gradients, shape ``(size,)``; sets an adaptive clip norm's `clip_updates`."""
        of_batch = self.noise, self.mechanism.l2_clip_norm, self.spacing, self.count
        local: dict[str, Any] = {}
        if (model := self.at_places) is not None and self.record.local is not None:
            at_modes, placed = [*self.batch, *self.of_rows[:2]], [*self.batch, *self.of_rows[1:]]
            densities = log_densities(model.values, placed, model.latents, self.z)
            terms = [densities, *local_terms(self.record, at_modes, self.latents, self.z)]
            local = {"places": self.record.local.places, "terms": terms}
        if self.running_clip is None:
            return private_sum(per_record, *of_batch, **local)
        clip_scale = self.running_clip.scale
        scaled = [b.scaled(1.0 / clip_scale) for b in per_record]
        released = private_sum(scaled, *of_batch, tally_weight=self.mechanism.tally_weight, **local)
        self.clip_updates = self.running_clip.updates(released[self.size :], self.spacing, self.scale)
        return released[: self.size] * clip_scale

    def _pull_back(self, entropy: TensorVariable) -> list[TensorVariable]:
        """Gradient of the negative evidence lower bound by the parameters, from the noisy sum by z."""
        n_mc, size = self.n_mc, self.latents.size
        wrt_z = self.noisy.reshape((n_mc, size)) * (np.sqrt(n_mc) * self.scale)
        wrt_z = wrt_z + prior_gradients(self.record, self.latents, self.z, n_mc)
        known: dict[Variable, Variable] = {self.z: (-wrt_z / n_mc).astype(self.z.type.dtype)}
        through_z = pytensor.grad(None, self.params, known_grads=known)
        of_entropy = pytensor.grad(-entropy, self.params, disconnected_inputs="ignore")
        return [a + b for a, b in zip(through_z, of_entropy, strict=True)]

    def row(self) -> TensorVariable:
        """Latent draw, noisy gradient of the likelihood, gradient of the prior, noise (`gradient_moments`).

        With several draws, their means. A PrivacyError if more of the records is in it than the release.
        """
        row = self._row()
        inside = [*self.record.of_records, *self.data, self.indices, self.count, self.noise]
        columns_of = {*self.record.of_records, *self.data}
        behind = walk([row], stop=[self.noisy], into_size=True, columns_of=columns_of)
        if not set(inside).isdisjoint(behind):
            raise PrivacyError("The trace of gradients would hold more of the records than the release.")
        return row

    def _row(self) -> TensorVariable:
        n_mc, size = self.n_mc, self.latents.size
        prior = prior_gradients(self.record, self.latents, self.z, n_mc).mean(axis=0)
        if self.is_aligned:
            # The sum is of gradients divided by sqrt(n_mc).
            likelihood = self.noisy.reshape((n_mc, size)).mean(axis=0) * (np.sqrt(n_mc) * self.scale)
        else:
            first = sum(self.sizes[: [p.name for p in self.params].index("mu")])
            likelihood = self.noisy[first : first + size] * self.scale - prior
        noise = self.spacing * 2.0**LATTICE_BITS * self.scale
        if self.running_clip is not None:
            noise = noise * self.running_clip.scale
        parts = (self.z.mean(axis=0), likelihood, prior, noise[None])
        return pt.concatenate([v.astype("float64") for v in parts])

    def updates(self, optimizer: Optimizer, in_clip_norms: bool = False) -> dict[Variable, Variable]:
        """Return what a step changes: parameters, the optimiser's own state, clip norm, averages.

        With `in_clip_norms`, the optimiser gets the gradients divided by an adaptive clip norm's
        :math:`C_t / C_0`, a function of earlier releases. An ArgumentError if the optimiser returns no
        updates, or some that read more than the release.
        """
        grads = self.grads
        if in_clip_norms and self.running_clip is not None:
            scale = self.running_clip.scale
            grads = [(g / scale).astype(g.type.dtype) for g in grads]
        updates = self._updates(optimizer, grads)
        released = [v for v in walk(self.grads) if v.owner is not None and isinstance(v.owner.op, PrivateSum)]
        self._check_updates(updates, [*self.grads, *released])
        updates.update(self.clip_updates)
        for p, average in zip(self.params, self.averages, strict=True):
            new = updates.get(p, p)
            updates[average] = (average + self.weight * (new - average)).astype(average.type.dtype)
        return updates

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

    def _check_updates(self, updates: Mapping[Variable, Variable], public: Sequence[Variable]) -> None:
        """Raise an ArgumentError if an update reads data, batch or noise other than through the noisy sum.

        The gradients that an optimiser gets are graphs, and it could go back from them through the release to
        the records, the clipped sum's rows, the batch and its size, and the noise. What hides what it reads,
        such as a ``default_update``, may do the same.
        """
        held = {*self.data, self.indices, self.count, self.noise, *self.record.brought_by_users}
        behind = set(walk([*updates, *updates.values()], stop=public, into_size=True))
        if held & behind or any(hides_numbers(v) for v in behind - set(public)):
            raise ArgumentError(
                "obj_optimizer brings data of the model, or what stands behind its gradients, into its "
                "updates, unaccounted, or may do so (by an operation that is none of PyTensor's, or a "
                "default_update). It may use its gradients, its parameters and numbers of its own."
            )
