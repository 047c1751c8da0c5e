"""Adam with a falling learning rate, against a slow one in NumPy and against PyMC's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_dpvi import DPADVI, runs
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.optimizers import falling_adam, rate_of_large

GRADS = np.random.default_rng(1).normal(size=(30, 3))


def path(optimizer, grads: np.ndarray = GRADS, dtype: str = "float64") -> np.ndarray:
    param = pytensor.shared(np.zeros(grads.shape[1], dtype=dtype), name="p")
    grad = pt.vector("g", dtype=dtype)
    step = pytensor.function([grad], [], updates=optimizer([grad], [param]), mode="PYTHON")
    seen = []
    for g in grads.astype(dtype):
        step(g)
        seen.append(param.get_value().copy())
    assert seen[0].dtype == dtype
    return np.array(seen)


def slow(grads: np.ndarray, n: int, rate: float, final: float) -> np.ndarray:
    p, m, v, seen = np.zeros(3), np.zeros(3), np.zeros(3), []
    for t, g in enumerate(grads, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        now = rate * max(1 - (1 - final) * (t - 1) / n, final)
        p = p - now * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
        seen.append(p.copy())
    return np.array(seen)


def test_against_numpy_also_beyond_the_planned_steps():
    np.testing.assert_allclose(path(falling_adam(20, 0.3, final=0.1)), slow(GRADS, 20, 0.3, 0.1), rtol=1e-10)


def test_without_a_fall_it_is_pymcs():
    np.testing.assert_allclose(
        path(falling_adam(10, 0.3, final=1.0)),
        path(lambda g, p: pm.adam(g, p, learning_rate=0.3)),
        rtol=1e-10,
    )


@pytest.mark.parametrize(("n", "rate"), [(1, 0.1), (100, 0.1), (10_000, 0.02)])
def test_default_rate(n: int, rate: float):
    np.testing.assert_array_equal(path(falling_adam(n)), path(falling_adam(n, rate)))


def test_widths_are_the_units_of_the_means():
    """Adam's first step has the length of the rate; of `rho` and others it stays that."""
    widths, grad = np.array([0.3, 1.0, 0.02]), np.array([5.0, -2.0, 1e3])
    params = {name: pytensor.shared(np.zeros(3), name=name) for name in ("mu", "rho")}
    optimizer = falling_adam(10, 0.1, widths=widths)
    updates = optimizer([pt.constant(grad)] * 2, list(params.values()))
    step = pytensor.function([], [], updates=updates, mode="PYTHON")
    step()
    rate = -0.1 * np.sign(grad)
    np.testing.assert_allclose(params["mu"].get_value(), widths * rate, rtol=1e-6)
    np.testing.assert_allclose(params["rho"].get_value(), rate, rtol=1e-6)
    step()
    np.testing.assert_allclose(params["mu"].get_value(), widths * params["rho"].get_value(), rtol=1e-12)


def test_a_rescaled_model_has_the_rescaled_fit():
    """Noisy gradients of a quadratic, in other units."""
    noise = np.random.default_rng(4).normal(size=(50, 2))
    ends = []
    for widths in (np.ones(2), np.array([0.01, 0.5])):
        mu, draw = pytensor.shared(np.zeros(2), name="mu"), pt.vector("draw", dtype="float64")
        grad = (mu / widths - 1.0 + draw) / widths
        step = pytensor.function(
            [draw], [], updates=falling_adam(50, widths=widths)([grad], [mu]), mode="PYTHON"
        )
        for e in noise:
            step(e)
        ends.append(mu.get_value() / widths)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-5)


def test_float32():
    found = path(falling_adam(20), dtype="float32")
    np.testing.assert_allclose(found, path(falling_adam(20)), rtol=1e-4, atol=1e-5)
    mu = pytensor.shared(np.zeros(2, dtype="float32"), name="mu")
    updates = falling_adam(5, widths=np.array([0.5, 1.0]))([pt.ones(2, dtype="float32")], [mu])
    pytensor.function([], [], updates=updates, mode="PYTHON")()
    assert mu.get_value().dtype == "float32" and (mu.get_value() < 0).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_steps", 0),
        ("learning_rate", -1.0),
        ("final", 0.0),
        ("final", 1.5),
        ("beta1", 1.0),
        ("epsilon", 0.0),
    ],
)
def test_refused(name: str, value: float):
    with pytest.raises(ArgumentError, match=name):
        falling_adam(**{"n_steps": 10, name: value})


def test_the_rate_of_large_models_falls_with_their_size() -> None:
    assert rate_of_large(432, 75_010) == pytest.approx(0.01, rel=0.02)
    assert rate_of_large(1000, 16 * 10_000) == pytest.approx(rate_of_large(1000, 10_000) / 2)
    assert rate_of_large(1, 9) == pytest.approx(0.1)


def of_weights(size: int) -> DPADVI:
    """Return a method for a sum of so many weights."""
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=size)
        pm.Normal("y", w.sum(), 1, observed=np.zeros(90))
    return DPADVI(
        noise_multiplier=2.0,
        delta=1e-6,
        sampling_prob=0.5,
        accountant="rdp",
        random_seed=1,
        insecure_noise_seed=1,
        model=model,
    )


@pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")
@pytest.mark.parametrize(("size", "large"), [(4096, False), (4097, True)])
def test_a_large_model_gets_that_rate(size: int, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def seen(n_steps: int, learning_rate: Any = None, **kwargs: Any) -> Any:
        asked.append((learning_rate, kwargs["widths"] is None))
        return pm.sgd(learning_rate=0.0)

    monkeypatch.setattr(runs, "falling_adam", seen)
    method = of_weights(size)
    method.fit(2, progressbar=False, backend="python")
    assert asked == [(rate_of_large(2, size) if large else None, large)]
    step = method._runs.step
    assert step is not None and step.running_clip is not None
    assert step.running_clip.rule.quantile is None and step.running_clip.is_large == large


@pytest.mark.turns
@pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")
@pytest.mark.parametrize(("size", "large"), [(4096, False), (4097, True)])
def test_adam_of_a_large_model_gets_gradients_in_clip_norms(
    size: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a step that moved the norm by c, those of the next step are 1/c of what others get."""

    def second_gradient(grads: list[Any], params: list[Any]) -> dict[Any, Any]:
        seen = pytensor.shared(0.0)
        moved = {p: (p - 1e-4 * seen * g).astype(p.type.dtype) for g, p in zip(grads, params, strict=True)}
        return {seen: seen + 1, **moved}

    monkeypatch.setattr(runs, "falling_adam", lambda *_, **__: second_gradient)

    def moves(optimizer: Any, n: int = 2) -> tuple[list[np.ndarray], float]:
        method = of_weights(size)
        start = [p.get_value() for p in method.approx.params]
        method.fit(n, progressbar=False, backend="python", obj_optimizer=optimizer)
        step = method._runs.step
        assert step is not None and step.running_clip is not None
        moved = [p.get_value() - a for a, p in zip(start, step.params, strict=True)]
        return moved, float(np.exp(step.running_clip.log_scale.get_value()))

    after_one = moves(None, 1)[1]
    assert abs(np.log(after_one)) > 0.1
    for default, own in zip(moves(None)[0], moves(second_gradient)[0], strict=True):
        assert np.abs(own).min() > 0
        np.testing.assert_allclose(default, own / (after_one if large else 1.0), rtol=1e-6)
