"""`local_posterior` of a model with encoders: the codes of new records, by the released weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from short_fits import CHEAP, MARKS, quiet

from pymc_dpvi import DPADVI, Amortized, ArgumentError, Point, PrivacyError, UnsupportedModelError

pytestmark = MARKS
N, D, K = 67, 5, 2
_RNG = np.random.default_rng(8)
X = _RNG.normal(size=(N, D))
START = {"V": _RNG.normal(size=(D, K)) * 0.1, "s": np.full(K, -0.2), "W": _RNG.normal(size=(K, D))}
GUIDE = ("V", "s", "W")


def method(dims: bool = False, reads: str = "x") -> DPADVI:
    """Factor analysis; `reads` says what the encoder looks at."""
    coords = {"answer": [f"secret {i}" for i in range(N)], "code": ["a", "b"]}
    with pm.Model(coords=coords if dims else None) as model:
        x = pm.Data("x", X)
        shift = pm.Data("shift", np.full(N, 0.5))
        v, s, w = pm.Flat("V", shape=(D, K)), pm.Flat("s", shape=K), pm.Flat("W", shape=(K, D))
        size: dict[str, Any] = {"dims": ("answer", "code")} if dims else {"shape": (N, K)}
        z = pm.Normal("z", 0, 1, **size)
        pm.Normal("y", z @ w + shift[:, None], 0.5, observed=x)
    # A reshape that knows the number of records, as images have it.
    seen = {"x": x, "both": x - shift[:, None], "reshaped": x.reshape((N, 1, D)).reshape((N, D))}
    mean = seen[reads] @ v if reads in seen else pt.zeros((N, K))
    if reads == "unnamed":
        mean = pytensor.shared(X) @ v
    encoder = Amortized(mean, pt.exp(s) * pt.ones((N, 1)))
    guide = {"z": encoder, GUIDE: Point()}
    return DPADVI(**CHEAP, guide=guide, start=START, model=model)


@cache
def fitted(dims: bool = False, reads: str = "x") -> Any:
    return quiet(method(dims, reads), 2)


@pytest.mark.turns
@pytest.mark.parametrize("reads", ["x", "both", "reshaped"])
def test_codes_have_the_encoders_mean_and_spread(reads: str) -> None:
    new = np.random.default_rng(1).normal(size=(3, D))
    data = {"x": new} if reads != "both" else {"x": new, "shift": np.arange(3)}
    found = fitted(reads=reads).local_posterior(data, 4000, random_seed=1)
    assert set(found.posterior.data_vars) == {"z"}
    codes = found.posterior["z"]
    assert codes.dims == ("chain", "draw", "z_dim_0", "z_dim_1")
    assert codes.shape == (1, 4000, 3, K)
    released = fitted(reads=reads).sample(1).posterior
    seen = new - np.arange(3)[:, None] if reads == "both" else new
    mean = seen @ released["V"].to_numpy()[0, 0]
    sigma = np.exp(released["s"].to_numpy()[0, 0])
    np.testing.assert_allclose(codes.mean(("chain", "draw")), mean, atol=0.06)
    np.testing.assert_allclose(codes.std(("chain", "draw")), np.tile(sigma, (3, 1)), rtol=0.06)
    flat = codes.to_numpy()[0].reshape(4000, -1)
    assert np.abs(np.corrcoef(flat.T) - np.eye(3 * K)).max() < 0.08  # noise of one's own


def test_a_seed_gives_the_same_codes_and_one_record_is_enough() -> None:
    first, again = (fitted().local_posterior({"x": X[:1]}, 5, random_seed=3)["posterior"] for _ in range(2))
    assert first["z"].shape == (1, 5, 1, K)
    np.testing.assert_array_equal(first["z"], again["z"])


@pytest.mark.turns
def test_dims_are_the_variables_own_without_the_labels_of_the_records() -> None:
    found = fitted(dims=True).local_posterior({"x": X[:4]}, 5)
    codes = found["posterior"]["z"]
    assert codes.dims == ("chain", "draw", "answer", "code")
    assert "secret" not in repr(codes) and "secret" not in str(codes.coords)


BAD: dict[str, tuple[Any, str]] = {
    "no dict": (X, "must be a dict of arrays by name"),
    "a name is missing": ({}, "missing ['x']"),
    "what the encoder does not read": ({"x": X, "shift": np.zeros(N)}, "not known ['shift']"),
    "another width": ({"x": X[:, :2]}, "data['x'] must be numbers of shape (67, 5)"),
    "nobody": ({"x": X[:0]}, "found lengths [0]"),
    "a number": ({"x": 1.0}, "found lengths ['none']"),
    "no number": ({"x": np.full((2, D), np.nan)}, "finite"),
}


@pytest.mark.turns
@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_refused_by_name(name: str) -> None:
    data, text = BAD[name]
    with pytest.raises(ArgumentError) as caught:
        fitted().local_posterior(data, 3)
    assert text in str(caught.value), str(caught.value)


@pytest.mark.turns
def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"\['x', 'shift'\]; found lengths \[3, 2\]"):
        fitted(reads="both").local_posterior({"x": X[:3], "shift": np.zeros(2)}, 3)


def test_what_cannot_be_encoded_says_why() -> None:
    with pytest.raises(UnsupportedModelError, match="read no data of the records"):
        fitted(reads="nothing").local_posterior({"x": X}, 3)
    with pytest.raises(UnsupportedModelError, match="has no name"):
        fitted(reads="unnamed").local_posterior({"x": X}, 3)
    with pytest.raises(PrivacyError, match="call fit first"):
        method().approx.local_posterior({"x": X}, 3)
