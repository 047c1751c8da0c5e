"""Plans: made before any data are there, and kept by the fit."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext

import pytest

from pymc_dpvi import AdaptiveClip, PrivacyWarning, accounting, plan
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.planning import MIN_SNR, Plan

FEW = (1000,)


@pytest.fixture(scope="module")
def usual() -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return plan(3341, 1.0, 1e-5, n_steps=1000, num_params=8, steps=(300,))


def test_the_chosen_rate_is_that_of_a_fit(usual: Plan):
    rate = accounting.default_sampling_prob(epsilon=1.0, delta=1e-5, n_steps=1000)
    assert usual.chosen.sampling_prob == rate
    assert usual.chosen.noise_multiplier == accounting.noise_multiplier(
        epsilon=1.0, delta=1e-5, n_steps=1000, sampling_prob=rate
    )
    assert usual.chosen.exact and usual.chosen in usual.fits


def test_signal_to_noise(usual: Plan):
    one = usual.chosen
    noise = one.noise_multiplier * math.sqrt(1 + AdaptiveClip().tally_weight ** 2)
    sum_of_noise = noise / one.sampling_prob * math.sqrt(8) / math.sqrt(1000)
    assert one.snr == pytest.approx(3341 / sum_of_noise)
    fixed = plan(3341, 1.0, 1e-5, n_steps=1000, num_params=8, steps=(), l2_clip_norm=1.0)
    assert fixed.chosen.snr == pytest.approx(one.snr * math.sqrt(1 + 0.25**2))


def test_noise_over_rate_has_stopped_falling_at_the_chosen_rate(usual: Plan):
    by_rate = {fit.sampling_prob: fit for fit in usual.fits if fit.n_steps == 1000}
    assert len(by_rate) == 4
    small, less, chosen, more = (by_rate[rate].snr for rate in sorted(by_rate))
    assert small < 0.75 * chosen and less < 0.95 * chosen
    assert chosen < more < 1.03 * chosen


def test_steps_do_not_matter_at_the_chosen_rate(usual: Plan):
    other = next(fit for fit in usual.fits if fit.n_steps == 300)
    assert other.snr == pytest.approx(usual.chosen.snr, rel=0.03)


def test_noise_that_drowns_the_signal_is_warned_of():
    with pytest.warns(PrivacyWarning, match="drowns much of the signal"):
        few = plan(100, 0.3, 1e-5, n_steps=1000, num_params=8, steps=())
    assert few.drowned and few.chosen.snr < MIN_SNR
    # With what it says is enough, no warning comes; with a tenth less there is one.
    enough = few.smallest_num_records
    assert few.smallest_epsilon is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not plan(enough, 0.3, 1e-5, n_steps=1000, num_params=8, steps=()).drowned
        assert not plan(100, few.smallest_epsilon, 1e-5, n_steps=1000, num_params=8, steps=()).drowned
    with pytest.warns(PrivacyWarning, match="drowns"):
        plan(int(0.9 * enough), 0.3, 1e-5, n_steps=1000, num_params=8, steps=())
    with pytest.warns(PrivacyWarning, match="drowns"):
        plan(100, 0.9 * few.smallest_epsilon, 1e-5, n_steps=1000, num_params=8, steps=())


@pytest.mark.parametrize(
    ("epsilon", "snr", "drowned"), [(10.0, 7.3, False), (1.0, 1.3, False), (0.1, 0.17, True)]
)
def test_a_network_learns_where_a_regression_would_not(epsilon: float, snr: float, drowned: bool):
    """The networks of ``benchmarks/papers/dpvd.py``: 0.95, 0.85 and 0.28 of their digits are right."""
    warned = pytest.warns(PrivacyWarning, match="network.* 1 times takes") if drowned else nullcontext()
    with warned:
        found = plan(1439, epsilon, 1e-5, num_params=75_010, sampling_prob=100 / 1439, n_steps=432, steps=())
    assert found.chosen.snr == pytest.approx(snr, abs=0.05) and found.drowned == drowned
    assert found.min_snr == 1 and "learns from about 1 on" in str(found)
    with pytest.warns(PrivacyWarning, match="regressions below 50"):
        assert plan(1439, epsilon, 1e-5, num_params=4096, steps=()).drowned


def test_a_billionth_of_epsilon_is_warned_of():
    with pytest.warns(PrivacyWarning, match="records, or epsilon=") as caught:
        least = plan(10_000, 1e-9, 1e-5, steps=FEW)
    assert not least.chosen.exact and least.chosen.snr < 1
    assert str(least).startswith("The noise drowns much of the signal")
    assert len(caught) == 1


def test_no_epsilon_is_enough_for_one_record():
    with pytest.warns(PrivacyWarning, match="drowns") as caught:
        alone = plan(1, 1.0, 1e-5, num_params=100_000, n_steps=100, steps=())
    assert alone.smallest_epsilon is None
    assert "epsilon=" not in str(caught[0].message)


def test_text_and_html(usual: Plan):
    text = str(usual)
    assert text == repr(usual)
    for part in ("3,341", "chosen", "signal/noise", "records read"):
        assert part in text
    page = usual._repr_html_()
    assert "<table>" in page and "3,341" in page
    assert "drowns" not in text


def test_plot(usual: Plan):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    _, ax = pyplot.subplots()
    assert usual.plot(ax=ax) is ax
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert labels == ["300 steps", "1,000 steps", "chosen", "noise drowns much of the signal below"]
    # The points lie on the curves: the theorem and the accountant agree.
    curve = next(line for line in ax.lines if line.get_label() == "1,000 steps")
    near = min(range(99), key=lambda k: abs(curve.get_xdata()[k] - usual.chosen.sampling_prob))
    assert curve.get_ydata()[near] == pytest.approx(usual.chosen.snr, rel=0.05)
    with pytest.raises(ArgumentError, match="ax"):
        usual.plot(ax=3)
    pyplot.close("all")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_records", 0),
        ("num_records", 1.5),
        ("epsilon", 0.0),
        ("epsilon", 1000.0),
        ("delta", 0.5),
        ("n_steps", 0),
        ("num_params", 0),
        ("sampling_prob", 2.0),
        ("l2_clip_norm", "fixed"),
        ("neighboring_relation", "swap"),
        ("steps", (0,)),
    ],
)
def test_refused(name: str, value: object):
    with pytest.raises(ArgumentError, match=name):
        plan(**{**dict(num_records=100, epsilon=1.0, delta=1e-5), name: value})  # type: ignore[arg-type]


def test_replacing_a_record_costs_more():
    given = dict(num_params=2, n_steps=100, steps=(), sampling_prob=0.2)
    one = plan(10_000, 1.0, 1e-5, **given)  # type: ignore[arg-type]
    two = plan(10_000, 1.0, 1e-5, neighboring_relation="replace_one", **given)  # type: ignore[arg-type]
    assert 0.4 * one.chosen.snr < two.chosen.snr < 0.7 * one.chosen.snr
