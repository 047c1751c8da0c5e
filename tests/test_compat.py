"""The two generations of PyMC and ArviZ."""

from __future__ import annotations

import logging
import platform
import re
import threading
import traceback
import warnings
from importlib import metadata, util
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytest
from pytensor.compile.mode import Mode
from pytensor.link.c.op import COp

from pymc_dpvi import DPADVI, compat
from pymc_dpvi.compat import compile_mode, posterior_data, quiet_pytensor, rows_mode, versions
from pymc_dpvi.errors import ArgumentError

DATA_TREE = int(az.__version__.split(".")[0]) >= 1


def example(**kwargs: Any) -> Any:
    rng = np.random.default_rng(0)
    return posterior_data(
        {"a": rng.normal(size=(1, 5)), "b": rng.normal(size=(1, 5, 2))},
        coords={"feature": ["x", "y"]},
        dims={"b": ["feature"]},
        attrs={"privacy_epsilon": 0.5, "privacy_report": '{"epsilon": 0.5}'},
        **kwargs,
    )


def groups(data: Any) -> list[str]:
    return list(data.children) if DATA_TREE else list(data.groups())


def test_posterior_data() -> None:
    data = example()
    assert type(data).__name__ == ("DataTree" if DATA_TREE else "InferenceData")
    assert groups(data) == ["posterior"]
    posterior = data["posterior"]
    assert posterior["a"].dims == ("chain", "draw")
    assert posterior["b"].dims == ("chain", "draw", "feature")
    assert list(posterior["feature"].values) == ["x", "y"]
    assert set(posterior.coords) == {"chain", "draw", "feature"}
    for attrs in (data.attrs, posterior.attrs):
        assert attrs["privacy_epsilon"] == 0.5


def test_transformed_values_have_a_group() -> None:
    data = example(transformed={"a_log__": np.zeros((1, 5))})
    assert groups(data) == ["posterior", "unconstrained_posterior"]
    assert set(data["unconstrained_posterior"].data_vars) == {"a_log__"}
    assert groups(example(transformed={})) == ["posterior"]


def test_netcdf_round_trip(tmp_path: Any) -> None:
    data = example()
    path = str(tmp_path / "a.nc")
    data.to_netcdf(path)
    back = az.from_netcdf(path)
    assert groups(back) == ["posterior"]
    for name in ("a", "b"):
        np.testing.assert_array_equal(back["posterior"][name].values, data["posterior"][name].values)
    assert back["posterior"].attrs["privacy_report"] == back.attrs["privacy_report"] == '{"epsilon": 0.5}'


@pytest.mark.parametrize(
    ("backend", "kwargs", "linker"),
    [
        (None, None, "Numba"),
        ("numba", {}, "Numba"),
        ("c", {"name": "step"}, "VM"),
        ("cvm", None, "VM"),
        ("jax", None, "VM"),
        (None, {"mode": "NUMBA"}, "Numba"),
        (None, {"mode": "CVM"}, "VM"),
    ],
)
def test_compile_mode(backend: str | None, kwargs: dict[str, Any] | None, linker: str) -> None:
    before = None if kwargs is None else dict(kwargs)
    found = compile_mode(backend, kwargs)
    assert isinstance(found["mode"], Mode)
    assert type(found["mode"].linker).__name__.startswith(linker)
    assert kwargs == before  # the caller's dict is left alone
    profiled = {"profile"} if linker == "VM" else set()  # numba has no profile of shapes
    assert set(found) == {"mode", *(kwargs or {}), *profiled}
    assert not found.get("profile")


def test_rows_have_a_mode_of_their_own_with_jax() -> None:
    assert rows_mode(None) == rows_mode("numba") == rows_mode("c") == {}
    assert type(rows_mode("jax")["mode"].linker).__name__ == "JAXLinker"


@pytest.mark.parametrize("backend", ["JAX", "pytorch", "mlx", "fortran", "", 3, ["c"]])
def test_backend_that_is_not_there(backend: Any) -> None:
    with pytest.raises(ArgumentError, match="is not available: choose backend='numba'"):
        compile_mode(backend, None)


def test_backend_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == "jax" else find(name, *rest))
    with pytest.raises(ArgumentError, match=r"backend='jax' needs JAX.*pip install 'jax>=0.6'"):
        compile_mode("jax", None)


@pytest.mark.parametrize("mode", ["JAX", "PYTORCH", "MLX", "NanGuardMode", "DebugMode", "nonsense", 3])
def test_mode_that_is_not_there(mode: Any) -> None:
    """NanGuardMode and DebugMode stop on data values, or write them out."""
    with pytest.raises(ArgumentError, match="mode"):
        compile_mode(None, {"mode": mode})


def test_backend_and_mode() -> None:
    with pytest.raises(ArgumentError, match="not both"):
        compile_mode("c", {"mode": "CVM"})


def test_versions() -> None:
    """Of all that the package needs but for files, the bar and the number of threads."""
    needed = {r.split(";")[0] for r in metadata.requires("pymc-dpvi") or () if "extra ==" not in r}
    for_files = {"h5netcdf", "h5py", "xarray"}
    names = {re.match(r"[\w-]+", r)[0] for r in needed} - for_files - {"rich", "threadpoolctl"}  # type: ignore[index]
    expected = {name: metadata.version(name) for name in {*names, "pymc-dpvi"}}
    assert versions() == {**expected, "python": platform.python_version()}


def test_version_of_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(compat.metadata, "version", missing)
    assert set(versions().values()) == {"unknown", platform.python_version()}


def test_quiet_in_two_threads_ends_with_the_last(recwarn: pytest.WarningsRecorder) -> None:
    """Known: the first to leave switched PyTensor's loggers on again in the other's quiet block."""
    logger = logging.getLogger("pytensor.graph.rewriting.basic")
    before, filters = logger.disabled, list(warnings.filters)
    within, leave = threading.Event(), threading.Event()

    def other() -> None:
        with quiet_pytensor():
            within.set()
            assert leave.wait(60)

    thread = threading.Thread(target=other)
    with quiet_pytensor():
        thread.start()
        assert within.wait(60)
    assert logger.disabled
    warnings.warn("of nobody", UserWarning, stacklevel=1)
    leave.set()
    thread.join(60)
    assert logger.disabled is before and list(warnings.filters) == filters
    assert not recwarn.list
    warnings.warn("of somebody", UserWarning, stacklevel=1)
    assert [str(w.message) for w in recwarn.list] == ["of somebody"]


@pytest.mark.skipif(pytensor.__version__ < "3", reason="PyTensor 2 calls C for fewer functions")
def test_nothing_is_compiled_in_c_before_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known: a correlation matrix and a mixture took sixty calls of the compiler, half a minute."""
    monkeypatch.setattr(pytensor.config, "cxx", pytensor.config.cxx or "g++")
    compiled: list[Any] = []

    def make_c_thunk(op: Any, node: Any, *args: Any) -> Any:
        # PyMC compiles what it starts from by itself.
        if not any(frame.name == "make_initial_point_fn" for frame in traceback.extract_stack()):
            compiled.append(node)
        raise NotImplementedError

    monkeypatch.setattr(COp, "make_c_thunk", make_c_thunk)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
        mean = pm.MvNormal("mean", np.zeros(2), chol=chol)
        rate = pm.math.exp(mean[0] + mean[1] * pm.Data("x", np.linspace(-1.0, 1.0, 30)))
        pm.ZeroInflatedNegativeBinomial("y", psi=0.5, mu=rate, alpha=1.0, observed=np.arange(30) % 4)
    made = DPADVI(epsilon=1.0, delta=1e-5, model=model)
    assert np.isfinite(made.approx._widths).all()
    assert not compiled
