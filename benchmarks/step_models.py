"""The models of `step_time.py`: data, the model in PyMC, and the same in NumPyro where it is compared.

Data are drawn at random; no step's time depends on how well they fit. A model gets its record arrays by
name, so that the same lines build it on all records, on a `pm.Minibatch` and on placeholders of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

__all__ = ["MODELS", "Case"]

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model, its size, and how to build it.

    Attributes
    ----------
    title : str
    num_records : int
        N.
    batch_size : int
        B, the expected one where batches are Poisson samples.
    num_params : int
        D, unconstrained latent values.
    data : callable
        ``(rng, num_records) -> arrays``.
    model : callable
        ``(arrays, total_size) -> None``, inside a ``pm.Model``.
    numpyro : callable, optional
        ``(arrays, num_records, batch_size) -> None``; the arrays are those of the whole data.
    gradient : callable, optional
        ``(arrays, indices, values) -> gradient``: of the batch's log-likelihood, written out in NumPy.
    full_rank : bool
    tags : frozenset of str
    """

    title: str
    num_records: int
    batch_size: int
    num_params: int
    data: Callable[[np.random.Generator, int], Arrays]
    model: Callable[[Any, int | None], None]
    numpyro: Callable[[Any, int, int], None] | None = None
    gradient: Callable[[Arrays, np.ndarray, np.ndarray], np.ndarray] | None = None
    full_rank: bool = False
    tags: frozenset[str] = field(default_factory=frozenset)


# ------------------------------------------------------------------------------------------------
# Logistic regression
# ------------------------------------------------------------------------------------------------


def regression_data(d: int) -> Callable[[np.random.Generator, int], Arrays]:
    """Return a source of features of norm about 1 and of labels."""

    def data(rng: np.random.Generator, n: int) -> Arrays:
        # Logits of order 1 at the start of ADVI. int64 would be cast by PyMC, which refuses a cast
        # `pm.Minibatch` as observed.
        x = rng.normal(size=(n, d)) / np.sqrt(d)
        return {"x": x, "y": (rng.random(n) < 0.5).astype(np.int32)}

    return data


def logistic(d: int) -> Callable[[Any, int | None], None]:
    """Return logistic regression with standard normal coefficients."""

    def model(data: Any, total_size: int | None) -> None:
        import pymc as pm

        beta = pm.Normal("beta", 0, 1, shape=d)
        pm.Bernoulli("label", logit_p=data["x"] @ beta, observed=data["y"], total_size=total_size)

    return model


def logistic_gradient(data: Arrays, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the gradient of the log-likelihood of some records."""
    x = data["x"][indices]
    residuals: np.ndarray = data["y"][indices] - 1.0 / (1.0 + np.exp(-(x @ values)))
    return residuals @ x


def numpyro_logistic(d: int) -> Callable[[Any, int, int], None]:
    """Return the same in NumPyro."""

    def model(data: Any, n: int, batch: int) -> None:
        numpyro, dist = import_module("numpyro"), import_module("numpyro.distributions")

        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([d]).to_event(1))
        with numpyro.plate("records", n, subsample_size=batch) as at:
            logits = data["x"][at] @ beta
            numpyro.sample("label", dist.Bernoulli(logits=logits), obs=data["y"][at])

    return model


# ------------------------------------------------------------------------------------------------
# Hierarchical models
# ------------------------------------------------------------------------------------------------


def grouped_data(d: int, groups: int, classes: int) -> Callable[[np.random.Generator, int], Arrays]:
    """Return a source of features, groups and classes."""

    def data(rng: np.random.Generator, n: int) -> Arrays:
        return {
            "x": rng.normal(size=(n, d)),
            "group": rng.integers(0, groups, size=n).astype(np.int32),
            "y": rng.integers(0, classes, size=n).astype(np.int32),
        }

    return data


def softmax_by_group(d: int, groups: int, classes: int) -> Callable[[Any, int | None], None]:
    """Return softmax regression whose coefficients vary by group."""

    def model(data: Any, total_size: int | None) -> None:
        import pymc as pm

        mean = pm.Normal("mean", 0, 1, shape=(d, classes))
        spread = pm.HalfNormal("spread", 1)
        beta = pm.Normal("beta", mean, spread, shape=(groups, d, classes))
        logits = (beta[data["group"]] * data["x"][:, :, None]).sum(axis=1)
        pm.Categorical("class", logit_p=logits, observed=data["y"], total_size=total_size)

    return model


def numpyro_softmax_by_group(d: int, groups: int, classes: int) -> Callable[[Any, int, int], None]:
    """Return the same in NumPyro."""

    def model(data: Any, n: int, batch: int) -> None:
        numpyro, dist = import_module("numpyro"), import_module("numpyro.distributions")

        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([d, classes]).to_event(2))
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        beta = numpyro.sample("beta", dist.Normal(mean, spread).expand([groups, d, classes]).to_event(3))
        with numpyro.plate("records", n, subsample_size=batch) as at:
            logits = (beta[data["group"][at]] * data["x"][at][:, :, None]).sum(axis=1)
            numpyro.sample("class", dist.Categorical(logits=logits), obs=data["y"][at])

    return model


def intercepts_data(groups: int) -> Callable[[np.random.Generator, int], Arrays]:
    """Return a source of groups, a feature and an outcome."""

    def data(rng: np.random.Generator, n: int) -> Arrays:
        return {
            "group": rng.integers(0, groups, size=n).astype(np.int32),
            "x": rng.normal(size=n),
            "y": rng.normal(size=n),
        }

    return data


def many_groups(groups: int) -> Callable[[Any, int | None], None]:
    """Return a linear model with an intercept for each of many groups, not centred."""

    def model(data: Any, total_size: int | None) -> None:
        import pymc as pm

        mean, spread = pm.Normal("mean", 0, 1), pm.HalfNormal("spread", 1)
        offset = pm.Normal("offset", 0, 1, shape=groups)
        slope, noise = pm.Normal("slope", 0, 1), pm.HalfNormal("noise", 1)
        center = (mean + spread * offset)[data["group"]] + slope * data["x"]
        pm.Normal("y", center, noise, observed=data["y"], total_size=total_size)

    return model


# ------------------------------------------------------------------------------------------------
# Mixture
# ------------------------------------------------------------------------------------------------


def points(rng: np.random.Generator, n: int) -> Arrays:
    """Draw points in the plane."""
    return {"x": rng.normal(size=(n, 2)) + 3.0 * rng.integers(-1, 2, size=(n, 2))}


def mixture(data: Any, total_size: int | None) -> None:
    """Build a mixture of five spherical normal distributions, its labels summed out."""
    import pymc as pm
    import pytensor.tensor as pt

    def logp(value: Any, weights: Any, centers: Any, spreads: Any) -> Any:
        distance = ((value[..., None, :] - centers) ** 2).sum(axis=-1)
        parts = pt.log(weights) - 2.0 * pt.log(spreads) - 0.5 * distance / spreads**2
        return pt.logsumexp(parts, axis=-1) - np.log(2 * np.pi)

    weights = pm.Dirichlet("weights", np.ones(5))
    centers = pm.Normal("centers", 0, 3, shape=(5, 2))
    spreads = pm.HalfNormal("spreads", 1, shape=5)
    pm.CustomDist(
        "x",
        weights,
        centers,
        spreads,
        logp=logp,
        signature="(k),(k,d),(k)->(d)",
        observed=data["x"],
        total_size=total_size,
    )


def numpyro_mixture(data: Any, n: int, batch: int) -> None:
    """Build the same in NumPyro."""
    jnp, numpyro = import_module("jax.numpy"), import_module("numpyro")
    dist = import_module("numpyro.distributions")

    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(5)))
    centers = numpyro.sample("centers", dist.Normal(0.0, 3.0).expand([5, 2]).to_event(2))
    spreads = numpyro.sample("spreads", dist.HalfNormal(1.0).expand([5]).to_event(1))
    parts = dist.Normal(centers, spreads[:, None]).to_event(1)
    with numpyro.plate("records", n, subsample_size=batch) as at:
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=data["x"][at])


# ------------------------------------------------------------------------------------------------
# Networks
# ------------------------------------------------------------------------------------------------


def labelled_data(d: int, classes: int) -> Callable[[np.random.Generator, int], Arrays]:
    """Return a source of images and labels."""

    def data(rng: np.random.Generator, n: int) -> Arrays:
        return {"x": rng.random(size=(n, d)), "y": rng.integers(0, classes, size=n).astype(np.int32)}

    return data


def network(d: int, hidden: int, classes: int) -> Callable[[Any, int | None], None]:
    """Return a Bayesian neural network with one hidden layer."""

    def model(data: Any, total_size: int | None) -> None:
        import pymc as pm

        first = pm.Normal("first", 0, 1 / np.sqrt(d), shape=(d, hidden))
        bias = pm.Normal("bias", 0, 1, shape=hidden)
        second = pm.Normal("second", 0, 1 / np.sqrt(hidden), shape=(hidden, classes))
        logits = pm.math.tanh(data["x"] @ first + bias) @ second
        pm.Categorical("label", logit_p=logits, observed=data["y"], total_size=total_size)

    return model


def numpyro_network(d: int, hidden: int, classes: int) -> Callable[[Any, int, int], None]:
    """Return the same in NumPyro."""

    def model(data: Any, n: int, batch: int) -> None:
        jnp = import_module("jax.numpy")
        numpyro, dist = import_module("numpyro"), import_module("numpyro.distributions")

        def weights(name: str, scale: float, *shape: int) -> Any:
            return numpyro.sample(name, dist.Normal(0.0, scale).expand(shape).to_event(len(shape)))

        first, bias = weights("first", d**-0.5, d, hidden), weights("bias", 1.0, hidden)
        second = weights("second", hidden**-0.5, hidden, classes)
        with numpyro.plate("records", n, subsample_size=batch) as at:
            logits = jnp.tanh(data["x"][at] @ first + bias) @ second
            numpyro.sample("label", dist.Categorical(logits=logits), obs=data["y"][at])

    return model


def regression(
    title: str, n: int, d: int, batch: int, *, full_rank: bool = False, tags: str = "standard"
) -> Case:
    """Return a logistic regression of a size."""
    return Case(
        title,
        n,
        batch,
        d,
        regression_data(d),
        logistic(d),
        None if full_rank else numpyro_logistic(d),
        logistic_gradient,
        full_rank,
        frozenset(tags.split()),
    )


STANDARD = frozenset({"standard"})
LARGE = frozenset({"large"})

MODELS: dict[str, Case] = {
    "adult": regression("logistic regression like Adult's", 39_073, 15, 195),
    "wide": regression("logistic regression", 100_000, 100, 1000),
    "hierarchical": Case(
        "softmax regression by group",
        500,
        50,
        5 * 3 + 1 + 3 * 5 * 3,
        grouped_data(5, 3, 3),
        softmax_by_group(5, 3, 3),
        numpyro_softmax_by_group(5, 3, 3),
        tags=STANDARD,
    ),
    "mixture": Case(
        "mixture of 5 in the plane", 1000, 10, 4 + 10 + 5, points, mixture, numpyro_mixture, tags=STANDARD
    ),
    "digits": Case(
        "network 64-50-10",
        1797,
        100,
        64 * 50 + 50 + 50 * 10,
        labelled_data(64, 10),
        network(64, 50, 10),
        numpyro_network(64, 50, 10),
        tags=STANDARD,
    ),
    "mnist": Case(
        "network 784-1000-10",
        60_000,
        600,
        784 * 1000 + 1000 + 1000 * 10,
        labelled_data(784, 10),
        network(784, 1000, 10),
        numpyro_network(784, 1000, 10),
        tags=frozenset({"standard", "large"}),
    ),
    "groups": Case(
        "10,000 groups",
        1_000_000,
        1000,
        10_004,
        intercepts_data(10_000),
        many_groups(10_000),
        tags=LARGE,
    ),
    "thousand": regression("logistic regression", 50_000, 1000, 500, tags="large"),
    "full_rank": regression("logistic regression, full rank", 20_000, 300, 200, full_rank=True, tags="large"),
}
