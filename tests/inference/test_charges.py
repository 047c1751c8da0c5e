"""What a fit is charged under each sampler, relation and accountant, and what its report says of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from short_fits import CHEAP, MARKS, SEEDED, TARGET, Build, params, quiet

from pymc_dpvi import DPADVI, accounting
from pymc_dpvi.mechanism.adaptive_clipping import AdaptiveClip
from pymc_dpvi.mechanism.limits import TALLY_COLUMNS

pytestmark = MARKS


MECHANISMS: dict[str, dict[str, Any]] = {
    "q": {"sampling_prob": 0.2},
    "batch size": {"batch_size": 7},
    "replace": {"sampling_prob": 0.2, "neighboring_relation": "replace_one"},
    "fixed size": {"sampler": "fixed_size", "batch_size": 7, "neighboring_relation": "replace_one"},
    "full batch": {"sampler": "full_batch"},
    "full batch, replace": {"sampler": "full_batch", "neighboring_relation": "replace_one"},
    "rdp": {"sampling_prob": 0.2, "accountant": "rdp"},
    "vanilla": {"sampling_prob": 0.2, "gradient": "vanilla"},
    "clip": {"sampling_prob": 0.2, "l2_clip_norm": 0.01},
}


@pytest.mark.turns
@pytest.mark.parametrize(
    ("case", "given"),
    [
        *((case, "epsilon") for case in MECHANISMS),
        ("fixed size", "noise_multiplier"),
        ("vanilla", "noise_multiplier"),
    ],
)
def test_mechanisms(logistic: Build, case: str, given: str, steps_seen: list[tuple[np.ndarray, ...]]) -> None:
    options = MECHANISMS[case]
    target = {given: {"epsilon": 1.0, "noise_multiplier": 3.0}[given]}
    with logistic():
        approx = quiet(DPADVI(**target, delta=1e-6, insecure_noise_seed=1, **options), 4)
    report = approx.privacy
    sampler = options.get("sampler", "poisson")
    relation = options.get("neighboring_relation", "add_or_remove_one")
    assert (report.sampler, report.neighboring_relation) == (sampler, relation)
    assert report.gradient == options.get("gradient", "aligned")
    assert report.accountant == options.get("accountant", "pld")
    adaptive = "l2_clip_norm" not in options
    assert report.l2_clip_norm == (AdaptiveClip().start if adaptive else options["l2_clip_norm"])
    assert bool(report.runs[0].tally_weight) == adaptive
    q = (
        {"batch_size": 7 / 61}.get("batch_size")
        if "batch_size" in options
        else options.get("sampling_prob", 1)
    )
    assert report.sampling_prob == pytest.approx(q)
    public = relation == "replace_one" or "batch_size" in options or "gradient" in options
    assert report.num_records_public == public
    if given == "epsilon":
        assert 0.99 < report.epsilon <= 1.0
    else:
        assert report.noise_multiplier == 3.0
    sizes = [len(indices) for indices, *_ in steps_seen]
    if sampler == "fixed_size":
        assert sizes == [7] * 4
    if sampler == "full_batch":
        assert sizes == [61] * 4
    noise = np.array([noise for _, noise, _ in steps_seen])
    assert noise.shape == (4, (4 if "gradient" in options else 2) + TALLY_COLUMNS * adaptive)
    assert 0.2 < noise.std() * 2.0**-40 < 2.5  # in units of the lattice, whatever the clip norm


@pytest.mark.turns
def test_more_cost_under_replacement(logistic: Build) -> None:
    cost = {}
    for relation in ("add_or_remove_one", "replace_one"):
        with logistic():
            cost[relation] = quiet(DPADVI(**CHEAP, neighboring_relation=relation), 3).privacy.epsilon
    assert cost["replace_one"] > 1.3 * cost["add_or_remove_one"]


def test_empty_batches_are_normal_steps(logistic: Build, steps_seen: list[tuple[np.ndarray, ...]]) -> None:
    with logistic():
        approx = quiet(DPADVI(**{**CHEAP, "sampling_prob": 1e-4}), 20)
    assert sum(len(indices) for indices, *_ in steps_seen) < 5
    assert any(len(indices) == 0 for indices, *_ in steps_seen)
    assert np.isfinite(params(approx)).all()


@pytest.mark.turns
def test_obj_n_mc_costs_nothing(logistic: Build, steps_seen: list[tuple[np.ndarray, ...]]) -> None:
    reports = []
    for n_mc in (1, 4):
        with logistic():
            reports.append(quiet(DPADVI(**SEEDED), 3, obj_n_mc=n_mc).privacy)
    assert reports[0] == reports[1]
    # The counts of records are three numbers more, however many draws there are.
    assert [noise.shape for _, noise, _ in steps_seen] == [(5,)] * 3 + [(11,)] * 3
    assert [draws.shape for *_, draws in steps_seen] == [(1, 2)] * 3 + [(4, 2)] * 3


def test_report_follows_the_accounting(fitted: Any) -> None:
    report = fitted.privacy
    again = accounting.epsilon(
        delta=1e-6,
        noise_multiplier=report.noise_multiplier,
        n_steps=20,
        sampling_prob=report.sampling_prob,
    )
    assert report.epsilon == again <= 1.0


def test_an_unproven_accountant_is_named_first(logistic: Build) -> None:
    with logistic():
        approx = quiet(DPADVI(**TARGET, sampling_prob=0.3, accountant="generic", allow_unproven=True))
    first = str(approx.privacy).splitlines()[0]
    assert "heuristic" in first and not approx.privacy.releasable


@pytest.mark.turns
@pytest.mark.parametrize("name", ["moments", "advanced_composition"])
def test_proven_accountants_calibrate(logistic: Build, name: str) -> None:
    with logistic():
        approx = quiet(DPADVI(**TARGET, sampling_prob=0.1, accountant=name))
    report = approx.privacy
    assert (report.accountant, report.guarantee) == (name, "proven")
    truth = accounting.epsilon(
        delta=report.delta,
        noise_multiplier=report.noise_multiplier,
        n_steps=5,
        sampling_prob=report.sampling_prob,
    )
    assert truth <= report.epsilon <= 1.0
