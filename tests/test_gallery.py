"""Published models: each gets the verdict beside it, and a refusal names the fault and the way out.

What is accepted is fitted for some steps in Python on every push, and on the default backend as a part of the
zoo (`zoo`, see `conftest`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pymc as pm
import pytest
from gallery import GALLERY, Entry
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from test_zoo import check_release

from pymc_dpvi import DPADVI, errors

#: Some of the names are those of a formula package, of which a fit warns.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*looks as if a formula package:pymc_dpvi.errors.PrivacyWarning"
)


ACCEPTED = [name for name, entry in GALLERY.items() if entry.accepted]
REFUSED = [name for name, entry in GALLERY.items() if not entry.accepted]


def made(entry: Entry, model: pm.Model) -> DPADVI:
    return DPADVI(
        noise_multiplier=2.0,
        delta=1e-5,
        sampling_prob=0.3,
        accountant="rdp",
        record_dim=entry.record_dim,
        public_data=entry.public_data,
        random_seed=1,
        model=model,
    )


def values_of(model: pm.Model) -> Iterator[str]:
    """Digits by which a number of the model's arrays would be known in a text: four and more, no integers."""
    roots = [*model.basic_RVs, *model.potentials, *model.rvs_to_values.values(), *model.data_vars]
    for var in ancestors(roots):
        if isinstance(var, Constant | SharedVariable):
            held = var.data if isinstance(var, Constant) else var.get_value(borrow=True)
            if isinstance(held, np.ndarray) and held.size > 8 and held.dtype.kind == "f":
                for number in held[np.isfinite(held) & (held % 0.5 != 0)].ravel():
                    digits = repr(float(abs(number)))[:6]
                    if "e" not in digits and len(digits.replace(".", "").strip("0")) >= 4:
                        yield digits


def test_gallery_is_complete():
    assert len(GALLERY) >= 80 and len(REFUSED) >= 25
    assert all(entry.source for entry in GALLERY.values())
    assert all(GALLERY[name].contains for name in REFUSED)


def test_values_are_found():
    model = GALLERY["hogg_outlier_indicators"].build()
    digits = list(values_of(model))
    first = float(model["x_data"].get_value()[0])
    assert any(d in f"found {first!r}" for d in digits)
    assert not any(d in "found 27 records of 2 columns" for d in digits)


@pytest.mark.turns
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    entry = GALLERY[name]
    model = entry.build()
    with pytest.raises(errors.PrivacyError) as caught:
        made(entry, model)
    message = str(caught.value)
    assert isinstance(caught.value, getattr(errors, entry.error)), message
    assert f"'{entry.guilty}'" in message or f"operation {entry.guilty} " in message, message
    for phrases in entry.contains:
        assert any(phrase.lower() in message.lower() for phrase in phrases), (phrases, message)
    assert not [d for d in values_of(model) if d in message], message


def fitted(entry: Entry, **how: object) -> DPADVI:
    inference = made(entry, entry.build())
    assert inference._record.num_records == entry.num_records
    assert set(inference.approx.withheld) == set(entry.withheld)
    before = [p.get_value() for p in inference.approx.params]
    approx = inference.fit(4, progressbar=False, **how)
    for old, new in zip(before, approx.params, strict=True):
        assert np.isfinite(new.get_value()).all()
        assert (old != new.get_value()).all()
    assert approx.privacy.runs[-1].steps_run == 4
    check_release(entry, inference._record, approx.sample(5))
    return inference


@pytest.mark.turns
@pytest.mark.usefixtures("python_for_all")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if GALLERY[n].slow else n for n in ACCEPTED]
)
def test_accepted(name: str):
    fitted(GALLERY[name], compile_kwargs={"mode": "PYTHON"})


@pytest.mark.zoo
@pytest.mark.slow  # all of them in `tox run -e zoo`
@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_on_the_default_backend(name: str):
    inference = fitted(GALLERY[name])
    assert inference.approx.privacy.runs[-1].backend == "numba"
