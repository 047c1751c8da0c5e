"""Records on a Dask cluster: the same posterior for any number of workers, and what happens when one fails.

Most tests run on workers that are threads of this process. Those that kill something have processes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import graph_inputs

from pymc_dpvi import DPADVI, Amortized, ArgumentError, PrivacyReport, WorkersError
from pymc_dpvi.engine import cluster, shards
from pymc_dpvi.engine.cluster import _even

dask_array = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*insecure_noise_seed.*"),
    # Of distributed, at the end of a cluster.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

N = 5000
rng = np.random.default_rng(7)
X = rng.normal(size=(N, 3))
Y = rng.binomial(1, 0.4, size=N)
X[7] = np.nan  # counts as zero
MARK = 271828.1828  # an entry that must not be seen anywhere
X[N - 1, 0] = MARK


@contextlib.contextmanager
def workers(number: int, *, processes: bool = False, security: bool = False) -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=number,
            threads_per_worker=1,
            processes=processes,
            security=security or None,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as local,
        distributed.Client(local) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with workers(2) as client:
        yield client


def sources(rows: int = 1300, x: np.ndarray = X, y: np.ndarray = Y) -> dict[str, Any]:
    return {
        "x": dask_array.from_array(x, chunks=(rows, *x.shape[1:])),
        "y": dask_array.from_array(y, chunks=rows),
    }


def method(client: Any, records: dict[str, Any] | None = None, **kwargs: Any) -> DPADVI:
    made_up = np.random.default_rng(1)
    kwargs = {"sampling_prob": 0.2, **kwargs}
    with pm.Model():
        x = pm.Data("x", made_up.normal(size=(12, 3)))
        level = pm.Normal("level", 0, 1)
        pm.Bernoulli(
            "y",
            logit_p=level + x @ pm.Normal("beta", 0, 1, shape=3),
            observed=made_up.binomial(1, 0.5, size=12),
        )
        return DPADVI(
            noise_multiplier=0.8,
            delta=1e-6,
            insecure_noise_seed=5,
            random_seed=6,
            records=sources() if records is None else records,
            client=client,
            **kwargs,
        )


def params(approx: Any) -> list[np.ndarray]:
    return [p.get_value() for p in approx.params]


def same(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.turns
def test_any_number_of_workers_gives_the_same(client: Any) -> None:
    two = params(method(client).fit(10, progressbar=False))
    with workers(1) as one, workers(3) as three:
        assert same(params(method(one).fit(10, progressbar=False)), two)
        assert same(params(method(three).fit(10, progressbar=False)), two)


@pytest.mark.slow
def test_over_an_encrypted_wire_it_is_the_same(client: Any) -> None:
    """With certificates that Dask makes for this one cluster."""
    with workers(2, processes=True, security=True) as encrypted:
        assert encrypted.scheduler.address.startswith("tls://")
        assert all(address.startswith("tls://") for address in encrypted.scheduler_info()["workers"])
        over_tls = params(method(encrypted).fit(5, progressbar=False))
    assert same(over_tls, params(method(client).fit(5, progressbar=False)))


@pytest.mark.turns
def test_a_fit_on_workers_is_that_of_the_records_in_memory(client: Any) -> None:
    on_workers = params(method(client).fit(10, progressbar=False))
    with pm.Model():
        level = pm.Normal("level", 0, 1)
        # pm.Data takes no NaN.
        pm.Bernoulli("y", logit_p=level + pt.as_tensor(X) @ pm.Normal("beta", 0, 1, shape=3), observed=Y)
        in_memory = DPADVI(
            noise_multiplier=0.8, delta=1e-6, sampling_prob=0.2, insecure_noise_seed=5, random_seed=6
        ).fit(10, progressbar=False, backend="numba")
    for a, b in zip(on_workers, params(in_memory), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.turns
def test_the_report_says_who_is_trusted(client: Any) -> None:
    report = method(client).fit(2, progressbar=False).privacy
    assert report.on_workers and "Workers of a cluster held the records" in str(report)
    assert PrivacyReport.from_json(report.to_json()) == report
    with pm.Model():
        pm.Normal("y", pm.Normal("mean", 0, 1), 1, observed=Y)
        here = DPADVI(epsilon=1.0, delta=1e-6).fit(2, progressbar=False, backend="python").privacy
    assert not here.on_workers and "cluster" not in str(here)


@pytest.mark.turns
def test_refine_goes_on_where_a_fit_ended(client: Any) -> None:
    one, other = method(client), method(client)
    one.fit(6, progressbar=False, obj_optimizer=pm.sgd(learning_rate=1e-4))
    other.fit(6, progressbar=False, obj_optimizer=pm.sgd(learning_rate=1e-4))
    one.refine(6, progressbar=False)
    other.refine(6, progressbar=False)
    assert same(params(one.approx), params(other.approx))
    assert len(one.approx.privacy.runs) == 2


@pytest.mark.turns
def test_a_worker_that_is_killed_changes_nothing() -> None:
    with workers(2, processes=True) as client:
        whole = params(method(client).fit(12, progressbar=False))
        victim = next(iter(client.run(os.getpid).values()))

        def kill(approx: Any, _: Any, i: int) -> None:
            if i == 5:
                os.kill(victim, signal.SIGKILL)

        fitted = method(client)
        again = params(fitted.fit(12, progressbar=False, callbacks=[kill]))
        assert same(again, whole)
        assert fitted.approx.privacy.runs[0].steps_run == 12


@pytest.mark.turns
def test_a_scheduler_that_dies_ends_the_fit_at_the_planned_cost() -> None:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(workers(1))
        fitted = method(client)

        def end(approx: Any, _: Any, i: int) -> None:
            if i == 2:
                stack.close()

        with pytest.raises(WorkersError, match="What was planned has been charged"):
            fitted.fit(9, progressbar=False, callbacks=[end])
    (run,) = fitted.approx.privacy.runs
    assert run.n_steps == 9


@pytest.mark.turns
def test_no_worker_is_left(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_LOOK", 0.2)
    monkeypatch.setattr(cluster, "_LOOKS", 2)
    with workers(1) as lonely:
        fitted = method(lonely)
        fitted.fit(3, progressbar=False)
        lonely.cluster.scale(0)
        deadline = time.monotonic() + 20
        while lonely.nthreads() and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(WorkersError, match="no workers"):
            fitted.refine(3, progressbar=False)


@pytest.mark.turns
@pytest.mark.parametrize(
    "answer",
    [
        lambda call, size: None,
        lambda call, size: (call - 1, np.zeros((2, size), dtype=np.int64), ""),
        lambda call, size: (call, np.zeros((2, size)), ""),
        lambda call, size: (call, np.zeros((2, size + 1), dtype=np.int64), ""),
        lambda call, size: (call, np.full((2, size), 2**62), ""),
        lambda call, size: (call, np.full((2, size), -(2**63)), ""),
        lambda call, size: (call, [[0] * size] * 2, ""),
    ],
)
def test_an_answer_that_is_no_sum_of_this_step_ends_the_fit(
    client: Any, monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Any]
) -> None:
    fitted = method(client)
    fitted.fit(2, progressbar=False)
    before = params(fitted.approx)

    def lying(recipe: Any, group: Any, batches: Any, shared: bytes, spacing: Any, call: int) -> Any:
        return answer(call, pickle.loads(shared)[1])

    monkeypatch.setattr(cluster, "sum_of_group", lying)
    with pytest.raises(WorkersError, match="not the sum that it was asked for"):
        fitted.refine(4, progressbar=False)
    assert same(params(fitted.approx), before)
    assert fitted.approx.privacy.runs[-1].n_steps == 4


def test_what_a_worker_raises_is_a_name(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(block: np.ndarray) -> np.ndarray:
        raise KeyError(MARK)

    records = sources()
    records["x"] = records["x"].map_blocks(broken, dtype=float, meta=np.empty((0, 3)))
    with pytest.raises(WorkersError, match=r"KeyError.*Nothing is spent") as caught:
        method(client, records).fit(3, progressbar=False)
    assert "271828" not in str(caught.value) and caught.value.__context__ is None


def test_errors_inside_of_a_sum_are_names() -> None:
    made_up = np.zeros((4, 3))
    assert shards.hold([[made_up, np.zeros(3)]], ["<f8", "<f8"], [(3,), ()], [4]) == "ValueError"
    assert shards.hold([[made_up.astype(complex)]], ["<f8"], [(3,)], [4]) == "TypeError"
    assert shards.sum_of_group(b"no recipe", [], [], b"nothing", 1.0, 3) == (3, "UnpicklingError", "")
    assert shards.sum_of_group(b"", "KeyError", [], b"", 1.0, 4) == (4, "KeyError", "")


@pytest.mark.turns
@pytest.mark.parametrize("copied", [True, False])
def test_a_block_with_fewer_rows_than_its_array_says(client: Any, copied: bool) -> None:
    records = sources()
    for name in records:  # a filter of rows that Dask is not told of
        records[name] = records[name].map_blocks(
            lambda block: block[::2].copy() if copied else block[: len(block) // 2],
            dtype=records[name].dtype,
            chunks=records[name].chunks,
            meta=np.empty((0,) * records[name].ndim, dtype=records[name].dtype),
        )
    with pytest.raises(WorkersError, match=r"ValueError.*Nothing is spent"):
        method(client, records).fit(3, progressbar=False)


def test_a_shard_keeps_nothing_of_what_it_was_a_part_of() -> None:
    ((held,),) = shards.hold([[X[:100]]], ["<f8"], [(3,)], [100])
    assert held.base is None


@pytest.mark.turns
def test_workers_with_other_processors_are_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = iter(["one", "one", "one", "other", *["one"] * 50])
    monkeypatch.setattr(shards, "_processor", kinds.__next__)
    with pytest.raises(WorkersError, match="processors of different kinds"):
        method(client).fit(3, progressbar=False)


@pytest.mark.turns
def test_warnings_of_dask_say_nothing(client: Any, recwarn: pytest.WarningsRecorder) -> None:
    fitted = method(client)
    submit = client.submit

    def loud(*args: Any, **kwargs: Any) -> Any:
        warnings.warn("Sending large graph of size 11.44 MiB", UserWarning, stacklevel=1)
        return submit(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "submit", loud)
        fitted.fit(3, progressbar=False)
    assert not [w for w in recwarn if "Sending" in str(w.message)]


@pytest.mark.turns
def test_a_recipe_holds_no_record(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = []
    of = shards.Recipe.of

    def watched(node: Any) -> shards.Recipe:
        recipes.append(of(node))
        return recipes[-1]

    monkeypatch.setattr(cluster.Recipe, "of", staticmethod(watched))
    fitted = method(client)
    fitted.fit(2, progressbar=False)
    (recipe,) = recipes
    assert np.float64(MARK).tobytes() not in recipe.pickled()
    leaves = list(graph_inputs(recipe.outputs))
    constants = [v for v in leaves if isinstance(v, Constant)]
    assert {*leaves} <= {*recipe.inputs, *constants}
    assert not [v for v in constants if np.size(v.data) > 3]  # shapes have two or three


@pytest.mark.turns
def test_another_version_is_refused_by_the_worker(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_versions", iter([("one",), *[("other",)] * 50]).__next__)
    monkeypatch.setattr(shards, "_sums", {})
    with pytest.raises(WorkersError, match=r"RuntimeError.*Nothing is spent"):
        method(client).fit(2, progressbar=False)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 1.0])
def test_places_are_packed_and_unpacked(share: float) -> None:
    rng = np.random.default_rng(3)
    for rows in (1, 7, 8, 1001):
        places = np.flatnonzero(rng.random(rows) < share)
        sent = shards.packed(places, rows)
        assert np.array_equal(shards.unpacked(sent), places)
        assert sent.nbytes <= min(4 * places.size + 8, rows / 8 + 1) or not places.size


def test_shards_are_shared_out_evenly() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        lengths = [int(n) for n in rng.integers(1, 1000, size=rng.integers(1, 30))]
        parts = int(rng.integers(1, 10))
        cuts = _even(lengths, parts)
        assert cuts[0] == 0 and cuts[-1] == len(lengths) and (np.diff(cuts) > 0).all()
        assert len(cuts) - 1 <= parts
        most = max(sum(lengths[a:b]) for a, b in itertools.pairwise(cuts))
        assert most <= sum(lengths) / parts + max(lengths)


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (lambda: {**sources(), "y": sources(1000)["y"]}, "cut into blocks of different lengths"),
        (lambda: {**sources(), "x": dask_array.from_array(X, chunks=(1300, 2))}, "another axis"),
        (lambda: {**sources(), "y": Y}, "client= wants dask arrays"),
        (lambda: {**sources(), "x": sources()["x"][sources()["y"] > 0]}, "unknown length: call"),
        (lambda: {**sources(), "x": sources()["x"][:, :2]}, "rows of shape"),
        (lambda: {"x": sources()["x"]}, "records lacks 'y'"),
        (lambda: {**sources(), "y": sources()["y"].astype(float)}, "do not all fit"),
    ],
)
def test_arrays_that_do_not_fit(client: Any, records: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        method(client, records())


@pytest.mark.turns
def test_arguments(client: Any) -> None:
    with pytest.raises(ArgumentError, match=r"client must be a distributed\.Client"):
        method("tcp://127.0.0.1:8786")
    with pm.Model():
        pm.Normal("y", pm.Normal("mean", 0, 1), 1, observed=Y)
        with pytest.raises(ArgumentError, match="give records="):
            DPADVI(epsilon=1.0, delta=1e-6, client=client)
    with pytest.raises(ArgumentError, match="client= and unit= do not go together"):
        method(client, unit="person")
    with pytest.raises(ArgumentError, match="client= does not go with Amortized"):
        method(client, guide={"z": Amortized(pt.zeros((9, 1)), pt.ones((9, 1)))})
    with pytest.raises(ArgumentError, match="cores="):
        method(client).fit(3, cores=2)
    with pytest.raises(ArgumentError, match="client= needs backend"):
        method(client).fit(3, backend="python")
