"""What one process compiled, the next one finds: the first fit of a session is quick, on the same backend."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.caching import FunctionCache

import pymc_dpvi
from pymc_dpvi.numba_cache import source_hash

SESSION = """
import warnings
import numpy as np
import pymc as pm
from pymc_dpvi import DPADVI
warnings.simplefilter("ignore")
rng = np.random.default_rng(1)
with pm.Model():
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Normal("y", rng.normal(size=(9, 2)) @ b, 1.0, observed=rng.normal(size=9))
    method = DPADVI(noise_multiplier=2.0, delta=1e-5, sampling_prob=0.5, insecure_noise_seed=1, random_seed=2)
    approx = method.fit(3, backend="numba", progressbar=False)
print(approx.privacy.runs[-1].backend, approx.mean.eval().tolist())
"""


def session(compiledir: Path) -> str:
    flags = f"base_compiledir={compiledir}"
    environment = {**os.environ, "PYTENSOR_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, "-c", SESSION], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def kept(compiledir: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_mtime_ns) for path in compiledir.rglob("*.nbc")}


@pytest.mark.turns
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    first = session(tmp_path)
    assert first.startswith("numba ")
    before = kept(tmp_path)
    assert any("chunk" in name for name, _ in before)
    assert session(tmp_path) == first
    assert kept(tmp_path) == before


def kept_kernels() -> dict[str, FunctionCache]:
    found = {}
    for info in pkgutil.walk_packages(pymc_dpvi.__path__, "pymc_dpvi."):
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(getattr(value, "_cache", None), FunctionCache):
                found[f"{value.py_func.__module__}.{name}"] = value._cache
    return found


def test_a_kernel_is_found_again_only_with_the_same_sources() -> None:
    """Known: after a `git pull`, kernels went on with older ones that they call, and clipped by these."""
    found = kept_kernels()
    assert len(found) > 30
    for name, cache in found.items():
        assert cache._cache_file._source_stamp[1] == source_hash(), name
