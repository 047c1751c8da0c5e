"""What the reader of a release finds out without the data: reports and files that do not hold."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytest

from pymc_dpvi import (
    DPADVI,
    PrivacyBudget,
    PrivacyError,
    PrivacyReport,
    PrivacyRun,
    accounting,
    check_release,
)
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.sampling import FixedSizeSampler

DATA_TREE = int(az.__version__.split(".")[0]) >= 1


def model() -> pm.Model:
    rng = np.random.default_rng(0)
    with pm.Model() as found:
        x = pm.Data("x", rng.normal(size=60))
        beta = pm.Normal("beta", 0, 1)
        pm.Normal("y", beta * x, 1, observed=pm.Data("y_data", rng.normal(size=60)))
    return found


@pytest.fixture(scope="module")
def approx() -> Any:
    with model():
        method = DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)
        method.fit(5, progressbar=False, compile_kwargs={"mode": "FAST_COMPILE"})
        method.refine(3, progressbar=False)
    return method.approx


def changed(report: PrivacyReport, run: int = 0, **changes: Any) -> PrivacyReport:
    runs = list(report.runs)
    runs[run] = dataclasses.replace(runs[run], **changes)
    return dataclasses.replace(report, runs=tuple(runs))


def test_what_a_fit_leaves_holds(approx: Any, tmp_path: Path) -> None:
    draws = approx.sample(5, include_transformed=True)
    path = tmp_path / "posterior.nc"
    draws.to_netcdf(path)
    for source in (approx, approx.privacy, draws, path, str(path)):
        assert check_release(source) == approx.privacy


@pytest.mark.parametrize("accountant", sorted(accounting.ACCOUNTANT_NAMES))
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("sampler", ["poisson", "fixed_size", "full_batch"])
def test_every_account_is_found_again(accountant: str, relation: str, sampler: str) -> None:
    """A sampling probability of a batch of fixed size is a float that need not be B/N exactly."""
    how = {"poisson": "poisson", "fixed_size": FixedSizeSampler(7, 300), "full_batch": "full_batch"}[sampler]
    prob = {"poisson": 7 / 300, "fixed_size": 7 / 300, "full_batch": 1.0}[sampler]
    info = accounting.accountant_info(accountant)
    known = True
    try:
        epsilon = accounting.epsilon(
            delta=1e-6,
            noise_multiplier=3.0,
            n_steps=50,
            sampling_prob=prob if sampler == "poisson" else None,
            sampler=how,
            neighboring_relation=relation,
            accountant=accountant,
        )
    except ArgumentError:
        epsilon, known = 1.0, False
    run = PrivacyRun(epsilon, 1e-6, 50, 50, prob, 3.0, 1.0)
    report = PrivacyReport(
        neighboring_relation=relation,
        unit="one row",
        sampler=sampler,
        gradient="aligned",
        accountant=accountant,
        guarantee=info.guarantee,
        secure_randomness=True,
        num_records_public=relation == "replace_one",
        noise="lattice",
        runs=(run,),
    )
    if not known:
        with pytest.raises(PrivacyError, match="The cost of run 1 cannot be computed"):
            check_release(report)
        return
    if info.guarantee == "proven":
        assert check_release(report) is report
    else:
        with pytest.raises(PrivacyError, match="not a proven bound") as caught:
            check_release(report)
        assert "states epsilon" not in str(caught.value)
    if math.isfinite(epsilon):
        with pytest.raises(PrivacyError, match="Run 1 states epsilon"):
            check_release(changed(report, epsilon=0.999 * epsilon))


WRONG: dict[str, tuple[Callable[[PrivacyReport], PrivacyReport], str]] = {
    "less noise": (lambda r: changed(r, noise_multiplier=0.5), "Run 1 states epsilon"),
    "the second run": (lambda r: changed(r, 1, epsilon=0.01), "Run 2 states epsilon"),
    "more steps": (lambda r: changed(r, n_steps=50, steps_run=50), "Run 1 states epsilon"),
    "larger batches": (lambda r: changed(r, sampling_prob=0.99), "Run 1 states epsilon"),
    "another relation": (
        lambda r: dataclasses.replace(r, neighboring_relation="replace_one"),
        "Run 1 states epsilon",
    ),
    "seeded": (lambda r: dataclasses.replace(r, secure_randomness=False), "came from a seed"),
    "no run": (lambda r: dataclasses.replace(r, runs=()), "no run"),
    "own accountant": (lambda r: dataclasses.replace(r, accountant="mine"), "'mine' is not of"),
    "not what it is called": (
        lambda r: dataclasses.replace(r, accountant="bayesian"),
        "calls the accountant 'bayesian' proven",
    ),
    "impossible": (lambda r: changed(r, sampling_prob=0.0), "cannot be computed"),
}


@pytest.mark.parametrize("case", WRONG)
def test_report_that_does_not_hold(approx: Any, case: str) -> None:
    change, text = WRONG[case]
    with pytest.raises(PrivacyError, match=text):
        check_release(change(approx.privacy))


def touch(name: str, value: Any, *, root: bool = True) -> Callable[[Any], None]:
    def change(draws: Any) -> None:
        (draws if root else draws["posterior"]).attrs[name] = value

    return change


def add_data(draws: Any) -> None:
    if DATA_TREE:
        import xarray as xr

        draws["observed_data"] = xr.DataTree(xr.Dataset({"y": ("obs", np.zeros(3))}))
    else:
        draws.add_groups(observed_data=az.convert_to_dataset({"y": np.zeros((1, 3))}))


def edited(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Change the posterior, a dataset."""

    def edit(draws: Any) -> None:
        if DATA_TREE:
            draws["posterior"] = change(draws["posterior"].to_dataset())
        else:
            draws.posterior = change(draws.posterior)

    return edit


def withheld(draws: Any) -> None:
    """Put back what a record's rows are in."""
    report = dataclasses.replace(PrivacyReport.from_json(draws.attrs["privacy_report"]), withheld=("fitted",))
    for place in (draws, draws["posterior"]):
        place.attrs["privacy_report"] = report.to_json()
        place.attrs["released_variables"] = '["beta", "fitted"]'
    edited(lambda posterior: posterior.assign(fitted=posterior["beta"] * 2.0))(draws)


def fitted_values(draws: Any) -> None:
    """What a function of the draws and of the records would be: it has the axes of a draw."""
    edited(lambda posterior: posterior.assign(fitted=posterior["beta"] * 52_311.7))(draws)


def without_names(draws: Any) -> None:
    for place in (draws, draws["posterior"]):
        del place.attrs["released_variables"]


def note(dataset: Any) -> Any:
    dataset["beta"].attrs["scaled_by"] = 3.7
    return dataset


def outside_of_a_group(draws: Any) -> None:
    if not DATA_TREE:
        pytest.skip("InferenceData has nothing outside of groups")
    draws["income"] = ("person", np.zeros(3))


def group_in_a_group(draws: Any) -> None:
    if not DATA_TREE:
        pytest.skip("InferenceData has no groups in groups")
    import xarray as xr

    draws["posterior/raw"] = xr.DataTree(xr.Dataset({"income": ("person", np.zeros(3))}))


def other_report(draws: Any) -> None:
    fields = json.loads(draws.attrs["privacy_report"])
    fields["unit"] = "one household"
    draws["posterior"].attrs["privacy_report"] = json.dumps(fields)


FILES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "epsilon": (touch("privacy_epsilon", 0.1), "privacy_epsilon is not"),
    "delta of the group": (touch("privacy_delta", 1e-9, root=False), "privacy_delta is not"),
    "data": (add_data, "more than draws, which nobody has accounted for: observed_data"),
    "not a draw": (
        edited(lambda posterior: posterior.assign(income=("person", np.zeros(3)))),
        "more than draws, which nobody has accounted for: posterior/income",
    ),
    "names of records": (
        edited(lambda posterior: posterior.assign_coords(person=["Ann", "Bob"])),
        "accounted for: posterior/person",
    ),
    "a number without an axis": (
        edited(lambda posterior: posterior.assign_coords(income=52_311.7)),
        "accounted for: posterior/income",
    ),
    "another coordinate of the draws": (
        edited(lambda posterior: posterior.assign_coords(income=("draw", np.zeros(3)))),
        "accounted for: posterior/income",
    ),
    "made of draws and records": (fitted_values, "accounted for: posterior/fitted"),
    "no names": (without_names, "released_variables is no list"),
    "names that are none": (touch("released_variables", "beta"), "released_variables is no list"),
    "a number among the names": (touch("released_variables", '["beta", 52311.7]'), "is no list"),
    "two lists of names": (touch("released_variables", '["beta", "x"]'), "two different lists"),
    "withheld": (withheld, "accounted for: posterior/fitted"),
    "attribute": (touch("income", 3.7), "accounted for: the attribute 'income'"),
    "attribute of the group": (
        touch("income", 3.7, root=False),
        "accounted for: the attribute 'income' of posterior",
    ),
    "attribute of a variable": (edited(note), "the attribute 'scaled_by' of posterior/beta"),
    "outside of a group": (outside_of_a_group, "accounted for: income"),
    "a group in a group": (group_in_a_group, "accounted for: posterior/raw"),
    "two reports": (other_report, "two different reports"),
}


@pytest.mark.filterwarnings("ignore:.*group.*:UserWarning")
@pytest.mark.parametrize("case", FILES)
def test_file_that_does_not_hold(approx: Any, case: str) -> None:
    draws = approx.sample(3)
    change, text = FILES[case]
    change(draws)
    with pytest.raises(PrivacyError, match=text):
        check_release(draws)


def append(path: Path, **where: Any) -> None:
    import xarray as xr

    people = xr.Dataset({"income": ("person", np.zeros(3))}, coords={"person": np.arange(3)})
    people.to_netcdf(path, mode="a", engine="h5netcdf", **where)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({}, "income, person"),
        ({"group": "posterior/raw"}, "posterior/raw"),
        ({"group": "check/observed_data"}, "check, check/observed_data"),
        ({"group": "observed_data"}, "observed_data"),
    ],
)
def test_what_arviz_does_not_read_of_a_file_is_seen(
    approx: Any, tmp_path: Path, where: dict[str, str], found: str
) -> None:
    """Variables outside of groups, and groups in groups: of these, ArviZ 0.23 shows nothing."""
    path = tmp_path / "posterior.nc"
    approx.sample(3).to_netcdf(path, engine="h5netcdf")
    check_release(path)
    append(path, **where)
    with pytest.raises(PrivacyError, match=rf"nobody has accounted for: {found}\."):
        check_release(path)
    path.rename(moved := tmp_path / "moved.nc")  # the file is not held open
    assert moved.exists()


@pytest.mark.parametrize(
    "attribute", ["units", "scale_factor", "add_offset", "coordinates", "calendar", "missing_value"]
)
def test_attributes_that_reading_takes_away_are_seen(approx: Any, tmp_path: Path, attribute: str) -> None:
    import h5py

    path = tmp_path / "posterior.nc"
    approx.sample(3).to_netcdf(path, engine="h5netcdf")
    with h5py.File(path, "a") as file:
        text = attribute in ("units", "coordinates", "calendar")
        file["posterior/beta"].attrs[attribute] = "days since 2001-02-03" if text else 52_311.7
    with pytest.raises(PrivacyError, match=f"the attribute '{attribute}' of posterior/beta"):
        check_release(path)


def test_labels_of_any_kind_and_truth_values_hold(tmp_path: Path) -> None:
    days = np.array(["2024-01-01", "2024-01-08T06:30"], dtype="datetime64[ns]")
    coords = {"day": days, "after": days - days[0], "name": ["a", "bé"], "height": [0.5, 1.5]}
    with pm.Model(coords=coords):
        effects = [pm.Normal(f"by_{dim}", 0, 1, dims=dim) for dim in coords]
        pm.Deterministic("positive", effects[0] > 0)
        pm.Normal("y", sum(e[0] for e in effects), 1, observed=np.zeros(60))
        method = DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)
        approx = method.fit(5, progressbar=False, compile_kwargs={"mode": "FAST_COMPILE"})
    path = tmp_path / "posterior.nc"
    draws = approx.sample(3)
    draws.to_netcdf(path)
    check_release(path)
    check_release(draws)


def test_a_part_of_a_release_is_not_all_of_it(approx: Any) -> None:
    draws = approx.sample(3)
    for part in (draws["posterior"], draws["posterior"]["beta"]):
        with pytest.raises(ArgumentError, match="found a part of one"):
            check_release(part)


@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sample_dims", "Ann"),
        ("created_at", "at Ann's"),
        ("arviz_version", "of Ann"),
        ("inference_library_version", "0.1.0, for Ann"),
        ("inference_library", "Ann"),
    ],
)
def test_known_attributes_hold_what_is_written_there(approx: Any, name: str, value: str, root: bool) -> None:
    draws = approx.sample(3)
    touch(name, value, root=root)(draws)
    of = "" if root else " of posterior"
    with pytest.raises(PrivacyError, match=rf"accounted for: the attribute '{name}'{of}\.") as caught:
        check_release(draws)
    assert "Ann" not in str(caught.value)


@pytest.mark.parametrize("source", [3, None])
def test_no_release(source: Any) -> None:
    with pytest.raises(ArgumentError, match="source must be") as caught:
        check_release(source)
    assert "noise_multiplier" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_release("no_such_file.nc")
    table = tmp_path / "survey.csv"
    table.write_text("income\n52311\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"survey.csv' is no netCDF file") as caught:
        check_release(table)
    assert "52311" not in str(caught.value)


def test_a_release_is_found_in_its_ledger(tmp_path: Path) -> None:
    budget = PrivacyBudget.create(tmp_path / "survey.sqlite", 2.0, 2e-6)
    with model():
        method = DPADVI(epsilon=0.5, delta=1e-7, random_seed=1, budget=budget)
        approx = method.fit(5, progressbar=False, compile_kwargs={"mode": "FAST_COMPILE"})
        method.refine(3, progressbar=False)
    path = tmp_path / "posterior.nc"
    approx.sample(5).to_netcdf(path)
    opened = PrivacyBudget.open(tmp_path / "survey.sqlite")
    report = check_release(path, budget=opened)
    ids = [run.run_id for run in report.runs]
    assert [charge.run_id for charge in opened.ledger] == ids and len(set(ids)) == 2
    assert all(name in str(opened) and name in str(report) for name in ids)
    with pytest.raises(PrivacyError, match=r"Run 1 is not in the budget's ledger.* Run 2 is not"):
        check_release(path, budget=PrivacyBudget(epsilon=2.0, delta=2e-6))
    for changes in ({"epsilon": 0.6}, {"delta": 2e-7}):
        with pytest.raises(PrivacyError, match="Run 2 is in the budget's ledger with other"):
            check_release(changed(report, 1, **changes), budget=opened)
    with pytest.raises(PrivacyError, match="Run 1 is not in"):
        check_release(changed(report, run_id=""), budget=opened)
    with pytest.raises(ArgumentError, match="budget must be a PrivacyBudget; found a str"):
        check_release(path, budget="survey.sqlite")  # type: ignore[arg-type]


def test_what_a_reader_should_know_goes_with_the_draws() -> None:
    with model():
        approx = DPADVI(epsilon=1.0, delta=1e-6, random_seed=1).fit(
            40, progressbar=False, compile_kwargs={"mode": "FAST_COMPILE"}
        )
    draws = approx.sample(5)
    known = approx.diagnostics().attrs
    assert known.keys() == {"bounded_by_prior"}
    assert {name: draws.attrs[name] for name in known} == known
    assert "bounded_by_prior" not in approx.sample(5, noise_aware=False).attrs
    check_release(draws)
    draws.attrs["bounded_by_prior"] = 0.25
    with pytest.raises(PrivacyError, match="The attribute bounded_by_prior is neither 0 nor 1"):
        check_release(draws)
