"""``guide={"z": Amortized(mean, sigma)}``: a value of each record, by an encoder of the record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import ndtr
from scipy.stats import kstest
from short_fits import CHEAP, MARKS, quiet

from pymc_dpvi import (
    DPADVI,
    Amortized,
    ArgumentError,
    FullRank,
    MeanField,
    NotSeparableError,
    Point,
    PrivacyError,
    UnsupportedModelError,
    audit,
)
from pymc_dpvi.graph.amortized import encode
from pymc_dpvi.graph.blocks import as_matrix
from pymc_dpvi.graph.gradients import aligned_gradients, informed
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.synthetic_records import python_function

pytestmark = MARKS
N, D, K = 67, 5, 2
_RNG = np.random.default_rng(8)
X = _RNG.normal(size=(N, K)) @ _RNG.normal(size=(K, D)) + 0.5 * _RNG.normal(size=(N, D))
START = {
    "V": _RNG.normal(size=(D, K)) * 0.1,
    "s": np.full(K, -0.2),
    "W": _RNG.normal(size=(K, D)) * 0.5,
}
REST = ("V", "s", "W")


def factor_analysis(scale: bool = False) -> tuple[pm.Model, Amortized]:
    """Probabilistic principal components: the exact posterior of a code is linear in the record."""
    with pm.Model() as model:
        x = pm.Data("x", X)
        v, s, w = pm.Flat("V", shape=(D, K)), pm.Flat("s", shape=K), pm.Flat("W", shape=(K, D))
        tau = pm.HalfNormal("tau", 1) if scale else 1.0
        z = pm.Normal("z", 0, tau, shape=(N, K))
        pm.Normal("y", z @ w, 0.5, observed=x)
        pm.Deterministic("shown", z.mean())
        pm.Deterministic("norm", (w**2).sum())
    return model, Amortized(x @ v, pt.exp(s) * pt.ones((x.shape[0], 1)))


def method(**kwargs: Any) -> DPADVI:
    model, encoder = factor_analysis()
    settings = {**CHEAP, "start": START, "guide": {"z": encoder, REST: Point()}, "model": model}
    return DPADVI(**{**settings, **kwargs})


@pytest.mark.turns
def test_what_is_released() -> None:
    found = quiet(method(), 3)
    draws = found.sample(4)
    assert set(draws.posterior.data_vars) == {"V", "s", "W", "norm"}
    assert tuple(found.withheld) == ("z", "shown")
    assert repr(found) == "DPGuided(22 latent values: Point() of 22)"
    told = repr(found.privacy) + str(found.privacy) + found.privacy.to_json()
    assert "'z'" in told or "z, shown" in told or '"z"' in told
    with pytest.raises(PrivacyError, match=r"\['V', 's', 'W', 'z'\]"):
        found.sample(5, noise_aware=True)
    assert "unconstrained_posterior" not in repr(found.sample(4, include_transformed=True))


def test_the_users_model_is_as_it_was() -> None:
    model, encoder = factor_analysis()
    before = [rv.name for rv in model.free_RVs], [p.name for p in model.potentials], list(model.named_vars)
    DPADVI(**CHEAP, guide={"z": encoder, REST: Point()}, start=START, model=model)
    assert before == (
        [rv.name for rv in model.free_RVs],
        [p.name for p in model.potentials],
        list(model.named_vars),
    )


@pytest.mark.turns
def test_the_gradient_is_that_of_the_bound() -> None:
    """By finite differences, record by record, of the bound written out in NumPy."""
    model, encoder = factor_analysis(scale=True)
    own = DPADVI(**CHEAP, guide={"z": encoder, REST: Point(), "tau": MeanField()}, start=START, model=model)
    record, latents = own._record, own.approx.latents
    z = pt.matrix("z", shape=(1, latents.size))
    rows = [row.type.clone(shape=(None, *row.type.shape[1:]))() for row in record.rows]
    grads = as_matrix(aligned_gradients(record, rows, latents, z, 1))
    by_name = {
        v.name: (at, shape)
        for v, at, shape in zip(latents.value_vars, latents.slices, latents.shapes, strict=True)
    }
    point = np.random.default_rng(3).normal(scale=0.4, size=latents.size)
    arrays = {a.name: np.asarray(a.get_value())[:6] for a in record.arrays}
    found = python_function([*rows, z], [grads])(*arrays.values(), point[None])[0]

    def bound(at: np.ndarray) -> np.ndarray:
        value = {name: at[s].reshape(shape) for name, (s, shape) in by_name.items()}
        turn = point[by_name["noise of z"][0]]
        uniform = (arrays["noise of z"] + ndtr(turn)) % 1.0
        noise = np.sqrt(-2 * np.log1p(-uniform[:, :K])) * np.cos(2 * np.pi * uniform[:, K:])
        mean, sigma = arrays["x"] @ value["V"], np.exp(value["s"])
        code = mean + sigma * noise
        tau = np.exp(value["tau_log__"])
        rest = arrays["x"] - code @ value["W"]
        return (
            -0.5 * (rest**2).sum(axis=1) / 0.25
            - 0.5 * (code**2).sum(axis=1) / tau**2
            - K * np.log(tau)
            + np.log(sigma).sum()
        )

    step = 1e-6
    for k in range(latents.size):
        moved = np.zeros(latents.size)
        moved[k] = step
        expected = (bound(point + moved) - bound(point - moved)) / (2 * step)
        if k in range(*by_name["noise of z"][0].indices(latents.size)):
            expected = 0.0  # by the noise of the step no gradient is taken
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-5, atol=1e-6)


def test_a_records_noise_is_standard_normal_and_its_own() -> None:
    model, encoder = factor_analysis()
    view, _ = encode(model, {"z": Amortized(encoder.mean * 0, encoder.sigma * 0 + 1)}, 5)
    turn = view["noise of z"]
    (y,) = view.observed_RVs
    code = y.owner.inputs[2].owner.inputs[0]  # z in z @ W
    draw = python_function([turn, view["V"], view["s"]], [code])
    rng = np.random.default_rng(1)
    seen = np.array([draw(rng.normal(size=(1, 2 * K)), START["V"], START["s"])[0] for _ in range(400)])
    assert seen.shape == (400, N, K)
    for k in range(K):
        assert kstest(seen[:, 3, k], "norm").pvalue > 1e-3  # of one record, over steps
        assert kstest(seen[7, :, k], "norm").pvalue > 1e-3  # of one step, over records
    flat = seen.reshape(400, -1)
    assert np.abs(np.corrcoef(flat[:, 0], flat[:, 1])[0, 1]) < 0.2  # of two columns


@pytest.mark.turns
def test_noise_follows_neither_the_public_seed_nor_the_place() -> None:
    def uniform(**kwargs: Any) -> np.ndarray:
        (own,) = (a for a in method(**kwargs)._record.arrays if a.name == "noise of z")
        return np.asarray(own.get_value())

    secret = {"insecure_noise_seed": None}
    assert not np.array_equal(uniform(**secret), uniform(**secret))
    np.testing.assert_array_equal(uniform(), uniform(random_seed=77))
    assert kstest(uniform(**secret).ravel(), "uniform").pvalue > 1e-4


@pytest.mark.turns
def test_the_encoder_is_that_of_the_exact_posterior() -> None:
    model, encoder = factor_analysis()
    own = DPADVI(
        noise_multiplier=0.05,
        delta=1e-6,
        sampler="full_batch",
        l2_clip_norm=50.0,
        accountant="rdp",
        insecure_noise_seed=1,
        random_seed=2,
        guide={"z": encoder, REST: Point()},
        start=START,
        model=model,
    )
    posterior = own.fit(2500, progressbar=False).sample(1).posterior
    w, v, s = (posterior[name].values[0, 0] for name in ("W", "V", "s"))
    cov = np.linalg.inv(np.eye(K) + w @ w.T / 0.25)
    np.testing.assert_allclose(v, w.T @ cov / 0.25, atol=0.08)
    np.testing.assert_allclose(np.exp(s), np.sqrt(1 / np.diag(np.linalg.inv(cov))), rtol=0.1)


@pytest.mark.turns
def test_data_that_change_are_noticed() -> None:
    model, encoder = factor_analysis()
    own = DPADVI(**CHEAP, guide={"z": encoder, REST: Point()}, start=START, model=model)
    with model:
        pm.set_data({"x": X[:50]})
    with pytest.raises(UnsupportedModelError, match="another shape now"):
        quiet(own, 1)
    with model:
        pm.set_data({"x": X + 1})
    assert quiet(own, 1).privacy.epsilon > 0
    with model:
        pm.Normal("more", 0, 1)
    with pytest.raises(UnsupportedModelError, match="other variables now"):
        quiet(own, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: {"u": e}, "guide names 'u', which is no free variable"),
        (lambda e: {3: e}, "guide names a int"),
        (
            lambda e: {"z": Amortized(e.mean[:, :1], e.sigma)},
            r"mean of guide\['z'\] must have the shape of 'z'",
        ),
        (lambda e: {"z": Amortized(e.mean, e.sigma[0])}, r"sigma of guide\['z'\] must have the shape of 'z'"),
        (lambda e: {"z": FullRank()}, "record"),
        (lambda e: {"z": Amortized}, "class Amortized"),
    ],
    ids=range(6),
)
def test_a_bad_encoder_is_refused(change: Any, message: str, nothing_spent: None) -> None:
    model, encoder = factor_analysis()
    with pytest.raises(PrivacyError, match=message) as caught:
        DPADVI(**CHEAP, guide=change(encoder), start=START, model=model)
    assert isinstance(caught.value, ArgumentError | UnsupportedModelError)


def test_an_encoder_is_made_of_expressions() -> None:
    with pytest.raises(ArgumentError, match="mean of Amortized must be an expression"):
        Amortized(np.zeros(3), pt.ones(3))
    with pytest.raises(ArgumentError, match="sigma of Amortized"):
        Amortized(pt.zeros(3), 1.0)


@pytest.mark.turns
def test_an_encoder_that_reads_all_records_is_refused(nothing_spent: None) -> None:
    model, encoder = factor_analysis()
    for mean in (encoder.mean - encoder.mean.mean(axis=0), encoder.mean[::-1]):
        with pytest.raises((NotSeparableError, UnsupportedModelError)):
            DPADVI(
                **CHEAP, guide={"z": Amortized(mean, encoder.sigma), REST: Point()}, start=START, model=model
            )


CODES = np.r_[np.zeros(N - 1, int), 4711]


def with_codes(case: str, codes: np.ndarray) -> tuple[pm.Model, Amortized]:
    """An encoder that reads codes in a way that could show them."""
    with pm.Model() as model:
        x = pm.Data("x", X)
        v = pm.Flat("V", shape=(D, K))
        c = pm.Data("c", codes[: N - 1] if case == "another length" else codes)
        z = pm.Normal("z", 0, 1, shape=(N, K))
        pm.Normal("y", z.sum(axis=1, keepdims=True), 0.5, observed=x)
    ones = pt.ones((x.shape[0], K))
    sigma = {
        "value": lambda: pt.ones((x.shape[0], c.max() + 1)),
        "count": lambda: pt.ones((x.shape[0], pt.nonzero(c > 3)[0].shape[0])),
        "index": lambda: ones + pt.as_tensor(np.zeros((5, K)))[c],
        "mask": lambda: ones[c >= 0],
        "another length": lambda: ones + c[:, None],
    }[case]()
    return model, Amortized(x @ v, sigma)


@pytest.mark.turns
@pytest.mark.parametrize("case", ["value", "count", "index", "mask", "another length"])
def test_an_encoder_is_not_computed_before_it_is_checked(case: str, nothing_spent: None) -> None:
    """What is said does not turn on a value."""
    told = []
    for codes in (CODES, np.r_[np.arange(N - 1) % 5, 3]):
        model, encoder = with_codes(case, codes)
        said = "nothing"
        try:
            DPADVI(**CHEAP, guide={"z": encoder, "V": Point()}, start={"V": START["V"]}, model=model)
        except PrivacyError as error:
            said = f"{type(error).__name__}: {error}"
        told.append(said)
    assert told[0] == told[1]
    assert (told[0] == "nothing") == (case == "index")  # indices are held in range
    assert not any(number in told[0] for number in ("4711", "4712", "66", "67"))


@pytest.mark.turns
def test_the_users_own_code_is_not_released() -> None:
    model, encoder = factor_analysis(scale=True)
    guide = {"z": encoder, REST: Point()}
    found = quiet(DPADVI(**CHEAP, guide=guide, start=START, model=model), 1)
    for node in (model["z"], model["z"].shape[0] * model["tau"], model["shown"], model["y"]):
        for ask in (found.sample_node, found.to_flat_input, found.symbolic_single_sample):
            with pytest.raises(UnsupportedModelError, match="depends on the records"):
                ask(node)
    assert found.sample_node(model["tau"], size=3).eval().shape == (3,)


@pytest.mark.turns
def test_an_audit_passes() -> None:
    model, encoder = factor_analysis()
    own = DPADVI(
        **{**CHEAP, "insecure_noise_seed": None},
        guide={"z": encoder, REST: Point()},
        start=START,
        model=model,
    )
    report = audit(method=own, n=20, runs=200, backend="python")
    assert report.passed, str(report)


@pytest.mark.turns
def test_a_deterministic_that_is_nan_ends_nothing() -> None:
    model, encoder = factor_analysis(scale=True)
    with model:
        pm.Deterministic("nan", pt.log(-model["tau"]))
    guide = {"z": encoder, REST: Point()}
    found = quiet(DPADVI(**CHEAP, guide=guide, start=START, model=model), 1)
    assert np.isnan(found.sample(3).posterior["nan"].values).all()


@pytest.mark.turns
def test_a_deterministic_that_comes_later_ends_nothing() -> None:
    model, encoder = factor_analysis()
    found = quiet(DPADVI(**CHEAP, guide={"z": encoder, REST: Point()}, start=START, model=model), 1)
    with model:
        pm.Deterministic("later", model["W"].sum())
    assert set(found.sample(2).posterior.data_vars) == {*REST, "norm"}


@pytest.mark.turns
def test_what_an_encoder_brings_is_not_the_users() -> None:
    model, encoder = factor_analysis()
    for argument in (
        {"start": {**START, "noise of z": np.zeros((1, 2 * K))}},
        {"start_sigma": {"noise of z": 1.0}},
    ):
        with pytest.raises(ArgumentError, match=r"'noise of z'.*no free variables"):
            method(**argument)
    with pytest.raises(ArgumentError, match="guide names 'noise of z'"):
        DPADVI(**CHEAP, guide={"z": encoder, REST: Point(), "noise of z": Point()}, start=START, model=model)
    for name in ("noise of z", "bound of z"):
        model, encoder = factor_analysis()
        with model:
            pm.Normal(name, 0, 1)
        with pytest.raises(ArgumentError, match=f"named '{name}'.*Rename it"):
            DPADVI(**CHEAP, guide={"z": encoder, REST: Point()}, start=START, model=model)


@pytest.mark.turns
def test_a_model_with_a_name() -> None:
    with pm.Model(name="sub") as model:
        x = pm.Data("x", X)
        v = pm.Flat("V", shape=(D, K))
        z = pm.Normal("z", 0, 1, shape=(N, K))
        pm.Normal("y", z.sum(axis=1, keepdims=True), 0.5, observed=x)
    guide = {"sub::z": Amortized(x @ v, pt.ones((x.shape[0], K))), "sub::V": Point()}
    found = quiet(DPADVI(**CHEAP, guide=guide, start={"sub::V": START["V"]}, model=model), 1)
    assert set(found.sample(2).posterior.data_vars) == {"sub::V"}


@pytest.mark.turns
def test_the_norms_of_gradients_are_of_the_weights_alone() -> None:
    """The numbers of a step get no noise, although they have places in the flat vector."""
    own = method()
    quiet(own, 30)
    places = informed(own._record, own.approx.latents)
    assert places.sum() == 22 and places.size == 22 + 2 * K


@pytest.mark.parametrize("kind", ["mixture", "walk", "vector", "none"])
def test_priors_without_encoders(kind: str, nothing_spent: None) -> None:
    with pm.Model() as model:
        x = pm.Data("x", X)
        v = pm.Flat("V", shape=(D, K))
        z = {
            "mixture": lambda: pm.NormalMixture("z", [0.5, 0.5], [0, 1], [1, 1], shape=(N, K)),
            "walk": lambda: pm.GaussianRandomWalk("z", init_dist=pm.Normal.dist(0, 1), shape=(N, K)),
            "vector": lambda: pm.MvNormal("z", np.zeros(K), np.eye(K), shape=(N, K)),
            "none": lambda: pm.Normal("z", 0, 1, shape=(N, 0)),
        }[kind]()
        pm.Normal("y", z.sum(axis=1, keepdims=True), 0.5, observed=x)
    encoder = Amortized(x @ v, pt.ones((x.shape[0], K)))
    with pytest.raises(PrivacyError, match=r"Make it pm\.Normal|has no entries"):
        DPADVI(**CHEAP, guide={"z": encoder, "V": Point()}, start={"V": START["V"]}, model=model)


@pytest.mark.turns
def test_codes_that_meet_are_refused(nothing_spent: None) -> None:
    with pm.Model() as model:
        x = pm.Data("x", X)
        v = pm.Flat("V", shape=(D, K))
        z = pm.Normal("z", 0, 1, shape=(N, K))
        pm.Normal("y", (z - z.mean(axis=0)).sum(axis=1, keepdims=True), 0.5, observed=x)
    encoder = Amortized(x @ v, pt.ones((x.shape[0], K)))
    with pytest.raises((NotSeparableError, UnsupportedModelError)):
        DPADVI(**CHEAP, guide={"z": encoder, "V": Point()}, start={"V": START["V"]}, model=model)


@pytest.mark.parametrize("case", ["positive", "one number", "itself", "prior"])
def test_variables_without_encoders(case: str, nothing_spent: None) -> None:
    with pm.Model() as model:
        x = pm.Data("x", X)
        v = pm.Flat("V", shape=(D, K))
        a = pm.Normal("a", 0, 1, shape=(N, K))
        z = {
            "positive": lambda: pm.HalfNormal("z", 1, shape=(N, K)),
            "one number": lambda: pm.Normal("z", 0, 1),
            "itself": lambda: pm.Normal("z", 0, 1, shape=(N, K)),
            "prior": lambda: pm.Normal("z", a, 1),
        }[case]()
        pm.Normal("y", (a + z).sum(axis=1, keepdims=True), 0.5, observed=x)
    mean = x @ v + (z if case == "itself" else 0)
    of_z = Amortized(mean, pt.ones((x.shape[0], K)))
    of_a = Amortized(x @ v, pt.ones((x.shape[0], K)))
    wanted = {
        "positive": "whole real line",
        "one number": "one number",
        "itself": "depends on a variable with an encoder",
        "prior": "prior of 'z' depends on another variable with an encoder",
    }[case]
    with pytest.raises(UnsupportedModelError, match=wanted):
        DPADVI(**CHEAP, guide={"a": of_a, "z": of_z, "V": Point()}, start={"V": START["V"]}, model=model)


@pytest.mark.zoo
@pytest.mark.compiled
def test_an_auto_encoder_on_the_default_backend() -> None:
    pixels = (X > 0).astype("int8")
    shapes = {"V": (D, 6), "m": (6, K), "s": (6, K), "W": (K, 6), "R": (6, D)}
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x = pm.Data("x", pixels)
        v = {name: pm.Normal(name, 0, 1, shape=shape) for name, shape in shapes.items()}
        z = pm.Normal("z", 0, 1, shape=(N, K))
        hidden = pt.softplus(x @ v["V"])
        pm.Bernoulli("pixel", logit_p=pt.softplus(z @ v["W"]) @ v["R"], observed=x)
    guide = {"z": Amortized(hidden @ v["m"], pt.exp(hidden @ v["s"])), tuple(shapes): Point()}
    start = {name: rng.normal(size=shape) / 3 for name, shape in shapes.items()}
    own = DPADVI(epsilon=3.0, delta=1e-5, guide=guide, start=start, model=model)
    found = own.fit(300, progressbar=False)
    assert found.privacy.runs[0].backend == "numba"
    assert np.isfinite(found.mean.eval()).all()
    assert set(found.sample(2).posterior.data_vars) == set(shapes)


def test_a_record_model_has_one_more_array() -> None:
    model, encoder = factor_analysis()
    view, encoded = encode(model, {"z": encoder}, 1)
    assert encoded is not None
    record = build_record_model(view)
    assert {a.name for a in record.arrays} == {"x", "noise of z"}
    assert encoded.names == ("z",)


@pytest.mark.turns
def test_an_encoder_beside_persons() -> None:
    """Persons of one row each are fitted as rows; with several rows, nothing of a code leaves either."""
    found = []
    for rows in (None, 1, 3):
        model, encoder = factor_analysis()
        with model:
            pm.Data("person", np.arange(N) // (rows or 1))
        guide = {"z": encoder, REST: Point()}
        unit = {} if rows is None else {"unit": "person"}
        approx = quiet(DPADVI(**CHEAP, guide=guide, start=START, model=model, **unit), 6)
        assert tuple(approx.withheld) == ("z", "shown")
        found.append(approx.mean.eval())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-12)
    assert not np.allclose(found[2], found[0], rtol=1e-3)
