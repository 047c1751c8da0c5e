"""Privacy budgets: nothing is overspent, by anyone, in any order, whatever the outcomes."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
import random
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pymc as pm
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_dpvi import (
    DPADVI,
    ArgumentError,
    BudgetExceededError,
    DPFullRankADVI,
    PrivacyBudget,
    PrivacyWarning,
    accounting,
    fit_dpadvi,
)
from pymc_dpvi.accounting import UnsupportedEventError
from pymc_dpvi.accounting.budget.charge import Charge
from pymc_dpvi.accounting.budget.composition import decimal, float_at_most
from pymc_dpvi.accounting.budget.renyi_filter import RenyiFilter, _bound, renyi_cost
from pymc_dpvi.errors import LedgerError, UnsupportedModelError
from pymc_dpvi.sampling import FixedSizeSampler, FullBatchSampler, PoissonSampler

pytestmark = pytest.mark.usefixtures("without_compiling")

ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
Q, STEPS, NOISE = 0.01, 100, 1.5
"""A small fit."""


def a_fit(**changed: Any) -> dict[str, Any]:
    fit = dict(epsilon=0.1, delta=1e-8, n_steps=STEPS, noise_multiplier=NOISE, sampler=PoissonSampler(Q))
    return {**fit, "accountant": "pld", **changed}


def the_filter(budget: PrivacyBudget) -> RenyiFilter:
    assert isinstance(budget._rule, RenyiFilter)
    return budget._rule


def offered(text: str) -> tuple[int, float]:
    """The steps and the noise that a refusal says would fit."""
    steps = int(text.split("n <= ")[1].split(" ")[0])
    return steps, float(text.split("noise_multiplier >= ")[1].split(" ")[0].rstrip("."))


# ---------------------------------------------------------------------------------- exact amounts


@pytest.mark.parametrize("parts", [3, 5, 6, 7, 9, 10, 11, 13, 49, 100])
def test_equal_parts_of_a_budget(parts: int) -> None:
    """1/n n times: the decimals decide, and `remaining` always gets the rest."""
    budget = PrivacyBudget(1.0, 1e-3)
    for _ in range(parts - 1):
        budget.charge(epsilon=1.0 / parts, delta=1e-3 / parts)
    written = parts * Fraction(repr(1.0 / parts)), parts * Fraction(repr(1e-3 / parts))
    if written[0] > 1 or written[1] > Fraction("1e-3"):
        with pytest.raises(BudgetExceededError, match="What is left is"):
            budget.charge(epsilon=1.0 / parts, delta=1e-3 / parts)
    epsilon, delta = budget.remaining
    assert epsilon == pytest.approx(1.0 / parts) and delta == pytest.approx(1e-3 / parts)
    budget.charge(epsilon=epsilon, delta=delta)
    assert budget.used == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("part", "whole"), [(0.1, 1.0), (0.3, 3.0), (1e-4, 1e-3), (1e-7, 1e-6), (0.7, 7.0)])
def test_ten_times_a_tenth_is_the_whole(part: float, whole: float) -> None:
    # in binary it is not: ten times the float 1e-4 is above the float 1e-3
    budget = PrivacyBudget(whole, 0.5)
    for _ in range(10):
        budget.charge(epsilon=part, delta=0.0)
    assert budget.remaining.epsilon == 0.0
    with pytest.raises(BudgetExceededError, match="used up"):
        budget.charge(epsilon=5e-324, delta=0.0)


@given(st.floats(0.0, 1e6), st.integers(1, 1000))
def test_float_at_most(value: float, divisor: int) -> None:
    exact = Fraction(value) / divisor
    found = float_at_most(exact)
    assert decimal(found) <= exact
    assert decimal(math.nextafter(found, math.inf)) > exact


# -------------------------------------------------------------------------------- never overspent

AMOUNTS = st.tuples(st.floats(0.0, 0.6), st.floats(0.0, 6e-7))


@settings(max_examples=60)
@given(
    total=st.tuples(st.floats(0.01, 2.0), st.floats(1e-9, 1e-6)),
    asked=st.lists(st.one_of(AMOUNTS, st.none()), max_size=12),
)
def test_any_sequence_of_charges(total: tuple[float, float], asked: list[tuple[float, float] | None]) -> None:
    budget = PrivacyBudget(*total)
    admitted = [Fraction(0), Fraction(0)]
    for pair in asked:
        pair = budget.remaining if pair is None else pair  # None: all that is left
        wanted = [done + Fraction(repr(x)) for done, x in zip(admitted, pair, strict=True)]
        fits = all(w <= Fraction(repr(t)) for w, t in zip(wanted, total, strict=True))
        before = budget.ledger
        try:
            budget.charge(epsilon=pair[0], delta=pair[1])
        except BudgetExceededError:
            assert not fits
            assert budget.ledger == before
        else:
            assert fits
            admitted = wanted
        left = budget.remaining
        assert left.epsilon >= 0.0 and left.delta >= 0.0
        for done, more, whole in zip(admitted, left, total, strict=True):
            assert done + Fraction(repr(more)) <= Fraction(repr(whole))
    assert len(budget.ledger) <= len(asked)


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_threads_do_not_overspend(tmp_path: Path, in_file: bool, seed: int) -> None:
    if in_file:
        PrivacyBudget.create(tmp_path / "b.sqlite", 1.0, 1e-6)
        budgets = [PrivacyBudget.open(tmp_path / "b.sqlite") for _ in range(2)] * 2
    else:
        budgets = [PrivacyBudget(1.0, 1e-6)] * 4
    start = threading.Barrier(4)
    admitted: list[float] = []

    def spend(budget: PrivacyBudget, rng: random.Random) -> None:
        start.wait()
        for _ in range(12):
            epsilon = rng.choice([0.01, 0.05, 0.2, 0.3])
            try:
                budget.charge(epsilon=epsilon, delta=0.0)
            except BudgetExceededError:
                continue
            admitted.append(epsilon)

    threads = [
        threading.Thread(target=spend, args=(budget, random.Random(seed * 10 + i)))
        for i, budget in enumerate(budgets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(c.epsilon for c in budgets[0].ledger) == sorted(admitted)
    assert sum(map(decimal, admitted)) <= 1
    assert sum(map(decimal, admitted)) > Fraction(3, 5)


# ------------------------------------------------------- valid whatever the analyst does: basic


def pair_of_laws(epsilon: float, delta: float) -> list[tuple[float, float]]:
    """The worst (epsilon, delta)-private mechanism: four outcomes with their probabilities on x and x'.

    Every other one is a post-processing of it (Kairouz, Oh and Viswanath 2015).
    """
    a, b = (1 - delta) / (1 + math.exp(-epsilon)), (1 - delta) / (1 + math.exp(epsilon))
    return [(delta, 0.0), (a, b), (b, a), (0.0, delta)]


Analyst = Callable[[PrivacyBudget, tuple[int, ...]], tuple[float, float] | None]


def exact_delta(total: tuple[float, float], analyst: Analyst, allowance: float = 1.0) -> float:
    """Hockey-stick divergence at the budget's epsilon of all that an adaptive analyst gets to see.

    `allowance` above 1 plants a budget that admits too much.
    """

    def walk(history: tuple[int, ...], spent: list[tuple[float, float]], p: float, q: float) -> float:
        budget = PrivacyBudget(total[0] * allowance, total[1] * allowance)
        for epsilon, delta in spent:
            budget.charge(epsilon=epsilon, delta=delta)
        asked = analyst(budget, history)
        if asked is None:
            return max(0.0, p - math.exp(total[0]) * q)
        budget.charge(epsilon=asked[0], delta=asked[1])
        return sum(
            walk((*history, outcome), [*spent, asked], p * pp, q * qq)
            for outcome, (pp, qq) in enumerate(pair_of_laws(*asked))
            if pp > 0.0
        )

    return walk((), [], 1.0, 1.0)


def analysts(seed: int) -> Analyst:
    """An analyst who lets the outcomes decide how much to ask for next, and takes the rest in the end."""

    def ask(budget: PrivacyBudget, history: tuple[int, ...]) -> tuple[float, float] | None:
        left = budget.remaining
        if len(history) == 4 or left.epsilon == 0.0:
            return None
        if len(history) == 3:
            return left
        rng = random.Random(f"{seed}{history}")
        share = rng.choice([0.1, 0.5, 0.9, 1.0])
        return left.epsilon * share, left.delta * rng.choice([0.0, 0.3, 1.0])

    return ask


@pytest.mark.parametrize("seed", range(6))
def test_basic_composition_holds_against_adaptive_analysts(seed: int) -> None:
    total = (1.0, 0.05)
    found = exact_delta(total, analysts(seed))
    assert found <= total[1] * (1 + 1e-9)


def test_a_budget_that_admits_too_much_is_noticed() -> None:
    total = (1.0, 0.05)
    assert max(exact_delta(total, analysts(seed), allowance=1.3) for seed in range(6)) > total[1]


# ------------------------------------------------------------- the Rényi filter: its mathematics


@pytest.mark.parametrize("order", [2, 5, 17, 64])
@pytest.mark.parametrize("delta", [1e-8, 1e-3])
def test_the_bound_is_dp_accountings_conversion_solved(order: int, delta: float) -> None:
    epsilon = 2.0
    bound = RenyiFilter.make(50.0, delta, [order]).bounds[0] - 48.0  # linear in epsilon; positive for all
    accountant = RdpAccountant([float(order)])
    accountant._rdp = np.array([bound + 48.0])
    assert accountant.get_epsilon(delta) == pytest.approx(50.0, rel=1e-9)
    assert bound + 48.0 <= 50.0 + (math.log(delta) + math.log(order)) / (order - 1) - math.log1p(-1 / order)
    assert epsilon < 50.0


def test_orders_share_delta() -> None:
    """Each order proves delta / k; the bound of a single order is higher."""
    one, two = (RenyiFilter.make(1.0, 1e-6, orders) for orders in ([30], [30, 40]))
    assert two.bounds[0] == RenyiFilter.make(1.0, 5e-7, [30]).bounds[0] < one.bounds[0]


@pytest.mark.parametrize("order", [2, 3, 8, 33])
def test_renyi_costs_against_the_integral(order: int) -> None:
    """D_alpha(P || Q) by numerical integration, for the removed and for the added record."""
    width = 100.0 / 400_000
    x = -40.0 + width * np.arange(400_001)
    log_q = -0.5 * (x / NOISE) ** 2 - math.log(NOISE * math.sqrt(2 * math.pi))
    ratio = np.log1p(Q * np.expm1((2 * x - 1) / (2 * NOISE**2)))
    remove = math.log(np.exp(log_q + order * ratio).sum() * width) / (order - 1)
    add = math.log(np.exp(log_q + (1 - order) * ratio).sum() * width) / (order - 1)
    found = renyi_cost(
        [order],
        sampler=PoissonSampler(Q),
        noise_multiplier=NOISE,
        n_steps=STEPS,
        neighboring_relation=ADD_REMOVE,
    )[0]
    assert found >= STEPS * max(remove, add)
    assert found == pytest.approx(STEPS * max(remove, add), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(("relation", "noise"), [("add_or_remove_one", 40.0), ("replace_one", 80.0)])
def test_a_filter_of_gaussians_is_a_bound_on_the_sum_of_inverse_squares(relation: str, noise: float) -> None:
    budget = PrivacyBudget(1.0, 1e-6, composition="renyi_filter", neighboring_relation=relation)
    rule = the_filter(budget)
    most = max(bound / order for bound, order in zip(rule.bounds, rule.orders, strict=True))
    expected = math.floor(2 * most * 40.0**2)  # n alpha / (2 z^2) <= B; twice the sensitivity, twice z
    done = 0
    with pytest.raises(BudgetExceededError):
        while True:
            budget.charge(
                epsilon=0.3,
                delta=0.0,
                n_steps=1,
                noise_multiplier=noise,
                sampler=FullBatchSampler(),
                neighboring_relation=relation,
            )
            done += 1
    assert done == expected > 30
    truth = dp_accounting.get_epsilon_gaussian(40.0 / math.sqrt(done), 1e-6)
    assert 0.85 < truth <= 1.0


def test_the_filter_admits_more_than_basic_composition_when_fits_are_many() -> None:
    """The figures of the module's documentation."""
    total, each = (1.0, 1e-6), dict(epsilon=0.05, delta=1e-8)
    noise = accounting.noise_multiplier(**each, n_steps=500, sampling_prob=Q)
    fit = a_fit(**each, n_steps=500, noise_multiplier=noise)
    counts = {}
    for composition in ("basic", "renyi_filter"):
        budget = PrivacyBudget(*total, composition=composition)
        counts[composition] = 0
        with pytest.raises(BudgetExceededError):
            while True:
                budget.charge(**fit)
                counts[composition] += 1
    assert counts["basic"] == 20
    assert 360 < counts["renyi_filter"] < 370
    # and what it admits is private: all of them fixed in advance cost no more
    steps = 500 * counts["renyi_filter"]
    spent = accounting.epsilon(delta=1e-6, noise_multiplier=noise, n_steps=steps, sampling_prob=Q)
    assert 0.85 < spent <= 1.0


@pytest.mark.parametrize("accountant", ["pld", "rdp", "generic"])
def test_a_refusal_says_how_many_steps_and_what_noise_would_fit(accountant: str) -> None:
    run = dict(delta=1e-7, sampling_prob=Q, accountant=accountant)
    noise = accounting.noise_multiplier(epsilon=0.8, n_steps=500, **run, allow_unproven=True)
    cost = accounting.epsilon(n_steps=500, noise_multiplier=noise, **run)
    budget = PrivacyBudget(1.0, 1e-6, allow_unproven=True)
    budget.charge(epsilon=0.5, delta=1e-7)
    charge = a_fit(epsilon=cost, delta=1e-7, n_steps=500, noise_multiplier=noise, accountant=accountant)
    with pytest.raises(BudgetExceededError, match=r"What is left is epsilon=0\.5") as caught:
        budget.charge(**charge)
    steps, more = offered(str(caught.value))
    assert 0 < steps < 500 and more > noise
    # the fit that it recommends is admitted at its own cost, and one step more or less noise is not
    assert accounting.epsilon(n_steps=steps, noise_multiplier=noise, **run) <= 0.5
    assert accounting.epsilon(n_steps=steps + 1, noise_multiplier=noise, **run) > 0.5
    spent = accounting.epsilon(n_steps=500, noise_multiplier=more, **run)
    assert 0.499 <= spent <= 0.5
    budget.charge(**{**charge, "epsilon": spent, "noise_multiplier": more}, dry_run=True)


@pytest.mark.parametrize(
    ("total", "changed"),
    [
        (0.05, dict(accountant=None)),  # nobody knows how to ask again
        (0.05, dict(accountant=type("Mine", (PLDAccountant,), {})())),  # a class of the user's own
        (0.05, dict(noise_multiplier=None)),
        (0.05, dict(n_steps=None)),
        (0.05, dict(sampler=None)),
        (0.05, dict(delta=0.0)),
        (0.005, {}),  # less than calibration takes
    ],
    ids=["no accountant", "own accountant", "no noise", "no steps", "no sampler", "no delta", "too little"],
)
def test_a_refusal_offers_no_steps_where_they_cannot_be_known(total: float, changed: dict[str, Any]) -> None:
    budget = PrivacyBudget(total, 1e-6, allow_unproven=True)
    with pytest.raises(BudgetExceededError, match=r"use these, or less\. Nothing was charged"):
        budget.charge(**a_fit(**changed))
    assert budget.ledger == ()


def test_a_single_fit_gets_less_from_the_filter() -> None:
    noise = accounting.noise_multiplier(epsilon=1.0, delta=1e-6, n_steps=500, sampling_prob=Q)
    fit = a_fit(epsilon=1.0, delta=1e-6, n_steps=500, noise_multiplier=noise)
    PrivacyBudget(1.0, 1e-6).charge(**fit)
    budget = PrivacyBudget(1.0, 1e-6, composition="renyi_filter")
    with pytest.raises(BudgetExceededError, match="there is room for n <= ") as caught:
        budget.charge(**fit)
    # what the message offers fits, and no more than that
    steps, more = offered(str(caught.value))
    budget.charge(**{**fit, "n_steps": steps}, dry_run=True)
    budget.charge(**{**fit, "noise_multiplier": more}, dry_run=True)
    for wrong in ({"n_steps": steps + 1}, {"noise_multiplier": more * 0.999}):
        with pytest.raises(BudgetExceededError):
            budget.charge(**{**fit, **wrong}, dry_run=True)
    assert budget.ledger == ()


def test_an_exhausted_filter_says_so() -> None:
    budget = PrivacyBudget(1.0, 1e-6, composition="renyi_filter")
    rule = the_filter(budget)
    noise = math.sqrt(rule.orders[1] / (2.0 * rule.bounds[1])) * (1 + 1e-11)
    budget.charge(epsilon=0.9, delta=0.0, n_steps=1, noise_multiplier=noise, sampler=FullBatchSampler())
    assert 1.0 - 1e-9 < budget.used <= 1.0
    with pytest.raises(BudgetExceededError, match="used up"):
        budget.charge(epsilon=0.9, delta=0.0, n_steps=1, noise_multiplier=5.0, sampler=FullBatchSampler())


def test_an_order_without_a_bound_admits_nothing() -> None:
    """At order 300 two steps at low noise cost more than everything; order 5 goes on."""
    budget = PrivacyBudget(6.0, 1e-3, composition="renyi_filter", orders=[5, 300])
    fit = a_fit(noise_multiplier=0.9, n_steps=20)
    for _ in range(3):
        budget.charge(**fit)
    left = the_filter(budget).left(budget.ledger)
    assert left[1] < 0 < left[0]
    with pytest.raises(ArgumentError, match="admits nothing"):
        PrivacyBudget(1.0, 1e-6, composition="renyi_filter", orders=[2, 3])
    # an infinite cost closes its own order only
    charge = replace(budget.ledger[0], renyi=(0.01, math.inf))
    assert the_filter(budget).admits([charge])
    assert not the_filter(budget).admits([replace(charge, renyi=(math.inf, math.inf))])


def test_default_orders_are_near_the_best_for_gaussians() -> None:
    for epsilon, delta in itertools.product((0.01, 0.1, 1.0, 8.0), (1e-10, 1e-6, 1e-3)):
        orders = RenyiFilter.default_orders(epsilon, delta)
        assert 1 <= len(orders) <= 2 <= orders[0]
        rule = RenyiFilter.make(epsilon, delta, orders)
        found = max(b / a for a, b in zip(rule.orders, rule.bounds, strict=True))
        alone = max(_bound(epsilon, delta, a) / a for a in range(2, 10_000))  # the best with all of delta
        assert found > 0.65 * alone


# ------------------------------------------------------ valid whatever the analyst does: filter


def losses(rng: np.random.Generator, count: int, fits: int, q: float, noise: float) -> np.ndarray:
    """Privacy losses of `fits` one-step fits on the data set with the record in it."""
    x = rng.normal(size=(fits, count)) * noise + (rng.random((fits, count)) < q)
    return np.log1p(q * np.expm1((2 * x - 1) / (2 * noise**2))).sum(axis=0)


def monte_carlo_delta(planted: float = 1.0, count: int = 60_000) -> tuple[float, float]:
    """Delta at epsilon = 1 of an analyst who bets on the loss so far, and its standard error.

    First a fit with much sampling noise. Where it went badly for the record, the analyst takes all that
    the filter still gives in many small fits; where it went well, in a few large ones.
    """
    total = (1.0, 0.05)
    rng = np.random.default_rng(7)

    def admitted(spent: list[tuple[float, float]], q: float, noise: float) -> int:
        budget = PrivacyBudget(total[0] * planted, total[1], composition="renyi_filter", orders=[4, 8])
        for q_spent, noise_spent in spent:
            budget.charge(**one_step(q_spent, noise_spent))
        done = 0
        try:
            while True:
                budget.charge(**one_step(q, noise))
                done += 1
        except BudgetExceededError:
            return done

    def one_step(q: float, noise: float) -> dict[str, Any]:
        return a_fit(n_steps=1, noise_multiplier=noise, sampler=PoissonSampler(q))

    first = (0.3, 1.6)
    loss = losses(rng, count, 1, *first)
    bad = loss > 0.1
    for where, second in ((bad, (0.5, 12.0)), (~bad, (0.05, 1.0))):
        fits = admitted([first], *second)
        assert fits > 3
        loss[where] += losses(rng, int(where.sum()), fits, *second)
    excess = np.maximum(0.0, -np.expm1(total[0] - loss))
    return float(excess.mean()), float(excess.std() / math.sqrt(count))


def test_the_filter_holds_against_an_adaptive_analyst() -> None:
    found, error = monte_carlo_delta()
    assert found + 4 * error < 0.05
    planted, error = monte_carlo_delta(planted=2.0)  # the test can tell
    assert planted - 4 * error > 0.05


# ------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (dict(epsilon=0.0, delta=1e-6), "epsilon"),
        (dict(epsilon=math.inf, delta=1e-6), "epsilon"),
        (dict(epsilon=True, delta=1e-6), "epsilon"),
        (dict(epsilon=1.0, delta=0.0), "delta"),
        (dict(epsilon=1.0, delta=1.0), "delta"),
        (dict(epsilon=1.0, delta=1e-6, dataset=3), "dataset"),
        (dict(epsilon=1.0, delta=1e-6, dataset="two\nlines"), "dataset"),
        (dict(epsilon=1.0, delta=1e-6, neighboring_relation="both"), "neighboring_relation"),
        (dict(epsilon=1.0, delta=1e-6, composition="advanced"), "composition"),
        (dict(epsilon=1.0, delta=1e-6, orders=[4]), "orders"),
        (dict(epsilon=1.0, delta=1e-6, composition="renyi_filter", orders=[]), "orders"),
        (dict(epsilon=1.0, delta=1e-6, composition="renyi_filter", orders=[1]), "orders"),
        (dict(epsilon=1.0, delta=1e-6, composition="renyi_filter", orders=[2.5]), "orders"),
        (dict(epsilon=1.0, delta=1e-6, composition="renyi_filter", orders="30"), "orders"),
        (dict(epsilon=1.0, delta=1e-6, allow_unproven="yes"), "allow_unproven"),
    ],
)
def test_bad_terms(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ArgumentError, match=word):
        PrivacyBudget(**arguments)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        (dict(epsilon=-0.1), "epsilon"),
        (dict(epsilon=math.inf), "epsilon"),
        (dict(epsilon=math.nan), "epsilon"),
        (dict(delta=1.0), "delta"),
        (dict(label="two\nlines"), "label"),
        (dict(label=None), "label"),
        (dict(n_steps=0), "n_steps"),
        (dict(noise_multiplier=0.0), "noise_multiplier"),
        (dict(neighboring_relation="both"), "neighboring_relation"),
        (dict(accountant="bad"), "accountant"),
    ],
)
@pytest.mark.parametrize("composition", ["basic", "renyi_filter"])
def test_bad_charges_change_nothing(changed: dict[str, Any], word: str, composition: str) -> None:
    budget = PrivacyBudget(1.0, 1e-6, composition=composition)
    budget.charge(**a_fit())
    before = budget.to_dict()
    with pytest.raises(ArgumentError, match=word):
        budget.charge(**a_fit(**changed))
    assert budget.to_dict() == before


def test_a_dry_run_charges_nothing() -> None:
    budget = PrivacyBudget(0.15, 1e-6)
    assert budget.charge(**a_fit(), dry_run=True).epsilon == 0.1
    assert budget.ledger == ()
    budget.charge(**a_fit())
    with pytest.raises(BudgetExceededError, match=r"epsilon=0\.05 and delta=9\.9e-07; use these"):
        budget.charge(**a_fit(), dry_run=True)


def test_relations_are_not_mixed() -> None:
    budget = PrivacyBudget(1.0, 1e-6)
    assert budget.neighboring_relation is None
    budget.charge(epsilon=0.1, delta=0.0, neighboring_relation="replace_one")
    assert budget.neighboring_relation == "replace_one"
    with pytest.raises(ArgumentError, match="replace_one"):
        budget.charge(epsilon=0.1, delta=0.0, neighboring_relation="add_or_remove_one")
    assert budget.charge(epsilon=0.1, delta=0.0).neighboring_relation == "replace_one"
    fixed = PrivacyBudget(1.0, 1e-6, neighboring_relation="add_or_remove_one")
    with pytest.raises(ArgumentError, match="add_or_remove_one"):
        fixed.charge(epsilon=0.1, delta=0.0, neighboring_relation="replace_one")


def test_unproven_accountants_need_permission_and_are_shown() -> None:
    def mine(neighboring_relation: Any) -> Any:
        return RdpAccountant(neighboring_relation=neighboring_relation)

    budget = PrivacyBudget(1.0, 1e-6)
    with pytest.raises(ArgumentError, match="allow_unproven"):
        budget.charge(**a_fit(accountant=mine))
    lax = PrivacyBudget(1.0, 1e-6, allow_unproven=True)
    lax.charge(**a_fit())
    assert "NOT A GUARANTEE" not in str(lax)
    lax.charge(**a_fit(accountant=mine))
    assert str(lax).startswith("NOT A GUARANTEE")
    assert "NOT A GUARANTEE" in lax._repr_html_()


def test_the_filter_refuses_what_it_cannot_price() -> None:
    budget = PrivacyBudget(1.0, 1e-6, composition="renyi_filter")
    with pytest.raises(ArgumentError, match="composition='basic'"):
        budget.charge(epsilon=0.1, delta=0.0, label="a histogram")
    with pytest.raises(UnsupportedEventError, match=r"(?i)replace_one"):  # no proven RDP for Poisson
        budget.charge(**a_fit(neighboring_relation="replace_one"))
    with pytest.raises(ArgumentError, match="no remaining epsilon"):
        _ = budget.remaining
    assert budget.ledger == ()
    budget.charge(
        **a_fit(sampler=FixedSizeSampler(10, 1000), neighboring_relation="replace_one", noise_multiplier=8.0)
    )
    assert len(budget.ledger) == 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("in_file", [False, True])
def test_no_copies(copied: Callable[[Any], Any], in_file: bool, tmp_path: Path) -> None:
    made = PrivacyBudget.create(tmp_path / "b", 1.0, 1e-6) if in_file else PrivacyBudget(1.0, 1e-6)
    with pytest.raises(TypeError, match=r"PrivacyBudget\.open"):
        copied(made)


# ------------------------------------------------------------------------------------- the ledger


def test_the_ledger_as_a_table() -> None:
    budget = PrivacyBudget(1.0, 1e-6, dataset="census <2024>")
    assert "no charges yet" in str(budget)
    budget.charge(epsilon=0.25, delta=0.0, label="ages & sexes")
    budget.charge(**a_fit(label="first fit"))
    text, page = str(budget), budget._repr_html_()
    assert "census <2024>" in text and "&lt;2024&gt;" in page and "ages &amp; sexes" in page
    assert "<2024>" not in page
    row = next(line for line in text.splitlines() if "first fit" in line)
    assert row.split()[-6:] == ["0.1", "1e-08", "pld", "100", "0.01", "1.5"]
    assert "spent: epsilon 0.35, delta 1e-08" in text
    assert "left: epsilon 0.65, delta 9.9e-07" in text
    assert "add_or_remove_one" in text
    assert "census" in repr(budget)


def test_what_is_shown_does_not_flatter() -> None:
    budget = PrivacyBudget(1.0, 1e-6)
    budget.charge(epsilon=0.12345678, delta=0.0)
    assert "spent: epsilon 0.123457," in str(budget)
    assert "left: epsilon 0.876543," in str(budget)
    budget.charge(epsilon=0.00000001, delta=0.0)
    assert "left: epsilon 0.876543," in str(budget)


def test_the_ledger_as_a_dict() -> None:
    budget = PrivacyBudget(1.0, 1e-6, composition="renyi_filter")
    budget.charge(**a_fit(label="first fit"))
    found = budget.to_dict()
    assert found["format"] == "pymc_dpvi.PrivacyBudget"
    (charge,) = found["charges"]
    assert charge["when"].endswith("+00:00")
    assert {k: charge[k] for k in ("label", "epsilon", "delta", "n_steps", "accountant")} == {
        "label": "first fit",
        "epsilon": 0.1,
        "delta": 1e-8,
        "n_steps": 100,
        "accountant": "pld",
    }
    assert 0 < found["used"] < 1


# -------------------------------------------------------------------------------------- with fits

FIT = dict(epsilon=0.4, delta=1e-7, sampling_prob=0.3)
QUIET = dict(progressbar=False)


@pytest.mark.turns
def test_fits_and_refine_go_through_the_budget(logistic: Callable[[], pm.Model]) -> None:
    budget = PrivacyBudget(1.0, 1e-6, dataset="survey")
    with logistic():
        method = DPADVI(**FIT, budget=budget)
        assert budget.ledger == ()  # making the method costs nothing
        approx = method.fit(20, **QUIET)
        method.refine(10, progressbar=False)
    with logistic():
        small = {**FIT, "epsilon": 0.2}
        second = pm.fit(5, method=DPFullRankADVI(**small, budget=budget), **QUIET)
    assert [c.label for c in budget.ledger] == ["DPADVI.fit", "DPADVI.refine", "DPFullRankADVI.fit"]
    runs = (*approx.privacy.runs, *second.privacy.runs)
    assert [(c.epsilon, c.delta, c.n_steps) for c in budget.ledger] == [
        (r.epsilon, r.delta, r.n_steps) for r in runs
    ]
    assert [c.n_steps for c in budget.ledger] == [20, 10, 5]
    assert approx.privacy.budget == second.privacy.budget == budget.name
    assert "survey" in str(approx.privacy)
    with logistic(), pytest.raises(BudgetExceededError, match="What is left is"):
        fit_dpadvi(20, **FIT, budget=budget, progressbar=False)
    assert len(budget.ledger) == 3


def test_a_refused_fit_changes_nothing(
    logistic: Callable[[], pm.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = PrivacyBudget(0.5, 1e-6)
    with logistic():
        method = DPADVI(**FIT, budget=budget)
        approx = method.fit(20, **QUIET)
    state = [p.get_value().tolist() for p in approx.params]
    report, ledger = approx.privacy, budget.ledger

    def drawn(*_: Any, **__: Any) -> None:
        raise AssertionError("noise was drawn")

    monkeypatch.setattr("pymc_dpvi.mechanism.mechanism.Mechanism.draw", drawn)
    for again in (lambda: method.fit(20, **QUIET), lambda: method.refine(20, progressbar=False)):
        with pytest.raises(BudgetExceededError):
            again()
        assert [p.get_value().tolist() for p in approx.params] == state
        assert approx.privacy is report
        assert budget.ledger == ledger
    # and the averages are still what is released
    assert approx.privacy.runs[-1].steps_run == 20


@pytest.mark.parametrize("how", ["stop", "interrupt", "error"])
def test_an_early_end_keeps_the_charge(logistic: Callable[[], pm.Model], how: str) -> None:
    budget = PrivacyBudget(1.0, 1e-6)
    raised = {"stop": StopIteration, "interrupt": KeyboardInterrupt, "error": ZeroDivisionError}[how]
    seen = []

    def end(_approx: Any, _losses: Any, i: int) -> None:
        seen.append(len(budget.ledger))  # charged before the first step
        if i == 3:
            raise raised("enough")

    with logistic():
        method = DPADVI(**FIT, budget=budget)
        try:
            method.fit(20, callbacks=[end], **QUIET)
        except ZeroDivisionError:
            assert how == "error"
    assert seen == [1, 1, 1]
    assert [c.n_steps for c in budget.ledger] == [20]


def test_a_fit_that_fails_before_the_charge_costs_nothing(logistic: Callable[[], pm.Model]) -> None:
    budget = PrivacyBudget(1.0, 1e-6)

    def no_optimizer(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no optimiser")

    with logistic():
        method = DPADVI(**FIT, budget=budget)
        with pytest.raises(ArgumentError, match="no optimiser"):
            method.fit(20, obj_optimizer=no_optimizer, **QUIET)
        with pytest.raises(ArgumentError):
            method.fit(20, score=True, **QUIET)
        with pytest.raises(ArgumentError):
            method.fit(0, **QUIET)
    assert budget.ledger == ()


class Picky:
    """A callback that cannot say how often it wants to be called."""

    @property
    def every(self) -> int:
        raise RuntimeError("never")

    def __call__(self, *_: Any) -> None: ...


def test_what_fails_of_itself_fails_before_the_charge(logistic: Callable[[], pm.Model]) -> None:
    budget = PrivacyBudget(3.0, 0.5)
    with logistic(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PrivacyWarning, match=r"delta=0\.01 is large"):
            DPADVI(**{**FIT, "delta": 0.01}, budget=budget).fit(20, **QUIET)
        with pytest.raises(RuntimeError, match="never"):
            DPADVI(**FIT, budget=budget).fit(20, callbacks=[Picky()], **QUIET)
    with pm.Model() as model:
        weight = pm.Data("weight", np.ones(3))
        beta = pm.Normal("beta", 0.0, 1.0, shape=3)
        pm.Normal("y", (pm.Data("x", np.eye(6)[:, :3]) * weight) @ beta, 1.0, observed=np.ones(6))
        method = DPADVI(**FIT, budget=budget, public_data=["weight"])
        pm.set_data({"weight": np.ones(2)}, model=model)
        with pytest.raises(UnsupportedModelError, match="'weight' holds other values now"):
            method.fit(20, **QUIET)
    assert budget.ledger == ()


def test_a_fit_goes_on_where_no_bar_can_be_drawn(
    logistic: Callable[[], pm.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed output is no reason to lose what is charged."""
    broken = io.StringIO()
    broken.close()
    monkeypatch.setattr(sys, "stdout", broken)
    budget = PrivacyBudget(1.0, 1e-6)
    with logistic():
        approx = DPADVI(**FIT, budget=budget).fit(20)
    assert approx.privacy.runs[0].steps_run == 20 and len(budget.ledger) == 1
    assert sys.stdout is broken


def test_a_budget_in_a_file_outlives_the_fit(tmp_path: Path, logistic: Callable[[], pm.Model]) -> None:
    path = tmp_path / "budget.sqlite"
    budget = PrivacyBudget.create(path, 0.5, 1e-6)
    with logistic():
        pm.fit(5, method=DPADVI(**FIT, budget=budget), **QUIET)
    again = PrivacyBudget.open(path)
    assert len(again.ledger) == 1
    with logistic(), pytest.raises(BudgetExceededError):
        pm.fit(5, method=DPADVI(**FIT, budget=again), **QUIET)
    path.unlink()  # a fit whose budget is gone is not run
    with logistic(), pytest.raises(LedgerError, match="There is no budget file"):
        pm.fit(5, method=DPADVI(epsilon=0.01, delta=1e-8, sampling_prob=0.3, budget=again), **QUIET)


def test_fits_under_a_filter(logistic: Callable[[], pm.Model]) -> None:
    budget = PrivacyBudget(2.0, 1e-6, composition="renyi_filter")
    with logistic():
        method = DPADVI(**FIT, budget=budget)
        method.fit(20, **QUIET)
        for _ in range(5):  # six of 0.4 are 2.4
            method.refine(20, progressbar=False)
    assert len(budget.ledger) == 6 and budget.used < 1.0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (dict(budget=3.0), "PrivacyBudget"),
        (dict(insecure_noise_seed=1), "contradict"),
        (dict(accountant=lambda relation: RdpAccountant(neighboring_relation=relation)), "proven"),
    ],
)
def test_methods_that_no_budget_can_hold(
    arguments: dict[str, Any], word: str, logistic: Callable[[], pm.Model]
) -> None:
    with logistic(), pytest.raises(ArgumentError, match=word):
        DPADVI(**{**FIT, "budget": PrivacyBudget(1.0, 1e-6), **arguments})


def test_a_fit_under_another_relation_is_refused(logistic: Callable[[], pm.Model]) -> None:
    budget = PrivacyBudget(1.0, 1e-6, neighboring_relation="replace_one")
    with logistic(), pytest.raises(ArgumentError, match="replace_one"):
        pm.fit(5, method=DPADVI(**FIT, budget=budget), **QUIET)
    assert budget.ledger == ()


def test_fits_of_different_records_do_not_add_up():
    """A person may be several rows: a bound for a row says nothing of a person, and the other way round."""
    budget = PrivacyBudget(1.0, 1e-6)
    budget.charge(epsilon=0.1, delta=0.0, record="the same 'person'")
    budget.charge(epsilon=0.1, delta=0.0)  # of other software: nobody said
    budget.charge(epsilon=0.1, delta=0.0, record="the same 'person'")
    for other in ("one row", "the same 'household'"):
        with pytest.raises(ArgumentError, match=r"the same 'person'.*do not add up"):
            budget.charge(epsilon=0.1, delta=0.0, record=other)
    assert len(budget.to_dict()["charges"]) == 3
    assert "a record is all rows with the same 'person'" in str(budget)
    with pytest.raises(ArgumentError, match="record must be a text of one line"):
        budget.charge(epsilon=0.1, delta=0.0, record="two\nlines")


def test_a_fit_in_an_early_ledger_was_by_row():
    charge = PrivacyBudget(1.0, 1e-6).charge(epsilon=0.1, delta=0.0, n_steps=10).to_dict()
    del charge["record"]
    assert Charge.from_dict(charge).record == "one row"
    assert Charge.from_dict({**charge, "n_steps": None}).record == ""
