"""What a seed fixes, what it must not fix, and the warning of a seed for the noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
from short_fits import CHEAP, MARKS, Build, params, quiet

from pymc_dpvi import DPADVI, InsecureNoiseWarning, fit_dpadvi

pytestmark = MARKS


def test_insecure_seed_and_random_seed_reproduce(logistic: Build) -> None:
    def run(**kwargs: Any) -> np.ndarray:
        with logistic():
            approx = quiet(DPADVI(**{**CHEAP, **kwargs}), 6)
        return np.concatenate([params(approx), approx.sample(2)["posterior"]["beta"].values.ravel()])

    first = run()
    np.testing.assert_array_equal(run(), first)
    assert not np.array_equal(run(insecure_noise_seed=2), first)
    assert not np.array_equal(run(random_seed=3), first)
    assert not np.array_equal(run(insecure_noise_seed=None), first)


def test_random_seed_is_for_public_draws_only(
    logistic: Build, steps_seen: list[tuple[np.ndarray, ...]]
) -> None:
    for _ in range(2):
        with logistic():
            quiet(DPADVI(**{**CHEAP, "insecure_noise_seed": None}, l2_clip_norm=1.0), 10)
    first, second = steps_seen[:10], steps_seen[10:]
    assert len(second) == 10
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a[2], b[2])  # the latent draws are the seed's
        assert not np.isin(a[1], b[1]).any()  # the noise is not
    assert any(not np.array_equal(a[0], b[0]) for a, b in zip(first, second, strict=True))  # nor the batches


def test_insecure_seed_warns_and_is_reported(logistic: Build) -> None:
    with logistic():
        with pytest.warns(InsecureNoiseWarning, match="do not release") as caught:
            approx = DPADVI(**CHEAP).fit(5, progressbar=False)
        assert len(caught) == 1
        assert caught[0].filename == __file__
    report = approx.privacy
    assert str(report).splitlines()[0].startswith("NOT FOR RELEASE")
    assert not report.secure_randomness and not report.releasable


@pytest.mark.parametrize("door", ["pm.fit", "refine", "fit_dpadvi"])
def test_warnings_point_at_the_line_of_the_caller(logistic: Build, door: str) -> None:
    """Python shows a text once for each line."""
    with logistic():
        with pytest.warns(InsecureNoiseWarning) as caught:
            if door == "fit_dpadvi":
                fit_dpadvi(1, **CHEAP, progressbar=False)
            else:
                method = DPADVI(**CHEAP)
                pm.fit(1, method=method, progressbar=False)
        if door == "refine":
            with pytest.warns(InsecureNoiseWarning) as caught:
                method.refine(1, progressbar=False)
    assert [w.filename for w in caught] == [__file__]
