"""One object says what is run and what it costs; both are checked against each other here."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from pymc_dpvi import accounting
from pymc_dpvi.errors import PrivacyError
from pymc_dpvi.mechanism.mechanism import Draws, Mechanism, Streams
from pymc_dpvi.randomness.keystream import words_to_uniforms
from pymc_dpvi.sampling import FixedSizeSampler, FullBatchSampler, PoissonSampler

ADD, REPLACE = "add_or_remove_one", "replace_one"


def mechanism(**kwargs: object) -> Mechanism:
    given = dict(
        sampler=PoissonSampler(0.1),
        l2_clip_norm=0.5,
        noise_multiplier=3.0,
        neighboring_relation=ADD,
        gradient="aligned",
    )
    return Mechanism(**{**given, **kwargs})


def streams(seed: int = 1) -> Streams:
    return Streams.make(seed)


@pytest.mark.parametrize(("clip", "multiplier"), [(1.0, 1.0), (0.5, 3.0), (10.0, 0.1)])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_noise_stddev_is_multiplier_times_clip_norm(clip: float, multiplier: float, relation: str):
    m = mechanism(l2_clip_norm=clip, noise_multiplier=multiplier, neighboring_relation=relation)
    assert m.noise.stddev == pytest.approx(clip * multiplier, rel=1e-15)
    noise = m.draw(streams(), 50, 4000, 3).noise * m.noise.spacing
    low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], noise.size)
    assert low < np.sum((noise / (clip * multiplier)) ** 2) < high
    assert not low < np.sum((noise / (clip * multiplier * 1.1)) ** 2) < high  # power
    assert stats.kstest(noise.ravel() / (clip * multiplier), "norm").pvalue > 1e-5


@pytest.mark.parametrize(
    ("num_records", "num_noise", "options", "message"),
    [
        (2**23 * 10 + 100, 3, {}, "At most 16,777,216 records of one batch"),
        (2**24 + 1, 3, {"sampler": PoissonSampler(0.9)}, "smaller sampling_prob"),
        (2**24 + 1, 3, {"sampler": FullBatchSampler()}, "smaller sampling_prob"),
        (2**40 + 1, 3, {"sampler": PoissonSampler(1e-8)}, "1,099,511,627,776 in all"),
        (10, 2**26 + 1, {}, "67,108,864 gradient entries"),
        (10, 3, {"noise_multiplier": 1e9}, "too large for 3 gradient"),
        (10, 10**6, {"noise_multiplier": 2e6}, "too large"),
        (10, 3, {"noise_multiplier": 1e-7}, "too small: a sum over 0.419 records"),
        (10**6, 3, {"noise_multiplier": 0.02, "neighboring_relation": REPLACE}, "8.39e\\+04 records"),
    ],
)
def test_what_the_proof_of_the_noise_does_not_cover_is_refused(num_records, num_noise, options, message):
    with pytest.raises(PrivacyError, match=message) as raised:
        mechanism(**options).check_lattice(num_records, num_noise)
    with pytest.raises(PrivacyError) as further:
        mechanism(**options).check_lattice(2 * num_records, num_noise)
    assert str(further.value) == str(raised.value)  # and so tells nothing of the number of records
    mechanism().check_lattice(2**24, 2**26)
    mechanism(noise_multiplier=1e-6).check_lattice(4, 2)
    mechanism(sampler=FullBatchSampler()).check_lattice(2**24, 3)
    mechanism(sampler=PoissonSampler(2.0**-17)).check_lattice(2**40, 3)
    mechanism(sampler=FixedSizeSampler(2**24, 2**40)).check_lattice(2**40, 3)
    with pytest.raises(PrivacyError, match="At most 16,777,216 records of one batch"):
        mechanism(sampler=FixedSizeSampler(2**24 + 1, 2**40)).check_lattice(2**40, 3)
    # Where the number of records is private, it decides nothing below the limit.
    mechanism(noise_multiplier=0.02).check_lattice(2**24, 3)


def test_sensitivity():
    assert mechanism().sensitivity == 0.5
    assert mechanism(neighboring_relation=REPLACE).sensitivity == 1.0


SAMPLERS = {
    "poisson": (PoissonSampler(0.1), ADD, "pld"),
    "poisson, rdp": (PoissonSampler(0.1), ADD, "rdp"),
    "poisson, replace": (PoissonSampler(0.1), REPLACE, "pld"),
    "fixed size": (FixedSizeSampler(20, 200), REPLACE, "rdp"),
    "full batch": (FullBatchSampler(), ADD, "pld"),
    "full batch, replace": (FullBatchSampler(), REPLACE, "pld"),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_epsilon_is_that_of_the_accounting(name: str):
    sampler, relation, accountant = SAMPLERS[name]
    m = mechanism(sampler=sampler, neighboring_relation=relation)
    expected = accounting.epsilon(
        delta=1e-6,
        noise_multiplier=3.0,
        n_steps=40,
        sampler=sampler,
        neighboring_relation=relation,
        accountant=accountant,
    )
    assert m.epsilon(40, 1e-6, accountant) == expected
    # The clip norm is a unit; it costs nothing.
    assert dataclasses.replace(m, l2_clip_norm=7.0).epsilon(40, 1e-6, accountant) == expected


def test_epsilon_against_dp_accounting_by_hand():
    accountant = dp_accounting.pld.PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(3.0))
    expected = accountant.compose(event, 40).get_epsilon(1e-6)
    assert mechanism().epsilon(40, 1e-6, "pld") == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("relation", "factor"), [(ADD, 1.0), (REPLACE, 2.0)])
def test_epsilon_of_a_full_batch_is_the_analytic_one(relation: str, factor: float):
    """Balle and Wang 2018, theorem 8: δ(ε) of a Gaussian mechanism, composed 40 times."""
    m = mechanism(sampler=FullBatchSampler(), neighboring_relation=relation, noise_multiplier=30.0)
    epsilon = m.epsilon(40, 1e-6, "pld")
    mu = factor * math.sqrt(40) / 30.0
    delta = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-6, rel=0.05) and delta <= 1e-6 * 1.001


def test_batches_have_the_probability_that_is_accounted():
    m = mechanism(sampler=PoissonSampler(0.1))
    event = accounting.step_event(
        sampler=m.sampler,
        noise_multiplier=m.noise_multiplier,
        neighboring_relation=ADD,
        accountant=dp_accounting.pld.PLDAccountant(),
    )
    assert event == dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(3.0))
    sizes = np.diff(m.draw(streams(), 1000, 2000, 1).offsets)
    assert abs(sizes.mean() - 100) < 5 * math.sqrt(90 / 2000)


def test_draws_have_the_shapes_of_the_run():
    draws = mechanism().draw(streams(), 200, 7, 4)
    assert isinstance(draws, Draws)
    assert draws.offsets.shape == (8,) and draws.noise.shape == (7, 4)
    assert draws.offsets[0] == 0 and draws.offsets[-1] == len(draws.indices)
    assert draws.indices.dtype == np.int64 and draws.noise.dtype == np.int64
    assert draws.indices.min() >= 0 and draws.indices.max() < 200


def test_seeded_streams_repeat_and_go_on():
    m, one, other = mechanism(), streams(3), streams(3)
    first, again = m.draw(one, 100, 5, 2), m.draw(other, 100, 5, 2)
    np.testing.assert_array_equal(first.noise, again.noise)
    np.testing.assert_array_equal(first.indices, again.indices)
    later = m.draw(one, 100, 5, 2)
    assert not np.isin(later.noise, first.noise).any()  # never the same noise twice
    assert not np.isin(m.draw(streams(4), 100, 5, 2).noise, first.noise).any()


def test_secure_streams_do_not_repeat():
    m = mechanism()
    draws = [m.draw(Streams.make(None), 100, 50, 2).noise for _ in range(3)]
    assert len(np.unique(np.concatenate(draws))) == 300


def test_sampling_and_noise_streams_are_independent():
    s = streams(5)
    assert s.sampling is not s.noise
    a, b = (words_to_uniforms(one.words(2000)) for one in (s.sampling, s.noise))
    assert not np.isin(a, b).any()
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(2000)
    # How many batches were drawn does not shift the noise.
    m = mechanism()
    left, right = streams(6), streams(6)
    m.draw(left, 10, 3, 2)
    m.draw(right, 10_000, 3, 2)
    np.testing.assert_array_equal(m.draw(left, 10, 1, 2).noise, m.draw(right, 10, 1, 2).noise)


def test_only_the_systems_randomness_is_secure():
    assert Streams.make(None).secure and not Streams.make(0).secure
    mixed = Streams(Streams.make(None).sampling, Streams.make(0).noise)
    assert not mixed.secure


def test_frozen():
    m = mechanism()
    with pytest.raises(dataclasses.FrozenInstanceError):
        m.noise_multiplier = 0.1
    assert m == mechanism()
