"""What cannot be private as written is refused: the right class, the way out, no data, nothing spent."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from refusal_zoo import REFUSALS, SENTINEL, leaks, missing_texts
from zoo import ZOO

from pymc_dpvi import DPADVI, DPFullRankADVI, errors, fit_dpadvi
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.mechanism.mechanism import Mechanism, Streams
from pymc_dpvi.randomness.keystream import KeyStream
from pymc_dpvi.runs import Runs

MINIMUM = 50


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of everything that draws, charges or steps, in the order in which it was called."""
    calls: list[str] = []

    def watch(owner: type, name: str) -> None:
        original = owner.__dict__[name]
        inner = original.__func__ if isinstance(original, classmethod) else original

        def watched(*args: object, **kwargs: object) -> object:
            calls.append(f"{owner.__name__}.{name}")
            return inner(*args, **kwargs)

        monkeypatch.setattr(owner, name, classmethod(watched) if inner is not original else watched)

    watch(KeyStream, "words")
    watch(Streams, "make")
    watch(Mechanism, "draw")
    watch(PrivateStep, "__call__")
    watch(Runs, "_report_planned_cost")
    yield calls


def test_zoo_is_complete():
    assert len(REFUSALS) >= MINIMUM
    assert not set(REFUSALS) & set(ZOO)


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal(
    name: str, spent: list[str], capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
):
    entry = REFUSALS[name]
    model = entry.build()
    caplog.set_level(logging.DEBUG, logger="pymc_dpvi")
    capsys.readouterr()
    with pytest.raises(errors.PrivacyError) as caught:
        fit_dpadvi(3, draws=2, epsilon=1.0, delta=1e-6, model=model, progressbar=False, **entry.kwargs)
    error = caught.value
    message = str(error)
    assert isinstance(error, getattr(errors, entry.error)), f"{type(error).__name__}: {message}"
    assert not missing_texts(entry, message), message
    assert spent == []
    printed = "".join(traceback.format_exception(error))
    for text in (message, repr(error), str(error.__dict__), printed, *capsys.readouterr(), caplog.text):
        assert not leaks(text), text


def test_nothing_spent_is_not_vacuous(spent: list[str]):
    # The same watch sees a fit that is allowed.
    with ZOO["linear"].build() as model:
        DPADVI(noise_multiplier=1.0, delta=1e-6, sampling_prob=0.5, accountant="rdp", model=model).fit(
            2, progressbar=False, compile_kwargs={"mode": "PYTHON"}
        )
    assert {"Streams.make", "Runs._report_planned_cost", "Mechanism.draw", "PrivateStep.__call__"} <= set(
        spent
    )
    assert spent.index("Runs._report_planned_cost") < spent.index("Mechanism.draw")  # charged, then drawn


def test_leaks_is_not_vacuous():
    assert leaks(f"found {SENTINEL}") and leaks(repr(np.array([SENTINEL]))) and leaks("3.14e+01")
    assert not leaks("found an array")


def test_full_rank_refuses_too():
    entry = REFUSALS["centring_in_graph"]
    with entry.build(), pytest.raises(errors.NotSeparableError):
        pm.fit(3, method=DPFullRankADVI(epsilon=1.0, delta=1e-6))


def test_a_refused_fit_raises_with_the_model_context_clean():
    with pytest.raises(errors.PrivacyError), REFUSALS["total_size"].build():
        DPADVI(epsilon=1.0, delta=1e-6)
    with ZOO["linear"].build():
        DPADVI(epsilon=1.0, delta=1e-6)  # the one after is none the worse


#: A free variable whose shape follows from the values of an array.
SHAPED = {
    "size": lambda g: pm.Normal("b", 0, 1, shape=g.max() + 1),
    "mask": lambda g: pm.Normal("b", (1.0 * g)[g > 0], 1),
    "dirichlet": lambda g: pm.Dirichlet("b", pt.ones(g.max() + 1)),
    "reshape": lambda g: pm.Normal("b", pt.arange(6.0).reshape((g.max(), -1)), 1),
    "arange": lambda g: pm.Normal("b", pt.arange(0, 10, g.max()) * 1.0, 1),
    "repeat": lambda g: pm.Normal("b", pt.repeat(pt.arange(3.0), g.max()), 1),
    "alloc": lambda g: pm.Normal("b", pt.zeros(g.max()), 1),
    "bound": lambda g: pm.Uniform("b", 0, 1 + (1.0 * g)[g > 0]),
    "split": lambda g: pm.Normal(
        "b", pt.split(pt.arange(6.0), pt.stack([g.max(), 6 - g.max()]), n_splits=2)[0], 1
    ),
}
VALUES = ([0, 1, 2, 3, 4], [0, 1, 2, 3, 3], [0, 0, 0, 0, 0], [-3, -3, -3, -3, -3], [0, 1, 2, 3, 11])


def _shaped(make: Any, values: list[int], n: int = 5, constant: bool = False) -> pm.Model:
    with pm.Model() as model:
        group = np.array(values)
        b = make(pt.constant(group) if constant else pm.Data("g", group))
        pm.Normal("y", b.sum(), 1, observed=np.linspace(-1, 1, n))
    return model


@pytest.mark.parametrize("n", [5, 7])
@pytest.mark.parametrize("name", SHAPED)
def test_a_shape_from_records_is_refused_in_the_same_words(name: str, n: int):
    """Also where the array is not as long as the records: an outcome that is one longer, say."""
    said = set()
    for values in VALUES:
        with pytest.raises(errors.UnsupportedModelError) as caught:
            DPADVI(epsilon=1.0, delta=1e-6, model=_shaped(SHAPED[name], values, n))
        said.add(str(caught.value))
    assert len(said) == 1
    assert "The shape of 'b' depends on values of the data" in said.pop()


def test_a_shape_from_a_constant_is_refused_in_the_same_words():
    said = set()
    for values in VALUES[:3]:
        with pytest.raises(errors.UnsupportedModelError, match="The shape of 'b'") as caught:
            DPADVI(epsilon=1.0, delta=1e-6, model=_shaped(SHAPED["size"], values, constant=True))
        said.add(str(caught.value))
    assert len(said) == 1


def test_a_shape_from_public_data_passes():
    model = _shaped(SHAPED["size"], [0, 1, 3], n=5)
    assert DPADVI(epsilon=1.0, delta=1e-6, model=model, public_data=["g"]).approx.mean.eval().shape == (4,)


def test_a_prior_as_long_as_an_array_passes():
    """The length of an array is no value of it."""
    with pm.Model() as model:
        table = pm.Data("table", np.zeros(3))
        b = pm.Normal("b", 2 * table, 1)
        c = pm.Normal("c", 0, 1, shape=table.shape[0])
        pm.Normal("y", (b + c).sum(), 1, observed=np.linspace(-1, 1, 5))
    DPADVI(epsilon=1.0, delta=1e-6, model=model, public_data=["table"])
