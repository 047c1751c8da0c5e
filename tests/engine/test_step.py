"""The compiled step, seen from outside: what the optimiser gets is the only thing that leaves.

An optimiser that stores its gradients makes the transcript of a run visible. What one record can move, under
every sampler, gradient and family, is in `test_mechanism_suite`, and that its checks catch bugs in
`test_planted_bugs`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import graph_inputs
from scipy import special
from threadpoolctl import threadpool_info, threadpool_limits

from pymc_dpvi import DPADVI, DPFullRankADVI
from pymc_dpvi.auditing.transcript import noise_pvalues, summarise
from pymc_dpvi.compat import compile_mode, rows_mode
from pymc_dpvi.engine import step_graph
from pymc_dpvi.engine.blas_threads import OneThread
from pymc_dpvi.engine.silence import silence
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.engine.step_graph import StepGraph
from pymc_dpvi.errors import InsecureNoiseWarning, PrivacyError, UnsupportedModelError
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.mechanism.limits import SLACK
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.posterior.approximation import DPApproximation, DPFullRank, DPMeanField
from pymc_dpvi.sampling import PoissonSampler

CLIP = 0.8
MULTIPLIER = 1.7
PROB = 0.25
D = 5

# Rows 0..9 are ordinary; each of these follows as a row of its own, in one column and in all.
HOSTILE = [np.nan, np.inf, -np.inf, 1e300, -1e300, 1e150, 5e-324, 0.0]


@pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")
@pytest.mark.parametrize("backend", ["python", "numba"])
def test_what_numpy_and_scipy_say_of_a_record_is_not_for_the_user_to_set(
    logistic: Callable[[], pm.Model], backend: str
) -> None:
    """Known: `scipy.special.seterr` reached steps that were not in Python mode; C calls SciPy as well."""
    options = {"noise_multiplier": 1.0, "delta": 1e-6, "sampling_prob": 0.5}
    method = DPADVI(**options, insecure_noise_seed=1, random_seed=2, model=logistic())
    method.fit(1, progressbar=False, backend=backend)
    step, seen = method._runs.step, []
    assert step is not None

    def chunk(*arrays: Any) -> None:
        seen.append((np.geterr(), special.geterr(), jax.config.jax_debug_nans, jax.config.jax_debug_infs))

    step.chunk = chunk
    with special.errstate(all="raise"), np.errstate(all="raise"), jax.debug_nans(True), jax.debug_infs(True):
        step._call()
    ((numpy, scipy, *of_jax),) = seen
    assert {*numpy.values(), *scipy.values()} == {"ignore"}
    assert of_jax == [False, False]


def test_jax_is_not_told_to_stop_at_a_record() -> None:
    """Known: with ``jax_debug_nans`` a record whose gradient overflows ended a fit that had been charged."""
    x = np.linspace(-1.0, 1.0, 5000)
    y = x.copy()
    x[7], y[7] = 1e308, -1e308
    with pm.Model() as model:
        pm.Normal("y", pm.Data("x", x) * pm.Normal("b"), 1.0, observed=y)
    before = jax.config.jax_debug_nans, jax.config.jax_debug_infs
    try:
        jax.config.update("jax_debug_nans", True)
        jax.config.update("jax_debug_infs", True)
        options = {"noise_multiplier": 1.0, "delta": 1e-6, "sampling_prob": 0.999}
        approx = DPADVI(**options, model=model).fit(3, progressbar=False, backend="jax")
    finally:
        jax.config.update("jax_debug_nans", before[0])
        jax.config.update("jax_debug_infs", before[1])
    assert np.isfinite(approx.mean.eval()).all()


def test_a_thread_is_silent_whatever_others_do() -> None:
    """Known: only the first thread to enter was silenced, as SciPy's setting was taken for the process's."""
    within, leave = threading.Event(), threading.Event()
    seen: list[str] = []

    def other() -> None:
        with special.errstate(domain="raise"):
            with silence():
                within.set()
                assert leave.wait(60)
                seen.append(special.geterr()["domain"])
            seen.append(special.geterr()["domain"])

    thread = threading.Thread(target=other)
    with special.errstate(domain="raise"):
        thread.start()
        assert within.wait(60)
        with silence():
            with silence():
                pass
            assert special.geterr()["domain"] == "ignore"
        leave.set()
        thread.join(60)
        assert special.geterr()["domain"] == "raise"
    assert seen == ["ignore", "raise"]


class Recorder:
    """An optimiser that moves nothing and keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, grads: list[Any], params: list[Any]) -> dict[Any, Any]:
        self.seen = [pytensor.shared(p.get_value() * np.nan) for p in params]
        return {s: g.astype(s.type.dtype) for s, g in zip(self.seen, grads, strict=True)}

    def values(self) -> list[np.ndarray]:
        return [s.get_value() for s in self.seen]


def regression(prior: float | None = None) -> pm.Model:
    """A linear regression whose rows from 10 on are hostile."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(10 + 2 * len(HOSTILE), D))
    for k, value in enumerate(HOSTILE):
        x[10 + 2 * k, 0] = value
        x[11 + 2 * k] = value
    y = rng.normal(size=len(x))
    y[10::2] = 40.0
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=D) if prior is None else pm.Normal("beta", 2.0, prior, shape=D)
        pm.Normal("y", x @ beta, 1.0, observed=y)  # pm.Data would not take NaN; a constant does
    return model


def silent(num_records: int = 30) -> pm.Model:
    """Records whose gradients are exactly zero: a transcript of noise alone."""
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=D)
        pm.Normal("y", np.zeros((num_records, D)) @ beta, 1.0, observed=np.zeros(num_records))
    return model


def one_step(
    step: PrivateStep, batch: np.ndarray, noise: np.ndarray, epsilon: np.ndarray, weight: float
) -> None:
    """Make a single step of the many that a call can make."""
    step(batch, np.array([0, batch.size]), noise[None], epsilon[None], np.array([weight]))


class Harness:
    """One compiled step and its transcript."""

    def __init__(
        self,
        model: pm.Model,
        *,
        family: type[DPApproximation] = DPMeanField,
        gradient: str = "aligned",
        n_mc: int = 1,
        backend: str = "PYTHON",
        prob: float = PROB,
    ) -> None:
        record = build_record_model(model)
        self.record = record
        self.approx = family(record, random_seed=1)
        self.mechanism = Mechanism(PoissonSampler(prob), CLIP, MULTIPLIER, "add_or_remove_one", gradient)
        self.recorder = Recorder()
        self.step = PrivateStep(
            record,
            self.approx.latents,
            self.approx.groups[0],
            self.mechanism,
            n_mc=n_mc,
            optimizer=self.recorder,
            max_grad_norm=None,
            compile_kwargs={"mode": backend} if backend == "PYTHON" else compile_mode(backend, None),
            rows_kwargs=None if backend == "PYTHON" else rows_mode(backend),
        )
        self.n_mc = n_mc
        self.names = [p.name for p in self.step.params]
        # Away from the prior mean, so that the prior has a gradient.
        mu = next(p for p in self.step.params if p.name.endswith("mu"))
        mu.set_value(np.linspace(-0.5, 1.0, mu.get_value().size))

    def __call__(
        self, batch: list[int], noise: np.ndarray | None = None, epsilon: np.ndarray | None = None
    ) -> np.ndarray:
        """Noisy gradient of the evidence lower bound (upwards), all parameters end to end."""
        if noise is None:
            noise = np.zeros(self.step.num_noise)
        if epsilon is None:
            epsilon = np.zeros(self.step.draw_shape)
        lattice = np.rint(noise / self.mechanism.noise.spacing).astype("int64")
        one_step(self.step, np.asarray(batch, dtype="int64"), lattice, epsilon.astype(self.step.dtype), 0.0)
        return -np.concatenate([v.ravel() for v in self.recorder.values()])

    @property
    def mu(self) -> slice:
        at = 0
        for p in self.step.params:
            size = p.get_value().size
            if p.name.endswith("mu"):
                return slice(at, at + size)
            at += size
        raise AssertionError(self.names)


def row_gradient(harness: Harness, i: int) -> np.ndarray:
    """One record's gradient with respect to β at the mean, by hand."""
    data = {a.type.ndim: np.asarray(a.get_value()) for a in harness.record.data()}
    x, y = data[2][i], data[1][i]
    with np.errstate(all="ignore"):
        return (y - x @ harness.approx.start) * x


def clipped(g: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        size = float(np.sqrt(np.sum(g**2)))
    if not np.isfinite(size):
        return np.zeros_like(g)
    return g * min(1.0, CLIP * (1 - SLACK) / size) if size > 0 else g


# ------------------------------------------------------------------------------------------------
# The checks
# ------------------------------------------------------------------------------------------------


def transcript(method: type[DPADVI], n: int, model: pm.Model, seed: int, **kwargs: Any) -> np.ndarray:
    """Gradients by the mean that the optimiser of a whole private fit gets, shape (n, D)."""
    recorder, rows = Recorder(), []
    settings = {"sampling_prob": PROB, **kwargs}
    inference = method(
        noise_multiplier=MULTIPLIER,
        delta=1e-5,
        l2_clip_norm=CLIP,
        accountant="rdp",
        random_seed=seed,
        insecure_noise_seed=seed,
        model=model,
        **settings,
    )
    with pytest.warns(InsecureNoiseWarning):
        inference.fit(
            n,
            progressbar=False,
            obj_optimizer=recorder,
            callbacks=[lambda *_: rows.append([v.copy() for v in recorder.values()])],
            compile_kwargs={"mode": "PYTHON"},
        )
    at_mu = next(k for k, p in enumerate(inference.approx.params) if p.name.endswith("mu"))
    return np.array([r[at_mu] for r in rows])


def check_noise(released: np.ndarray, sigma: float) -> None:
    """Every coordinate is N(0, sigma²), and steps and coordinates are independent."""
    pvalue, where = summarise(noise_pvalues(released / sigma, {"beta": np.arange(released.shape[1])}))
    assert pvalue > 1e-5, f"{where}: {pvalue:.2g}"


def check_sum(harness: Harness) -> None:
    """The transcript is (clipped sum + noise)/q, for every batch size: never a mean."""
    rng = np.random.default_rng(5)
    for batch in ([], [3], [0, 1], list(range(10)), [0, 10, 11, 12, 17, 25]):
        eta = rng.normal(size=harness.step.num_noise)
        expected = sum((clipped(row_gradient(harness, i)) for i in batch), np.zeros(D)) + eta[:D]
        np.testing.assert_allclose(harness(batch, eta)[harness.mu], expected / PROB, rtol=1e-9, atol=1e-9)


def check_sensitivity(harness: Harness) -> None:
    """With noise and batch fixed, one hostile record moves the release by C/q, or 2C/q replaced."""
    rng = np.random.default_rng(6)
    rows = len(np.asarray(harness.record.data()[0].get_value()))
    base = [0, 1, 2, 3]
    eta = rng.normal(size=harness.step.num_noise)
    epsilon = rng.normal(size=harness.step.draw_shape)
    without = harness(base, eta, epsilon)[harness.mu]
    previous = None
    for i in range(4, rows):
        released = harness([*base, i], eta, epsilon)[harness.mu]
        assert np.isfinite(released).all(), f"row {i}"
        # 1e-12: the noise is added and taken away again in floats
        assert np.linalg.norm(released - without) * PROB <= CLIP * (1 + 1e-12)
        if previous is not None:
            assert np.linalg.norm(released - previous) * PROB <= 2 * CLIP * (1 + 1e-12)
        previous = released


def check_hostile(harness: Harness) -> None:
    """A record with a non-finite gradient adds exactly nothing, and nothing raises."""
    eta = np.random.default_rng(7).normal(size=harness.step.num_noise)
    without = harness([0, 1], eta)
    for k, value in enumerate(HOSTILE):
        for i in (10 + 2 * k, 11 + 2 * k):
            released = harness([0, i, 1], eta)
            assert np.isfinite(released).all(), value
            if not np.isfinite(np.abs(row_gradient(harness, i)).max() / 1e150):
                np.testing.assert_array_equal(released, without)
            elif np.abs(row_gradient(harness, i)).max() > 1e155:  # finite, but its square is not
                np.testing.assert_array_equal(released, without)


def check_prior_outside(harness: Harness, prior: float) -> None:
    """The prior is added once, as it is, whoever is in the batch."""
    gradient = (2.0 - harness.approx.start) / prior**2
    for batch in ([], [0], [0, 1, 2]):
        expected = sum((clipped(row_gradient(harness, i)) for i in batch), np.zeros(D)) / PROB + gradient
        np.testing.assert_allclose(harness(batch)[harness.mu], expected, rtol=1e-9)


# ------------------------------------------------------------------------------------------------
# Tests
# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def aligned() -> Harness:
    return Harness(regression())


@pytest.mark.parametrize("method", [DPADVI, DPFullRankADVI])
@pytest.mark.parametrize("gradient", ["aligned", "vanilla"])
def test_noise_of_a_whole_fit(method: type[DPADVI], gradient: str):
    check_noise(transcript(method, 400, silent(), 11, gradient=gradient), MULTIPLIER * CLIP / PROB)


@pytest.mark.parametrize(
    ("sampler", "relation"), [("full_batch", "add_or_remove_one"), ("fixed_size", "replace_one")]
)
def test_noise_with_other_samplers(sampler: str, relation: str):
    prob = None if sampler == "full_batch" else PROB
    settings = {"sampler": sampler, "neighboring_relation": relation, "sampling_prob": prob}
    check_noise(transcript(DPADVI, 300, silent(32), 2, **settings), MULTIPLIER * CLIP / (prob or 1.0))


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_check_of_the_noise_has_power(factor: float):
    rng = np.random.default_rng(0)
    check_noise(rng.normal(size=(400, D)), 1.0)
    with pytest.raises(AssertionError):
        check_noise(rng.normal(size=(400 if abs(factor - 1) > 0.2 else 4000, D)) * factor, 1.0)


def test_sum_scaled_by_the_sampling_probability(aligned: Harness):
    check_sum(aligned)


def test_hostile_records(aligned: Harness):
    check_hostile(aligned)


@pytest.mark.turns
@pytest.mark.parametrize("backend", ["numba", "c", "jax"])
def test_on_the_backends(backend: str):
    harness = Harness(regression(), backend=backend)
    check_sum(harness)
    check_sensitivity(harness)
    check_hostile(harness)


@pytest.mark.turns
@pytest.mark.parametrize("family", [DPMeanField, DPFullRank])
def test_prior_is_no_part_of_the_sum(family: type[DPApproximation]):
    check_prior_outside(Harness(regression(0.1), family=family), 0.1)


@pytest.mark.parametrize(
    ("family", "gradient"), [(DPFullRank, "aligned"), (DPMeanField, "vanilla"), (DPFullRank, "vanilla")]
)
def test_empty_batch_is_noise_alone(family: type[DPApproximation], gradient: str):
    harness = Harness(regression(), family=family, gradient=gradient)
    eta = np.random.default_rng(1).normal(size=harness.step.num_noise)
    released = harness([], eta)
    if gradient == "aligned":
        np.testing.assert_allclose(released[harness.mu], eta / PROB, rtol=1e-9)
    else:
        np.testing.assert_allclose(released, eta / PROB, rtol=1e-9)


def test_several_draws_average_the_gradient():
    # Nothing is clipped here, so M draws must give the mean of M single draws.
    def build() -> pm.Model:
        x = np.random.default_rng(4).normal(size=(12, D)) * 0.05
        with pm.Model() as model:
            beta = pm.Normal("beta", 0, 1, shape=D)
            pm.Normal("y", pm.Data("x", x) @ beta, 1.0, observed=x[:, 0])
        return model

    epsilon = np.random.default_rng(5).normal(size=(3, D))
    one, three = Harness(build()), Harness(build(), n_mc=3)
    singles = [one([0, 2, 4], epsilon=e[None]) for e in epsilon]
    np.testing.assert_allclose(three([0, 2, 4], epsilon=epsilon), np.mean(singles, axis=0), rtol=1e-9)


@pytest.mark.parametrize("family", [DPMeanField, DPFullRank])
def test_unclipped_full_data_gradient_is_that_of_the_elbo(family: type[DPApproximation]):
    """q = 1, no clipping, no noise: PyMC's own ELBO, differentiated by finite differences."""
    x = np.random.default_rng(4).normal(size=(12, 2)) * 0.05
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.5, 0.7, shape=2)
        s = pm.HalfNormal("s", 1.0)
        pm.Normal("y", pm.Data("x", x) @ beta, 2.0 + s, observed=x[:, 0])
    harness = Harness(model, family=family, prob=1.0)
    epsilon = np.random.default_rng(6).normal(size=(1, 3))
    logp = model.compile_logp(mode="PYTHON")
    latents = harness.approx.latents
    params = harness.step.params

    def elbo() -> float:
        by_name = {p.name.rpartition("_")[2] or p.name: p.get_value() for p in params}
        mu = by_name["mu"]
        if family is DPMeanField:
            scale = np.diag(np.logaddexp(0, by_name["rho"]))
        else:
            tril = next(v for k, v in by_name.items() if k != "mu")
            scale = np.zeros((3, 3))
            scale[np.tril_indices(3)] = tril
            scale[np.diag_indices(3)] = np.logaddexp(0, np.diag(scale))
        z = mu + scale @ epsilon[0]
        point = {
            v.name: z[s].reshape(shape)
            for v, s, shape in zip(latents.value_vars, latents.slices, latents.shapes, strict=True)
        }
        return float(logp(point)) + float(np.sum(np.log(np.diag(scale))))

    got = harness(list(range(12)), epsilon=epsilon)
    expected = []
    for p in params:
        value = p.get_value()
        for j in range(value.size):
            h = np.zeros_like(value)
            h[j] = 1e-6
            p.set_value(value + h)
            up = elbo()
            p.set_value(value - h)
            expected.append((up - elbo()) / 2e-6)
        p.set_value(value)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_prior_outside_its_range_is_no_error():
    """A draw of z may leave it: the log-density is then minus infinity, as PyMC compiles it."""
    with pm.Model() as model:
        scale = pm.Flat("scale")  # Harness starts it at -0.5
        beta = pm.Normal("beta", 0.0, scale, shape=2)
        pm.Normal("y", np.ones((6, 2)) @ beta, 1.0, observed=np.zeros(6))
    harness = Harness(model)
    harness([0, 3])
    assert harness.step.calls == 1


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_for_the_end_of_the_call():
    """The state and the count of steps belong together, and the interrupt is not lost."""
    harness = Harness(silent())
    ended = []

    def function(*args: Any) -> np.ndarray:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass  # the interpreter looks for signals here
        ended.append(True)
        return np.zeros((1, harness.step.trace.width))

    harness([0])  # the first call compiles, for seconds, and may be interrupted
    harness.step.chunk = function
    with pytest.raises(KeyboardInterrupt):
        harness([0])
    assert ended == [True] and harness.step.calls == 2
    assert sum(b.n for b in harness.step.trace.blocks) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_blas_has_one_thread_while_a_step_runs():
    """Else a matrix product is shared out by rows, and two threads add up differently."""
    harness = Harness(silent())
    function, seen = harness.step.chunk, []

    def watched(*args: Any) -> Any:
        seen.append(blas_threads())
        rows = function(*args)
        seen.append(blas_threads())  # with what the call has loaded
        return rows

    harness.step.chunk = watched
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        harness([0])
        assert blas_threads() == before != []
    assert len(seen) == 2 and set(seen[0]) == set(seen[1]) == {1}


def test_blas_has_one_thread_until_the_last_of_several_fits_has_ended():
    """The number of threads is the process's: two fits in two threads must not undo each other's."""
    hold = OneThread()
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        hold.__enter__()
        hold.__enter__()
        hold.__exit__()
        assert set(blas_threads()) == {1}
        hold.__exit__()
        assert blas_threads() == before


def test_an_index_out_of_range_tells_nothing():
    with pm.Model() as model:
        group = pm.Data("group", np.array([0, 1, 2, 31415, 1, 0]))
        effect = pm.Normal("effect", 0, 1, shape=3)
        pm.Normal("y", effect[group], 1.0, observed=np.zeros(6))
    harness = Harness(model)
    np.testing.assert_array_equal(harness([0, 3]), harness([0]))
    assert np.isfinite(harness([0, 1])).all()


@pytest.fixture
def strict_numpy() -> Any:
    with np.errstate(all="raise"):
        yield


def test_numpy_set_to_raise_does_not_turn_a_record_into_an_exception(
    aligned: Harness, strict_numpy: Callable
):
    # Whether a step raises must not depend on a record's values.
    for i in range(26):
        aligned([0, i])


# ------------------------------------------------------------------------------------------------
# What is kept of the gradients
# ------------------------------------------------------------------------------------------------


class Kept:
    """Stands for the trace, and keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []

    def take(self, rows: np.ndarray) -> None:
        self.rows.extend(rows)


@pytest.mark.turns
@pytest.mark.parametrize(
    ("family", "gradient", "n_mc"),
    [(DPMeanField, "aligned", 1), (DPFullRank, "aligned", 3), (DPMeanField, "vanilla", 2)],
)
def test_a_row_of_the_trace(family: type[DPApproximation], gradient: str, n_mc: int) -> None:
    harness = Harness(regression(prior=0.5), family=family, gradient=gradient, n_mc=n_mc)
    harness.step.trace = kept = Kept()
    rng = np.random.default_rng(1)
    epsilon = rng.normal(size=(n_mc, D))
    noise = rng.normal(size=harness.step.num_noise)
    gradient_of_mean = harness([1, 4, 6], noise, epsilon)[harness.mu]
    (row,) = kept.rows
    full = isinstance(harness.approx, DPFullRank)
    spread = harness.approx.groups[0].cholesky() if full else np.logaddexp(0, 0) * np.eye(D)
    z = harness.approx.start + spread @ epsilon.mean(axis=0)
    prior = -(z - 2.0) / 0.5**2
    np.testing.assert_allclose(row[:D], z, rtol=1e-12)
    np.testing.assert_allclose(row[2 * D : 3 * D], prior, rtol=1e-12)
    # Together they are the gradient of the bound by the mean, which is all that the optimiser gets of them.
    np.testing.assert_allclose(row[D : 2 * D] + row[2 * D : 3 * D], gradient_of_mean, rtol=1e-9, atol=1e-9)
    assert row[-1] == pytest.approx(CLIP * MULTIPLIER / PROB, rel=1e-12)


def test_a_row_that_knows_the_records_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's graph holds the records' own shared variables, not those of the model."""
    real = StepGraph._row

    def planted(self: StepGraph) -> Any:
        held = [v for v in graph_inputs([self.noisy]) if isinstance(v, SharedVariable) and v.type.ndim == 2]
        return real(self) + held[0].sum()

    monkeypatch.setattr(StepGraph, "_row", planted)
    with pytest.raises(PrivacyError, match="more of the records"):
        Harness(regression(prior=0.5))


def test_a_prior_may_turn_on_the_number_of_columns() -> None:
    """Known: the row of the trace was taken to hold more of the records than the release."""
    x = np.random.default_rng(3).normal(size=(40, 3))

    def fitted(prior: Callable[[Any], Any]) -> None:
        with pm.Model():
            data = pm.Data("x", x)
            beta = pm.Normal("beta", 0.0, prior(data), shape=3)
            pm.Normal("y", data @ beta, 1.0, observed=x[:, 0])
            DPADVI(noise_multiplier=1.0, delta=1e-6, sampling_prob=0.5).fit(
                2, progressbar=False, backend="python"
            )

    fitted(lambda data: 1.0 / pt.sqrt(data.shape[1].astype("float64")))
    with pytest.raises(UnsupportedModelError):
        fitted(lambda data: 1.0 / pt.sqrt(data.shape[0].astype("float64")))


def test_the_trace_sees_the_records_only_through_the_release() -> None:
    """Other records and other noise with the same sum: not a bit of the row may differ."""
    harness = Harness(regression(prior=0.5))
    harness.step.trace = kept = Kept()
    unit = harness.mechanism.noise.spacing
    sums = []
    for batch in ([1], [2, 5]):
        sums.append(np.rint(sum(clipped(row_gradient(harness, i)) for i in batch) / unit))
    base = np.random.default_rng(2).integers(-(2**40), 2**40, size=D)
    for batch, total in zip(([1], [2, 5]), sums, strict=True):
        lattice = base + (sums[0] - total).astype("int64")
        one_step(harness.step, np.array(batch), lattice, np.zeros(harness.step.draw_shape), 0.0)
    difference = np.abs(kept.rows[0] - kept.rows[1])
    # The sums by hand are rounded elsewhere than those of the kernel: by a few of the lattice's units.
    assert difference[D : 2 * D].max() < 1e5 * unit / PROB
    assert np.delete(difference, np.arange(D, 2 * D)).max() == 0.0


def test_a_trace_with_more_than_the_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = step_graph.prior_gradients

    def planted(record: Any, latents: Any, z: Any, n_mc: int) -> Any:
        return real(record, latents, z, n_mc) + record.arrays[0].sum()

    monkeypatch.setattr(step_graph, "prior_gradients", planted)
    with pytest.raises(PrivacyError, match="trace of gradients"):
        Harness(regression(prior=0.5))
