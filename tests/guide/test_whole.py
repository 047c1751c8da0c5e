"""Each variational family keeps its promises; a new one is added to `FAMILIES`."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import graph_replace
from zoo import ZOO

from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.start import check_starting_values
from pymc_dpvi.guide.family import START_SIGMA
from pymc_dpvi.guide.whole import Family
from pymc_dpvi.posterior.approximation import DPApproximation, DPFullRank, DPMeanField

FAMILIES = (DPMeanField, DPFullRank)


def started(cls: type[DPApproximation]) -> tuple[Family, int]:
    """A family as a fit starts it, and the number of latent values."""
    record = build_record_model(ZOO["linear"].build())
    approx = cls(record, random_seed=0, **check_starting_values(record, None, None, cls._group_class))
    approx.groups[0].narrow()
    return approx.groups[0], approx.latents.size


@pytest.mark.parametrize("cls", FAMILIES)
def test_draws_start_narrow_and_uncorrelated(cls: type[DPApproximation]):
    family, size = started(cls)
    draws = family.draw(20_000, np.random.default_rng(1))
    assert draws.shape == (20_000, size)
    error = 5 * START_SIGMA / np.sqrt(20_000)
    (mu,) = (p.get_value() for p in family.params if p.name == "mu")
    np.testing.assert_allclose(draws.mean(axis=0), mu, atol=error)
    np.testing.assert_allclose(draws.std(axis=0), START_SIGMA, atol=error)
    np.testing.assert_allclose(np.corrcoef(draws.T), np.eye(size), atol=5 / np.sqrt(20_000))


@pytest.mark.turns
@pytest.mark.parametrize("cls", FAMILIES)
def test_draws_are_the_transform_of_base_draws(cls: type[DPApproximation]):
    """What `sample` draws from is what the fit moved: the same base draws give the same latent values."""
    family, _ = started(cls)
    moved(family)
    base_draws = np.random.default_rng(7).standard_normal((50, family.num_base_draws))
    (z,) = graph_replace([family.symbolic_random], {family.symbolic_initial: pt.as_tensor(base_draws)})
    np.testing.assert_allclose(family.draw(50, np.random.default_rng(7)), z.eval(), rtol=1e-12)


@pytest.mark.turns
@pytest.mark.parametrize("cls", FAMILIES)
def test_the_chain_rule_is_the_derivative_of_the_transform(cls: type[DPApproximation]):
    family, size = started(cls)
    moved(family)
    base_draw = pt.as_tensor(np.random.default_rng(7).standard_normal(family.num_base_draws))
    (z,) = graph_replace([family.symbolic_random], {family.symbolic_initial: base_draw[None]})
    cost = np.random.default_rng(8).normal(size=size)
    for param in family.params:
        expected = pytensor.grad((z[0] * cost).sum(), param).eval()
        place, slope = family.chain(param, base_draw)
        np.testing.assert_allclose(cost[place] * slope.eval(), expected, rtol=1e-12)


def moved(family: Family) -> None:
    rng = np.random.default_rng(3)
    for p in family.params:
        p.set_value(p.get_value() + rng.normal(scale=0.3, size=p.get_value().shape))
