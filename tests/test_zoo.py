"""Every model of the zoo, through the analysis, the gradients, the release and (some) a whole fit.

On every push a twelfth of the models runs without compilation, the gradients of the ``quick`` ones on numba,
and a ninetieth through a whole fit on the default backend (``zoo``, see `conftest`); the rest of the
backends is slow.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import MappingProxyType

import numpy as np
import pytest
from clipped_sums import of_matrices
from oracle import compare, latents_of
from zoo import ZOO, Entry, select

from pymc_dpvi import DPADVI, DPFullRankADVI, PrivacyReport
from pymc_dpvi.engine import step
from pymc_dpvi.errors import PrivacyWarning
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.separability import check_separable
from pymc_dpvi.posterior.approximation import DPMeanField

#: Some of the names are those of a formula package, of which a fit warns.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*looks as if a formula package:pymc_dpvi.errors.PrivacyWarning"
)

BACKENDS = ("numba", "c")
# Half a minute and more of compilation each (minutes for the first, on PyTensor 2): in the deep profile.
HEAVY = {"dpvi_gaussian_mixture", "categorical_softmax", "normal_mixture", "lkj_mvnormal", "several_outcomes"}
# Ten seconds and more without compilation.
SLOW = {"dpvi_gaussian_mixture", "truncated_generic"}
QUICK = [e.name for e in select(["quick"]) if e.name not in HEAVY]
REST = [name for name in ZOO if name not in QUICK]

# The zoo is what the issue asks for; a model that falls out of it must be missed.
MINIMUM = 100

REPORT = PrivacyReport(
    neighboring_relation="add_or_remove_one",
    unit="one row",
    sampler="poisson",
    gradient="aligned",
    accountant="pld",
    guarantee="proven",
    secure_randomness=True,
    num_records_public=False,
)


def analysed(entry: Entry) -> RecordModel:
    return build_record_model(entry.build(), record_dim=entry.record_dim, public_data=entry.public_data)


def check_against_model(entry: Entry, record: RecordModel, backend: str) -> None:
    tolerance = 1e-3 if entry.float32 else 1e-8
    worst = compare(record, backend)
    assert worst["rows"] <= tolerance, worst
    assert worst["gradient"] <= tolerance, worst
    # What is compared with is evaluated in Python: PyTensor's digamma in C differs from SciPy's by 1e-10.
    close = 1e-10 if backend == "PYTHON" else 1e-9
    assert worst["factored"] <= (1e-5 if entry.float32 else close), worst


def test_zoo_is_complete():
    assert len(ZOO) >= MINIMUM
    assert len(QUICK) >= 6 and HEAVY <= set(ZOO)


@pytest.mark.turns
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in ZOO],
)
def test_records_gradients_and_release(name: str, monkeypatch: pytest.MonkeyPatch):
    entry = ZOO[name]
    with entry.flags():
        record = analysed(entry)
        assert record.num_records == entry.num_records
        latents, start = latents_of(record.model)
        check_separable(record, latents, start)
        check_against_model(entry, record, "PYTHON")
        approx = DPMeanField(record, random_seed=1)
        assert set(approx.withheld) == set(entry.withheld)
        monkeypatch.setattr(DPMeanField, "privacy", REPORT)
        check_release(entry, record, approx.sample(3, random_seed=1))


def check_release(entry: Entry, record: RecordModel, idata: object) -> None:
    """Free variables and data-free Deterministics, in their own shapes, and nothing over records."""
    model = record.model
    groups = groups_of(idata)
    assert set(groups) == {"posterior"}
    posterior = groups["posterior"]
    deterministics = {d.name for d in model.deterministics}
    assert set(entry.withheld) <= deterministics
    expected = {rv.name for rv in model.free_RVs} | (deterministics - set(entry.withheld))
    assert set(posterior.data_vars) == expected
    assert not set(posterior.dims) & record.record_dims
    assert not set(posterior.coords) & record.record_dims
    shapes = model.eval_rv_shapes()
    for rv in model.free_RVs:
        values = posterior[rv.name].to_numpy()
        assert values.shape[0] == 1 and values.shape[2:] == tuple(shapes[rv.name])
    for name in expected:
        assert np.isfinite(posterior[name].to_numpy()).all(), name


def groups_of(idata: object) -> MappingProxyType:
    """Group name to dataset, for InferenceData and DataTree."""
    if hasattr(idata, "children"):
        assert not idata.data_vars
        return MappingProxyType({k: v.to_dataset() for k, v in idata.children.items()})
    return MappingProxyType({g: idata[g] for g in idata.groups()})


@pytest.mark.parametrize("backend", ["numba", pytest.param("c", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", QUICK)
def test_quick_ones_on_the_backends(name: str, backend: str):
    entry = ZOO[name]
    with entry.flags():
        check_against_model(entry, analysed(entry), backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", REST)
def test_all_the_others_on_the_backends(name: str, backend: str):
    entry = ZOO[name]
    with entry.flags():
        check_against_model(entry, analysed(entry), backend)


def tiny_fit(entry: Entry, method: type[DPADVI], backend: str | None, gradient: str) -> PrivacyReport:
    with entry.flags():
        single = pytest.warns(PrivacyWarning, match="single precision") if entry.float32 else nullcontext()
        with single:
            inference = method(
                noise_multiplier=2.0,
                delta=1e-5,
                sampling_prob=0.3,
                accountant="rdp",
                gradient=gradient,
                record_dim=entry.record_dim,
                public_data=entry.public_data,
                random_seed=1,
                model=entry.build(),
            )
        before = [p.get_value() for p in inference.approx.params]
        how = {"compile_kwargs": {"mode": backend}} if backend == "PYTHON" else {"backend": backend}
        approx = inference.fit(4, progressbar=False, **how)
        for old, new in zip(before, approx.params, strict=True):
            assert np.isfinite(new.get_value()).all()
            assert (old != new.get_value()).all()
        assert approx.privacy.runs[-1].steps_run == 4
        check_release(entry, inference._record, approx.sample(5))
        return approx.privacy


@pytest.mark.parametrize("name", QUICK)
def test_whole_fit(name: str):
    tiny_fit(ZOO[name], DPADVI, "PYTHON", "aligned")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gradient", ["aligned", "vanilla"])
@pytest.mark.parametrize("method", [DPADVI, DPFullRankADVI])
@pytest.mark.parametrize("name", QUICK)
def test_whole_fit_in_every_way(name: str, method: type[DPADVI], gradient: str, backend: str):
    tiny_fit(ZOO[name], method, backend, gradient)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")
@pytest.mark.usefixtures("python_for_all")
@pytest.mark.parametrize("name", ZOO)
def test_steps_in_microbatches_are_those_of_whole_batches(name: str, monkeypatch: pytest.MonkeyPatch):
    entry = ZOO[name]

    def fitted() -> list[np.ndarray]:
        single = pytest.warns(PrivacyWarning, match="single precision") if entry.float32 else nullcontext()
        with entry.flags(), single:
            inference = DPADVI(
                noise_multiplier=2.0,
                delta=1e-5,
                sampling_prob=0.3,
                accountant="rdp",
                record_dim=entry.record_dim,
                public_data=entry.public_data,
                random_seed=1,
                insecure_noise_seed=1,
                model=entry.build(),
            )
            approx = inference.fit(3, progressbar=False, compile_kwargs={"mode": "PYTHON"})
        return [p.get_value() for p in approx.params]

    in_microbatches = fitted()
    monkeypatch.setattr(step, "in_microbatches", of_matrices)
    for a, b in zip(in_microbatches, fitted(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4 if entry.float32 else 1e-10)


@pytest.mark.zoo
@pytest.mark.parametrize("name", ZOO)
def test_whole_fit_on_the_default_backend(name: str):
    """As a user fits it: no backend is named, and none falls back."""
    runs = tiny_fit(ZOO[name], DPADVI, None, "aligned").runs
    assert runs[-1].backend == "numba"
