"""How exact the integrals over a person's values are: by the default nodes, others, and many.

Data of 100 persons are simulated from each model, and the gradient of all persons' log-densities is taken at
the true values, once by each rule and once by many nodes. Its error moves the posterior's mode by about
J⁻¹ times the error, where J is the sum of the squares of persons' gradients, and one for the prior of each
parameter. The table has the largest such shift of a parameter, in posterior standard deviations. It grows
with the root of the number of persons: the error is the same for everybody, and a standard deviation gets
smaller.

============  ========================================================================================
default       the default nodes: 15 for one value, 9 in each dimension for two, 5 for three
in order      as many, along axes in the order of the variables (by Cholesky's factor), not the principal
fewer         7 for one value, 5 for two, 3 for three
more          31, 15 and 9 nodes; of four values, 5: what the warning of a rough integral names
============  ========================================================================================

Many are 61, 25, 11, and 7. What they are worth is told by the last column: as many, a fifth further apart.

    python benchmarks/integrals.py [--models shares decisions] [--persons 100] [--output F]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from journal import write
from rich.console import Console
from rich.table import Table

from pymc_dpvi import DPADVI
from pymc_dpvi.engine import local_sums
from pymc_dpvi.engine.local_search import find_modes
from pymc_dpvi.graph.gradients import local_terms
from pymc_dpvi.graph.local_rules import Places, Quadrature, places_of
from pymc_dpvi.graph.synthetic_records import python_function
from pymc_dpvi.graph.traversal import array_value

HERE = Path(__file__).resolve().parent
PERSONS, SEED, WIDER = 100, 27, 1.2
#: Nodes in each dimension, by the number of dimensions.
MANY = {1: 61, 2: 25, 3: 11, 4: 7}
FEWER = {1: 7, 2: 5, 3: 3, 4: 3}

#: What a model is: the true values of its variables, of the model that is written into the context.
Write = Callable[[np.random.Generator, int], dict[str, Any]]


def ids(persons: int, rows: int) -> np.ndarray:
    """Return whose the rows are."""
    return np.repeat(np.arange(persons), rows)


def intercepts(rng: np.random.Generator, persons: int) -> dict[str, Any]:
    """Six answers of yes or no; a random intercept."""
    who = ids(persons, 6)
    eta = -1.0 + 1.5 * rng.normal(size=persons)[who]
    u = pm.Normal("u", 0, pm.HalfNormal("tau", 2), shape=persons)
    label = (rng.random(who.size) < 1 / (1 + np.exp(-eta))).astype(int)
    pm.Bernoulli("y", logit_p=pm.Normal("b") + u[pm.Data("who", who)], observed=label)
    return {"b": -1.0, "tau": 1.5}


def delays(rng: np.random.Generator, persons: int) -> dict[str, Any]:
    """Fifteen reaction times, lognormal after a delay: an own delay and an own level."""
    who = ids(persons, 15)
    z = rng.normal(size=(persons, 2))
    delay, level = np.exp(-1.5 + 0.3 * z[:, 0])[who], (-1.0 + 0.3 * z[:, 1])[who]
    seen = delay + np.exp(level + 0.5 * rng.normal(size=who.size))
    mu, tau = pm.Normal("mu", [-1.5, -1.0], 0.5, shape=2), pm.HalfNormal("tau", 0.5, shape=2)
    own = (mu + tau * pm.Normal("z", shape=(persons, 2)))[pm.Data("who", who)]
    after = pm.Data("seen", seen) - pt.exp(own[:, 0])
    log_after = pt.log(pt.switch(after > 0, after, 1.0))
    s = pm.HalfNormal("s", 1)
    term = -0.5 * ((log_after - own[:, 1]) / s) ** 2 - log_after - pt.log(s)
    pm.Potential("times", pt.switch(after > 0, term, -np.inf))
    return {"mu": [-1.5, -1.0], "tau": [0.3, 0.3], "s": 0.5}


def slopes_of_answers(rng: np.random.Generator, persons: int) -> dict[str, Any]:
    """Eight answers of yes or no; intercepts and slopes with wide spreads."""
    who, x = ids(persons, 8), rng.normal(size=8 * persons)
    u = rng.normal(size=(persons, 2)) * [3.0, 2.0]
    label = (rng.random(who.size) < 1 / (1 + np.exp(-0.5 - u[who, 0] - (0.5 + u[who, 1]) * x))).astype(int)
    b, tau = pm.Normal("b", 0, 1, shape=2), pm.HalfNormal("tau", 3, shape=2)
    own = (b + tau * pm.Normal("z", shape=(persons, 2)))[pm.Data("who", who)]
    pm.Bernoulli("y", logit_p=own[:, 0] + own[:, 1] * pm.Data("x", x), observed=label)
    return {"b": [0.5, 0.5], "tau": [3.0, 2.0]}


def shares(rng: np.random.Generator, persons: int) -> dict[str, Any]:
    """Five choices among three kinds; shares of each person's own."""
    who = ids(persons, 5)
    own = rng.dirichlet([0.8, 1.2, 2.0], size=persons)
    kind = (rng.random((who.size, 1)) > np.cumsum(own, axis=1)[who]).sum(axis=1)
    share = pm.Dirichlet("share", a=pm.Gamma("alpha", 2, 1, shape=3) * np.ones(3), shape=(persons, 3))
    pm.Categorical("y", p=share[pm.Data("who", who)], observed=kind)
    return {"alpha": [0.8, 1.2, 2.0]}


def levels_and_scales(rng: np.random.Generator, persons: int) -> dict[str, Any]:
    """Eight measurements; a level and the logarithm of a scale of each person's own."""
    who = ids(persons, 8)
    z = rng.normal(size=(persons, 2))
    y = 1.0 + 1.0 * z[who, 0] + np.exp(-0.5 + 0.5 * z[who, 1]) * rng.normal(size=who.size)
    b, tau = pm.Normal("b", 0, 1, shape=2), pm.HalfNormal("tau", 1, shape=2)
    own = (b + tau * pm.Normal("z", shape=(persons, 2)))[pm.Data("who", who)]
    pm.Normal("y", own[:, 0], pt.exp(own[:, 1]), observed=y)
    return {"b": [1.0, -0.5], "tau": [1.0, 0.5]}


def trends_and_scales(rng: np.random.Generator, persons: int) -> dict[str, Any]:
    """As above, and a trend of each person's own."""
    who, x = ids(persons, 8), np.tile(np.linspace(-1, 1, 8), persons)
    z = rng.normal(size=(persons, 3))
    y = 1.0 + z[who, 0] + (0.5 + 0.7 * z[who, 1]) * x
    y += np.exp(-0.5 + 0.5 * z[who, 2]) * rng.normal(size=who.size)
    b, tau = pm.Normal("b", 0, 1, shape=3), pm.HalfNormal("tau", 1, shape=3)
    own = (b + tau * pm.Normal("z", shape=(persons, 3)))[pm.Data("who", who)]
    pm.Normal("y", own[:, 0] + own[:, 1] * pm.Data("x", x), pt.exp(own[:, 2]), observed=y)
    return {"b": [1.0, 0.5, -0.5], "tau": [1.0, 0.7, 0.5]}


def decisions(rng: np.random.Generator, persons: int) -> dict[str, Any]:
    """Twenty decision times (shifted Wald); a drift, a boundary and a delay of each person's own."""
    who = ids(persons, 20)
    own = np.exp(np.array([1.0, 0.2, -1.5]) + 0.2 * rng.normal(size=(persons, 3)))[who]
    seen = own[:, 2] + rng.wald(own[:, 1] / own[:, 0], own[:, 1] ** 2)
    mu, tau = pm.Normal("mu", [1.0, 0.0, -1.5], 0.5, shape=3), pm.HalfNormal("tau", 0.4, shape=3)
    of = pt.exp(mu + tau * pm.Normal("z", shape=(persons, 3)))[pm.Data("who", who)]
    pm.Wald("y", mu=of[:, 1] / of[:, 0], lam=of[:, 1] ** 2, alpha=of[:, 2], observed=seen)
    return {"mu": [1.0, 0.2, -1.5], "tau": [0.2, 0.2, 0.2]}


def tastes(rng: np.random.Generator, persons: int) -> dict[str, Any]:
    """Six choices among three offers (mixed logit); three coefficients of each person's own."""
    who = ids(persons, 6)
    offers = rng.normal(size=(who.size, 3, 3))
    own = np.array([1.0, -0.5, 0.5]) + rng.normal(size=(persons, 3))
    utility = (offers * own[who, None]).sum(axis=2) + rng.gumbel(size=(who.size, 3))
    b, tau = pm.Normal("b", 0, 1, shape=3), pm.HalfNormal("tau", 1, shape=3)
    taste = (b + tau * pm.Normal("z", shape=(persons, 3)))[pm.Data("who", who)]
    eta = (pm.Data("offers", offers) * taste[:, None, :]).sum(axis=2)
    pm.Categorical("y", logit_p=eta, observed=utility.argmax(axis=1))
    return {"b": [1.0, -0.5, 0.5], "tau": [1.0, 1.0, 1.0]}


def four_counts(rng: np.random.Generator, persons: int) -> dict[str, Any]:
    """Eight counts; an intercept and three slopes of each person's own."""
    who, x = ids(persons, 8), rng.normal(size=(8 * persons, 3))
    own = np.array([0.5, 0.3, 0.0, -0.3]) + 0.6 * rng.normal(size=(persons, 4))
    count = rng.poisson(np.exp(own[who, 0] + (own[who, 1:] * x).sum(axis=1)))
    b, tau = pm.Normal("b", 0, 1, shape=4), pm.HalfNormal("tau", 1, shape=4)
    of = (b + tau * pm.Normal("z", shape=(persons, 4)))[pm.Data("who", who)]
    eta = of[:, 0] + (of[:, 1:] * pm.Data("x", x)).sum(axis=1)
    pm.Poisson("y", pt.exp(eta), observed=count)
    return {"b": [0.5, 0.3, 0.0, -0.3], "tau": [0.6, 0.6, 0.6, 0.6]}


MODELS: dict[str, Write] = {
    f.__name__: f
    for f in (
        intercepts,
        delays,
        slopes_of_answers,
        shares,
        levels_and_scales,
        trends_and_scales,
        decisions,
        tastes,
        four_counts,
    )
}


class Persons:
    """The gradients of all persons of a model at the true values, by any rule."""

    def __init__(self, write_model: Write, persons: int) -> None:
        with pm.Model() as model, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            true = write_model(np.random.default_rng(SEED), persons)
            method = DPADVI(noise_multiplier=1.0, delta=1e-6, sampling_prob=0.5, unit="who", model=model)
        record, latents = method._record, method._approx.latents
        assert record.units is not None and record.local is not None
        self.default, self.z = record.local.places, _values(model, latents, true)
        self._starts = record.units.starts
        self._data = [array_value(a)[record.units.rows] for a in record.data()]
        self._first = np.zeros(len(self._data[0]))
        self._first[self._starts[:-1]] = 1.0
        z, weights = pt.matrix("z", shape=(1, latents.size), dtype="float64"), pt.vector("weights")
        batch = [r.type.clone(shape=(None, *r.type.shape[1:]))() for r in record.rows]
        derivatives = local_terms(record, batch, latents, z)
        slope = pytensor.grad((weights * derivatives[0]).sum(), z)[0]
        self._densities = python_function([*batch, z], derivatives[:1])
        self._slopes = python_function([*batch, weights, z], [slope])
        self._derivatives = python_function([*batch, z], derivatives)
        self._modes, self._curvature = find_modes(self._at, self._starts, self.default)

    def _at(self, places: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            given = (*(d[places] for d in self._data), values, self._first[places])
            return list(self._derivatives(*given, self.z[None]))

    def _given(self, rows: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return these rows at each point, (K * rows, ...), point by point."""
        places = np.tile(rows, len(points))
        values = np.repeat(points, len(rows), axis=0)
        return (*(d[places] for d in self._data), values, self._first[places])

    def gradients(self, rule: Places, turned: bool = True, wider: float = 1.0) -> np.ndarray:
        """Return each person's gradient, (persons, D)."""
        curvature, found, z = self._curvature / wider**2, [], self.z[None]
        placed = local_sums.place_nodes(self._modes, curvature, rule.at, rule.values, turned)
        for begin, end, points in zip(self._starts[:-1], self._starts[1:], placed, strict=True):
            rows = np.arange(begin, end)
            with np.errstate(all="ignore"):
                density = self._densities(*self._given(rows, points), z)[0]
                logs = density.reshape(len(points), -1).sum(axis=1) + rule.log_weights
                weights = np.exp(np.where(np.isfinite(logs), logs - np.max(logs[np.isfinite(logs)]), -np.inf))
                weights /= weights.sum()
                some = weights > 0  # elsewhere, a slope may be no number
                of_rows = np.repeat(weights[some], len(rows))
                found.append(self._slopes(*self._given(rows, points[some]), of_rows, z)[0])
        return np.array(found)

    def shift(self, found: np.ndarray, exact: np.ndarray) -> float:
        """Return the largest shift of a parameter's mode, in posterior standard deviations."""
        covariance = np.linalg.inv(exact.T @ exact + np.eye(self.z.size))
        moved = covariance @ (found - exact).sum(axis=0)
        return float(np.max(np.abs(moved) / np.sqrt(np.diag(covariance))))


def _values(model: pm.Model, latents: Any, true: dict[str, Any]) -> np.ndarray:
    """Return true values as the latent vector has them."""
    parts = []
    for value in latents.value_vars:
        rv = model.values_to_rvs[value]
        transform = model.rvs_to_transforms[rv]
        at: Any = pt.as_tensor(np.asarray(true[str(rv.name)], dtype="float64"))
        parts.append(np.ravel((at if transform is None else transform.forward(at, *rv.owner.inputs)).eval()))
    return np.concatenate(parts)


def measure(name: str, persons: int) -> dict[str, Any]:
    """Return the shifts of one model by each rule."""
    began = time.perf_counter()
    of = Persons(MODELS[name], persons)
    d = of.default.continuous
    many = places_of(d, Quadrature(MANY[d]))
    exact = of.gradients(many)
    rules = {
        "default": of.gradients(of.default),
        "in order": of.gradients(of.default, turned=False),
        "fewer": of.gradients(places_of(d, Quadrature(FEWER[d]))),
        "more": of.gradients(places_of(d, Quadrature(of.default.more_nodes))),
        "many, wider": of.gradients(many, wider=WIDER),
    }
    shifts = {rule: of.shift(found, exact) for rule, found in rules.items()}
    return {"model": name, "values": d, **shifts, "seconds": time.perf_counter() - began}


def main() -> None:
    """Measure all, print a table, write JSON."""
    parser = argparse.ArgumentParser(description="Errors of integrals over persons' values.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--persons", type=int, default=PERSONS)
    parser.add_argument("--output", type=Path, default=HERE / "output" / "integrals.json", help="a file")
    chosen = parser.parse_args()
    columns = ("default", "in order", "fewer", "more", "many, wider")
    table = Table(title=f"Shift of the mode, in posterior standard deviations, with {chosen.persons} persons")
    for heading in ("model", "values", *columns):
        table.add_column(heading)
    results = []
    for name in chosen.models:
        found = measure(name, chosen.persons)
        results.append(found)
        table.add_row(name, str(found["values"]), *(f"{found[c]:.3f}" for c in columns))
        print(name, f"{found['seconds']:.0f} s", flush=True)
    Console().print(table)
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python benchmarks/integrals.py", f"--persons {chosen.persons}"])
    if chosen.models != list(MODELS):
        command += f" --models {' '.join(chosen.models)}"
    write(chosen.output, command, {"persons": chosen.persons, "seed": SEED}, results=results)


if __name__ == "__main__":
    main()
