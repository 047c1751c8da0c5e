"""No record makes PyMC rescale what other records are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.sharedvalue import SharedVariable

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
        with pytest.raises(UnsupportedModelError, match=r"has a categorical.*pm\.Data\('p'") as caught:
            made(way, p, SECOND, None)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("way", ["categorical", "potential"])
def test_pymc_does_not_look_into_data(way: str) -> None:
    held = [made(way, p, SECOND, "p")._record.arrays for p in (FIRST, BROKEN)]
    for old, new in zip(*held, strict=True):
        np.testing.assert_array_equal(values(old)[1:], values(new)[1:])


def values(array: Any) -> np.ndarray:
    return np.asarray(array.get_value() if isinstance(array, SharedVariable) else array.data)


def test_probabilities_of_latent_values_are_no_rows() -> None:
    with pm.Model():
        w = pm.Dirichlet("w", np.ones(3), shape=(4, 3))
        pm.Categorical("y", p=w[pm.Data("group", LABELS)], observed=LABELS)
        DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)
