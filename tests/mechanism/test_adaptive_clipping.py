"""The adaptive clip norm: what a record adds to the counts, what it costs, and where the bound goes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from clipped_sums import noisy_sum
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import optimize, stats

from pymc_dpvi import DPADVI, AdaptiveClip, accounting
from pymc_dpvi.engine.clipping import add_tally, tally_units
from pymc_dpvi.engine.running_clip import RunningClip
from pymc_dpvi.errors import ArgumentError, InsecureNoiseWarning
from pymc_dpvi.graph.blocks import Form
from pymc_dpvi.mechanism.adaptive_clipping import CLIP_NORM_RANGE
from pymc_dpvi.mechanism.limits import LARGEST_SUM, SLACK
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.posterior import approximation, curvature_posterior
from pymc_dpvi.posterior.curvature_posterior import CurvatureScale
from pymc_dpvi.posterior.noise_aware import NoiseAwarePosterior
from pymc_dpvi.randomness.lattice_noise import LatticeNoise
from pymc_dpvi.release.report import PrivacyReport
from pymc_dpvi.sampling import PoissonSampler

C, KAPPA = 0.7, 0.5
UNIT = LatticeNoise(3.0 * C * math.hypot(1, KAPPA)).spacing
UNITS = tally_units(C, UNIT, KAPPA)

entries = st.one_of(
    st.sampled_from([0.0, 5e-324, 1e-200, 1e154, 1e300, np.nan, np.inf, -np.inf]), st.floats(-3, 3)
)


def release(rows: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
    """Gradients' columns and the tally, in the units of the lattice: exact integers."""
    noise = np.zeros(rows.shape[1] + 3, dtype=np.int64) if noise is None else noise
    return np.rint(noisy_sum([rows], [Form("dense")], C, noise, UNIT, KAPPA) / UNIT)


def within(norm: float) -> float:
    """The share of a record that counts as within the bound: slow and obvious."""
    c = C * (1.0 - SLACK)
    if norm <= 0.75 * c:
        return 1.0
    return 0.0 if norm >= 1.25 * c else (1.25 * c - norm) / (0.5 * c)


@given(arrays(np.float64, st.tuples(st.integers(0, 5), st.just(3)), elements=entries))
def test_the_tally_is_the_obvious_one(rows: np.ndarray):
    expected = np.zeros(3)
    for row in rows:
        with np.errstate(all="ignore"):
            norm = math.sqrt(np.sum(row**2)) if np.isfinite(np.sum(row**2)) else math.inf
        if norm < math.inf:
            b, m = within(norm), min(1.0, norm / (C * (1.0 - SLACK)))
            expected += [b * (1 - m), 1 - b, b * m]
    np.testing.assert_allclose(release(rows)[3:] / UNITS, expected, atol=1e-5 * (1 + len(rows)))


@given(
    arrays(np.float64, st.tuples(st.integers(0, 4), st.just(3)), elements=entries),
    arrays(np.float64, (1, 3), elements=entries),
)
def test_a_record_adds_at_most_one_unit_vector_to_the_tally(rows: np.ndarray, new: np.ndarray):
    """And all of it together is within the sensitivity that is accounted for, in exact integers."""
    noise = np.array([3, -1, 4, 1, -5, 9], dtype=np.int64) * 2**38
    moved = release(np.concatenate([rows, new]), noise) - release(rows, noise)
    assert np.linalg.norm(moved[3:]) <= UNITS and (moved[3:] >= 0).all()
    assert UNITS * UNIT <= KAPPA * C
    assert np.linalg.norm(moved) * UNIT <= C * math.hypot(1, KAPPA)
    assert np.linalg.norm(moved) <= 2.0**40 / 3.0


def test_the_bound_is_reached():
    alone = release(np.array([[5.0, 0.0, 0.0]])) * UNIT
    assert np.linalg.norm(alone) > C * math.hypot(1, KAPPA) * (1 - 1.1 * SLACK)
    assert alone[4] == pytest.approx(KAPPA * C, rel=1.1 * SLACK) and alone[3] == alone[5] == 0


def test_a_tally_beyond_64_bits_is_held():
    tally = np.zeros(3, dtype=np.int64)
    for _ in range(9):
        add_tally(np.array([0.0, 0.25, 4.0]), 1.0, 2**61, tally)
        assert (tally >= 0).all()
    assert tally.tolist() == [int(LARGEST_SUM)] * 3
    # What one record more moves is no more than its units, also there.
    before = tally.copy()
    add_tally(np.array([0.0]), 1.0, 2**61, tally)
    assert np.abs(tally - before).sum() <= 2**61


def mechanism(weight: float = KAPPA, relation: str = "add_or_remove_one") -> Mechanism:
    rule = AdaptiveClip(start=C, tally_weight=weight)
    return Mechanism(PoissonSampler(0.1), C, 3.0, relation, "aligned", rule)  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [0.1, 0.25, 1.0])
def test_two_releases_cost_what_one_does(weight: float):
    """Andrew et al. 2021, theorem 1: noise of the sum and of the count, from that of both."""
    m = mechanism(weight)
    of_sum = m.noise.stddev / m.l2_clip_norm
    of_count = m.noise.stddev / (weight * m.l2_clip_norm)
    assert of_sum**-2 + of_count**-2 == pytest.approx(m.noise_multiplier**-2, rel=1e-12)
    # On the full data, Gaussian steps compose exactly: both ways to account agree.
    together = accounting.epsilon(
        delta=1e-6, noise_multiplier=m.noise_multiplier, n_steps=10, sampler="full_batch"
    )
    mu = math.sqrt(10 * (of_sum**-2 + of_count**-2))
    delta = stats.norm.cdf(mu / 2 - together / mu) - math.exp(together) * stats.norm.cdf(
        -mu / 2 - together / mu
    )
    assert delta == pytest.approx(1e-6, rel=0.05)
    assert m.sensitivity == C * math.hypot(1, weight)
    assert mechanism(weight, "replace_one").sensitivity == 2 * m.sensitivity


def test_start_and_clip_norm_are_one():
    with pytest.raises(ArgumentError, match="start value"):
        dataclasses.replace(mechanism(), l2_clip_norm=2 * C)


# ------------------------------------------------------------------------------------------------
# Where the bound goes
# ------------------------------------------------------------------------------------------------


class Follower:
    """The compiled rule, fed with counts of made-up norms."""

    def __init__(
        self,
        rule: AdaptiveClip,
        noise_multiplier: float = 4.5,
        sampling_prob: float = 0.02,
        is_large: bool = False,
    ) -> None:
        self.rule, self.running = rule, RunningClip(rule, is_large)
        stddev = noise_multiplier * rule.start * math.hypot(1, rule.tally_weight)
        unit = LatticeNoise(stddev).spacing
        tally = pt.dvector("tally")
        updates = self.running.updates(
            tally, *(pt.constant(v, dtype="float64") for v in (unit, 1 / sampling_prob))
        )
        self.step = pytensor.function([tally], [], updates=updates, mode="PYTHON")
        self.stddev, self.per_record = stddev, rule.tally_weight * rule.start * (1 - SLACK)

    def follow(self, norms: np.ndarray, batch: int, n_steps: int, seed: int = 1) -> float:
        rng = np.random.default_rng(seed)
        for _ in range(n_steps):
            some = rng.choice(norms, size=rng.poisson(batch)) / self.running.l2_clip_norm
            share = np.clip(2.5 - 2 * some, 0, 1)
            mass = share * np.minimum(some, 1)
            counts = np.array([(share - mass).sum(), (1 - share).sum(), mass.sum()]) * self.per_record
            self.step(counts + self.stddev * rng.normal(size=3))
        return self.running.l2_clip_norm


NORMS = np.exp(np.random.default_rng(0).normal(size=20_000))


@pytest.mark.parametrize("quantile", [0.5, 0.9])
@pytest.mark.parametrize("start", [0.1, 1.0, 100.0])
def test_the_bound_finds_the_quantile(quantile: float, start: float):
    follower = Follower(AdaptiveClip(quantile=quantile, start=start))
    found = follower.follow(NORMS, batch=400, n_steps=400)
    assert abs(math.log(found / np.quantile(NORMS, quantile))) < 0.35
    assert follower.running.mean_batch_size == pytest.approx(400, rel=0.05)


def share_of_the_sum(norms: np.ndarray, clip: float) -> float:
    """What the records beyond a bound carry of the sum of the clipped norms."""
    within = np.clip(2.5 - 2 * norms / clip, 0, 1)
    beyond = np.sum(1 - within)
    return beyond / (beyond + np.sum(within * np.minimum(norms / clip, 1)))


def test_the_share_of_the_sum_is_that_of_exponential_norms():
    norms = stats.expon.ppf((np.arange(200_000) + 0.5) / 200_000)
    for p in (0.01, 0.05, 0.1, 0.2):
        assert np.mean(norms > math.log(1 / p)) == pytest.approx(p, rel=1e-3)
        beyond = p / (p + np.sum(norms[norms <= math.log(1 / p)]) / (math.log(1 / p) * norms.size))
        assert beyond == pytest.approx(math.log(1 / p) * p / (1 - p), rel=1e-3)


@pytest.mark.parametrize(("is_large", "rho"), [(False, 0.3), (True, 1.0)])
def test_the_share_to_clip_follows_the_noise(is_large: bool, rho: float):
    """By the formula of the module's docstring; and the bound clips the share of the sum that it names."""
    ends = []
    for noise_multiplier in (0.6 / rho, 2.4 / rho, 30.0 / rho):
        follower = Follower(AdaptiveClip(), noise_multiplier=noise_multiplier, is_large=is_large)
        assert follower.running.share_to_clip == pytest.approx(0.1)
        found = follower.follow(NORMS, batch=400, n_steps=1500)
        noise = noise_multiplier * math.hypot(1, 0.25)
        expected = rho * noise / (0.02 * math.sqrt(1500 * 400 / 0.02))
        share = follower.running.share_to_clip
        assert share == pytest.approx(np.clip(expected, 0.01, 0.1), rel=0.1)
        aim = math.log(1 / share) * share / (1 - share)
        wanted = optimize.brentq(lambda c, aim=aim: share_of_the_sum(NORMS, c) - aim, 1e-3, 1e3)
        assert abs(math.log(found / wanted)) < 0.4
        ends.append(share)
        follower.running.reset()
        assert follower.running.share_to_clip == pytest.approx(0.1)
    assert ends[0] == pytest.approx(0.01) and 0.015 < ends[1] < 0.04 and ends[2] == pytest.approx(0.1)


def rate_of_the_rare(rule: AdaptiveClip, rare: float) -> float:
    """Fit the rate at which a rare answer is given to clipped gradients; return what is found."""
    follower, found = Follower(rule, is_large=True), 0.5
    for step in range(600):
        clip = follower.running.l2_clip_norm
        push = rare * min(1.0 - found, clip) - (1.0 - rare) * min(found, clip)
        found += 0.2 * push / max(clip, 1e-3)
        follower.follow(np.where(np.arange(1000) < 1000 * rare, 1.0 - found, found), 400, 1, seed=step)
    return found


@pytest.mark.parametrize(("rare", "quantile"), [(0.15, 0.7), (0.05, 0.9)])
def test_a_rare_answer_is_not_clipped_away(rare: float, quantile: float):
    for start in (0.03, 1.0):
        assert rate_of_the_rare(AdaptiveClip(start=start), rare) == pytest.approx(rare, rel=0.2)
    assert rate_of_the_rare(AdaptiveClip(quantile=quantile), rare) < 0.2 * rare  # a share of the records


def test_the_bound_does_not_fall_below_the_start():
    follower = Follower(AdaptiveClip(start=2.0))
    assert 2.0 <= follower.follow(0.01 * NORMS, batch=400, n_steps=300) < 4.0
    free = Follower(AdaptiveClip(start=2.0, quantile=0.9))
    assert free.follow(0.01 * NORMS, batch=400, n_steps=900) < 0.1


def test_how_many_were_clipped_is_told_by_the_counts_not_by_the_aim():
    """A bound that cannot follow clips everybody, and says so; what it finds is right on average."""
    follower = Follower(AdaptiveClip(), noise_multiplier=20.0)
    assert follower.running.clipped_share(20.0) is None  # before the first step
    follower.follow(1e9 * NORMS, batch=100, n_steps=60)
    share, stddev = follower.running.clipped_share(20.0)
    assert follower.running.share_to_clip == pytest.approx(0.1)
    assert stddev < 0.25 and abs(share - 1.0) < 4 * stddev
    errors = []
    for seed in range(12):
        follower.running.reset()
        follower.follow(1e-9 * NORMS, batch=100, n_steps=60, seed=seed)
        share, stddev = follower.running.clipped_share(20.0)
        errors.append(share / stddev)  # nobody was clipped
    assert 0.4 < np.std(errors) < 1.7 and abs(np.mean(errors)) < 1.2
    follower.running.reset()
    follower.follow(NORMS, batch=0, n_steps=60)
    assert follower.running.clipped_share(20.0) is None  # the noise hides whether there is anybody


def test_the_scale_of_the_curvature_is_that_of_exponential_squares():
    """`CurvatureScale.of_clipping` of what a run has released: a share of the sum of the squares."""
    share = curvature_posterior._OF_SQUARES
    squares = np.random.default_rng(2).exponential(9.0, size=50_000)
    clip = math.sqrt(np.quantile(squares, 0.9))
    exact = CurvatureScale.of_clipping(50_000, 0.0, clip, 0.1)
    assert exact.trace == pytest.approx(share * squares.sum(), rel=0.03)
    assert exact.trace == pytest.approx(share * 50_000 * clip**2 / math.log(10.0), rel=1e-12)
    assert exact.log_stddev == curvature_posterior._IDENTITY
    # Doubt about the number adds to it, and noise alone leaves a number as large as the noise.
    vague = CurvatureScale.of_clipping(1000.0, 500.0, 2.0, 0.1)
    assert vague.log_stddev == pytest.approx(math.hypot(curvature_posterior._IDENTITY, 0.5))
    nobody = CurvatureScale.of_clipping(-30.0, 500.0, 2.0, 0.1)
    assert nobody.trace == pytest.approx(share * 500.0 * 4.0 / math.log(10.0))
    assert nobody.log_stddev == pytest.approx(math.hypot(curvature_posterior._IDENTITY, 1.0))


def test_a_run_tells_the_scale_of_the_curvature():
    follower = Follower(AdaptiveClip())
    assert CurvatureScale.of_running_clip(follower.running, 4.5, 0.02) is None  # before the first step
    follower.follow(NORMS, batch=400, n_steps=300)
    running = follower.running
    found = CurvatureScale.of_running_clip(running, 4.5, 0.02)
    error = 4.5 * math.hypot(1.0, 4.0) * math.sqrt(3.0 / 300) / 0.02  # of the counts' sum, at weight 1/4
    wanted = CurvatureScale.of_clipping(
        running.mean_batch_size / 0.02, error, running.l2_clip_norm, running.share_to_clip
    )
    assert (found.trace, found.log_stddev) == pytest.approx((wanted.trace, wanted.log_stddev))
    assert running.mean_batch_size / 0.02 == pytest.approx(20_000, abs=4 * error)
    # These norms have longer tails than the rule takes them for.
    assert abs(math.log(found.trace / np.sum(NORMS**2))) < 2 * found.log_stddev


def test_it_follows_norms_that_change():
    follower = Follower(AdaptiveClip(quantile=0.8))
    follower.follow(NORMS, batch=400, n_steps=300)
    found = follower.follow(NORMS / 20, batch=400, n_steps=300)
    assert abs(math.log(found / np.quantile(NORMS / 20, 0.8))) < 0.35


def test_noise_alone_hardly_moves_it():
    """A batch that the noise of the counts hides: then the start value is all there is to go by."""
    follower, ends = Follower(AdaptiveClip()), []
    for seed in range(8):
        follower.running.reset()
        ends.append(math.log(follower.follow(NORMS, batch=0, n_steps=150, seed=seed)))
    assert np.sqrt(np.mean(np.square(ends))) < 2.0  # one, about, is what the prior variance lets it


def test_the_bound_stays_in_its_range():
    follower = Follower(AdaptiveClip(quantile=0.5), noise_multiplier=0.01)
    for sign, end in ((1e-300, CLIP_NORM_RANGE[0]), (1e300, CLIP_NORM_RANGE[1])):
        follower.running.reset(1.0)
        follower.follow(np.full(10, sign), batch=1000, n_steps=500)
        assert follower.running.l2_clip_norm == pytest.approx(end)


@pytest.mark.parametrize("name", ["quantile", "start", "tally_weight"])
@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, 1e13, "a", None, True])
def test_refused(name: str, value: object):
    if name == "quantile" and value is None:
        assert AdaptiveClip(quantile=None) == AdaptiveClip()
        return
    with pytest.raises(ArgumentError, match=name):
        AdaptiveClip(**{name: value})  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------
# In a fit
# ------------------------------------------------------------------------------------------------


def regression(scale: float = 1.0) -> pm.Model:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 2)) * scale
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", pm.Data("x", x) @ beta, 1.0, observed=x @ [0.5, -0.5] + rng.normal(size=300))
    return model


def fitted(model: pm.Model, n: int = 150, **kwargs: object) -> DPADVI:
    terms = dict(epsilon=5.0, delta=1e-5, sampling_prob=0.5, random_seed=1, insecure_noise_seed=1)
    method = DPADVI(model=model, **{**terms, **kwargs})  # type: ignore[arg-type]
    with pytest.warns(InsecureNoiseWarning):
        method.fit(n, progressbar=False, compile_kwargs={"mode": "PYTHON"})
    return method


@pytest.mark.parametrize("gradient", ["aligned", "vanilla"])
def test_a_fit_adapts_and_its_report_says_so(gradient: str):
    method = fitted(regression(scale=30.0), l2_clip_norm="adaptive", gradient=gradient)
    report = method.approx.privacy
    assert method.l2_clip_norm > 10  # gradients are some tens long
    assert report.l2_clip_norm == AdaptiveClip().start  # the report holds nothing of the records
    assert report.epsilon <= 5.0
    run = report.runs[0]
    assert run.tally_weight == AdaptiveClip().tally_weight and not run.default_sampling
    assert "adaptive from there, by noisy counts of norm 0.25" in str(report)
    assert PrivacyReport.from_json(report.to_json()) == report
    # The cost is that of one Gaussian of the reported multiplier.
    assert report.epsilon == accounting.epsilon(
        delta=1e-5, noise_multiplier=run.noise_multiplier, n_steps=150, sampling_prob=0.5
    )


def test_the_bound_goes_on_in_refine():
    method = fitted(regression(scale=30.0), n=60, l2_clip_norm=AdaptiveClip(start=0.01))
    first = method.l2_clip_norm
    with pytest.warns(InsecureNoiseWarning):
        method.refine(1, progressbar=False)
    assert abs(math.log(method.l2_clip_norm / first)) < 1  # the start is ten away
    assert math.log(first / 0.01) > 5


def test_records_beyond_the_number_that_is_counted_change_nothing_else():
    """With the same seed, the fixed and the adaptive fit draw the same batches."""
    fixed = fitted(regression(), n=30, l2_clip_norm=1.0)
    assert fixed.approx.privacy.runs[0].tally_weight == 0.0 and fixed.l2_clip_norm == 1.0
    assert "adaptive" not in str(fixed.approx.privacy)
    adaptive = fitted(regression(), n=30, l2_clip_norm="adaptive")
    assert fixed._runs.mechanism is not None and adaptive._runs.mechanism is not None
    assert fixed._runs.mechanism.noise_multiplier == adaptive._runs.mechanism.noise_multiplier
    assert adaptive._runs.step is not None and adaptive._runs.step.num_noise == 5


@pytest.mark.parametrize("clip", [1.0, "adaptive"])
def test_only_an_adaptive_bound_tells_the_scale_of_the_curvature(
    clip: float | str, monkeypatch: pytest.MonkeyPatch
):
    seen: list[CurvatureScale | None] = []
    real = approximation.NoiseAwarePosterior

    def posterior(*args: object) -> NoiseAwarePosterior:
        seen.append(args[3])  # type: ignore[arg-type]
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(approximation, "NoiseAwarePosterior", posterior)
    method = fitted(regression(), n=40, l2_clip_norm=clip)
    method.approx.sample(3)
    method.approx.sample(3)
    (scale,) = seen  # the second time it is known
    assert (scale is None) == (clip == 1.0)
    if scale is not None:
        run = method.approx.privacy.runs[0]
        clip_of_run = method.approx._running_clip
        assert scale == CurvatureScale.of_running_clip(clip_of_run, run.noise_multiplier, 0.5)
    with pytest.warns(InsecureNoiseWarning):
        method.refine(5, progressbar=False)
    method.approx.sample(3)
    assert len(seen) == 2


def test_the_default_sampling_rate_is_named():
    method = fitted(regression(), n=20, sampling_prob=None)
    assert method.approx.privacy.runs[0].default_sampling
    assert "(chosen: a larger one would hardly reduce the noise)" in str(method.approx.privacy)
    assert "chosen" not in str(fitted(regression(), n=20).approx.privacy)
