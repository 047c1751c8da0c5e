"""Nothing of the records leaves: sentinels are planted in the data and searched for in all that goes out.

What is searched: every group, attribute and coordinate of the released object, its netCDF bytes and the file
read again, its dict and JSON, reports, reprs, log records, captured output, warnings, and every exception
with its whole chain.
"""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytest
from planted_records import (
    AGE,
    CODE,
    DATA_TREE,
    ERRORS,
    METHOD,
    NAME,
    NUMBER,
    OUTCOME,
    PREDICTOR,
    N,
    datasets,
    in_array,
    in_bytes,
    in_error,
    in_idata,
    in_text,
    planted_model,
    tables,
    with_model,
    write_plain,
)
from pymc.variational.callbacks import CheckParametersConvergence, Tracker

from pymc_dpvi import DPADVI, DPFullRankADVI, ModelEvaluationError, PrivacyError, PrivacyReport, fit_dpadvi
from pymc_dpvi.engine.multistep import Chunk

pytestmark = [
    pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning"),
    pytest.mark.usefixtures("without_compiling"),
]


# -------------------------------------------------------------------------------- power of the search


def leaky(model: pm.Model) -> Any:
    """Return what a careless release would hold."""
    rng = np.random.default_rng(0)
    posterior = {"beta": rng.normal(size=(1, 5, 2)), "mean": rng.normal(size=(1, 5, N))}
    groups = {"posterior": posterior, "observed_data": {"outcome": tables()["outcome"]}}
    coords = {"person": list(model.coords["person"]), "visit": list(model.coords["visit"])}
    dims = {"mean": ["person"], "outcome": ["visit"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ minds the dims of observed data
        if DATA_TREE:
            return az.from_dict(groups, coords=coords, dims=dims)
        return az.from_dict(**groups, coords=coords, dims=dims)


def test_the_search_finds_what_is_planted(tmp_path: Path) -> None:
    idata = leaky(planted_model())
    idata.attrs["note"] = f"{N} records"
    found = in_idata(idata)
    assert any("attrs[note]: N" in hit for hit in found)
    assert any("outcome: 7231" in hit for hit in found)
    assert any("person: " in hit and "SENTINEL" in hit for hit in found)
    assert any("visit: 51739268" in hit for hit in found)
    assert any("length N" in hit for hit in found)
    path = tmp_path / "leaky.nc"
    write_plain(idata, path)
    hits = in_bytes(path.read_bytes(), "file")
    assert any("7231" in hit for hit in hits) and any("SENTINEL" in hit for hit in hits)
    for number in (OUTCOME, np.float32(PREDICTOR), f"{AGE:.4e}", [CODE], {"k": NUMBER}, N, NAME):
        assert in_text(f"found {number}", "text")
    hidden = KeyError("a")
    try:
        try:
            raise IndexError(f"index {CODE} is out of bounds")
        except IndexError:
            raise hidden from None
    except KeyError:
        pass
    assert in_error(hidden)
    noted = KeyError("a")
    noted.add_note(str(OUTCOME))
    assert in_error(noted)
    assert not in_text("nothing here: 1.2345, 10130, 0.1013, 20000 steps", "text")


# -------------------------------------------------------------------------------- the release


@pytest.fixture(
    scope="module",
    params=["data", "constants", "full rank", pytest.param("compiled", marks=pytest.mark.slow)],
)
def released(request: pytest.FixtureRequest) -> Any:
    method = DPFullRankADVI if request.param == "full rank" else DPADVI
    with planted_model(data=request.param != "constants"):
        return pm.fit(
            10,
            method=method(**METHOD),
            progressbar=False,
            include_transformed=request.param == "data",
            compile_kwargs=None if request.param == "compiled" else {"mode": "PYTHON"},
        )


def test_released_object(released: Any, tmp_path: Path) -> None:
    idata = released.sample(20)
    assert set(idata["posterior"].data_vars) == {"beta", "effect", "sigma", "spread"}
    names = [name for name, _ in datasets(idata)]
    for group in ("observed_data", "constant_data", "log_likelihood", "sample_stats"):
        assert not any(group in name for name in names)
    assert in_idata(idata) == []
    for _, data in datasets(idata):
        assert not {"person", "visit"} & {*data.dims, *data.coords}
    for name, text in (("repr", repr(idata)), ("html", idata._repr_html_())):
        assert in_text(text, name) == []

    path = tmp_path / "posterior.nc"
    write_plain(idata, path)
    assert in_bytes(path.read_bytes(), "file") == []
    back = az.from_netcdf(str(path))
    assert in_idata(back) == []
    assert set(back["posterior"].data_vars) == set(idata["posterior"].data_vars)

    as_dict = {name: data.to_dict() for name, data in datasets(idata)}
    assert in_text(json.dumps(as_dict, default=str), "dict") == []
    if not DATA_TREE:
        idata.to_json(str(tmp_path / "posterior.json"))
        assert in_text((tmp_path / "posterior.json").read_text(), "json") == []
    assert in_bytes(pickle.dumps(idata), "pickle") == []


def test_report_and_reprs(released: Any) -> None:
    report = released.privacy
    assert set(report.withheld) == {"mean", "total", "largest"}
    texts = {
        "text": str(report),
        "html": report._repr_html_(),
        "json": report.to_json(),
        "dict": str(report.to_dict()),
        "repr": repr(report),
        "again": str(PrivacyReport.from_json(report.to_json())),
        "approximation": repr(released) + str(released),
        "parameters": repr(released.params),
        "groups": repr(released.groups),
        "withheld": repr(released.withheld),
        "records": repr(released._record),
        "latents": repr(released.latents),
    }
    for name, text in texts.items():
        found = in_text(text, name)
        # RecordModel stays in the process and knows N; a record's values do not even stand in its repr
        assert [hit for hit in found if hit != "records: N"] == []
    assert str(report).splitlines()[0].startswith("NOT FOR RELEASE")


def test_iterates_and_moments(released: Any) -> None:
    for value in (released.mean.eval(), released.std.eval(), released.cov.eval(), released.hist):
        assert in_array(value, "moments") == []
    with planted_model():
        method = DPADVI(**METHOD)
        tracker = Tracker(params=lambda approx, losses, i: (losses, [p.get_value() for p in approx.params]))
        method.fit(5, callbacks=[tracker], progressbar=False)
    assert in_text(repr(dict(tracker.hist)), "tracker") == []
    assert in_text(repr(method) + repr(method.__class__), "method") == []


@pytest.mark.turns
def test_output_logs_and_warnings(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole session, with everything shown that can be shown."""
    monkeypatch.setenv("COLUMNS", "200")
    caplog.set_level(logging.DEBUG)
    logging.getLogger("pymc_dpvi").setLevel(logging.DEBUG)
    with warnings.catch_warnings(record=True) as caught, planted_model():
        warnings.simplefilter("always")

        def interrupt(approx: Any, losses: Any, i: int) -> None:
            if i == 3:
                raise KeyboardInterrupt

        method = DPADVI(**{**METHOD, "delta": 0.01})
        approx = pm.fit(5, method=method, callbacks=[interrupt])
        method.refine(4)
        idata = fit_dpadvi(5, draws=3, **METHOD)
        print(approx, approx.privacy, method, idata.attrs)
        logging.getLogger(__name__).info("%s %s", approx, approx.privacy)
    captured = capfd.readouterr()
    assert "steps" in captured.out and caplog.records and caught  # there was something to search
    assert in_text(captured.out, "stdout") == []
    assert in_text(captured.err, "stderr") == []
    for record in caplog.records:
        assert in_text(f"{record.getMessage()} {record.args} {record.exc_text}", record.name) == []
    messages = [str(w.message) for w in caught]
    assert any("number of records" in m for m in messages)
    assert [hit for m in messages for hit in in_text(m, "warning")] == []


# -------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="pymc_dpvi")
    with pytest.raises(Exception) as caught:
        ERRORS[case]()
    assert in_error(caught.value) == []
    captured = capfd.readouterr()
    assert in_text(captured.out + captured.err, "output") == []
    assert in_text(caplog.text, "log") == []


def test_step_that_raises_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiled code says about the data is left out, from the chain of causes too; the cost is not."""

    def function(*args: Any) -> None:
        raise IndexError(f"index {CODE} is out of bounds, with {OUTCOME} in {NAME}")

    method = with_model(planted_model())
    method.fit(2, progressbar=False)
    monkeypatch.setattr(type(method._runs.step.chunk), "__call__", function)
    with pytest.raises(ModelEvaluationError, match="charged") as caught:
        method.refine(30, progressbar=False)
    assert in_error(caught.value) == []
    assert [(run.n_steps, run.steps_run) for run in method.approx.privacy.runs] == [(2, 2), (30, 0)]
    assert issubclass(ModelEvaluationError, PrivacyError)


@pytest.mark.turns
@pytest.mark.parametrize("again", ["refine", "fit"])
@pytest.mark.parametrize("at", [1, 3])
def test_a_step_that_raises_does_not_tell_when(at: int, again: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may be the cause: what was released before stays, and no iterate or count of this run."""
    method = with_model(planted_model())
    method.fit(150, progressbar=False)
    approx, place = method.approx, method._runs.base_draws.bit_generator.state

    def seen() -> list[Any]:
        clip = approx._running_clip
        numbers = [*approx.params, *clip.state]
        draws = approx.sample(5, random_seed=1)["posterior"].data_vars
        assert len(draws)
        assert method._runs.base_draws.bit_generator.state == place
        return [*(v.get_value() for v in numbers), approx.hist, *(v.values for v in draws.values())]

    before, calls, real = seen(), [], Chunk.__call__

    def fails(self: Chunk, *given: Any) -> Any:
        calls.append(None)
        if len(calls) > at + (again == "fit"):  # a fit rehearses
            raise IndexError(CODE)
        return real(self, *given)

    monkeypatch.setattr(Chunk, "__call__", fails)
    every = CheckParametersConvergence(every=1, tolerance=0.0)
    with pytest.raises(ModelEvaluationError):
        if again == "fit":
            method.fit(30, progressbar=False, callbacks=[every])
        else:
            method.refine(3000, progressbar=False)
    for old, new in zip(before, seen(), strict=True):
        np.testing.assert_array_equal(new, old)
    assert [run.steps_run for run in approx.privacy.runs] == [150, 0]
    with pytest.raises(TypeError, match="fit"):
        method.refine(1, progressbar=False)


SESSION = """
import faulthandler, logging, sys, warnings
faulthandler.disable()
logging.basicConfig(level=logging.DEBUG)
for name in ("numba", "h5py", "h5netcdf"):
    logging.getLogger(name).setLevel(logging.WARNING)
sys.path.insert(0, {tests!r})
from planted_records import METHOD, planted_model
from pymc_dpvi import DPADVI
with planted_model(code=True):
    method = DPADVI(**{{**METHOD, "sampling_prob": 0.9}})
    try:
        method.fit(20, progressbar=True, **{how!r})
    finally:
        print("charged:", method.approx.privacy.n_steps)
"""


@pytest.mark.turns
@pytest.mark.parametrize(
    "how",
    [
        {"compile_kwargs": {"mode": "PYTHON"}},
        pytest.param({"backend": "numba"}, marks=pytest.mark.slow),
        pytest.param({"backend": "c"}, marks=pytest.mark.slow),
    ],
    ids=["python", "numba", "c"],
)
def test_uncaught_error_of_a_session(how: dict[str, Any]) -> None:
    """A group index out of range: an error without data, or a record that counts nothing; no crash.

    In a process of its own, because compiled code that reads past an array may end the process.
    """
    code = textwrap.dedent(SESSION).format(tests=str(Path(__file__).parents[1]), how=how)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), f"the process ended with {done.returncode}"  # negative: a signal
    assert "charged: 20" in done.stdout
    assert in_text(done.stdout, "stdout") == []
    assert in_text(done.stderr, "stderr") == []
    raised = [line for line in done.stderr.splitlines() if "ModelEvaluationError: " in line]
    assert len(raised) == done.returncode
