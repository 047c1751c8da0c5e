"""Models by person, as people write them: several rows of each, and mostly latent values of their own.

Each is fitted with ``unit="person"``, or with the ids of several tables. Data are made by
`numpy.random.default_rng`; the numbers of persons, of rows and of everything else differ. An entry's `local`
names the variables that are integrated out, in the model's order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from pymc_dpvi import Variational

__all__ = ["PERSONS_ZOO", "Entry"]

P = 17
_RNG = np.random.default_rng(2026)
ROWS = _RNG.permutation(np.r_[np.ones(4, int), _RNG.integers(1, 7, size=P - 5), 23])
WHO = _RNG.permutation(np.repeat(np.arange(P), ROWS))
N = WHO.size
X = _RNG.normal(size=(N, 2))
T = _RNG.uniform(0, 2, size=N)
SITE = _RNG.integers(0, 4, size=N)
ITEM = _RNG.integers(0, 6, size=N)
EFFECT = _RNG.normal(size=P)
Y = X @ [1.0, -0.5] + EFFECT[WHO] + 0.7 * _RNG.normal(size=N)
LABEL = (Y > 0.2).astype("int64")
COUNT = _RNG.poisson(np.exp(0.3 * X[:, 0] + 0.5 * EFFECT[WHO]))
SHARES = np.random.default_rng(11).multinomial(10, [0.2, 0.3, 0.5], size=N)
TIME = 0.3 + 0.3 * np.exp(0.3 * EFFECT[WHO]) + T
#: Rows of one of two tables: persons 0 and 1 have none in the first, 2 and 3 none in the second.
VISIT = np.where(WHO < 2, False, np.where(WHO < 4, True, np.arange(N) % 3 > 0))
#: The same person's outcome in the row before; in the first row of a person there is none.
_FRAME = pd.DataFrame({"who": WHO, "y": Y})
LATER = _FRAME.groupby("who").cumcount().to_numpy() > 0
BEFORE = _FRAME.groupby("who")["y"].shift(fill_value=0.0).to_numpy()


@dataclass(frozen=True)
class Entry:
    """One model, and what is known of it."""

    name: str
    build: Callable[[], pm.Model]
    local: tuple[str, ...]
    withheld: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


PERSONS_ZOO: dict[str, Entry] = {}


def persons(
    local: str = "", withheld: str = "", **options: Any
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register what is written inside a model that has the ids as ``person`` and the dim ``who``."""

    def register(write: Callable[[], None]) -> Callable[[], None]:
        def build() -> pm.Model:
            with pm.Model(coords={"who": [f"p{i}" for i in range(P)], "coef": ["a", "b"]}) as model:
                if "unit" not in options:
                    pm.Data("person", WHO)
                write()
            return model

        name = write.__name__
        PERSONS_ZOO[name] = Entry(name, build, tuple(local.split()), tuple(withheld.split()), options)
        return write

    return register


def who() -> Any:
    """Return the ids of the model that is being written."""
    return pm.modelcontext(None)["person"]


def slopes() -> Any:
    """Return the mean of two predictors."""
    return pm.Data("x", X) @ pm.Normal("b", 0, 1, dims="coef")


@persons()
def fixed_effects() -> None:
    pm.Normal("y", slopes(), pm.HalfNormal("s"), observed=Y)


@persons()
def fixed_effects_by_site() -> None:
    a = pm.Normal("a", 0, 1, shape=4)
    pm.Bernoulli("y", logit_p=a[pm.Data("site", SITE)] + slopes(), observed=LABEL)


@persons(max_rows_per_unit=3)
def fixed_effects_of_some_rows() -> None:
    pm.Poisson("y", pm.math.exp(slopes()), observed=COUNT)


@persons("u")
def random_intercept() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    pm.Bernoulli("y", logit_p=slopes() + u[who()], observed=LABEL)


@persons("u", "effect mean")
def random_intercept_not_centred() -> None:
    tau, mu = pm.HalfNormal("tau", 1), pm.Normal("mu")
    u = pm.Normal("u", 0, 1, shape=P)
    effect = pm.Deterministic("effect", mu + tau * u, dims="who")
    mean = pm.Deterministic("mean", slopes() + effect[who()])
    pm.Normal("y", mean, pm.HalfNormal("s"), observed=Y)


@persons("u v")
def intercept_and_slope() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    v = pm.Normal("v", pm.Normal("growth"), pm.HalfNormal("tau_v", 1), dims="who")
    pm.Normal("y", u[who()] + v[who()] * pm.Data("t", T), pm.HalfNormal("s"), observed=Y)


@persons("u")
def correlated_effects() -> None:
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
    u = pm.MvNormal("u", pt.zeros(2), chol=chol, dims=("who", "coef"))
    own = u[who()]
    pm.Normal("y", own[:, 0] + own[:, 1] * pm.Data("t", T), 0.7, observed=Y)


@persons("z")
def correlated_effects_not_centred() -> None:
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
    z = pm.Normal("z", 0, 1, shape=(P, 2))
    own = (z @ chol.T)[who()]
    pm.Normal("y", own[:, 0] + own[:, 1] * pm.Data("t", T), 0.7, observed=Y)


@persons("u")
def one_of_two_columns() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1, shape=2), shape=(P, 2))
    pm.Normal("y", u[who(), 0] - u[who(), 1] * pm.Data("t", T), 0.7, observed=Y)


@persons("theta")
def rasch() -> None:
    theta = pm.Normal("theta", 0, pm.HalfNormal("spread", 1), dims="who")
    difficulty = pm.Normal("difficulty", 0, 1, shape=6)
    pm.Bernoulli("y", logit_p=theta[who()] - difficulty[pm.Data("item", ITEM)], observed=LABEL)


@persons("theta")
def two_parameters_an_item() -> None:
    theta = pm.Normal("theta", 0, 1, dims="who")
    item = pm.Data("item", ITEM)
    strength, easy = pm.LogNormal("strength", 0, 0.3, shape=6), pm.Normal("easy", 0, 1, shape=6)
    pm.Bernoulli("y", logit_p=strength[item] * theta[who()] + easy[item], observed=LABEL)


@persons("u")
def counts_with_an_intercept() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    pm.NegativeBinomial("y", mu=pt.exp(slopes() + u[who()]), alpha=pm.Gamma("alpha", 2, 1), observed=COUNT)


@persons("u")
def zeros_and_counts() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    psi = pm.Beta("psi", 2, 2)
    pm.ZeroInflatedPoisson("y", psi=psi, mu=pt.exp(slopes() + u[who()]), observed=COUNT)


@persons("p")
def own_probability() -> None:
    p = pm.Beta("p", pm.Gamma("alpha", 3, 1), pm.Gamma("beta", 3, 1), dims="who")
    pm.Bernoulli("y", p[who()], observed=LABEL)


@persons("rate")
def own_rate() -> None:
    rate = pm.Gamma("rate", pm.Gamma("alpha", 3, 1), pm.Gamma("beta", 3, 1), dims="who")
    pm.Poisson("y", rate[who()] * pm.Data("t", 0.1 + T), observed=COUNT)


@persons("u")
def heavy_tailed_effects() -> None:
    u = pm.StudentT("u", nu=4, mu=0, sigma=pm.HalfNormal("tau", 1), dims="who")
    pm.Normal("y", slopes() + u[who()], pm.HalfNormal("s"), observed=Y)


@persons("u log_s")
def own_spread() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    log_s = pm.Normal("log_s", pm.Normal("m", -0.5, 0.5), 0.4, dims="who")
    pm.Normal("y", slopes() + u[who()], pt.exp(log_s[who()]), observed=Y)


@persons("u", "y_probs")
def ordered_answers() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    cuts = pm.Normal("cuts", [-1.0, 1.0], 1, transform=pm.distributions.transforms.ordered)
    answer = np.digitize(Y, [-0.7, 0.9])
    pm.OrderedLogistic("y", eta=slopes() + u[who()], cutpoints=cuts, observed=answer)


@persons("u")
def frailty() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    time = pm.Weibull.dist(pm.LogNormal("k", 0, 0.3), pt.exp(slopes() + u[who()]))
    observed = np.minimum(0.1 + T, 1.5)
    pm.Censored("y", time, lower=None, upper=np.full(N, 1.5), observed=observed)


@persons("u")
def sites_and_persons() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    a = pm.Normal("a", 0, 1, shape=4)
    pm.Normal("y", a[pm.Data("site", SITE)] + u[who()], pm.HalfNormal("s"), observed=Y)


@persons("u v w")
def three_effects() -> None:
    u, v, w = (pm.Normal(n, 0, pm.HalfNormal(f"tau_{n}", 1), dims="who") for n in "uvw")
    t = pm.Data("t", T)
    pm.Normal("y", u[who()] + v[who()] * t + w[who()] * (t - 1) ** 2, 0.7, observed=Y)


@persons("u")
def curves_of_five_terms() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1, shape=5), shape=(P, 5))
    t = pm.Data("t", T)
    terms = pt.stack([t**k for k in range(5)], axis=1)
    pm.Normal("y", (u[who()] * terms).sum(axis=1), 0.7, observed=Y)


@persons("taste")
def tastes_and_items() -> None:
    taste = pm.Normal("taste", 0, 1, shape=(P, 8))
    items = pm.Normal("items", 0, 0.5, shape=(6, 8))
    liked = (taste[who()] * items[pm.Data("item", ITEM)]).sum(axis=1)
    pm.Bernoulli("y", logit_p=pm.Normal("easy", 0, 1) + liked, observed=LABEL)


@persons("u", guide={"u": Variational()})
def fitted_intercepts() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    pm.Bernoulli("y", logit_p=pm.Data("x", X) @ pm.Normal("b", 0, 1, shape=2) + u[who()], observed=LABEL)


@persons("first second")
def an_effect_about_another() -> None:
    first = pm.Normal("first", 0, pm.HalfNormal("tau", 1), dims="who")
    second = pm.Normal("second", first, pm.HalfNormal("between", 0.5), dims="who")
    late = pm.Data("late", (T > 1).astype(float))
    mean = first[who()] * (1 - late) + second[who()] * late
    pm.Normal("y", mean, 0.7, observed=Y)


@persons("kind")
def hidden_classes() -> None:
    kind = pm.Categorical("kind", pm.Dirichlet("w", np.ones(3)), dims="who")
    mean = pm.Normal("mean", [-1.0, 0.0, 1.0], 1)
    pm.Normal("y", mean[kind[who()]], pm.HalfNormal("s"), observed=Y)


@persons("kind", "level")
def hidden_classes_by_table() -> None:
    kind = pm.Categorical("kind", pm.Dirichlet("w", np.ones(3)), shape=P)
    mean = pm.Normal("mean", [-1.0, 0.0, 1.0], 1)
    level = pm.Deterministic("level", mean[kind])
    pm.Normal("y", slopes() + level[who()], pm.HalfNormal("s"), observed=Y)


@persons("u kind")
def classes_of_curves() -> None:
    """A growth mixture: a class and an intercept of each person, the class first."""
    kind = pm.Categorical("kind", pm.Dirichlet("w", np.ones(2)), dims="who")
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    level, trend = pm.Normal("level", [-1.0, 1.0], 1), pm.Normal("trend", 0, 1, shape=2)
    mean = level[kind[who()]] + trend[kind[who()]] * pm.Data("t", T) + u[who()]
    pm.Normal("y", mean, pm.HalfNormal("s"), observed=Y)


@persons("u ever seen")
def classes_with_own_priors() -> None:
    """Two discrete values, and one of them decides on the prior of the continuous one."""
    ever = pm.Bernoulli("ever", pm.Beta("share", 2, 2), dims="who")
    seen = pm.Categorical("seen", pm.Dirichlet("w", np.ones(3)), shape=P)
    mean, spread = pm.Normal("mean", [-1.0, 1.0], 1), pm.HalfNormal("tau", 1, shape=2)
    u = pm.Normal("u", mean[ever], spread[ever], dims="who")
    level = pm.Normal("level", 0, 1, shape=3)
    pm.Poisson("y", pm.math.exp(0.3 * level[seen[who()]] + u[who()]), observed=COUNT)


@persons("u v kind", "effect")
def classes_of_two_effects() -> None:
    kind = pm.Bernoulli("kind", pm.Beta("share", 2, 2), dims="who")
    tau = pm.HalfNormal("tau", 1, shape=2)
    u, v = pm.Normal("u", 0, tau[0], dims="who"), pm.Normal("v", 0, tau[1], dims="who")
    effect = pm.Deterministic("effect", pm.math.switch(kind, v, 0.0))
    eta = slopes() + u[who()] + effect[who()] * pm.Data("t", T)
    pm.Bernoulli("y", logit_p=eta, observed=LABEL)


@persons("share")
def topics() -> None:
    """Latent Dirichlet allocation: a mixture of topics in each text, whose rows are its words."""
    share = pm.Dirichlet("share", pm.Gamma("alpha", 2, 2) * np.ones(3), shape=(P, 3))
    word = pm.Dirichlet("word", np.ones((3, 6)))
    pm.Categorical("y", p=share[who()] @ word, observed=ITEM)


@persons("z")
def preferences_that_sum_to_zero() -> None:
    z = pm.ZeroSumNormal("z", sigma=pm.HalfNormal("tau", 1), shape=(P, 3))
    pm.Categorical("y", logit_p=pm.Normal("b", 0, 1, shape=3) + z[who()], observed=SITE % 3)


@persons("n")
def abundance() -> None:
    """An N-mixture: what is counted at a site is a part of what lives there."""
    n = pm.Truncated("n", pm.Poisson.dist(pm.Gamma("rate", 2, 0.5)), upper=9, dims="who")
    pm.Binomial("y", n[who()], pm.Beta("p", 2, 2), observed=np.minimum(COUNT, 3))


@persons("u score")
def guesses_out_of_six() -> None:
    score = pm.Binomial("score", 6, pm.Beta("p", 2, 2), dims="who")
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    pm.Normal("y", pm.Normal("b") * score[who()] + u[who()], pm.HalfNormal("s"), observed=Y)


@persons("z")
def occupancy_by_a_covariate() -> None:
    """What is known of a person decides on a class: its prior is a term of the person's first row."""
    first = np.zeros(N)
    first[np.unique(WHO, return_index=True)[1]] = 1.0
    z = pm.Bernoulli("z", 0.5, dims="who")
    eta = pm.Normal("share", 0, 1) + pm.Normal("slope", 0, 1) * pm.Data("height", EFFECT[WHO])
    own = pm.logp(pm.Bernoulli.dist(logit_p=eta), z[who()])
    pm.Potential("own", pm.Data("first", first) * own)
    pm.Bernoulli("y", z[who()] * pm.math.sigmoid(slopes()), observed=LABEL)


@persons("u")
def what_is_known_of_a_person() -> None:
    """Age in the likelihood, a group in what is looked up, and both in the prior, all by person."""
    age, group = pm.Data("age", EFFECT), pm.Data("group", np.arange(P) % 3)
    a, b, tau = pm.Normal("a", 0, 1, shape=3), pm.Normal("b", 0, 1, shape=2), pm.HalfNormal("tau", 1)
    u = pm.Normal("u", b[0] * age, tau, dims="who")
    mean = (a[group] + u)[who()] + b[1] * age[who()]
    pm.Normal("y", mean, pm.HalfNormal("s"), observed=Y)


@persons("z")
def occupancy_of_known_sites() -> None:
    eta = pm.Normal("share", 0, 1) + pm.Normal("slope", 0, 1) * pm.Data("height", EFFECT, dims="who")
    z = pm.Bernoulli("z", logit_p=eta, dims="who")
    pm.Bernoulli("y", z[who()] * pm.math.sigmoid(slopes()), observed=LABEL)


@persons()
def groups_of_persons() -> None:
    group = pm.Data("group", np.arange(P) % 3)
    a = pm.Normal("a", 0, 1, shape=3)
    pm.Poisson("y", pm.math.exp(a[group][who()] + slopes()), observed=COUNT)


@persons("e")
def one_of_five_values() -> None:
    """An effect of each person in each of five periods: a look-up within a person's values."""
    e = pm.Normal("e", 0, pm.HalfNormal("tau", 1), shape=(P, 5))
    period = pm.Data("period", ITEM % 5)[:, None]
    own = pt.take_along_axis(e[who()], period, axis=1)[:, 0]
    pm.Bernoulli("y", logit_p=slopes() + own, observed=LABEL)


@persons("ill")
def hidden_states() -> None:
    ill = pm.Bernoulli("ill", pm.Beta("prevalence", 2, 2), dims="who")
    p = pm.Beta("p", [2.0, 4.0], [4.0, 2.0])
    pm.Bernoulli("y", pt.switch(ill[who()], p[1], p[0]), observed=LABEL)


@persons("u")
def shares_of_ten() -> None:
    """Rows of counts with one number of trials, written as a number."""
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")[who()]
    level = pm.Normal("level", 0, 1, shape=2)
    eta = pt.stack([level[0] + u, level[1] + 0 * u, 0 * u], axis=1)
    pm.Multinomial("y", n=10, p=pt.special.softmax(eta, axis=1), observed=SHARES)


@persons("u")
def two_outcomes() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    load = pm.LogNormal("load", 0, 0.3)
    pm.Normal("y", slopes() + u[who()], pm.HalfNormal("s"), observed=Y)
    pm.Poisson("visits", pt.exp(load * u[who()]), observed=COUNT)


@persons("u")
def with_a_potential() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    error = pm.Data("outcome", Y) - slopes() - u[who()]
    pm.Potential("misfit", -0.5 * error**2)


@persons("u")
def other_nodes() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    pm.Bernoulli("y", logit_p=u[pt.cast(who(), "int64")], observed=LABEL)


@persons("u")
def two_columns_by_dims() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1, dims="coef"), dims=("who", "coef"))
    own = u[who()]
    pm.Normal("y", own[:, 0] + own[:, 1] * pm.Data("t", T), 0.7, observed=Y)


@persons("z", "u")
def not_centred_by_dims() -> None:
    z = pm.Normal("z", 0, 1, dims=("who", "coef"))
    u = pm.Deterministic("u", z * pm.HalfNormal("tau", 1, dims="coef"), dims=("who", "coef"))
    pm.Normal("y", u[who(), 0] + u[who(), 1] * pm.Data("t", T), 0.7, observed=Y)


@persons("u v")
def stacked_effects() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    v = pm.Normal("v", 0, pm.HalfNormal("tau_v", 1), dims="who")
    own = pt.stack([u, v], axis=1)[who()]
    pm.Normal("y", own[:, 0] + own[:, 1] * pm.Data("t", T), 0.7, observed=Y)


@persons("kind")
def classes_with_a_reference() -> None:
    weights = pm.math.softmax(pt.concatenate([[0.0], pm.Normal("eta", 0, 1, shape=2)]))
    kind = pm.Categorical("kind", weights, dims="who")
    level = pt.cumsum(pm.HalfNormal("step", 1, shape=3))[kind]
    pm.Normal("y", level[who()], pm.HalfNormal("s"), observed=Y)


@persons("z0 z1", "e0 emax")
def doses_and_responses() -> None:
    """An Emax model with a baseline and a largest effect of each person: not concave in the latter."""
    center, spread = pm.Normal("mu_e0", 1, 1), pm.HalfNormal("sd_e0", 1)
    z0, z1 = pm.Normal("z0", 0, 1, dims="who"), pm.Normal("z1", 0, 1, dims="who")
    e0 = pm.Deterministic("e0", center + spread * z0, dims="who")
    log_emax = pm.Normal("log_emax", 1, 1) + pm.HalfNormal("sd_emax", 0.5) * z1
    emax = pm.Deterministic("emax", pm.math.exp(log_emax), dims="who")
    dose = pm.Data("dose", 20 * T)
    share = dose / (pm.math.exp(pm.Normal("log_ed50", 2, 1)) + dose)
    pm.Normal("y", e0[who()] + emax[who()] * share, pm.HalfNormal("s"), observed=Y)


@persons("delay")
def reaction_times() -> None:
    """A delay of each person, before which nothing happens: at its mean, most people have no density."""
    delay = pm.LogNormal("delay", pm.Normal("m", -1.5, 0.5), pm.HalfNormal("tau", 0.5), dims="who")
    v, a = pm.LogNormal("v", 0, 0.5), pm.LogNormal("a", 0, 0.5)
    pm.Wald("time", mu=a / v, lam=a**2, alpha=delay[who()], observed=TIME)


@persons("z")
def decisions() -> None:
    """A drift, a boundary and a delay of each person: three values of skewed and correlated densities."""
    mu = pm.Normal("mu", [0, 0, -1.5], 0.5, shape=3)
    z = pm.Normal("z", 0, 1, shape=(P, 3))
    own = pm.math.exp(mu + pm.HalfNormal("sd", 0.5, shape=3) * z)[who()]
    drift, boundary, delay = own[:, 0], own[:, 1], own[:, 2]
    pm.Wald("time", mu=boundary / drift, lam=boundary**2, alpha=delay, observed=TIME)


@persons("kind")
def classes_over_dims() -> None:
    """How many classes there are is told by dims alone; what is known of a person decides on one."""
    pm.modelcontext(None).add_coords({"kinds": ["low", "high", "none"], "others": ["high", "none"]})
    a, b = pm.Normal("a", 0, 1, dims="others"), pm.Normal("b", 0, 1, dims="others")
    height = pm.Data("height", EFFECT, dims="who")
    eta = pt.concatenate([pt.zeros((height.shape[0], 1)), a + height[:, None] * b], axis=1)
    kind = pm.Categorical("kind", p=pm.math.softmax(eta, axis=-1), dims="who")
    pm.Poisson("y", pm.math.exp(pm.Normal("rate", 0, 1, dims="kinds")[kind[who()]]), observed=COUNT)


@persons("w u")
def own_scale_in_the_prior() -> None:
    w = pm.LogNormal("w", pm.Normal("m", 0, 0.3), 0.3, dims="who")
    u = pm.Normal("u", 0, w, dims="who")
    pm.Normal("y", slopes() + u[who()], 0.7, observed=Y)


def two_kinds_of_rows(own: Any) -> None:
    """Stack two tables: a row is a visit or an answer, with a number of no meaning in the other's columns."""
    x, b = pm.Data("x", np.where(VISIT[:, None], X, 0.0)), pm.Normal("b", 0, 1, dims="coef")
    load = pm.LogNormal("load", 0, 0.3)
    spent, says = pm.Data("spent", np.where(VISIT, Y, 0.0)), pm.Data("says", np.where(VISIT, 0, LABEL))
    visits = pm.logp(pm.Normal.dist(x @ b + own, pm.HalfNormal("s")), spent)
    answers = pm.logp(pm.Bernoulli.dist(logit_p=pm.Normal("a") + load * own), says)
    pm.Potential("rows", pt.switch(pm.Data("is_visit", VISIT), visits, answers))


@persons()
def two_tables() -> None:
    two_kinds_of_rows(0.0)


@persons("u")
def two_tables_with_an_intercept() -> None:
    two_kinds_of_rows(pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")[who()])


@persons("u")
def autoregression_within_a_person() -> None:
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
    before, later = pm.Data("before", BEFORE), pm.Data("later", LATER)
    rho = pm.Uniform("rho", -1, 1)
    mean = slopes() + u[who()]
    sd = pm.HalfNormal("s") * pt.switch(later, 1.0, 1.0 / pt.sqrt(1.0 - rho**2))
    pm.Normal("y", mean + later * rho * (before - mean), sd, observed=Y)


def visits_and_answers(local: bool) -> None:
    """Write the models above with a table of each kind, of different lengths."""
    came, answered = pm.Data("came", WHO[VISIT]), pm.Data("answered", WHO[~VISIT])
    of_visit, of_answer = 0.0, 0.0
    if local:
        u = pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")
        of_visit, of_answer = u[came], u[answered]
    b, load = pm.Normal("b", 0, 1, dims="coef"), pm.LogNormal("load", 0, 0.3)
    mean = pm.Deterministic("mean", pm.Data("x", X[VISIT]) @ b + of_visit, dims="visit")
    pm.Normal("spent", mean, pm.HalfNormal("s"), observed=Y[VISIT], dims="visit")
    pm.Bernoulli(
        "says", logit_p=pm.Normal("a") + load * of_answer, observed=LABEL[~VISIT], shape=int((~VISIT).sum())
    )


TWO: dict[str, Any] = {"unit": {"spent": "came", "says": "answered"}}


@persons(withheld="mean", **TWO)
def tables_of_visits_and_answers() -> None:
    pm.modelcontext(None).add_coord("visit", length=int(VISIT.sum()))
    visits_and_answers(local=False)


@persons("u", "mean", **TWO)
def tables_with_an_intercept() -> None:
    pm.modelcontext(None).add_coord("visit", [f"v{i}" for i in range(VISIT.sum())])
    visits_and_answers(local=True)


@persons("kind", unit={"y": "came", "says": "once", "extra": "once"})
def tables_of_hidden_classes() -> None:
    """The second table has one row of each person, as many as the variable has entries."""
    kind = pm.Categorical("kind", pm.Dirichlet("share", np.ones(3)), shape=P)
    level = pm.Normal("level", 0, 1, shape=3)
    once = pm.Data("once", np.random.default_rng(5).permutation(P))
    pm.Poisson("y", pm.math.exp(0.3 * level[kind[pm.Data("came", WHO)]]), observed=pm.Data("count", COUNT))
    chance = pm.Beta("chance", 1, 1, shape=3)[kind[once]]
    pm.Binomial("says", pm.Data("tries", np.arange(P) % 4 + 1), chance, observed=np.arange(P) % 2)
    pm.Potential("extra", -0.5 * (pm.Data("z", EFFECT) - level[kind[once]]) ** 2)


@persons("u", unit="person")
def errors_that_follow_each_other() -> None:
    """The error of the visit before, of a table that is sorted by person, written in the graph."""
    order = np.argsort(WHO, kind="stable")
    person = pm.Data("person", WHO[order])
    x, y = pm.Data("x", X[order]), pm.Data("outcome", Y[order])
    u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=P)
    mean = u[person] + x @ pm.Normal("b", 0, 1, dims="coef")
    error = pt.concatenate([[0.0], (y - mean)[:-1]])
    begins = pt.concatenate([[True], pt.neq(person[1:], person[:-1])])
    rho = pm.Uniform("rho", -1, 1)
    pm.Normal("y", mean + rho * pt.switch(begins, 0.0, error), pm.HalfNormal("s"), observed=y)


@persons()
def a_running_sum() -> None:
    """Of the same person's doses so far, wherever the rows lie."""
    person, dose = who(), pm.Data("dose", T)
    so_far = pt.eq(person[:, None], person[None, :]) * pt.tri(person.shape[0])
    mean = pm.Normal("a") + pm.Normal("b") * (so_far @ dose)
    pm.Normal("y", mean, pm.HalfNormal("s"), observed=Y)


@persons("u")
def means_of_persons() -> None:
    """Mundlak's device: a person's mean, and how far a row lies from it."""
    person, x = who(), pm.Data("x", X[:, 0])
    mean = (pt.bincount(person, x) / pt.bincount(person))[person]
    u = pm.Normal("u", 0, pm.HalfNormal("tau"), dims="who")
    eta = u[person] + pm.Normal("between") * mean + pm.Normal("within") * (x - mean)
    pm.Bernoulli("y", logit_p=eta, observed=LABEL)


@persons("level trend", unit={"y": "came", "event": "once"})
def joint_model() -> None:
    """A value of each person that one table alone looks up, and a table with a row of each person."""
    level = pm.Normal("level", 0, pm.HalfNormal("s0", 1), shape=P)
    trend = pm.Normal("trend", 0, pm.HalfNormal("s1", 1), shape=P)
    came, once = pm.Data("came", WHO), pm.Data("once", np.arange(P))
    mean = pm.Normal("b") + level[came] + trend[came] * pm.Data("t", T)
    pm.Normal("y", mean, pm.HalfNormal("s", 1), observed=Y)
    eta = pm.Normal("g") + pm.Normal("load") * level[once]
    time, died = pm.Data("time", np.exp(EFFECT)), pm.Data("died", np.arange(P) % 2)
    pm.Potential("event", died * eta - pm.math.exp(eta) * time)


@persons(unit={"y": "came", "scores": "tested", "grade": "tested", "rated": "judged"})
def tables_of_three_kinds() -> None:
    """Rows that are vectors, ordered and censored outcomes, and tables of equal length."""
    rng = np.random.default_rng(6)
    tested, judged = rng.integers(0, P, size=40), rng.integers(0, P, size=40)
    pm.Data("came", WHO), pm.Data("tested", tested), pm.Data("judged", judged)
    chol = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=3))[0]
    pm.StudentT("y", 4, slopes(), sigma=pm.HalfNormal("s"), observed=Y)
    pm.MvNormal("scores", pm.Normal("m", 0, 1, shape=3), chol=chol, observed=rng.normal(size=(40, 3)))
    cuts = pm.Normal(
        "cuts", 0, 1, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0, 1]
    )
    pm.OrderedLogistic(
        "grade",
        eta=pm.Normal("eta") * pm.Data("w", rng.normal(size=40)),
        cutpoints=cuts,
        observed=rng.integers(0, 4, size=40),
        compute_p=False,
    )
    judge = pm.Data("judge", rng.integers(0, 5, size=40))
    pm.Censored(
        "rated",
        pm.Normal.dist(pm.Normal("strict", 0, 1, shape=5)[judge], 1.0),
        lower=None,
        upper=1.0,
        observed=np.minimum(rng.normal(size=40), 1.0),
    )
