"""Models, settings and one call for the mechanism's own suite (`pymc_dpvi.auditing`)."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import pymc as pm

from pymc_dpvi.auditing.attack import Attack, check_attack, claims, run_attack
from pymc_dpvi.auditing.batches import check_batches
from pymc_dpvi.auditing.gradients import check_gradients
from pymc_dpvi.auditing.probe import Probe
from pymc_dpvi.auditing.report import CheckResult
from pymc_dpvi.auditing.sensitivity import check_lattice, check_one_way_out, check_sensitivity
from pymc_dpvi.auditing.transcript import check_noise, check_randomness
from pymc_dpvi.compat import compile_mode, rows_mode
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.mechanism.adaptive_clipping import AdaptiveClip
from pymc_dpvi.mechanism.mechanism import Mechanism, Streams
from pymc_dpvi.posterior.approximation import DPApproximation, DPFullRank, DPMeanField
from pymc_dpvi.sampling import FixedSizeSampler, FullBatchSampler, PoissonSampler, Sampler

CLIP = 0.8
FAMILIES: dict[str, type[DPApproximation]] = {"mean-field": DPMeanField, "full-rank": DPFullRank}
GRADIENTS = ("aligned", "vanilla")
#: Sampler and relation. The relation decides which accountants there are.
SAMPLERS: dict[str, tuple[Sampler, str]] = {
    "poisson": (PoissonSampler(0.25), "add_or_remove_one"),
    "poisson, replace": (PoissonSampler(0.25), "replace_one"),
    "fixed size": (FixedSizeSampler(6, 24), "replace_one"),
    "full batch": (FullBatchSampler(), "add_or_remove_one"),
    "full batch, replace": (FullBatchSampler(), "replace_one"),
}


def regression() -> pm.Model:
    """Three blocks: coefficients, an intercept, and a transformed scale."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.3, 0.5, shape=2)
        intercept = pm.Normal("intercept", 0, 1)
        scale = pm.HalfNormal("scale", 1)
        mean = pm.Data("x", np.zeros((24, 2))) @ beta + intercept
        pm.Normal("y", mean, 0.1 + scale, observed=np.zeros(24))
    return model


def layers() -> pm.Model:
    """Two layers, whose weights have outer products for gradients, on integer labels."""
    with pm.Model() as model:
        x = pm.Data("x", np.zeros((24, 3)))
        first = pm.Normal("first", 0, 1, shape=(3, 2))
        second = pm.Normal("second", 0, 1, shape=(2, 3))
        hidden = pm.math.tanh(x @ first)
        pm.Categorical("label", logit_p=hidden @ second, observed=np.zeros(24, dtype="int64"))
    return model


#: Weighty enough for a mistake in the counts to be seen beside the gradients.
ADAPTIVE = AdaptiveClip(start=CLIP, tally_weight=0.75)


def look_ups() -> pm.Model:
    """Intercepts by group, strengths of two opponents, and weights that a record uses three times."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        group = pm.Data("group", rng.integers(0, 8, size=24))
        pair = pm.Data("pair", rng.integers(0, 12, size=(24, 2)))
        series = pm.Data("series", np.zeros((24, 2, 12)))
        intercept = 0.5 + 0.3 * pm.Normal("offset", 0, 1, shape=8)
        strength = pm.Normal("strength", 0, 1, shape=12)
        weights = pm.Normal("weights", 0, 0.1, shape=(12, 12))
        hidden = pm.math.tanh(series @ weights).sum(axis=(1, 2))
        mean = intercept[group] + strength[pair[:, 0]] - strength[pair[:, 1]] + hidden
        pm.Normal("y", mean, 1.0, observed=np.zeros(24))
    return model


def mechanism(
    sampler: str, gradient: str = "aligned", noise_multiplier: float = 1.0, adaptive: bool = False
) -> Mechanism:
    how, relation = SAMPLERS[sampler]
    return Mechanism(how, CLIP, noise_multiplier, relation, gradient, ADAPTIVE if adaptive else None)  # type: ignore[arg-type]


class Suite:
    """One configuration, built once, and its checks."""

    def __init__(
        self,
        model: pm.Model,
        *,
        family: str = "mean-field",
        gradient: str = "aligned",
        sampler: str = "poisson",
        noise_multiplier: float = 1.0,
        n_mc: int = 1,
        backend: str = "FAST_COMPILE",
        adaptive: bool = False,
        seed: int = 1,
        unit: Any = None,
        max_rows: int | None = None,
        guide: Any = None,
    ) -> None:
        self.record = build_record_model(model, unit=unit, max_rows_per_unit=max_rows, guide=guide)
        self.approx = FAMILIES[family](self.record, random_seed=1)
        self.mechanism = mechanism(sampler, gradient, noise_multiplier, adaptive)
        self.rng = np.random.default_rng(seed)
        mode: dict[str, Any] = {"mode": backend} if backend == "FAST_COMPILE" else compile_mode(backend, None)
        self.probe = Probe(
            self.record,
            self.approx,
            self.mechanism,
            n_mc=n_mc,
            compile_kwargs=mode,
            rows_kwargs=None if backend == "FAST_COMPILE" else rows_mode(backend),
            rng=self.rng,
        )
        self.streams = Streams.make(seed)

    def under(self, sampler: str) -> Suite:
        """The same compiled step under another sampler and relation, which it does not know."""
        other = copy(self)
        own = self.mechanism
        other.mechanism = mechanism(sampler, own.gradient, own.noise_multiplier, own.adaptive is not None)
        assert (other.mechanism.sampler.name == "full_batch") == (self.mechanism.sampler.name == "full_batch")
        return other

    def one_way_out(self) -> CheckResult:
        return check_one_way_out(self.probe)

    def sensitivity(self) -> CheckResult:
        return check_sensitivity(self.probe, self.mechanism, self.streams, self.rng)

    def lattice(self) -> CheckResult:
        return check_lattice(self.probe, self.mechanism, self.streams, self.rng)

    def gradients(self) -> CheckResult:
        return check_gradients(self.probe, self.record, self.approx, self.rng)

    def noise(self, n: int = 400) -> CheckResult:
        return check_noise(self.probe, self.mechanism, self.streams, self.rng, n)

    def batches(self, n: int = 600) -> CheckResult:
        units = self.record.units
        by_unit = {"by_unit": units is not None, "max_rows": None if units is None else units.max_rows}
        return check_batches(self.mechanism, self.streams, self.rng, n, **by_unit)

    def randomness(self) -> CheckResult:
        return check_randomness(self.mechanism, None)

    def run_attack(self, n: int = 200, sampled: bool = False, **kwargs: Any) -> Attack:
        return run_attack(self.probe, self.mechanism, self.streams, self.rng, n, sampled=sampled, **kwargs)

    def attack(self, n: int = 200, accountant: Any = "rdp", **kwargs: Any) -> CheckResult:
        return check_attack(self.run_attack(n, **kwargs), claims(self.mechanism, accountant))
