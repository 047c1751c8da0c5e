"""``DPADVI(guide={name: family})``: what it fits, what it says, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from guide_families import HeavyTails
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable
from short_fits import CHEAP, MARKS, quiet

from pymc_dpvi import (
    DPADVI,
    ArgumentError,
    DPFullRankADVI,
    Dropout,
    FullRank,
    LowRank,
    MeanField,
    Point,
    PrivacyError,
    Quadrature,
    UnsupportedModelError,
)

pytestmark = MARKS
N = 61
_RNG = np.random.default_rng(5)
X = _RNG.normal(size=(N, 3))
Y = X @ [1.0, -1.0, 0.5] + 0.3 + _RNG.normal(size=N)
CODES = np.repeat(np.arange(20), 4)[:N]


def regression() -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        b = pm.Normal("b", 0, 1, shape=3)
        s = pm.HalfNormal("s", 1)
        pm.Normal("y", a + X @ b, s, observed=Y)
    return model


def method(guide: Any, model: pm.Model | None = None, **kwargs: Any) -> DPADVI:
    return DPADVI(**{**CHEAP, **kwargs}, guide=guide, model=model or regression())


def fitted(guide: Any, n: int = 5, **kwargs: Any) -> Any:
    return quiet(method(guide, **kwargs), n)


@pytest.mark.turns
@pytest.mark.parametrize("key", [("a", "b", "s"), ("s", "b", "a")])
def test_mean_field_for_all_is_the_default(key: tuple[str, ...]) -> None:
    whole, guided = quiet(DPADVI(**CHEAP, model=regression())), fitted({key: MeanField()})
    for name in ("mu", "rho"):
        own = next(p for p in guided.params if p.name.startswith(name)).get_value()
        np.testing.assert_allclose(own, whole.params_dict[name].get_value(), rtol=1e-12)
    np.testing.assert_allclose(guided.std.eval(), whole.std.eval(), rtol=1e-12)
    np.testing.assert_array_equal(
        guided.sample(9, random_seed=1).posterior["b"], whole.sample(9, random_seed=1).posterior["b"]
    )


@pytest.mark.turns
def test_full_rank_for_all_is_the_full_rank_method() -> None:
    whole = quiet(DPFullRankADVI(**CHEAP, model=regression()), 8)
    guided = fitted({("a", "b", "s"): FullRank()}, 8)
    np.testing.assert_allclose(guided.mean.eval(), whole.mean.eval(), rtol=1e-10)
    np.testing.assert_allclose(guided.cov.eval(), whole.cov.eval(), rtol=1e-8)
    np.testing.assert_allclose(guided.std.eval(), whole.std.eval(), rtol=1e-8)


@pytest.fixture(scope="module")
def exact() -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the coefficients of two columns that nearly agree, given the noise."""
    precision = PAIR.T @ PAIR + np.eye(2)
    return np.linalg.solve(precision, PAIR.T @ Y), np.linalg.inv(precision)


PAIR = np.c_[X[:, 0], X[:, 0] + 0.4 * X[:, 1]]


def pair() -> pm.Model:
    with pm.Model() as model:
        b, c = pm.Normal("b", 0, 1), pm.Normal("c", 0, 1)
        pm.Normal("y", PAIR[:, 0] * b + PAIR[:, 1] * c, 1.0, observed=Y)
    return model


#: Nearly without noise and clipping, so that the optimum is known.
EXACT: dict[str, Any] = {
    "noise_multiplier": 0.05,
    "delta": 1e-6,
    "sampler": "full_batch",
    "l2_clip_norm": 20.0,
    "accountant": "rdp",
    "insecure_noise_seed": 1,
    "random_seed": 2,
}


@pytest.mark.turns
@pytest.mark.parametrize("family", [FullRank(), LowRank(1)], ids=repr)
def test_correlations_are_found(family: Any, exact: tuple[np.ndarray, np.ndarray]) -> None:
    found = DPADVI(**EXACT, guide={("b", "c"): family}, model=pair()).fit(1500, progressbar=False)
    mean, cov = exact
    np.testing.assert_allclose(found.mean.eval(), mean, atol=0.05)
    np.testing.assert_allclose(found.cov.eval(), cov, rtol=0.25)
    posterior = found.sample(4000, noise_aware=False).posterior
    draws = np.stack([posterior[name].values.ravel() for name in "bc"])
    np.testing.assert_allclose(np.cov(draws), found.cov.eval(), rtol=0.2)
    assert np.corrcoef(draws)[0, 1] < -0.7


@pytest.mark.turns
def test_a_point_is_the_mode(exact: tuple[np.ndarray, np.ndarray]) -> None:
    found = DPADVI(**EXACT, guide={"b": Point(), "c": Point()}, model=pair()).fit(1500, progressbar=False)
    np.testing.assert_allclose(found.mean.eval(), exact[0], atol=0.02)
    posterior = found.sample(5).posterior
    assert np.ptp(posterior["b"].values) == 0
    assert found.std.eval().tolist() == [0, 0]


@pytest.mark.turns
def test_dropout_keeps_a_weight_that_counts_and_drops_one_that_does_not() -> None:
    with pm.Model() as model:
        w = pm.Flat("w", shape=2)
        pm.Normal("y", X[:, :2] @ w, 1.0, observed=X[:, 0] * 2)
    start = {"w": np.array([0.5, 0.5])}
    found = DPADVI(**EXACT, guide={"w": Dropout()}, start=start, model=model).fit(2500, progressbar=False)
    assert set(found.log_alpha) == {"w"}
    kept, dropped = found.log_alpha["w"]
    assert kept < -3
    assert dropped > 1
    sigma = found.std.eval()
    np.testing.assert_allclose(found.log_alpha["w"], np.log(sigma**2 / found.mean.eval() ** 2))


@pytest.mark.turns
def test_the_shape_of_dropout_rates_is_that_of_the_variables() -> None:
    with pm.Model() as model:
        w = pm.Flat("w", shape=(3, 2))
        b = pm.Normal("b", 0, 1)
        v = pm.Flat("v", shape=2)
        pm.Normal("y", (X @ w) @ v + b, 1.0, observed=Y)
    start = {"w": np.arange(1, 7).reshape(3, 2) / 5, "v": np.array([1.0, 2.0])}
    found = fitted({("v", "w"): Dropout()}, 1, model=model, start=start)
    assert {k: r.shape for k, r in found.log_alpha.items()} == {"w": (3, 2), "v": (2,)}
    sigma = found.rslice  # PyMC's own slices: mean and deviation of each variable
    assert sigma is not None
    by_name = {var.name: at for var, at in zip(found.latents.value_vars, found.latents.slices, strict=True)}
    ratio = (found.std.eval() / found.mean.eval())[by_name["w"]].reshape(3, 2)
    np.testing.assert_allclose(found.log_alpha["w"], np.log(ratio**2))


@pytest.mark.turns
def test_everything_that_an_approximation_says() -> None:
    found = fitted({"a": Point(), ("b", "s"): LowRank(1)}, 12)
    assert repr(found) == str(found) == "DPGuided(5 latent values: Point() of 1, LowRank(1) of 4)"
    assert [p.name for p in found.params] == ["factor[b,s_log__]", "mu", "rho[b,s_log__]"]
    assert found.privacy.epsilon > 0
    assert found.hist.size
    draws = found.sample(50)
    assert set(draws.posterior.data_vars) == {"a", "b", "s"}
    assert draws.posterior.attrs["noise_aware"] == 0
    assert found.sample_node(found.model["b"] * 2, size=3).eval().shape == (3, 3)
    for asked in (lambda: found.sample(5, noise_aware=True), found.diagnostics):
        with pytest.raises(PrivacyError, match=r"\['a'\].*a point, dropout or an encoder.*noise_aware=False"):
            asked()


@pytest.mark.turns
def test_the_noise_aware_posterior_stands_in_for_normal_families() -> None:
    found = fitted({("a", "b"): FullRank()}, 40)
    assert found.sample(50).posterior.attrs["noise_aware"] == 1


@pytest.mark.turns
def test_refine_goes_on() -> None:
    own = method({"a": Point(), "b": FullRank()})
    found = quiet(own, 4)
    own.refine(3, progressbar=False)
    assert [run.n_steps for run in found.privacy.runs] == [4, 3]


@pytest.mark.turns
def test_a_family_of_ones_own() -> None:
    found = DPADVI(**EXACT, guide={"b": HeavyTails()}, model=pair()).fit(300, progressbar=False)
    assert repr(found) == "DPGuided(2 latent values: MeanField() of 1, HeavyTails() of 1)"
    draws = found.draw_latents(20_000, np.random.default_rng(0))
    place = [v.name for v in found.latents.value_vars].index("b")
    kurtosis = np.mean((draws[:, place] - draws[:, place].mean()) ** 4) / draws[:, place].var() ** 2
    assert kurtosis > 4


class ReadsAnArray(HeavyTails):
    """A family that adds an array, of whatever kind, to the deviation."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def deviation(
        self, params: Mapping[str, TensorVariable], mean: TensorVariable, base_draws: TensorVariable
    ) -> TensorVariable:
        extra = sum(self.array) if isinstance(self.array, list) else pt.as_tensor(self.array).sum()
        return super().deviation(params, mean, base_draws) + extra * 0


@pytest.mark.parametrize(
    "array",
    [
        Y,
        pytensor.shared(Y),
        pytensor.shared(Y[:5]),
        X,
        X.T,
        Y[:-1],
        X.ravel(),
        [pt.constant(float(v)) for v in Y * 3],
    ],
    ids=range(8),
)
def test_a_family_that_reads_records_is_refused(array: Any, nothing_spent: None) -> None:
    with pytest.raises(UnsupportedModelError, match="reads an array") as caught:
        method({"b": ReadsAnArray(array)})
    assert "0." not in str(caught.value)


def test_a_family_that_reads_a_variable_of_the_model_is_refused(nothing_spent: None) -> None:
    model = regression()
    for found in (model["y"], model["a"]):
        with pytest.raises(UnsupportedModelError, match="reads an array"):
            method({"b": ReadsAnArray(found)}, model)


class Counts(Op):  # type: ignore[misc]
    """An operation that keeps the data to itself."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [pt.dscalar()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = np.asarray(Y.sum())


def test_a_family_whose_operation_may_hold_data_is_refused(nothing_spent: None) -> None:
    with pytest.raises(UnsupportedModelError, match="reads an array"):
        method({"b": ReadsAnArray(Counts()(pt.constant(1.0)))})


def test_a_family_of_ours_that_was_changed_is_looked_at(nothing_spent: None) -> None:
    family = MeanField()
    own = family.deviation
    family.deviation = lambda *given: own(*given) + pt.as_tensor(Y).sum()  # type: ignore[method-assign]
    with pytest.raises(UnsupportedModelError, match=r"MeanField\(\) of \['b'\] reads an array"):
        method({"b": family})


@pytest.mark.turns
def test_a_family_is_asked_once() -> None:
    """What was looked at is what is fitted."""
    asked: list[int] = []

    class Turns(HeavyTails):
        def deviation(
            self, params: Mapping[str, TensorVariable], mean: TensorVariable, base_draws: TensorVariable
        ) -> TensorVariable:
            asked.append(1)
            return super().deviation(params, mean, base_draws) * (1.0 if len(asked) == 1 else np.nan)

    found = fitted({"b": Turns()}, 2)
    assert np.isfinite(found.draw_latents(3, np.random.default_rng(0))).all()
    assert asked == [1]


def test_a_families_own_numbers_are_not_shown() -> None:
    @dataclass(frozen=True)
    class Keeps(HeavyTails):
        table: tuple[float, ...] = (4711.5, 0.25)

    assert "4711" not in repr(method({"b": Keeps()}).approx)


@pytest.mark.turns
def test_names_with_commas() -> None:
    with pm.Model() as model:
        both, a, b = (pm.Normal(name, 0, 1) for name in ("a,b", "a", "b"))
        pm.Normal("y", both + a + b, 1, observed=Y)
    found = fitted({"a,b": FullRank(), ("a", "b"): FullRank()}, 3, model=model)
    assert len(found.params) == 3
    assert (np.abs(found.std.eval() - 0.1) > 1e-6).all()


@pytest.mark.turns
def test_empty_variables() -> None:
    with pm.Model() as model:
        pm.Normal("none", 0, 1, shape=0)
        a = pm.Normal("a", 0, 1)
        pm.Normal("y", a, 1, observed=Y)
    for guide in ({"a": Point()}, {"none": Point()}, {("a", "none"): FullRank()}):
        assert fitted(guide, 2, model=model).sample(3).posterior["none"].shape == (1, 3, 0)


def test_a_family_may_hold_numbers() -> None:
    assert method({"b": ReadsAnArray(np.arange(5.0))}).approx is not None


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        ({"c": Point()}, r"guide names 'c', which is no free variable; they are \['a', 'b', 's'\]"),
        ({"y": Point()}, "guide names 'y', which is no free variable"),
        ({("a", "c"): FullRank()}, "guide names 'c'"),
        ({("a", 3): FullRank()}, "guide names a int"),
        ({7: Point()}, "guide names a int"),
        ({(): Point()}, "no variable"),
        ({"a": Point(), ("a", "b"): FullRank()}, "names 'a' twice"),
        ({("a", "a"): FullRank()}, "names 'a' twice"),
        ({"a": Point}, r"class Point; write an instance: Point\(...\)"),
        ({"a": Quadrature}, "class Quadrature"),
        ({"a": "point"}, r"must be a family, such as Point\(\)"),
        ({"a": Quadrature(7)}, "local variable"),
        ({"b": Dropout()}, r"Write pm.Flat\('b', shape=...\)"),
        ([Point()], "guide must be a dict"),
        (Point(), "guide must be a dict"),
    ],
    ids=str,
)
def test_a_bad_guide_is_refused(guide: Any, message: str, nothing_spent: None) -> None:
    with pytest.raises(ArgumentError, match=message):
        method(guide)


def test_what_does_not_go_with_a_guide(nothing_spent: None) -> None:
    with pytest.raises(ArgumentError, match="vanilla"):
        method({"a": Point()}, gradient="vanilla")
    with pytest.raises(ArgumentError, match="DPADVI with guide="):
        DPFullRankADVI(**CHEAP, guide={"a": Point()}, model=regression())
    with pytest.raises(ArgumentError, match=r"start_sigma names \['a'\].*no spread"):
        method({"a": Point()}, start_sigma={"a": 0.1})


def test_a_discrete_variable_has_no_family(nothing_spent: None) -> None:
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5)
        pm.Normal("y", k, 1, observed=Y)
    with pytest.raises(UnsupportedModelError, match="'k'"):
        method({"k": Point()}, model)


@pytest.mark.turns
def test_a_local_variable_has_a_rule_and_no_family(nothing_spent: None) -> None:
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        u = pm.Normal("u", 0, s, shape=20)
        person = pm.Data("person", CODES)
        pm.Normal("y", u[person], 1, observed=Y)
    both = DPADVI(**CHEAP, unit="person", guide={"u": Quadrature(5), "s": Point()}, model=model)
    assert "Point() of 1" in repr(both.approx)
    with pytest.raises(ArgumentError, match=r"'u' is local to a person.*Quadrature\(7\)"):
        DPADVI(**CHEAP, unit="person", guide={"u": Point()}, model=model)


@pytest.mark.turns
def test_start_sigma_reaches_the_families() -> None:
    own = method({"b": FullRank(), "s": LowRank(1)}, start_sigma={"b": 0.5, "a": 0.2})
    sigma = own.approx.std.eval()
    np.testing.assert_allclose(sigma[:4], [0.2, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(sigma[4], 0.1, rtol=0.03)


@pytest.mark.zoo
@pytest.mark.compiled
@pytest.mark.parametrize("layer", [Dropout(), Point(), LowRank(2)], ids=repr)
def test_a_network_on_the_default_backend(layer: Any) -> None:
    label = (np.sin(2 * X[:, 0]) + X[:, 1] > 0).astype("int64")
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        shape = {"w": (3, 8), "v": (8,)}
        make = (
            pm.Flat if isinstance(layer, Dropout) else lambda name, shape: pm.Normal(name, 0, 1, shape=shape)
        )
        w, v = (make(name, shape=s) for name, s in shape.items())
        c = pm.Normal("c", 0, 1)
        pm.Bernoulli("y", logit_p=pt.maximum(X @ w, 0) @ v + c, observed=label)
    start = {name: rng.normal(size=s) / 2 for name, s in shape.items()}
    own = DPADVI(epsilon=3.0, delta=1e-5, guide={("w", "v"): layer}, start=start, model=model)
    found = own.fit(300, progressbar=False)
    assert np.isfinite(found.mean.eval()).all()
    assert found.privacy.runs[0].backend == "numba"
    assert found.sample(20).posterior["w"].shape == (1, 20, 3, 8)
