"""Why a model could not be taken apart: from shapes and names, never from a value or somebody else's text."""

from __future__ import annotations

import traceback

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from refusal_zoo import REFUSALS, SENTINEL, leaks
from zoo import ZOO

from pymc_dpvi import DPADVI
from pymc_dpvi.errors import NotSeparableError, PrivacyError, UnsupportedModelError
from pymc_dpvi.graph.mismatch import _reason, explained, take_apart


def fails(text: str) -> None:
    raise ValueError(text)


def test_unknown_cause_names_the_call_that_shows_it():
    model = ZOO["linear"].build()  # nothing is wrong with it
    with pytest.raises(UnsupportedModelError, match=r"ValueError.*take_apart\(model\)") as caught:
        explained(lambda: fails(f"found {SENTINEL}"), model)
    assert type(caught.value) is UnsupportedModelError
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert not leaks("".join(traceback.format_exception(caught.value)))


def test_results_and_own_errors_pass():
    model = ZOO["linear"].build()
    assert explained(lambda: 3, model) == 3
    with pytest.raises(NotSeparableError, match="as it was"):
        explained(lambda: (_ for _ in ()).throw(NotSeparableError("as it was")), model)


@pytest.mark.parametrize(
    "name", ["rat_tumours", "latent_per_record_in_a_predictor", "outcome_with_one_column"]
)
def test_take_apart_shows_the_cause(name: str):
    # The message of a private fit hides it; the call that the message names must not succeed.
    model = REFUSALS[name].build()
    with pytest.raises(PrivacyError) as hidden:
        DPADVI(epsilon=1.0, delta=1e-6, model=model)
    with pytest.raises(Exception) as shown:
        take_apart(model)
    assert not isinstance(shown.value, PrivacyError)
    assert str(shown.value) not in str(hidden.value)


def test_take_apart_accepts_what_a_fit_accepts():
    assert take_apart(ZOO["linear_data_dims"].build()).num_records == ZOO["linear_data_dims"].num_records


def test_conjugate_advice_is_given_only_where_the_latent_is_the_parameter():
    rng = np.random.default_rng(0)
    counts = rng.poisson(2, 21)
    for rate, wanted in (
        (lambda lam: lam, "give 'y' pm.NegativeBinomial"),
        (lambda lam: 2 * lam, "pm.Mixture"),
    ):
        with pm.Model(coords={"obs": range(21)}) as model:
            lam = pm.Gamma("lam", 2, 1, dims="obs")
            pm.Poisson("y", rate(lam), observed=counts, dims="obs")
        with pytest.raises(UnsupportedModelError) as caught:
            DPADVI(epsilon=1.0, delta=1e-6, model=model)
        assert wanted in str(caught.value)


def test_a_reason_turns_on_no_value():
    """What is said of shapes follows from the lengths of arrays, not from what a mask in one lets through."""
    said = set()
    for dropped in (99, 3, 4):
        with pm.Model() as model:
            x, keep = pt.as_tensor(np.linspace(0, 1, 21)), np.arange(21) != dropped
            pm.Normal("y", pm.Normal("b") * x[keep], 1.0, observed=np.zeros(21))
        said.add(_reason(model))
    assert said == {None}
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b") * x, 1.0, observed=np.zeros(20))
    assert "shapes that do not fit" in str(_reason(model))
