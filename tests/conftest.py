"""What every test file shares: PyTensor's warning about BLAS, two tiny models, and parts of the long tests.

A whole fit compiles for ten seconds and more, so `tox run -e py` fits a ninetieth of the zoo, and does a
twelfth of the tests marked ``turns``. `.ci/run` does another part with PyMC 6. The commit decides which.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytest
import python_mode  # noqa: F401
from hypothesis import settings

from pymc_dpvi import inference
from pymc_dpvi.compat import compile_mode
from pymc_dpvi.engine import backends as backends_module
from pymc_dpvi.engine.backends import Backend, backends

with warnings.catch_warnings():
    # PyTensor installed from PyPI links no BLAS and says so once, when the C backend first asks. Asking here
    # keeps the warning out of the tests, where it would be an error.
    warnings.simplefilter("ignore", UserWarning)
    _ = pytensor.config.blas__ldflags

# How long an example takes says how busy the machine is.
settings.register_profile("pymc_dpvi", deadline=None)
settings.load_profile("pymc_dpvi")

NUM_RECORDS = 61
_TURNS = 12


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part-of-zoo",
        metavar="K/M",
        help="of the tests marked zoo, every M-th from the K-th on; K may be 'turn', which the commit's "
        "number and PyMC's version decide, also of the tests marked turns",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--part-of-zoo")
    if part is None:
        return
    first, every = part.split("/")
    shared = {int(every): [item for item in items if item.get_closest_marker("zoo")]}
    if first == "turn":
        counting = ["git", "rev-list", "--count", "HEAD"]
        counted = subprocess.run(counting, cwd=config.rootpath, capture_output=True, text=True, check=False)
        first = str(int(counted.stdout or 0) + int(pm.__version__.split(".")[0]))
        marks = {item: {mark.name for mark in item.iter_markers()} for item in items}
        shared[_TURNS] = [i for i in items if "turns" in marks[i] and marks[i].isdisjoint({"slow", "zoo"})]
    # In an order that has nothing to do with theirs: a part is not all of one value of a parameter.
    mixed = {n: sorted(some, key=_shuffled) for n, some in shared.items()}
    left_out = {i for n, some in mixed.items() for k, i in enumerate(some) if (k - int(first)) % n}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _shuffled(item: pytest.Item) -> bytes:
    return hashlib.sha256(item.nodeid.encode()).digest()


@pytest.fixture(scope="session")
def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X of shape (61, 2), a binary label and a real outcome."""
    rng = np.random.default_rng(2017)
    x = rng.normal(size=(NUM_RECORDS, 2))
    label = (x @ [1.0, -0.5] + rng.logistic(size=NUM_RECORDS) > 0).astype("int64")
    outcome = x @ [1.0, -0.5] + rng.normal(size=NUM_RECORDS)
    return x, label, outcome


@pytest.fixture(scope="session")
def logistic(table: tuple[np.ndarray, ...]) -> Callable[[], pm.Model]:
    """Return a function that builds a logistic regression with two coefficients."""
    x, label, _ = table

    def build() -> pm.Model:
        with pm.Model(coords={"feature": ["age", "weight"]}) as model:
            beta = pm.Normal("beta", 0, 1, dims="feature")
            pm.Bernoulli("income", logit_p=x @ beta, observed=label)
        return model

    return build


@pytest.fixture(scope="session")
def linear(table: tuple[np.ndarray, ...]) -> Callable[[], pm.Model]:
    """Return a function that builds a linear regression on pm.Data, with record dims and Deterministics."""
    x, _, outcome = table

    def build() -> pm.Model:
        coords = {"person": [f"p{i}" for i in range(NUM_RECORDS)], "feature": ["age", "weight"]}
        with pm.Model(coords=coords) as model:
            data = pm.Data("x", x, dims=("person", "feature"))
            beta = pm.Normal("beta", 0, 1, dims="feature")
            sigma = pm.HalfNormal("sigma", 1)
            mean = pm.Deterministic("mean", data @ beta, dims="person")
            pm.Deterministic("twice", 2 * beta, dims="feature")
            pm.Normal("outcome", mean, sigma, observed=outcome, dims="person")
        return model

    return build


@pytest.fixture(autouse=True)
def steps_are_many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the few steps of a test run where those of an analysis do: numba, if no backend is named."""
    if not request.node.get_closest_marker("few_steps"):
        monkeypatch.setattr(backends_module, "FEW_STEPS", 0)


@pytest.fixture
def without_compiling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fit that names no backend run in Python, whose steps are slow and whose start is quick.

    A test marked ``compiled`` keeps the user's default, numba.
    """
    if request.node.get_closest_marker("compiled"):
        return

    def in_python(backend: str | None, compile_kwargs: Mapping[str, Any] | None) -> list[Backend]:
        if backend is None and (
            compile_kwargs is None or (isinstance(compile_kwargs, dict) and "mode" not in compile_kwargs)
        ):
            return [Backend("python", compile_mode(None, {**(compile_kwargs or {}), "mode": "PYTHON"}))]
        return backends(backend, compile_kwargs)

    monkeypatch.setattr(inference, "backends", in_python)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let a keyboard interrupt raise, whatever the parent made of it.

    A shell starts its background jobs with the signal ignored, and Python leaves it so.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def python_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python mode compute models too in which a hostile record could hold it up."""
    monkeypatch.setattr(inference, "bounded", lambda candidates, graphs: list(candidates))
