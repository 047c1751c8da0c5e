"""No record makes PyMC change what other records are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.traversal import ancestors

from pymc_dpvi import DPADVI
from pymc_dpvi.errors import UnsupportedModelError

rng = np.random.default_rng(0)
N = 40
FIRST, SECOND = rng.dirichlet(np.ones(3), size=(2, N))
#: One row does not sum to one.
BROKEN = np.concatenate([[[0.5, 0.1, 0.1]], FIRST[1:]])
LABELS, COUNTS = rng.integers(0, 3, N), rng.multinomial(5, [0.3, 0.3, 0.4], size=N)


def mixture(make: Callable[[Any], Any], observed: np.ndarray) -> Callable[[Any, Any, Any], None]:
    def add(w: Any, p: Any, other: Any) -> None:
        pm.Mixture("y", w=w, comp_dists=[make(p), make(other)], observed=observed)

    return add


def closure(w: Any, p: Any, other: Any) -> None:
    def dist(w: Any, size: Any) -> Any:
        return pm.Mixture.dist(w=w, comp_dists=[pm.Categorical.dist(p=p), pm.Categorical.dist(p=other)])

    pm.CustomDist("y", w, dist=dist, observed=LABELS)


def potential(w: Any, p: Any, other: Any) -> None:
    densities = [pt.exp(pm.logp(pm.Categorical.dist(p=rows), LABELS)) for rows in (p, other)]
    pm.Potential("y", pt.log(w[0] * densities[0] + w[1] * densities[1]))


WAYS = {
    "categorical": mixture(lambda p: pm.Categorical.dist(p=p), LABELS),
    "multinomial": mixture(lambda p: pm.Multinomial.dist(n=5, p=p), COUNTS),
    "truncated": mixture(lambda p: pm.Truncated.dist(pm.Categorical.dist(p=p), upper=2), LABELS),
    "censored": mixture(lambda p: pm.Censored.dist(pm.Categorical.dist(p=p), lower=None, upper=2), LABELS),
    "closure": closure,
    "potential": potential,
}


def made(way: str, p: Any, other: Any, name: str | None) -> DPADVI:
    with pm.Model():
        w = pm.Dirichlet("w", np.ones(2))
        WAYS[way](w, *((p, other) if name is None else (pm.Data("p", p), pm.Data("other", other))))
        return DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)


@pytest.mark.filterwarnings("ignore:.*parameters sum to:UserWarning")
@pytest.mark.filterwarnings("ignore:Scan return signature:DeprecationWarning")  # PyMC's own
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_probabilities_are_refused_whatever_they_hold(way: str) -> None:
    said = []
    for p in (FIRST, BROKEN):
        with pytest.raises(UnsupportedModelError, match=r"one record would change.*pm\.Data\('") as caught:
            made(way, p, SECOND, None)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_pymc_does_not_look_into_data() -> None:
    held = [made("categorical", p, SECOND, "p")._record.arrays for p in (FIRST, BROKEN)]
    for old, new in zip(*held, strict=True):
        np.testing.assert_array_equal(values(old)[1:], values(new)[1:])


def values(array: Any) -> np.ndarray:
    return np.asarray(array.get_value() if isinstance(array, SharedVariable) else array.data)


#: Records of a truncation: a lower bound for the first, or for none. Known: it silenced all others.
LOWER = np.full(N, -np.inf), np.concatenate([[-20.0], np.full(N - 1, -np.inf)])
UPPER = -8.0 + 0.01 * rng.random(N)
OUTCOME = UPPER - 0.5 - rng.exponential(0.1, N)


def truncated(lower: Any, upper: Any, outcome: Any) -> DPADVI:
    with pm.Model():
        mean = pm.Normal("b", 0, 10) * pt.ones_like(outcome)
        dist = pm.TruncatedNormal.dist(mean, 1.0, lower=lower, upper=upper)
        pm.Potential("p", pm.logp(dist, outcome))
        return DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)


def test_arrays_behind_logp_are_refused_whatever_they_hold() -> None:
    said = []
    for lower in LOWER:
        with pytest.raises(UnsupportedModelError, match=r"'p' calls pm\.logp.*pm\.Data\('x', x\)") as caught:
            truncated(lower, UPPER, pt.as_tensor(OUTCOME))
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_logp_does_not_look_into_data() -> None:
    found = []
    for lower in LOWER:
        with pm.Model():
            arrays = [pm.Data(name, a) for name, a in (("lo", lower), ("up", UPPER), ("y", OUTCOME))]
            mean = pm.Normal("b", 0, 10) * pt.ones_like(arrays[2])
            dist = pm.TruncatedNormal.dist(mean, 1.0, lower=arrays[0], upper=arrays[1])
            pm.Potential("p", pm.logp(dist, arrays[2]))
            found.append(DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)._record.factors["p"])
    assert equal_computations([found[0]], [found[1]], *(_leaves(f) for f in found))


def _leaves(graph: Variable) -> list[Variable]:
    """Placeholders and values, which are others in each model."""
    return [v for v in ancestors([graph]) if v.owner is None and not isinstance(v, Constant)]


def test_probabilities_of_latent_values_are_no_rows() -> None:
    with pm.Model():
        w = pm.Dirichlet("w", np.ones(3), shape=(4, 3))
        pm.Categorical("y", p=w[pm.Data("group", LABELS)], observed=LABELS)
        DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)
