"""Whole fits in forked processes, threads and workers: nobody draws the noise that another one drew.

What the streams themselves do is in `test_keystream`; here a whole method goes through each, since two
fits with the same noise differ by their unnoised sums.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import python_mode  # noqa: F401  # the scripts below have no conftest

from pymc_dpvi import DPADVI
from pymc_dpvi.mechanism.limits import TALLY_COLUMNS
from pymc_dpvi.mechanism.mechanism import Mechanism

# What a step of `make` draws: a number for each of two weights, and for the counts of the clip norm.
COLUMNS = 2 + TALLY_COLUMNS
MODE: dict[str, Any] = {"progressbar": False, "compile_kwargs": {"mode": "PYTHON"}}


def make() -> DPADVI:
    x = np.random.default_rng(0).normal(size=(61, 2))
    with pm.Model() as model:
        pm.Normal("y", x @ pm.Normal("beta", shape=2), 1.0, observed=x[:, 0])
    return DPADVI(
        model=model, noise_multiplier=2.0, delta=1e-5, sampling_prob=0.5, accountant="rdp", random_seed=1
    )


FORK = """
import os, pickle, sys
sys.path.insert(0, {tests!r})
from test_processes import COLUMNS, MODE, make
from pymc_dpvi import PrivacyError
from pymc_dpvi.mechanism.mechanism import Mechanism

drawn = []
draw = Mechanism.draw
def keep(*args, **kwargs):
    found = draw(*args, **kwargs)
    drawn.append((found.noise.ravel().tolist(), found.indices.tolist()))
    return found
Mechanism.draw = keep
# PRELUDE

def in_child(action):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            action()
            said = drawn
        except BaseException as error:
            said = type(error).__name__
        os.write(write, pickle.dumps(said))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pickle.loads(pipe.read())
    os.waitpid(pid, 0)
    return said

method = make()
fresh = [in_child(lambda: make().fit(4, **MODE)) for _ in range(2)]
# A method is its process's own: what a child spends would be in no report of its parent's.
refused = [in_child(lambda: method.fit(4, **MODE))]
method.fit(4, **MODE)
begun = len(drawn)
refused.append(in_child(lambda: method.refine(4, progressbar=False)))
assert refused == ["PrivacyError"] * 2, refused
method.refine(4, progressbar=False)
runs = [*fresh, drawn[:begun], drawn[begun:]]
noise = [n for run in runs for numbers, _ in run for n in numbers]
assert len(noise) == 4 * 4 * COLUMNS, len(noise)
assert len(set(noise)) == len(noise), "two fits drew the same noise"
batches = [str([indices for _, indices in run]) for run in runs]
assert len(set(batches)) == len(batches), "two fits drew the same batches"

# A fit that is forked in the middle goes on in the parent alone.
for at in (2, 4):  # also after the last step, when threads may look whether all is finite
    told = []
    def fork(approx, losses, i):
        if i == at:
            pid = os.fork()
            told.append(pid)
    try:
        make().fit(4, callbacks=[fork], **MODE)
        print("went on", flush=True)
    except PrivacyError as error:
        assert told == [0]
        print("stopped:", error, flush=True)
        os._exit(0)
    os.waitpid(told[0], 0)
print("passed")
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    # In a process of its own: forking one that has threads (BLAS has) warns since Python 3.12.
    code = textwrap.dedent(script).replace("{tests!r}", repr(os.path.dirname(__file__)))
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_forked_fits_share_no_noise() -> None:
    done = run(FORK)
    assert done.returncode == 0, done.stderr
    # Two processes write to one pipe, in any order.
    counts = [done.stdout.count(said) for said in ("went on", "stopped:", "passed")]
    assert counts == [2, 2, 1]


@pytest.mark.turns
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_the_fork_test_has_power() -> None:
    """Streams that a child inherits as they are, as NumPy's would be, are found."""
    prelude = (
        "from pymc_dpvi.mechanism.mechanism import Streams\n"
        "made = Streams.make(7)\nStreams.make = lambda seed: made"
    )
    done = run(FORK.replace("# PRELUDE", prelude))
    assert "two fits drew the same noise" in done.stderr


def test_a_method_goes_to_no_worker(tmp_path: Any) -> None:
    """A pool, joblib or dask would send the data along, and the keys."""
    method = make()
    for thing in (method, method.approx, lambda: method.fit(1), [method]):
        with pytest.raises(TypeError, match="cannot be pickled"):
            cloudpickle.dumps(thing)


def test_threads_share_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[np.ndarray] = []
    draw = Mechanism.draw

    def keep(*args: Any, **kwargs: Any) -> Any:
        found = draw(*args, **kwargs)
        drawn.append(found.noise.ravel())
        return found

    monkeypatch.setattr(Mechanism, "draw", keep)
    methods = [make() for _ in range(3)]
    for method in methods:
        method.fit(1, **MODE)  # compiled one after the other
    threads = [
        threading.Thread(target=method.refine, args=(50,), kwargs={"progressbar": False})
        for method in methods
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    noise = np.concatenate(drawn)
    assert noise.size == 3 * COLUMNS * 51
    assert len(np.unique(noise)) == noise.size
    assert [method.approx.privacy.runs[1].steps_run for method in methods] == [50] * 3
