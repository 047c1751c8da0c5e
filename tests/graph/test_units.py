"""Whose rows are whose: what ``unit=`` takes, what it refuses, and what is said of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_dpvi import DPADVI
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.records import build_record_model

IDS = np.array([7, 3, 7, 9, 3, 7, 5, 9])
N, P = len(IDS), 4
CODES = np.unique(IDS, return_inverse=True)[1]


def visits(ids: Any = IDS, **more: Any) -> pm.Model:
    """A regression on visits, with ids in pm.Data and as labels of a dim."""
    rng = np.random.default_rng(1)
    with pm.Model(coords={"visit": [f"v{i}" for i in IDS]}) as model:
        if ids is not None:
            pm.Data("person", ids)
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal(
            "y", pm.Data("x", rng.normal(size=(N, 2))) @ b, 1, observed=rng.normal(size=N), dims="visit"
        )
    return model


WAYS: dict[str, Any] = {
    "the name of a pm.Data": "person",
    "the name of a dim": "visit",
    "an array": IDS,
    "a list": IDS.tolist(),
    "a pandas column": pd.Series(IDS, index=np.arange(N)[::-1]),
    "strings": IDS.astype(str),
    "a column of strings": pd.Series(IDS).astype(str),
    "large integers": IDS.astype("uint64") + 2**63,
    "strings that NumPy would cut": [f"{i}\0" if k % 2 else f"{i}" for k, i in enumerate(IDS)],
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_sorted_by_person(way: str):
    units = build_record_model(visits(), unit=WAYS[way]).units
    assert units is not None
    found = [units.rows[a:b].tolist() for a, b in zip(units.starts[:-1], units.starts[1:], strict=True)]
    if "cut" in way:
        ids: Any = WAYS[way]
    else:
        ids = IDS.tolist()
    expected = {i: [k for k, other in enumerate(ids) if other == i] for i in ids}
    assert sorted(found) == sorted(expected.values())
    assert len(units) == len(expected)


@pytest.mark.filterwarnings("ignore:The chararray class is deprecated")
def test_spaces_at_the_end_of_an_id_count():
    """A `chararray` takes them off when an entry is read."""
    ids = np.array([f"{i} " if k % 2 else f"{i}" for k, i in enumerate(IDS)])
    units = build_record_model(visits(), unit=ids.view(np.char.chararray)).units
    assert units is not None and len(units) == len(set(ids.tolist()))


def test_a_record_is_a_person_and_no_number_is_shown():
    record = build_record_model(visits(), unit="person", max_rows_per_unit=2)
    assert record.num_records == N and record.num_units == P
    assert record.unit == (
        "all rows of 'y' (dim 'visit') with the same 'person'; of more than 2 rows, 2 are drawn anew in "
        "every step"
    )
    shown = repr(record)
    assert "rows=" not in shown.split("units=")[1].split("words")[0] and "[7" not in shown


BAD: dict[str, tuple[Any, tuple[str, ...]]] = {
    "another length": (IDS[:-1], ("unit must have one id for each row", "another length")),
    "two axes": (IDS[:, None], ("2 axes",)),
    "floats": (IDS * 1.0, ("floats", "ids.astype(int)")),
    "missing": ([1, 2, None, 1, 2, 1, 2, 1], ("NoneType", "none missing")),
    "missing in pandas": (pd.Series([1, 2, pd.NA, 1, 2, 1, 2, 1]), ("NAType", "none missing")),
    "missing among floats": (pd.Series([1, 2, np.nan, 1, 2, 1, 2, 1]), ("floats", "Drop rows without")),
    "mixed": ([1, "1", 2, 1, 2, 1, 2, 1], ("both strings and integers",)),
    "truth values": ([True, False] * 4, ("bool",)),
    "dates": (pd.date_range("2026-01-01", periods=N).to_numpy(), ("dates",)),
    "one person": (np.full(N, 5), ("All rows have", "id of their own")),
    "no such name": ("persons", ("unit='persons'", "'person'", "'visit'", "Did you mean unit='person'?")),
    "nothing like it": ("zzz", ("unit='zzz'", "'person'", "Type unit='person'")),
    "a number": (3, ("found a int",)),
    "a free variable": ("b", ("unit='b'", "pm.Data")),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_ids_are_refused_by_name(name: str):
    unit, texts = BAD[name]
    with pytest.raises(ArgumentError) as caught:
        DPADVI(epsilon=1.0, delta=1e-6, unit=unit, model=visits())
    for text in texts:
        assert text in str(caught.value), str(caught.value)


def test_ids_that_wrapped_around_in_32_bits_are_refused():
    ids = IDS + 2**31 + np.arange(N) % 2 * 2**32
    with pytest.raises(ArgumentError, match=r"32 bits.*unit=ids"):
        DPADVI(epsilon=1.0, delta=1e-6, unit="person", model=visits(ids))


REFUSED: dict[str, tuple[dict[str, Any], type[ArgumentError], str]] = {
    "a cap without unit": ({"max_rows_per_unit": 3}, ArgumentError, "needs unit="),
    "a cap of nothing": ({"unit": "person", "max_rows_per_unit": 0}, ArgumentError, "max_rows_per_unit"),
    "vanilla": ({"unit": "person", "gradient": "vanilla"}, ArgumentError, "aligned"),
    "public ids": ({"unit": "person", "public_data": ["person"]}, ArgumentError, "not public"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_contradict_each_other(name: str):
    kwargs, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        DPADVI(epsilon=1.0, delta=1e-6, model=visits(), **kwargs)


def test_a_dim_without_labels_is_no_id():
    model = visits()
    model.add_coord("nothing", length=3)
    with pytest.raises(ArgumentError, match="dim without labels"):
        DPADVI(epsilon=1.0, delta=1e-6, unit="nothing", model=model)


def with_values(shape: int, index: Any = None) -> pm.Model:
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        person = pm.Data("person", CODES)
        u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=shape)
        pm.Normal("y", u[person if index is None else index], 1, observed=rng.normal(size=N))
    return model


def test_a_value_for_each_person_is_local_if_it_is_looked_up_by_the_ids():
    record = build_record_model(with_values(P), unit="person")
    assert record.local is not None and record.local.names == ("u",)
    with pytest.raises(UnsupportedModelError, match=r"'u' has an axis.*persons"):
        build_record_model(with_values(P, index=CODES), unit="person")
    with pytest.raises(UnsupportedModelError, match=r"'u' has an axis.*persons"):
        build_record_model(with_values(P), unit=CODES)


def test_what_reads_the_ids_otherwise_is_refused():
    with visits() as model:
        pm.Normal("z", model["b"][0] * model["person"], 1, observed=np.zeros(N))
    with pytest.raises(UnsupportedModelError, match=r"'z' reads 'person'.*one entry per row"):
        build_record_model(model, unit="person")


def test_masked_ids_are_missing():
    ids = np.ma.MaskedArray(IDS, mask=np.arange(N) == 3)
    with pytest.raises(ArgumentError, match="missing"):
        build_record_model(visits(), unit=ids)
    assert len(build_record_model(visits(), unit=np.ma.MaskedArray(IDS)).units) == P


def test_ids_in_sixteen_bits_are_refused():
    with pytensor.config.change_flags(floatX="float32"), pytest.raises(ArgumentError, match="16 bits"):
        build_record_model(visits(), unit="person")


@pytest.mark.parametrize("where", ["free", "public"])
def test_labels_that_are_released_are_no_ids(where: str):
    with pm.Model(coords={"visit": IDS}) as model:
        a = pm.Normal("a")
        if where == "free":
            pm.Normal("z", dims="visit")
        else:
            pm.Deterministic("curve", a * pm.Data("grid", np.linspace(0, 1, N), dims="visit"), dims="visit")
        pm.Normal("y", a, 1, observed=np.zeros(N))
    public = ["grid"] if where == "public" else []
    with pytest.raises(ArgumentError, match="whose labels are released"):
        build_record_model(model, unit="visit", public_data=public)


def test_a_deterministic_over_a_dim_that_nobody_declared_is_withheld():
    with visits() as model:
        model.add_coord("who", [3, 5, 7, 9])
        pm.Deterministic("tiled", pt.tile(model["b"][:1], P), dims="who")
    assert not build_record_model(model, unit="person").may_be_released(model["tiled"])
    assert build_record_model(model).may_be_released(model["tiled"])


@pytest.mark.parametrize("unit", ["visit", IDS], ids=["labels", "array"])
def test_exchanged_data_need_another_method_if_the_ids_are_no_data(unit: Any):
    with pm.Model(coords={"visit": IDS}) as model:
        x, y = pm.Data("x", np.arange(N) * 1.0), pm.Data("y", np.arange(N) * 1.0, dims="visit")
        pm.Normal("o", pm.Normal("a") * x, 1, observed=y, dims="visit")
    record = build_record_model(model, unit=unit)
    record.data()
    with model:
        pm.set_data({"x": np.arange(N) * 2.0, "y": np.arange(N)[::-1] * 1.0})
    with pytest.raises(UnsupportedModelError, match="not known whose the rows are"):
        record.data()


def test_other_labels_need_another_method():
    with pm.Model(coords={"visit": IDS}) as model:
        x, y = pm.Data("x", np.ones(N), dims="visit"), pm.Data("y", np.ones(N), dims="visit")
        pm.Normal("o", pm.Normal("a") * x, 1, observed=y, dims="visit")
    record = build_record_model(model, unit="visit")
    record.check_unchanged()
    with model:
        pm.set_data({"x": np.zeros(N)}, coords={"visit": list(IDS[::-1])})
    with pytest.raises(UnsupportedModelError, match="ids in 'visit' are others now"):
        record.check_unchanged()


def test_the_number_of_persons_is_no_part_of_what_may_be_released():
    with visits() as model:
        model.add_coord("who", [3, 5, 7, 9])
        pm.Deterministic("per_person", model["b"].sum() / model.dim_lengths["who"])
        pm.Deterministic("twice", 2 * model["b"])
    record = build_record_model(model, unit="person")
    assert not record.may_be_released(model["per_person"])
    assert record.may_be_released(model["twice"])
    assert not build_record_model(model).may_be_released(model["per_person"])


def test_other_ids_need_another_method():
    model = visits()
    record = build_record_model(model, unit="person")
    record.check_unchanged()
    with model:
        pm.set_data({"person": IDS[::-1].copy()})
    with pytest.raises(UnsupportedModelError, match="ids in 'person' are others now"):
        record.check_unchanged()
