"""Names are free, as far as PyMC takes them: from the model to the release, its file and its plots."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest

from pymc_dpvi import DPADVI, PrivacyReport, check_release, plots

#: Some of the names are those of a formula package, of which a fit warns.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*looks as if a formula package:pymc_dpvi.errors.PrivacyWarning"
)


NAMES = (
    *("1|g", "2nd effect", "a, b", "x:z", "x[0]", "f(x)->y", "größe", "年齢", "a%sb", "{b}", "it's", 'q"q'),
    *(
        "a\\b",
        "tab\there",
        "new\nline",
        "beta ",
        "for",
        "a.b",
        "-x",
        "'''",
        "😀",
        "$\\beta$",
        "#",
        "<b>",
        "x" * 99,
    ),
)


@pytest.fixture(scope="module")
def fitted() -> tuple[pm.Model, object]:
    """A model with every name in each place where PyMC takes one, fitted for a few steps."""
    rng = np.random.default_rng(0)
    coords = {f"{name} dim": [name, "c, d"] for name in NAMES} | {"obs: i": range(9)}
    with pm.Model(coords=coords) as model:
        mu = 0.0
        for name in NAMES:
            x = pm.Data(f"data {name}", rng.normal(size=(9, 2)), dims=("obs: i", f"{name} dim"))
            coefficient = pm.Normal(name, 0, 1, dims=f"{name} dim")
            pm.Deterministic(f"twice {name}", 2 * coefficient, dims=f"{name} dim")
            pm.Deterministic(f"held {name}", x @ coefficient)
            mu = mu + x @ coefficient
        pm.Normal("y|x, z", mu, pm.HalfNormal("sigma (y)", 1), observed=rng.normal(size=9), dims="obs: i")
    start = {name: np.zeros(2) for name in NAMES}
    method = DPADVI(
        noise_multiplier=1.0, delta=1e-6, sampling_prob=0.5, accountant="rdp", model=model, start=start,
        start_sigma={"1|g": 0.2},
    )  # fmt: skip
    return model, method.fit(3, progressbar=False, backend="python")


def test_release_has_the_names(fitted, tmp_path: Path):
    _, approx = fitted
    released = {*NAMES, *(f"twice {name}" for name in NAMES), "sigma (y)"}
    idata = approx.sample(3, include_transformed=True)
    assert set(idata["posterior"].data_vars) == released
    idata.to_netcdf(str(tmp_path / "posterior.nc"))
    again = az.from_netcdf(str(tmp_path / "posterior.nc"))
    assert set(again["posterior"].data_vars) == released
    for name in NAMES:
        assert again["posterior"][name].dims[2:] == (f"{name} dim",)
        assert list(again["posterior"][name].coords[f"{name} dim"].values) == [name, "c, d"]
        np.testing.assert_array_equal(again["posterior"][name], idata["posterior"][name])
    assert check_release(again)


def test_report_has_the_names(fitted):
    _, approx = fitted
    report = approx.privacy
    assert {f"held {name}" for name in NAMES} == set(report.withheld)
    assert PrivacyReport.from_json(report.to_json()).withheld == report.withheld
    assert "<b>" not in report._repr_html_().replace("&lt;b&gt;", "")
    assert "held 1|g" in str(report)


@pytest.mark.turns
@pytest.mark.parametrize("name", ["1|g", "a$b^$c", "_x"])
def test_plots_have_the_names(name: str):
    with pm.Model() as model:
        mu = pm.Normal(name, 0, 1)
        pm.Normal("y", mu, 1.0, observed=np.random.default_rng(0).normal(size=12))
    method = DPADVI(noise_multiplier=0.5, delta=1e-6, sampling_prob=0.5, accountant="rdp", model=model)
    approx = method.fit(400, progressbar=False, backend="python")
    for ax in (plots.plot_iterates(approx.diagnostics()), plots.plot_posteriors({name: approx.sample(20)})):
        ax.figure.savefig(BytesIO(), format="png")
        plt.close(ax.figure)
