r"""The runs of one method: compile, charge, report, loop, average.

In: what was checked (`settings`, `keywords`), a separable model (`graph.records`), an approximation. Out: the
latter, fitted. A run takes these steps, and nothing is spent before the third:

1. The step is compiled (`engine.step`), and tried on no records.
2. Warnings are given (`cautions`).
3. The planned cost is charged to the budget, if there is one, and goes into the report. Early stopping,
   callbacks that raise, and interrupts do not reduce it.
4. The steps run (`engine.loop`), with batches and noise from the method's own key streams.
5. The iterates of the last half are averaged: post-processing that takes out most of the noise.

Further steps are charged as a release of their own, and the costs add up, because the decision to go on may
depend on earlier results. A run that a record may have ended leaves nothing but its cost.

What it must never do: run a step that is not in the report.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from pymc_dpvi.accounting import PrivacyBudget
from pymc_dpvi.cautions import log_earlier_fit, log_no_records, warn_before_charge
from pymc_dpvi.compat import quiet_pytensor, versions
from pymc_dpvi.engine.backends import Backend, few_steps, first_that_works
from pymc_dpvi.engine.cluster import Cluster
from pymc_dpvi.engine.interrupts import uninterrupted
from pymc_dpvi.engine.loop import averages_from, iterate
from pymc_dpvi.engine.source_records import SourceRecords
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.keywords import FitArguments
from pymc_dpvi.lowering import is_python
from pymc_dpvi.mechanism.mechanism import Mechanism, Streams
from pymc_dpvi.numba_cache import source_hash
from pymc_dpvi.optimizers import falling_adam, rate_of_large
from pymc_dpvi.pages import shown
from pymc_dpvi.posterior.approximation import DPApproximation
from pymc_dpvi.progress import Bar, StepProgress
from pymc_dpvi.release.report import PrivacyRun
from pymc_dpvi.settings import PrivacySettings

__all__ = ["Runs"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _LastFit:
    """What a `fit` has compiled, and `refine` goes on with."""

    step: PrivateStep
    mechanism: Mechanism
    asked: FitArguments
    backend: str


class Runs:
    """The fits of one approximation, and the state from which the next one starts.

    Parameters
    ----------
    settings : PrivacySettings
    budget : PrivacyBudget or None
        What all fits on these data may spend together.
    record : RecordModel
    sources : SourceRecords, Cluster or None
        Where the records are, if they are not in memory.
    approx : DPApproximation
        What is fitted, in place.
    random_seed : int or None
        Of the base draws.
    insecure_noise_seed : int or None
        Of batches and noise, in tests.
    label : str
        The method's name, for the ledger of a budget.
    """

    def __init__(
        self,
        settings: PrivacySettings,
        budget: PrivacyBudget | None,
        record: RecordModel,
        sources: SourceRecords | Cluster | None,
        approx: DPApproximation,
        *,
        random_seed: int | None,
        insecure_noise_seed: int | None,
        label: str,
    ) -> None:
        self._settings, self._budget, self._record = settings, budget, record
        self._sources, self._approx, self._label = sources, approx, label
        self.insecure_noise_seed = insecure_noise_seed
        self.base_draws = np.random.default_rng(random_seed)
        self.streams: Streams | None = None
        self._last: _LastFit | None = None
        self._iterate: list[np.ndarray] | None = None
        self._steps_run = 0

    @property
    def step(self) -> PrivateStep | None:
        """The compiled step of the last fit; None before it, and after a run that a record ended."""
        return None if self._last is None else self._last.step

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism of the last fit."""
        return None if self._last is None else self._last.mechanism

    def fit(
        self, asked: FitArguments, mechanism: Mechanism, candidates: list[Backend], optimizer: Any
    ) -> None:
        """Compile a step on the first backend that can, and run it."""
        cost = self._cost(mechanism, asked.n)
        self._charge_budget(cost, mechanism, "fit", dry_run=True)  # a refusal need not wait for the compiler
        step, backend = self._compiled_step(candidates, mechanism, asked, optimizer)
        cost = replace(cost, backend=backend)
        self._warn()
        self._charge_budget(cost, mechanism, "fit")
        if self._budget is None:
            log_earlier_fit(self._approx._report, cost)
        self._approx.groups[0].include_transformed = asked.include_transformed
        self._last = _LastFit(step, mechanism, asked, backend)
        self._run(self._last, cost, asked.bar)

    def refine(self, n: int, bar: Bar) -> None:
        """Run `n` more steps of the last fit."""
        assert self._last is not None
        mechanism = self._last.mechanism
        cost = replace(self._cost(mechanism, n), backend=self._last.backend)
        self._warn()
        self._charge_budget(cost, mechanism, "refine")
        self._run(self._last, cost, bar)

    def public_batch(self, mechanism: Mechanism) -> float | None:
        """Return the expected number of rows in a batch, if it is public."""
        if self._sources is not None:
            return inf  # who has them on the disk says that there are many
        if not self._settings.num_records_public or self._record.units is not None:
            return None
        return mechanism.sampler.sampling_prob * self._record.num_units

    def _compiled_step(
        self, candidates: list[Backend], mechanism: Mechanism, asked: FitArguments, optimizer: Any
    ) -> tuple[PrivateStep, str]:
        """Compile the step on the first backend that can, and say which."""
        in_clip_norms = False
        if optimizer is None:
            widths, size = self._approx._widths, self._approx.latents.size
            in_clip_norms = widths is None
            rate = rate_of_large(asked.n, size) if widths is None else None
            optimizer = falling_adam(asked.n, rate, widths=widths)

        expected = self.public_batch(mechanism)

        def compiled(candidate: Backend) -> PrivateStep:
            with quiet_pytensor():
                return PrivateStep(
                    self._record,
                    self._approx.latents,
                    self._approx.groups[0],
                    mechanism,
                    n_mc=asked.n_mc,
                    optimizer=optimizer,
                    in_clip_norms=in_clip_norms,
                    max_grad_norm=asked.max_grad_norm,
                    compile_kwargs=dict(candidate.step),
                    rows_kwargs=candidate.rows,
                    cores=None if is_python(candidate.step["mode"]) else asked.cores,
                    public_batch=expected,
                    cluster=self._sources if isinstance(self._sources, Cluster) else None,
                )

        graphs = [*self._record.factors.values(), self._record.prior_logp]
        places = 0 if self._record.local is None else self._record.local.places.count
        return first_that_works(
            few_steps(candidates, asked.n, self._approx.latents.size, graphs, places), compiled
        )

    def _cost(self, mechanism: Mechanism, n_steps: int) -> PrivacyRun:
        """Return what a run costs, with an id of its own; a seeded run has no id, as no ledger takes it."""
        run_id = secrets.token_hex(8) if self.insecure_noise_seed is None else ""
        return replace(self._settings.cost(mechanism, n_steps), run_id=run_id)

    def _charge_budget(
        self, run: PrivacyRun, mechanism: Mechanism, call: str, *, dry_run: bool = False
    ) -> None:
        """Charge the planned cost to the budget, if there is one, or raise and charge nothing."""
        if self._budget is not None:
            self._budget.charge(
                epsilon=run.epsilon,
                delta=run.delta,
                neighboring_relation=mechanism.neighboring_relation,
                label=f"{self._label}.{call}",
                n_steps=run.n_steps,
                noise_multiplier=mechanism.noise_multiplier,
                sampler=mechanism.sampler,
                accountant=self._settings.accountant,
                run_id=run.run_id,
                record="one row" if self._record.units is None else self._record.units.words,
                dry_run=dry_run,
            )

    def _report_planned_cost(self, run: PrivacyRun, streams: Streams) -> None:
        """Put the planned cost into the report, before the first step."""
        self._approx._report = self._settings.report(
            run,
            self._approx._report,
            unit=self._record.unit,
            by_unit=self._record.units is not None,
            on_workers=isinstance(self._sources, Cluster),
            secure_randomness=streams.secure,
            public_arrays=self._record.public_arrays,
            withheld=tuple(self._approx.withheld),
            versions=(*versions().items(), ("pymc-dpvi sources", source_hash()[:16])),
            budget=None if self._budget is None else self._budget.name,
        )

    def _warn(self) -> None:
        """Give the warnings of a fit, before it is charged."""
        seeded = self.insecure_noise_seed is not None
        warn_before_charge(self._settings, self._record.model, self._record.num_units, seeded=seeded)

    def _run(self, last: _LastFit, planned: PrivacyRun, bar: Bar) -> None:
        """Report the cost, run the steps, average the iterates."""
        if self.streams is None:
            self.streams = Streams.make(self.insecure_noise_seed)
        self._report_planned_cost(planned, self.streams)  # nothing has been drawn yet
        n, step, report = planned.n_steps, last.step, self._approx.privacy
        before, withdraw = step.calls, self._withdrawal()
        self._restore_iterate()
        step.trace.begin(n)
        self._approx._trace = step.trace
        self._approx._running_clip = step.running_clip
        try:
            self._make_steps(last, self.streams, n, bar)
        except StopIteration as stop:
            _logger.info(str(stop))
        except KeyboardInterrupt:
            if step.failed is None:
                _logger.warning(
                    "Interrupted after %d of %d steps. What was planned is spent; the result is usable.",
                    step.calls - before,
                    n,
                )
        finally:
            with uninterrupted():
                step.rest()
                if step.failed is not None:
                    withdraw()
                else:
                    done = step.calls - before
                    self._steps_run += done
                    self._approx._report = report.with_steps_run(done)
                    if done > averages_from(n):
                        self._average(step)
        step.raise_failed()  # if an interrupt came while the bar was closed
        log_no_records(step.running_clip, last.mechanism, self._record.units is not None)

    def _make_steps(self, last: _LastFit, streams: Streams, n: int, bar: Bar) -> None:
        """Make `n` steps, show how far they are, and call the callbacks."""
        step, report = last.step, self._approx.privacy
        steps = iterate(
            step,
            last.mechanism,
            streams,
            self.base_draws,
            self._record.num_units,
            n,
            every=last.asked.every,
            before=self._steps_run,
            units=self._record.units,
            sources=self._sources if isinstance(self._sources, SourceRecords) else None,
        )
        epsilon, delta = (shown(x, up=True, digits=3) for x in (report.epsilon, report.delta))
        cost = f"ε = {epsilon} at δ = {delta} (planned)"
        # How fast steps are tells how many rows persons have.
        public = self._settings.num_records_public and self._record.units is None
        drawn = 0
        with closing(steps), StepProgress(n, cost, bar.visible, bar.theme, keep_speed=public) as progress:
            try:
                for done in steps:
                    progress.advance(done - drawn)
                    drawn = done
                    for callback in last.asked.callbacks:
                        callback(self._approx, None, self._steps_run + done)
            except BaseException:
                if step.failed is None:
                    raise
            step.raise_failed()  # so that the bar sees it, whatever has taken its place

    def _average(self, step: PrivateStep) -> None:
        """Put the average of the iterates in place of the last, which is kept for further runs."""
        self._iterate = [p.get_value() for p in self._approx.params]
        for param, average in zip(self._approx.params, step.averages, strict=True):
            param.set_value(average.get_value())

    def _restore_iterate(self) -> None:
        """Put the last iterate back in place of the average, so that the next run starts from it."""
        if self._iterate is not None:
            for param, value in zip(self._approx.params, self._iterate, strict=True):
                param.set_value(value)
            self._iterate = None

    def _withdrawal(self) -> Callable[[], None]:
        """Return what puts everything back to how it is now, but for the cost: a record may have ended a run.

        The error tells of that; a number of steps, or what they left, would also tell when. Base draws are
        public, and their place would tell as well.
        """
        clip, trace = self._approx._running_clip, deepcopy(self._approx._trace)
        state = [(v, v.get_value()) for v in (*self._approx.params, *(() if clip is None else clip.state))]
        place = self.base_draws.bit_generator.state

        def withdraw() -> None:
            self.base_draws.bit_generator.state = place
            for variable, value in state:
                variable.set_value(value)
            self._last = self._iterate = None
            self._approx._running_clip, self._approx._trace = clip, trace

        return withdraw
