"""Forms of published models: indices 0, 1, 2, ..., matrices of a diagonal, outcomes of many axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dpvi import DPADVI, UnsupportedModelError
from pymc_dpvi.errors import PrivacyError
from pymc_dpvi.graph.indexing import numbers_rows
from pymc_dpvi.graph.records import build_record_model

pytestmark = pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning")

METHOD: dict[str, Any] = dict(noise_multiplier=2.0, delta=1e-5, sampling_prob=0.3, accountant="rdp")
N = 40
RNG = np.random.default_rng(0)
X, CHOICE = RNG.normal(size=(N, 3)), RNG.integers(0, 3, N)
TABLES = RNG.normal(size=(N, 3, 3))


def factor_model(index: Any, size: int = N) -> pm.Model:
    """A score for each respondent under a dim of its own, as in PyMC's examples of factor analysis."""
    with pm.Model(coords={"obs": range(size)}) as model:
        score = pm.Normal("score", dims="obs")
        pm.Normal("y", score[index][:, None] * pm.Normal("loading", shape=3), 1.0, observed=X)
    return model


@pytest.mark.parametrize("index", [list(range(N)), np.arange(N), pt.arange(N)], ids=["list", "array", "op"])
def test_a_value_for_each_record_under_another_name_is_refused(index: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'score' is looked up by 0, 1, 2, .*one latent value"):
        build_record_model(factor_model(index))


def test_its_advice_works() -> None:
    with pm.Model():
        ids = pm.Data("id", np.arange(N))
        score = pm.Normal("score", shape=N)
        pm.Normal("y", score[ids][:, None] * pm.Normal("loading", shape=3), 1.0, observed=X)
        assert DPADVI(unit="id", **METHOD).approx.latents.size == 3


@pytest.mark.parametrize(
    ("index", "numbers"),
    [
        (pt.constant(np.arange(5)), True),
        (pt.constant(np.arange(5, dtype="int8"))[:, None], True),
        (pt.constant(np.arange(5)[:, None]), True),
        (pt.arange(5), True),
        (pt.arange(5)[:, None], True),
        (pt.arange(5)[None], False),
        (pt.constant(np.arange(5)[None]), False),
        (pt.arange(1, 5), False),
        (pt.arange(4), False),
        (pt.arange(pt.lscalar()), False),
        (pt.constant(np.array([0, 2, 1, 3, 4])), False),
        (pt.constant(np.arange(5.0)), False),
        (pt.constant(np.array([False, True, True, True, True])), False),
        (pt.constant(3), False),
        (pt.lvector(), False),
        (pt.lvector()[:, None], False),
    ],
)
def test_what_numbers_the_rows(index: Any, numbers: bool) -> None:
    assert numbers_rows(index, 5) is numbers


def picked(rows: Callable[[Any], Any], second: bool) -> pm.Model:
    """Of best and worst: what is chosen first is not there for the second choice."""
    with pm.Model() as model:
        x, choice = pm.Data("x", X), pm.Data("choice", CHOICE)
        utility = x * pm.Normal("b", shape=3)
        if second:
            left = pt.set_subtensor(utility[rows(x), choice], -1e9)
            pm.Categorical("next", p=pm.math.softmax(left, axis=1), observed=(CHOICE + 1) % 3)
        else:
            log_p = utility - pt.logsumexp(utility, axis=1, keepdims=True)
            pm.Potential("chosen", log_p[rows(x), choice])
    return model


ROWS: dict[str, Callable[[Any], Any]] = {
    "symbolic": lambda x: pt.arange(x.shape[0]),
    "pytensor": lambda x: pt.arange(N),
    "numpy": lambda x: np.arange(N),
    "int32": lambda x: np.arange(N, dtype="int32"),
}


@pytest.mark.turns
@pytest.mark.parametrize("second", [False, True])
def test_an_entry_of_ones_own_row_may_be_picked(second: bool) -> None:
    """The number of the row is no number of the record's: all ways to write it give the same fit."""
    means = []
    for rows in ROWS.values():
        with picked(rows, second):
            method = DPADVI(insecure_noise_seed=1, random_seed=1, **METHOD)
        means.append(method.fit(3, progressbar=False, backend="python").params[0].get_value())
    assert np.all(means == means[0])


def lagged(m: pm.Model) -> None:
    pm.Normal("y", pm.Normal("r") * pm.Data("series", X[:, 0])[:-1], 1.0, observed=X[1:, 0])


def by_closure(m: pm.Model) -> None:
    bring = pm.Data("x", X[:, 1])
    pm.CustomDist("y", pm.Normal("b"), logp=lambda v, b: -((v - b * bring) ** 2), observed=X[:, 0])


def two_groups(m: pm.Model) -> None:
    mu = pm.Normal("mu", shape=2)
    pm.Normal("one", mu[0], 1.0, observed=X[:, 0])
    pm.Normal("other", mu[1], 1.0, observed=X[:9, 0])


def soft_sum(m: pm.Model) -> None:
    b = pm.Normal("b", shape=3)
    pm.Normal("sum", b.sum(), 0.01, observed=0.0)
    pm.Normal("y", pm.Data("x", X) @ b, 1.0, observed=X[:, 0])


ADVICE: dict[str, tuple[Callable[[pm.Model], None], str]] = {
    "lag": (lagged, "each value then stands in two rows"),
    "closure": (by_closure, "an argument of pm.CustomDist"),
    "groups": (two_groups, r"mu\[group\]"),
    "constraint": (soft_sum, "holds parameters together"),
}


@pytest.mark.parametrize("case", ADVICE)
def test_what_to_write_instead(case: str) -> None:
    build, text = ADVICE[case]
    with pm.Model() as model, pytest.raises(UnsupportedModelError, match=text):
        build(model)
        DPADVI(**METHOD)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_a_table_with_a_row_for_each_record_is_not_public(rows: Callable[[Any], Any]) -> None:
    with pm.Model():
        x, choice = pm.Data("x", X), pm.Data("choice", CHOICE)
        pm.Normal("y", x[rows(x), choice] * pm.Normal("b"), 1.0, observed=X[:, 0])
        with pytest.raises(PrivacyError, match="leave it out of public_data="):
            DPADVI(public_data=["x"], **METHOD)


@pytest.mark.parametrize("rows", [np.arange(N)[::-1].copy(), (np.arange(N) + 1) % N], ids=["back", "next"])
def test_an_entry_of_anothers_row_may_not(rows: Any) -> None:
    with picked(lambda x: rows, False), pytest.raises(PrivacyError):
        DPADVI(**METHOD)


def test_the_number_of_a_row_may_also_be_a_time() -> None:
    rows = pt.constant(np.arange(N))
    with pm.Model():
        x, choice = pm.Data("x", X), pm.Data("choice", CHOICE)
        slope = pm.Normal("slope")
        mu = (x * pm.Normal("b", shape=3))[rows, choice] + slope * rows
        pm.Normal("y", mu, 1.0, observed=X[:, 0])
        assert DPADVI(**METHOD).approx.latents.size == 4


@pytest.mark.turns
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("how", ["columns", "slice"])
def test_several_entries_of_ones_own_row_may_be_picked(how: str, column: bool) -> None:
    """PyTensor 2 and 3 keep slices at different places."""
    rows = pt.arange(N) if column else np.arange(N)
    means = []
    for own in (rows, None):
        with pm.Model():
            x, choice = pm.Data("x", TABLES), pm.Data("choice", CHOICE)
            at = pt.arange(x.shape[0]) if own is None else own
            table = x * pm.Normal("b", shape=3)
            if how == "columns":
                columns = pt.stack([choice, (choice + 1) % 3], axis=1)
                own_entries = table[:, 0][at[:, None], columns].sum(axis=1)
            else:
                own_entries = table[at, :, choice].sum(axis=1)
            pm.Normal("y", own_entries, 1.0, observed=X[:, 0])
            method = DPADVI(insecure_noise_seed=1, random_seed=1, **METHOD)
        means.append(method.fit(3, progressbar=False, backend="python").params[0].get_value())
    np.testing.assert_array_equal(*means)


def test_a_number_of_the_row_among_the_records_is_explained() -> None:
    """No entry of a pm.Data is looked at, so it may be anybody's row. Elsewhere nothing is said."""
    text = r" If 'rows' does no more than number the rows, .* write np.arange\(n\) in its place"
    with picked(lambda x: pm.Data("rows", np.arange(N)), False), pytest.raises(PrivacyError, match=text):
        DPADVI(**METHOD)
    with pm.Model():
        x, group = pm.Data("x", X), pm.Data("group", CHOICE)
        mean = (x - x.mean(axis=0)).sum(axis=1) + pm.Normal("b", shape=(3, 3))[group, (group + 1) % 3]
        pm.Normal("y", mean, 1.0, observed=X[:, 0])
        with pytest.raises(PrivacyError) as caught:
            DPADVI(**METHOD)
    assert "number the rows" not in str(caught.value)


def areas(prior: Callable[[], Any]) -> pm.Model:
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(prior()[CHOICE]), observed=CHOICE)
    return model


PRIORS: dict[str, Callable[[], Any]] = {
    "CAR": lambda: pm.CAR("phi", np.zeros(3), W=1.0 - np.eye(3), alpha=pm.Beta("a", 1, 1), tau=1.0),
    "diagonal": lambda: pm.MvNormal("phi", np.zeros(3), cov=pt.diag(pm.HalfNormal("s", shape=3))),
}


@pytest.mark.turns
@pytest.mark.parametrize("prior", PRIORS)
def test_a_matrix_made_of_a_diagonal_may_stand_in_a_prior(
    prior: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its index is its own, and is refused nowhere; nor does PyTensor say anything of its constants."""
    with areas(PRIORS[prior]):
        approx = DPADVI(**METHOD).fit(40, progressbar=False, backend="python")
        approx.sample(2)
    assert all(np.isfinite(p.get_value()).all() for p in approx.params)
    assert "Rewrite failure" not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.parametrize("trailing", [(4,), (4, 7), (2, 5, 3)])
def test_an_outcome_may_have_any_number_of_axes(trailing: tuple[int, ...]) -> None:
    """Known: of three axes and more, the numbers of entries that PyMC writes down were taken for data."""
    y = RNG.normal(size=(N, *trailing))
    with pm.Model():
        mean = pm.Normal("mean") + pm.Normal("slope") * X[(slice(None), 0, *[None] * len(trailing))]
        pm.Normal("y", mean, 1.0, observed=y)
        assert DPADVI(**METHOD).approx.latents.size == 2


def test_the_outcome_is_not_public() -> None:
    with pm.Model():
        y = pm.Data("Y", X)
        pm.Normal("y", pm.Normal("mean"), 1.0, observed=y)
        with pytest.raises(PrivacyError, match="public_data names 'Y', the observed values of 'y'"):
            DPADVI(public_data=["Y"], **METHOD)
