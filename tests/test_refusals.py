"""What cannot be private as written is refused: the right class, the way out, no data, nothing spent."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator

import numpy as np
import pymc as pm
import pytest
from refusal_zoo import REFUSALS, SENTINEL, leaks, missing_texts
from zoo import ZOO

from pymc_dpvi import DPADVI, DPFullRankADVI, errors, fit_dpadvi
from pymc_dpvi.inference import DPADVI as Inference
from pymc_dpvi.mechanism import Mechanism, Streams
from pymc_dpvi.randomness import KeyStream
from pymc_dpvi.step import PrivateStep

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
    watch(KeyStream, "uniforms")
    watch(Streams, "make")
    watch(Mechanism, "draw")
    watch(PrivateStep, "__call__")
    watch(Inference, "_charge")
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
    assert {"Streams.make", "DPADVI._charge", "Mechanism.draw", "PrivateStep.__call__"} <= set(spent)
    assert spent.index("DPADVI._charge") < spent.index("Mechanism.draw")  # charged, then drawn


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
