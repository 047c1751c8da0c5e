"""The papers' experiments in `benchmarks/papers`, but for their full size, and what they are made of."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy import special, stats

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import dp_sgld  # noqa: E402
import published_dpvi  # noqa: E402
from journal import differences  # noqa: E402

from pymc_dpvi import DPADVI  # noqa: E402
from pymc_dpvi.mechanism.mechanism import Mechanism  # noqa: E402
from pymc_dpvi.sampling import FullBatchSampler, PoissonSampler  # noqa: E402


def load(name: str) -> Any:
    path = ROOT / "benchmarks" / "papers" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_papers_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for themselves
    spec.loader.exec_module(module)
    return module


dpvi, mixture, hierarchical = load("dpvi"), load("mixture"), load("hierarchical")
dpvd, vae = load("dpvd"), load("vae")

#: What a fit of each script reports, as a function of the task's seed.
FAKES: dict[str, Callable[[int], dict[str, Any]]] = {
    "dpvi": lambda seed: {"accuracy": 0.7 + 0.01 * seed},
    "mixture": lambda seed: {
        "log_density": -3.5 + 0.01 * seed,
        "weights": [0.2] * 5,
        "means": mixture.CENTRES.tolist(),
        "variances": [0.5] * 5,
    },
    "hierarchical": lambda seed: {"auc": 0.7 + 0.01 * seed},
}


@pytest.mark.parametrize("script", [dpvi, mixture, hierarchical], ids=list(FAKES))
def test_a_run_goes_on_where_it_was(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    name = Path(script.__file__).stem
    done: list[Any] = []

    def fake(task: Any) -> dict[str, Any]:
        done.append(task)
        return {**FAKES[name](task.seed), "noise_multiplier": 1.0, "seconds": 0.1}

    monkeypatch.setattr(script, "fit_once", fake)
    journal = tmp_path / f"{name}.jsonl"
    monkeypatch.setattr(script, "plot", lambda *given: None)
    script.main(["--seeds", "1", "--jobs", "1", "--output", str(tmp_path)])
    assert len(done) == len(set(done)) == len(script.tasks(1, quick=False))
    journal.write_text(journal.read_text() + '{"settings": {"del', encoding="utf-8")  # ended in a line
    monkeypatch.undo()
    monkeypatch.setattr(script, "fit_once", fake)
    script.main(["--seeds", "2", "--jobs", "1", "--output", str(tmp_path)])
    assert set(done) == set(script.tasks(2, quick=False)) and len(done) == len(set(done))
    found = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert len(found["fits"]) == len(done)
    assert found["command"].endswith("--seeds 2")
    measure = {"dpvi": "accuracy", "mixture": "log_density", "hierarchical": "auc"}[name]
    (two, *_) = (row for row in found["table"] if row.get("fits") == 2)
    assert two[f"{measure}_se"] == pytest.approx(0.005)
    assert (tmp_path / f"{name}.png").stat().st_size > 30_000
    assert "differs from the paper" in differences(script.__doc__)
    assert "What differs from the paper" in capsys.readouterr().out
    monkeypatch.setattr(script, "ADAGRAD" if name != "hierarchical" else "ADAM", {"learning_rate": 1.0})
    with pytest.raises(SystemExit, match="other settings"):
        script.main(["--seeds", "2", "--jobs", "1", "--output", str(tmp_path)])


@pytest.mark.parametrize("script", [dpvi, mixture, hierarchical], ids=list(FAKES))
def test_the_quick_run_has_every_method(script: Any):
    tasks = script.tasks(1, quick=True)
    methods = getattr(script, "FITTED", script.METHODS)  # some methods are other posteriors of the same fits
    expected = set(sum(methods.values(), ())) if isinstance(methods, dict) else set(methods)
    assert {task.method for task in tasks} == expected
    assert max(task.n_steps for task in tasks) <= 1000


# ------------------------------------------------------------------------- single fits


@pytest.fixture
def in_python(without_compiling: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private steps and Langevin dynamics without the compiler."""
    monkeypatch.setattr(dp_sgld, "compile_mode", lambda backend, given: {"mode": "PYTHON"})


def test_a_logistic_fit(in_python: None):
    task = dpvi.Task("epsilon", "abalone", "dp-sgld", 1.0, 1.0, 0.05, 10, 5.0, 0)
    found = dpvi.fit_once(task)
    assert 0.0 < found["accuracy"] < 1.0 and found["noise_multiplier"] > 0.2
    assert dpvi.clip_norm(task) == pytest.approx(0.25)
    assert dpvi.clip_norm(replace(task, method="dpvi-ma-text")) == 5.0


@pytest.mark.parametrize("method", ["d3p", "dp-sgld"])
def test_a_mixture_fit(method: str, in_python: None):
    found = mixture.fit_once(mixture.Task("uai", method, 1.0, 4, 0))
    truth = mixture.true_score(mixture.records(1000)[1])
    assert -20.0 < found["log_density"] < truth
    assert sum(found["weights"]) == pytest.approx(1.0)
    assert np.shape(found["means"]) == (5, 2) and min(found["variances"]) > 0.0


def test_a_hierarchical_fit(in_python: None):
    found = hierarchical.fit_once(hierarchical.Task("d3p", 100, 8.0, 5, 0))
    assert 0.0 < found["auc"] < 1.0


# ------------------------------------------------------------------------- scores


def test_density_of_the_mixture():
    rng = np.random.default_rng(0)
    draws = {
        "weights": rng.dirichlet(np.ones(5), size=2),
        "means": rng.normal(size=(2, 5, 2)),
        "variances": rng.uniform(0.3, 2.0, size=(2, 5)),
    }
    points = rng.normal(size=(3, 2))
    each = mixture.log_densities(draws, points)
    for s in range(2):
        parts = [
            w * stats.multivariate_normal(m, v * np.eye(2)).pdf(points)
            for w, m, v in zip(*(draws[name][s] for name in draws), strict=True)
        ]
        assert each[s] == pytest.approx(np.log(np.sum(parts, axis=0)))
    assert mixture.score(draws, points) == pytest.approx(np.log(np.exp(each).mean(axis=0)).mean())
    # The model has the density that is scored.
    model = mixture.mixture(1000)
    value = {v.name: v for v in model.value_vars}
    logp = model.compile_fn(
        model.logp(vars=model.observed_RVs, sum=False), inputs=list(value.values()), mode="FAST_COMPILE"
    )
    log = np.log(draws["weights"][0])
    at = {
        "weights_simplex__": log[:-1] - log.mean(),
        "means": draws["means"][0],
        "variances_log__": np.log(draws["variances"][0]),
    }
    assert logp({name: at[name] for name in value})[0] == pytest.approx(
        mixture.log_densities({name: draw[:1] for name, draw in draws.items()}, mixture.records(1000)[0])[0]
    )


def test_area_under_the_curve():
    test = hierarchical.simulated(hierarchical.TEST, 0)
    weights = np.random.default_rng(1).normal(size=(3, 5)).round()  # with ties
    scores = np.sum(test.x * weights[test.group], axis=1).round(1)
    rounded = np.sort(scores[test.y == 0])
    below = np.searchsorted(rounded, scores[test.y == 1], "left")
    equal = np.searchsorted(rounded, scores[test.y == 1], "right") - below
    expected = np.mean(below + 0.5 * equal) / len(rounded)
    assert hierarchical.area(scores, test.y) == pytest.approx(expected)
    truth = hierarchical.auc(hierarchical.coefficients())
    assert 0.7 < truth < 1.0 and truth > hierarchical.auc(weights)
    assert hierarchical.auc(-hierarchical.coefficients()) == pytest.approx(1.0 - truth)


# ------------------------------------------------------------------------- what they are made of


def normal_mean(num_records: int = 50) -> pm.Model:
    """Records from N(mu, 1) with a N(0, 1) prior: a posterior that is known."""
    y = np.random.default_rng(3).normal(0.7, 1.0, size=num_records)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=y)
    return model


def test_langevin_dynamics_samples_from_the_posterior(in_python: None):
    model = normal_mean()
    y = model.rvs_to_values[model.observed_RVs[0]].data
    mechanism = Mechanism(FullBatchSampler(), 100.0, 1e-6, "add_or_remove_one", "aligned")
    sizes = dp_sgld.StepSizes(0.8 / 51, decay=0.0)
    draws = dp_sgld.dp_sgld(model, mechanism, 600, sizes, random_seed=0, insecure_noise_seed=0)["mu"]
    assert draws.shape == (300,)
    # As many as 75 independent draws for the mean, 140 for the variance, which steps of this size make a
    # quarter larger than that of the posterior. A drift twice as strong would make it a third smaller.
    assert draws.mean() == pytest.approx(y.sum() / 51, abs=4 * (1.25 / 51 / 75) ** 0.5)
    assert draws.var() == pytest.approx(1.25 / 51, rel=0.25)


def test_the_larger_noise_of_the_two_is_in_a_langevin_step(in_python: None):
    """With private noise that is larger than the dynamics asks for, nothing is added to it."""
    clip, multiplier, first = 1.0, 40.0, 0.01
    mechanism = Mechanism(PoissonSampler(0.5), clip, multiplier, "add_or_remove_one", "aligned")
    sizes = dp_sgld.StepSizes(first, decay=0.0)
    private = 0.5 * first * multiplier * clip / 0.5
    assert private**2 > first
    runs = [
        dp_sgld.dp_sgld(normal_mean(), mechanism, 2, sizes, random_seed=seed, insecure_noise_seed=1)["mu"]
        for seed in (1, 2)
    ]
    assert runs[0] == pytest.approx(runs[1])  # the noise of the dynamics, by `random_seed`, is not there
    quiet = Mechanism(PoissonSampler(0.5), clip, 0.1, "add_or_remove_one", "aligned")
    runs = [
        dp_sgld.dp_sgld(normal_mean(), quiet, 2, sizes, random_seed=seed, insecure_noise_seed=1)["mu"]
        for seed in (1, 2)
    ]
    assert abs(runs[0] - runs[1]).max() > 0.01


def test_langevin_dynamics_says_that_it_diverges(in_python: None):
    mechanism = Mechanism(FullBatchSampler(), 100.0, 1e-6, "add_or_remove_one", "aligned")
    sizes = dp_sgld.StepSizes(1e100, decay=0.0)
    with pytest.raises(FloatingPointError, match="smaller first step"), np.errstate(all="ignore"):
        dp_sgld.dp_sgld(normal_mean(), mechanism, 20, sizes, random_seed=0)


def test_the_last_iterate_takes_the_place_of_the_average(without_compiling: None):
    last, seen = published_dpvi.LastIterate(12), []

    def see(approx: Any, losses: Any, i: int) -> None:
        seen.append([param.get_value() for param in approx.params])

    with normal_mean():
        method = DPADVI(epsilon=1.0, delta=1e-3, gradient="vanilla")
        approx = method.fit(12, callbacks=[last, see], progressbar=False)
    average = [param.get_value() for param in approx.params]
    last.put_back(approx)
    for param, value, mean in zip(approx.params, seen[-1], average, strict=True):
        assert np.array_equal(param.get_value(), value)
        assert not np.array_equal(param.get_value(), mean)
    assert len(seen) == 12


def test_a_published_fit_starts_wide(without_compiling: None):
    with normal_mean():
        approx = published_dpvi.fit_as_published(
            1, epsilon=1.0, delta=0.02, sampling_prob=0.2, l2_clip_norm=1.0
        )
    # One step of AdaGrad moves a parameter by at most its rate.
    assert float(approx.std.eval()[0]) == pytest.approx(1.0, abs=0.1)
    assert abs(float(approx.mean.eval()[0])) <= 0.1


def test_differences_are_those_of_the_docstring():
    assert differences("Title.\n\nWhat differs from the paper\n---\n- all\n") == (
        "What differs from the paper\n---\n- all"
    )


# ------------------------------------------------------------------------- networks


@pytest.mark.turns
@pytest.mark.parametrize("method", dpvd.METHODS)
def test_a_network_on_digits(method: str, in_python: None):
    clip, rate = (1.0, 0.2) if method == "dp-sgd" else (None, None)
    found = dpvd.fit_once(dpvd.Task("digits", method, 1.0, 2, 100, 0, clip, rate))
    assert 0.0 < found["accuracy"] < 1.0
    assert found["log_score"] < 0.0 <= found["calibration_error"] <= 1.0
    if method not in ("as printed", "mode"):  # its noise is not that of its epsilon
        assert found["true_epsilon"] == pytest.approx(1.0, abs=0.02)


def test_layers_are_clipped_one_by_one():
    """Clipped sums of single records are their gradients, by finite differences, shortened if long."""
    rng = np.random.default_rng(0)
    x, labels = rng.random((3, 64)), np.array([1, 7, 3])
    weights = {name: value * 2 for name, value in dpvd.start(64, 0).items()}

    def minus_log_likelihood(k: int, **changed: np.ndarray) -> float:
        scores = dpvd.logits(x[k : k + 1], {**weights, **changed})[0]
        return float(np.logaddexp.reduce(scores) - scores[labels[k]])

    total = dpvd.clipped_sums(x, labels, weights)
    single = [dpvd.clipped_sums(x[k : k + 1], labels[k : k + 1], weights) for k in range(3)]
    for name in weights:
        np.testing.assert_allclose(total[name], sum(one[name] for one in single), atol=1e-12)
    for k, one in enumerate(single):
        for layer in "12":
            norm = np.sqrt((one[f"W{layer}"] ** 2).sum() + (one[f"b{layer}"] ** 2).sum())
            assert norm <= dpvd.PRINTED_CLIP * (1 + 1e-9)
        place = np.unravel_index(np.abs(one["W2"]).argmax(), one["W2"].shape)
        step = np.zeros_like(weights["W2"])
        step[place] = 1e-5
        both = (minus_log_likelihood(k, W2=weights["W2"] + sign * step) for sign in (1, -1))
        slope = (next(both) - next(both)) / 2e-5
        by_bias = special.softmax(dpvd.logits(x[k : k + 1], weights)[0]) - np.eye(10)[labels[k]]
        hidden = np.maximum(x[k] @ weights["W1"] + weights["b1"], 0)
        long = np.sqrt((hidden**2).sum() + 1) * np.sqrt((by_bias**2).sum())
        assert one["W2"][place] == pytest.approx(slope * min(1, dpvd.PRINTED_CLIP / long), rel=1e-4)


def test_the_calibration_error_is_zero_if_confidence_is_accuracy():
    probs = np.array([[0.75, 0.25]] * 4)
    assert dpvd.calibration_error(probs, np.array([0, 0, 0, 1])) == pytest.approx(0.0)
    assert dpvd.calibration_error(probs, np.array([1, 1, 1, 1])) == pytest.approx(0.75)


def test_what_the_printed_noise_costs():
    sigma = dpvd.printed_sigma(10.0, 0.01, 1000)
    assert dpvd.printed_cost(sigma, 0.01, 1000) > 100  # said to cost 10


@pytest.mark.turns
@pytest.mark.parametrize("method", vae.METHODS)
def test_an_auto_encoder_of_digits(method: str, in_python: None):
    found = vae.fit_once(vae.Task("digits", method, 2, 0))
    assert 20.0 < found["loss"] < 100.0  # a fair coin for each pixel has 44
    assert np.shape(found["images"]) == (vae.SHOWN, 64)
    assert (found["l2_clip_norm"] == vae.CLIP) == (method == "paper")


def test_the_loss_of_a_decoder_that_ignores_its_code_is_that_of_its_pixels():
    pixels = vae.load("digits")[1].astype(float)
    of = {name: np.zeros(shape) for name, shape in vae.shapes("digits").items()}
    assert vae.loss(pixels, of, np.random.default_rng(0)) == pytest.approx(64 * np.log(2))
    of["c2"] += 1.0  # a mean of one in five codes: half a nat each
    assert vae.loss(pixels, of, np.random.default_rng(0)) == pytest.approx(64 * np.log(2) + 2.5)
