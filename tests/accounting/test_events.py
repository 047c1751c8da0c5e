"""From a sampler, a relation and an accountant to the event of a step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import pymc_dpvi
from pymc_dpvi.accounting import (
    UnsupportedEventError,
    accountant_info,
    epsilon,
    make_accountant,
    step_event,
)
from pymc_dpvi.accounting.events import replace_one_scale
from pymc_dpvi.accounting.papers.rdp import GuardedRdpAccountant
from pymc_dpvi.accounting.pld.accountant import TiltedPLDAccountant
from pymc_dpvi.accounting.relations import sensitivity_factor
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.sampling import FixedSizeSampler, FullBatchSampler, PoissonSampler

AR = NeighboringRelation.ADD_OR_REMOVE_ONE
RO = NeighboringRelation.REPLACE_ONE


# ------------------------------------------------------------------------------- the relations


def test_canary_rdp_under_replace_one_ignores_the_factor_two() -> None:
    """google/differential-privacy issue 378; if this fails, read events.replace_one_scale."""
    event = dp_accounting.GaussianDpEvent(2.0)
    exact = dp_accounting.get_epsilon_gaussian(2.0 / (2.0 * 10.0**0.5), 1e-5)
    assert exact == pytest.approx(17.86, abs=0.01)
    bare = RdpAccountant(neighboring_relation=RO).compose(event, 10).get_epsilon(1e-5)
    assert bare == pytest.approx(8.08, abs=0.01)
    pld = PLDAccountant(RO, 1e-3).compose(event, 10).get_epsilon(1e-5)
    assert pld == pytest.approx(exact, rel=1e-4)
    arguments = dict(delta=1e-5, noise_multiplier=2.0, n_steps=10, sampler="full_batch")
    for accountant in ("pld", "rdp", RdpAccountant(neighboring_relation=RO), PLDAccountant(RO)):
        found = epsilon(**arguments, neighboring_relation="replace_one", accountant=accountant)
        assert found >= exact * (1.0 - 1e-9)


def test_replace_one_scale() -> None:
    assert replace_one_scale(PLDAccountant(RO)) == 1.0
    assert replace_one_scale(TiltedPLDAccountant(RO)) == 1.0
    assert replace_one_scale(GuardedRdpAccountant(RO)) == 1.0
    assert replace_one_scale(RdpAccountant(neighboring_relation=RO)) == 0.5
    assert replace_one_scale(RdpAccountant(neighboring_relation=RO), without_replacement=True) == 0.5


class Stranger(RdpAccountant.__mro__[1]):  # type: ignore[name-defined, misc]
    """An accountant that we do not know; it stores what it is given."""

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        if isinstance(event, dp_accounting.PoissonSampledDpEvent):
            return self.CompositionErrorDetails(event, "no")
        if do_compose:
            self.seen = event
        return None

    def get_epsilon(self, target_delta: float) -> float:
        return 1.0


POISSON = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(3.0))


class BarePld(PLDAccountant):
    """A user's own: not exactly Google's class, so that it is not replaced by ours."""


class BareRdp(RdpAccountant):
    """As above."""


@pytest.mark.parametrize(
    ("sampler", "relation", "accountant", "expected"),
    [
        (FullBatchSampler(), AR, "pld", dp_accounting.GaussianDpEvent(3.0)),
        (FullBatchSampler(), AR, "rdp", dp_accounting.GaussianDpEvent(3.0)),
        (FullBatchSampler(), RO, "pld", dp_accounting.GaussianDpEvent(3.0)),
        (FullBatchSampler(), RO, "rdp", dp_accounting.GaussianDpEvent(3.0)),
        (
            FullBatchSampler(),
            RO,
            lambda relation: BareRdp(None, relation),
            dp_accounting.GaussianDpEvent(1.5),
        ),
        (FullBatchSampler(), RO, Stranger, dp_accounting.GaussianDpEvent(1.5)),
        (PoissonSampler(1.0), AR, "pld", dp_accounting.GaussianDpEvent(3.0)),
        (
            PoissonSampler(0.1),
            AR,
            "pld",
            dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(3.0)),
        ),
        (
            PoissonSampler(0.1),
            RO,
            "pld",
            dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(3.0)),
        ),
        (
            FixedSizeSampler(10, 100),
            RO,
            "pld",
            dp_accounting.SampledWithoutReplacementDpEvent(100, 10, dp_accounting.GaussianDpEvent(3.0)),
        ),
        (
            FixedSizeSampler(10, 100),
            RO,
            BarePld,
            dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.5)),
        ),
        (
            FixedSizeSampler(10, 100),
            RO,
            lambda relation: BareRdp(None, relation),
            dp_accounting.SampledWithoutReplacementDpEvent(100, 10, dp_accounting.GaussianDpEvent(1.5)),
        ),
        (
            FixedSizeSampler(10, 100),
            RO,
            "rdp",
            dp_accounting.SampledWithoutReplacementDpEvent(100, 10, dp_accounting.GaussianDpEvent(3.0)),
        ),
        *[
            (PoissonSampler(0.1), relation, name, POISSON)
            for name, relation in [
                ("rdp", AR),
                ("moments", AR),
                ("generic", AR),
                ("generic", RO),
                ("advanced_composition", AR),
                ("advanced_composition", RO),
            ]
        ],
        *[
            (FullBatchSampler(), relation, name, dp_accounting.GaussianDpEvent(3.0))
            for name in ("moments", "advanced_composition", "zcdp", "gdp", "generic")
            for relation in (AR, RO)
        ],
        (
            FixedSizeSampler(10, 100),
            RO,
            "advanced_composition",
            dp_accounting.SampledWithoutReplacementDpEvent(100, 10, dp_accounting.GaussianDpEvent(3.0)),
        ),
        (FixedSizeSampler(100, 100), RO, "rdp", dp_accounting.GaussianDpEvent(3.0)),
    ],
)
def test_events(sampler: Any, relation: Any, accountant: Any, expected: Any) -> None:
    found = step_event(
        sampler=sampler,
        noise_multiplier=3.0,
        neighboring_relation=relation,
        accountant=accountant_info(accountant).make(relation),
    )
    assert found == expected


@pytest.mark.parametrize(
    ("sampler", "relation", "accountant", "message"),
    [
        (FixedSizeSampler(10, 100), AR, "pld", "replace_one"),
        (FixedSizeSampler(10, 100), AR, "rdp", "sampler='poisson'"),
        (FixedSizeSampler(100, 100), AR, "pld", "replace_one"),
        (PoissonSampler(0.1), RO, "rdp", "accountant='pld'"),
        (PoissonSampler(0.1), RO, "moments", "PoissonSampledDpEvent under REPLACE_ONE"),
        (PoissonSampler(0.1), AR, "zcdp", "PoissonSampledDpEvent under ADD_OR_REMOVE_ONE"),
        (PoissonSampler(0.1), AR, "gdp", "takes full_batch"),
        (FixedSizeSampler(10, 100), RO, "moments", "accountant='pld'"),
        (PoissonSampler(0.1), RO, Stranger, "accountant='pld'"),
        (PoissonSampler(0.1), AR, Stranger, "accountant='pld'"),
    ],
)
def test_unsupported_combinations(sampler: Any, relation: Any, accountant: Any, message: str) -> None:
    with pytest.raises(UnsupportedEventError, match=message) as caught:
        step_event(
            sampler=sampler,
            noise_multiplier=3.0,
            neighboring_relation=relation,
            accountant=accountant_info(accountant).make(relation),
        )
    assert isinstance(caught.value, dp_accounting.UnsupportedEventError)
    assert isinstance(caught.value, ArgumentError)


class OddSampler:
    name, sampling_prob = "odd", 0.5

    def __init__(self, event: Any) -> None:
        self._event = event

    def dp_event(self, noise_event: Any) -> Any:
        return self._event


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.NoOpDpEvent(),
        dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.0), 2),
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.LaplaceDpEvent(1.0)),
        dp_accounting.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 3.0),
    ],
)
def test_a_sampler_with_an_unknown_event_is_refused(event: Any) -> None:
    """A NoOpDpEvent would otherwise be accounted for as free."""
    with pytest.raises(UnsupportedEventError):
        epsilon(delta=1e-5, noise_multiplier=1.0, n_steps=1, sampler=OddSampler(event))


def test_fixed_size_example() -> None:
    """N=1e4, B=100, z=8, T=1e4, delta=1e-5: lower bound 0.947, tight 1.039, PLD-RO 1.993, RDP 2.221."""
    arguments = dict(
        delta=1e-5,
        noise_multiplier=8.0,
        n_steps=10_000,
        sampler=FixedSizeSampler(100, 10_000),
        neighboring_relation="replace_one",
    )
    # Others at +C, one at -C or +C: N(0) against (1-q) N(0) + q N(2C), as add-or-remove at z/2.
    attack = epsilon(delta=1e-5, noise_multiplier=4.0, n_steps=10_000, sampling_prob=0.01)
    assert attack == pytest.approx(0.947, rel=1e-3)
    tight, rdp = epsilon(**arguments), epsilon(**arguments, accountant="rdp")
    pld = epsilon(**arguments, accountant=BarePld(RO))
    assert attack < tight < pld < rdp
    assert tight == pytest.approx(1.039, rel=1e-3)
    assert pld == pytest.approx(1.993, rel=1e-3)
    assert rdp == pytest.approx(2.221, rel=1e-3)
    # Planted bug: Poisson(q, Gaussian(z)) under replace-one is below what the attack achieves.
    arguments["sampler"] = PoissonSampler(0.01)
    assert epsilon(**arguments) < 0.98 * attack


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(("size", "noise"), [(1, 2.0), (50, 4.0), (99, 6.0)])
def test_fixed_size_is_above_its_worst_pair(accountant: str, size: int, noise: float) -> None:
    arguments = dict(delta=1e-6, n_steps=50)
    attack = epsilon(**arguments, noise_multiplier=noise / 2, sampling_prob=size / 100)
    found = epsilon(
        **arguments,
        noise_multiplier=noise,
        sampler=FixedSizeSampler(size, 100),
        neighboring_relation="replace_one",
        accountant=accountant,
    )
    assert found >= attack


# ------------------------------------------------------------------------------ conventions


def test_the_papers_noise_convention() -> None:
    """Their N(0, (2 C sigma)^2) is a noise multiplier of 2 sigma, whatever the relation."""
    sigma, clip = 2.0, 7.0
    noise_multiplier = 2.0 * clip * sigma / clip  # stddev over l2_clip_norm
    arguments = dict(delta=1e-5, n_steps=10_000, sampling_prob=0.01)
    found = epsilon(noise_multiplier=noise_multiplier, **arguments)
    assert found == pytest.approx(0.94687, rel=1e-3)  # golden: abadi2016, z = 4
    found = epsilon(noise_multiplier=noise_multiplier, neighboring_relation="replace_one", **arguments)
    assert found == pytest.approx(1.99312, rel=1e-3)  # golden: poisson replace, z = 4


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments", "advanced_composition", "zcdp", "gdp"])
def test_full_batch_replace_one_is_never_below_the_exact_epsilon(accountant: str) -> None:
    """Ten steps at z=2 give 17.86; without the factor two 8.08."""
    found = epsilon(
        delta=1e-5,
        noise_multiplier=2.0,
        n_steps=10,
        sampler="full_batch",
        neighboring_relation="replace_one",
        accountant=accountant,
    )
    exact = dp_accounting.get_epsilon_gaussian(1.0 / 10.0**0.5, 1e-5)
    assert exact == pytest.approx(17.86, abs=0.01)
    assert found >= exact * (1.0 - 1e-9)


@pytest.mark.parametrize("delta", [1e-11, 1e-15, 1e-30])
def test_tiny_delta_is_answered(delta: float) -> None:
    event = PoissonSampler(0.01).dp_event(dp_accounting.GaussianDpEvent(4.0))
    pld, rdp, moments = (make_accountant(name).compose(event, 1000) for name in ("pld", "rdp", "moments"))
    assert pld.get_epsilon(1e-10) < pld.get_epsilon(delta)
    assert pld.get_epsilon(delta) < rdp.get_epsilon(delta) < moments.get_epsilon(delta)


def test_two_releases_on_one_batch_are_one_event() -> None:
    """One coin: as two Poisson events they would stand for two batches, and under-report."""
    z, z_count, q = 1.0, 1.0, 0.1
    both = (z**-2 + z_count**-2) ** -0.5
    as_one = PLDAccountant(AR, 1e-3).compose(PoissonSampler(q).dp_event(dp_accounting.GaussianDpEvent(both)))
    as_two = PLDAccountant(AR, 1e-3)
    for noise in (z, z_count):
        as_two.compose(PoissonSampler(q).dp_event(dp_accounting.GaussianDpEvent(noise)))
    assert as_two.get_epsilon(1e-5) < 0.9 * as_one.get_epsilon(1e-5)


def test_the_factor_of_the_relation_is_written_once() -> None:
    """Every other module asks `relations`: a second place could say something else."""
    assert (sensitivity_factor(AR), sensitivity_factor("replace_one")) == (1.0, 2.0)
    package = Path(pymc_dpvi.__file__).parent
    written = [
        str(path.relative_to(package))
        for path in sorted(package.rglob("*.py"))
        if re.search(r"\b2(\.0)? if .*(replace|REPLACE)", path.read_text("utf-8"))
    ]
    assert written == ["accounting/relations.py"]
