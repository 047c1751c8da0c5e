"""The mechanism's own suite: `pymc_dpvi.auditing` on sampler × gradient × family × accountant.

These are the checks that `pymc_dpvi.audit` runs for users. That each of them finds its bugs is shown in
`test_planted_bugs`; here every configuration passes.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytensor.tensor as pt
import pytest
from suite import CLIP, FAMILIES, GRADIENTS, SAMPLERS, Suite, layers, look_ups, mechanism, regression

from pymc_dpvi import accounting
from pymc_dpvi.auditing.attack import DELTAS, Attack, check_attack, claims
from pymc_dpvi.auditing.report import CheckResult
from pymc_dpvi.engine import sums_of_step
from pymc_dpvi.graph.gradients import aligned_gradients
from pymc_dpvi.graph.traversal import array_value
from pymc_dpvi.mechanism.limits import TALLY_COLUMNS

CELLS = [(family, gradient, sampler) for family in FAMILIES for gradient in GRADIENTS for sampler in SAMPLERS]


def proven(sampler: str) -> list[str]:
    """Accountants whose bound is proven for the setting, at q as it is."""
    found = []
    for name in accounting.ACCOUNTANT_NAMES:
        info = accounting.accountant_info(name)
        if info.guarantee != "proven":
            continue
        try:
            mechanism(sampler).epsilon(1, 1e-5, name)
        except accounting.UnsupportedEventError:
            continue
        found.append(name)
    return found


@cache
def built(family: str, gradient: str, whole: bool, adaptive: bool = False) -> Suite:
    sampler = "full batch" if whole else "poisson"
    # The checks of an adaptive norm take so many steps that compiling is faster.
    backend = "numba" if adaptive else "FAST_COMPILE"
    return Suite(
        regression(), family=family, gradient=gradient, sampler=sampler, adaptive=adaptive, backend=backend
    )


def suite(family: str, gradient: str, sampler: str, adaptive: bool = False) -> Suite:
    return built(family, gradient, sampler.startswith("full batch"), adaptive).under(sampler)


@cache
def claimed(sampler: str, accountant: str, sampled: bool) -> dict[float, float]:
    return claims(mechanism(sampler), accountant, (0.1, 1e-3) if sampled else DELTAS, sampled=sampled)


def kept(result: CheckResult) -> None:
    assert result.passed, str(result)


@pytest.mark.parametrize(("family", "gradient", "sampler"), CELLS)
def test_every_promise_is_kept(family: str, gradient: str, sampler: str):
    cell = suite(family, gradient, sampler)
    kept(cell.one_way_out())
    kept(cell.sensitivity())
    kept(cell.lattice())
    kept(cell.noise(200))
    if gradient == "aligned":
        kept(cell.gradients())
    seen = cell.run_attack(100)
    # Each block has a record of full norm; under replace-one, not always one that pulls just the other way.
    moved = [r.distance for r in seen.rates]
    assert min(moved) > 0.999 if SAMPLERS[sampler][1] == "add_or_remove_one" else max(moved) > 0.75
    for accountant in accounting.ACCOUNTANT_NAMES:
        if accounting.accountant_info(accountant).guarantee == "proven":
            said = claimed(sampler, accountant, False)
            if said:  # some accountants know one relation only
                kept(check_attack(seen, said))


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_adaptive_clip_norm_keeps_every_promise(gradient: str, sampler: str):
    """The counts of records are released too: they are in the sensitivity, the noise and the attack."""
    cell = suite("mean-field", gradient, sampler, adaptive=True)
    assert cell.probe.blocks["counts of records"].size == TALLY_COLUMNS
    kept(cell.one_way_out())
    kept(cell.sensitivity())
    kept(cell.lattice())
    kept(cell.noise(200))
    if gradient == "aligned":
        kept(cell.gradients())
    seen = cell.run_attack(100)
    assert "counts of records" in [r.block for r in seen.rates]
    for accountant in proven(sampler):
        said = claimed(sampler, accountant, False)
        if said:
            kept(check_attack(seen, said))


@pytest.mark.slow
def test_an_adaptive_clip_norm_with_factored_gradients():
    cell = Suite(layers(), backend="numba", adaptive=True)
    kept(cell.one_way_out())
    kept(cell.sensitivity())
    kept(cell.lattice())
    kept(cell.gradients())
    kept(cell.noise(250))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_batches_are_drawn_as_they_are_accounted(sampler: str):
    cell = suite("mean-field", "aligned", sampler)
    kept(cell.batches(1500))
    kept(cell.randomness())


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sampling_hides_no_less_than_every_accountant_says(sampler: str):
    names = proven(sampler)
    assert names
    seen = suite("mean-field", "aligned", sampler).run_attack(400, sampled=True, most_blocks=1)
    for name in names:
        kept(check_attack(seen, claimed(sampler, name, True)))


def test_several_latent_draws_are_one_release():
    cell = Suite(regression(), n_mc=3)
    assert cell.probe.num_noise == 12 and cell.probe.blocks["beta"].tolist() == [0, 1, 4, 5, 8, 9]
    kept(cell.one_way_out())
    kept(cell.sensitivity())
    kept(cell.lattice())
    kept(cell.noise(250))
    kept(cell.attack(150))


@pytest.mark.parametrize("family", FAMILIES)
def test_factored_gradients(family: str):
    cell = Suite(layers(), family=family)
    kept(cell.one_way_out())
    kept(cell.sensitivity())
    kept(cell.lattice())
    kept(cell.gradients())
    kept(cell.noise(250))
    kept(cell.attack(150))


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_sparse_gradients_and_sums_of_products(gradient: str, monkeypatch: pytest.MonkeyPatch):
    # Evaluated in Python, a row that fills up costs as any.
    monkeypatch.setattr(sums_of_step, "_LENGTHS", (8,))
    cell = Suite(look_ups(), gradient=gradient)
    latents, record = cell.approx.latents, cell.record
    z, batch = pt.matrix(shape=(1, latents.size)), [pt.as_tensor(array_value(a)) for a in record.arrays]
    forms = [b.form.kind for b in aligned_gradients(record, batch, latents, z, 1)]
    assert forms == ["sparse", "sparse", "products"]
    kept(cell.sensitivity())
    kept(cell.lattice())
    if gradient == "aligned":
        kept(cell.gradients())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numba", "c", "jax"])
@pytest.mark.parametrize("model", [regression, layers, look_ups])
def test_the_compiled_backends(backend: str, model):
    cell = Suite(model(), backend=backend)
    kept(cell.one_way_out())
    kept(cell.sensitivity())
    kept(cell.lattice())
    kept(cell.gradients())
    kept(cell.noise(4000))
    kept(cell.attack(2000, "pld"))


def test_the_attack_is_as_strong_as_the_mechanism_allows():
    """At noise multiplier 1, the best test has TPR = Φ(Φ⁻¹(FPR) + 1): the attack comes close to it."""
    from scipy import stats

    cell = suite("mean-field", "aligned", "full batch")
    seen: Attack = cell.run_attack(600)
    for rates in seen.rates:
        best = stats.norm.cdf(stats.norm.ppf(rates.without / rates.n) + 1)
        inner = (rates.without > 30) & (rates.without < rates.n - 30)
        np.testing.assert_allclose((rates.within / rates.n)[inner], best[inner], atol=0.12)


def test_what_is_released_on_an_empty_batch_is_the_noise():
    cell = suite("mean-field", "aligned", "poisson")
    noise = cell.probe.noise(cell.mechanism, cell.streams, 1)[0]
    cell.probe.load([])
    released = cell.probe.release(noise, cell.probe.draws(cell.rng, 1)[0])
    np.testing.assert_allclose(released / np.abs(released).max(), noise / np.abs(noise).max(), rtol=1e-12)
    assert not cell.probe.release(cell.probe.quiet, cell.probe.draws(cell.rng, 1)[0]).any()
    assert 0.01 * CLIP < np.abs(released).max() < 10 * CLIP
