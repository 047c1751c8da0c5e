"""Numbers of the records that PyMC or a formula package has worked out while the model was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.traversal import ancestors

from pymc_dpvi import DPADVI, PrivacyWarning, UnsupportedModelError
from pymc_dpvi.graph.precomputed import formula_mark
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.traversal import array_value, walk

N = 83
RNG = np.random.default_rng(23)
Y = RNG.normal(size=N)
X = RNG.normal(size=(N, 3))
SETTINGS: dict[str, Any] = {
    "noise_multiplier": 2.0,
    "delta": 1e-6,
    "sampling_prob": 0.5,
    "accountant": "rdp",
}


@pytest.mark.parametrize("entry", [0.0, 1.0])
def test_no_entry_of_a_record_array_makes_a_basis(entry: float) -> None:
    """All zeros are whole numbers of half turns, as the frequencies of an HSGP are."""
    weight = np.zeros(N)
    weight[3] = entry
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        turns = pt.sqrt(pt.sqr(pt.as_tensor(weight) / (2 * 6.0)))
        pm.Normal("y", b * pt.sin(turns * (pt.as_tensor(X[:, 0]) - 0.5)), 1, observed=Y)
    build_record_model(model)


def hsgp(
    *,
    centre: Any = None,
    boundary: Any = None,
    periodic: bool = False,
    extreme: float = 10.0,
    columns: int = 1,
    numpy: bool = False,
    prior: bool = False,
) -> pm.Model:
    x = np.linspace(0.0, 10.0, N)
    x[-1] = extreme
    x = np.stack([x] * columns, axis=1)
    with pm.Model() as model:
        inputs = x if numpy else pm.Data("inputs", x)
        if periodic:
            cov = pm.gp.cov.Periodic(1, period=3.0, ls=pm.Exponential("ls", 1))
            gp: Any = pm.gp.HSGPPeriodic(m=4, scale=1.0, cov_func=cov)
        else:
            cov = pm.gp.cov.ExpQuad(columns, ls=pm.Exponential("ls", 1))
            gp = pm.gp.HSGP(m=[5] * columns, c=1.5, cov_func=cov)
        if centre is not None:
            gp._X_center = pm.Data("center", np.full(columns, 5.0)) if centre == "declared" else centre
        if boundary is not None:
            gp.L = pm.Data("boundary", np.full(columns, 7.0)) if boundary == "declared" else boundary
        if prior:
            f = gp.prior("f", X=inputs)
        elif periodic:
            (cosines, sines), psd = gp.prior_linearized(X=inputs)
            f = cosines @ (pm.Normal("a", shape=4) * psd) + sines @ pm.Normal("b", shape=4)
        else:
            phi, psd = gp.prior_linearized(X=inputs)
            f = phi @ (pm.Normal("a", shape=5**columns) * psd)
        pm.Normal("y", f, 1.0, observed=Y)
    return model


BAD_HSGP: dict[str, tuple[dict[str, Any], str]] = {
    "as published": ({}, "HSGP, whose centre and boundary"),
    "prior": ({"prior": True}, "HSGP, whose centre and boundary"),
    "centre of numpy": ({"centre": np.array([5.0]), "boundary": "declared"}, "HSGP, whose centre"),
    "boundary of numpy": ({"centre": "declared", "boundary": np.array([6.0])}, "HSGP, whose boundary"),
    "inputs of numpy": ({"numpy": True, "boundary": "declared"}, "HSGP, whose centre"),
    "two columns": ({"columns": 2, "boundary": "declared"}, "HSGP, whose centre"),
    "periodic": ({"periodic": True}, "HSGPPeriodic, whose centre"),
    "periodic prior": ({"periodic": True, "prior": True}, "HSGPPeriodic, whose centre"),
    "periodic, numpy": ({"periodic": True, "numpy": True}, "HSGPPeriodic, whose centre"),
}


@pytest.mark.parametrize("case", BAD_HSGP)
def test_a_basis_that_the_records_place_is_refused(case: str) -> None:
    kwargs, text = BAD_HSGP[case]
    model = hsgp(**kwargs)
    public = [d.name for d in model.data_vars if d.name != "inputs"]
    with pytest.raises(
        UnsupportedModelError, match=f"'y' is built on pm.gp.{text}.*gp._X_center = pm.Data"
    ) as error:
        build_record_model(model, public_data=public)
    assert ("gp.L = " in str(error.value)) is not bool(kwargs.get("periodic"))


@pytest.mark.turns
@pytest.mark.parametrize("kwargs", [{}, {"prior": True}, {"columns": 2}, {"periodic": True}, {"numpy": True}])
def test_a_basis_in_a_public_place_is_accepted(kwargs: dict[str, Any]) -> None:
    """And is the same whatever the records are, which the one that PyMC places is not."""
    declared: dict[str, Any] = {
        "centre": "declared",
        **({} if "periodic" in kwargs else {"boundary": "declared"}),
    }

    def logp(extreme: float) -> float:
        model = hsgp(extreme=extreme, **declared, **kwargs)
        public = ["center", *(["boundary"] if "boundary" in declared else [])]
        record = DPADVI(model=model, public_data=public, **SETTINGS)._record  # with its check of the rows
        assert "center" in " ".join(record.public_arrays)
        inputs = [*record.rows, *record.value_vars]
        value = pytensor.function(inputs, record.row_logp, mode="PYTHON")
        rows = [np.full(row.type.shape, 3.0, dtype=row.dtype) for row in record.rows]
        shapes = [model.initial_point(0)[v.name].shape for v in record.value_vars]
        return float(value(*rows, *[np.ones(s) for s in shapes]))

    assert logp(10.0) == logp(50.0)


def test_pymc_places_the_basis_by_the_records() -> None:
    """So that the refusals are about something."""
    ends = []
    for extreme in (10.0, 50.0):
        model = hsgp(extreme=extreme)
        constants = [array_value(v) for v in walk([model["y"]]) if getattr(v, "data", None) is not None]
        ends.append(
            sorted(float(c.ravel()[0]) for c in constants if np.shape(c) == (1,) and c.dtype == float)
        )
    assert ends[0] != ends[1]


GRID = np.linspace(-1, 1, 21)[:, None]


def on_a_grid(first: Any, **placed: Any) -> pm.Model:
    """Make a model whose records look up a basis on a public grid; `first` is what PyMC saw before."""
    with pm.Model() as model:
        x = pm.Data("x", X[:, :1])
        length = [float(2 * np.abs(X).max())] if first == "boundary" else [2.0]
        gp = pm.gp.HSGP(m=[5], L=length, cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Exponential("ls", 1)))
        for name, value in placed.items():
            setattr(gp, name, pm.Data(name.strip("_"), value))
        if first == "prior":
            gp.prior("f", X=x)
        elif first == "linearized":
            gp.prior_linearized(X=x)
        phi, psd = gp.prior_linearized(X=GRID)
        f = phi @ (pm.Normal("a", shape=5) * psd)
        pm.Normal("y", f[pm.Data("at", RNG.integers(0, 21, N))], 1.0, observed=Y)
    return model


@pytest.mark.parametrize("first", ["prior", "linearized", "boundary", "nothing"])
def test_a_basis_on_a_public_grid_may_have_been_placed_by_records(first: str) -> None:
    """PyMC keeps the centre of the first inputs, and the graph is the same if these were the grid."""
    with pytest.raises(UnsupportedModelError, match=r"HSGP, whose centre.*also for a basis on a public grid"):
        build_record_model(on_a_grid(first))
    with pytest.raises(UnsupportedModelError, match="HSGP, whose boundary"):
        build_record_model(on_a_grid(first, _X_center=[0.0]), public_data=["X_center"])


@pytest.mark.parametrize("first", ["prior", "linearized", "nothing"])
def test_a_basis_on_a_public_grid_in_a_public_place_is_accepted(first: str) -> None:
    build_record_model(on_a_grid(first, _X_center=[0.0], L=[2.0]), public_data=["X_center", "L"])


def formula_model(name: str = "b", dim: str = "g", obs: str | None = None) -> pm.Model:
    with pm.Model(coords={dim: range(2), **({obs: range(N)} if obs else {})}) as model:
        b = pm.Normal(name, dims=dim)
        pm.Normal("y", b.sum(), 1, observed=Y, dims=obs)
    return model


@pytest.mark.parametrize(
    ("kwargs", "mark"),
    [
        ({"name": "Intercept"}, "Intercept"),
        ({"name": "1|county"}, "1|county"),
        ({"dim": "county__factor_dim"}, "county__factor_dim"),
        ({"obs": "__obs__"}, "__obs__"),
        ({"name": "intercept", "dim": "factor_dim"}, None),
        ({"name": "x_sigma", "obs": "obs"}, None),
    ],
)
def test_marks_of_a_formula_package(kwargs: dict[str, Any], mark: str | None) -> None:
    assert formula_mark(formula_model(**kwargs)) == mark


@pytest.mark.usefixtures("without_compiling")
def test_a_formula_package_is_warned_of_whatever_the_records_are() -> None:
    said = []
    for y in (Y, Y * 0, Y + 1e6):
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("Intercept"), 1, observed=y)
        with pytest.warns(PrivacyWarning, match=r"center_predictors=False, auto_scale=False") as caught:
            DPADVI(model=model, **SETTINGS).fit(1, progressbar=False)
        said.append([str(w.message) for w in caught])
    assert said[0] == said[1] == said[2] and len(said[0]) == 1


# -------------------------------------------------------------------------------- probabilities and bounds

rng = np.random.default_rng(0)
ROWS = 40
FIRST, SECOND = rng.dirichlet(np.ones(3), size=(2, ROWS))
#: One row does not sum to one.
BROKEN = np.concatenate([[[0.5, 0.1, 0.1]], FIRST[1:]])
LABELS, COUNTS = rng.integers(0, 3, ROWS), rng.multinomial(5, [0.3, 0.3, 0.4], size=ROWS)


def mixture(make: Callable[[Any], Any], observed: np.ndarray) -> Callable[[Any, Any, Any], None]:
    def add(w: Any, p: Any, other: Any) -> None:
        pm.Mixture("y", w=w, comp_dists=[make(p), make(other)], observed=observed)

    return add


def closure(w: Any, p: Any, other: Any) -> None:
    def dist(w: Any, size: Any) -> Any:
        return pm.Mixture.dist(w=w, comp_dists=[pm.Categorical.dist(p=p), pm.Categorical.dist(p=other)])

    pm.CustomDist("y", w, dist=dist, observed=LABELS)


def potential(w: Any, p: Any, other: Any) -> None:
    densities = [pt.exp(pm.logp(pm.Categorical.dist(p=rows), LABELS)) for rows in (p, other)]
    pm.Potential("y", pt.log(w[0] * densities[0] + w[1] * densities[1]))


WAYS = {
    "categorical": mixture(lambda p: pm.Categorical.dist(p=p), LABELS),
    "multinomial": mixture(lambda p: pm.Multinomial.dist(n=5, p=p), COUNTS),
    "truncated": mixture(lambda p: pm.Truncated.dist(pm.Categorical.dist(p=p), upper=2), LABELS),
    "censored": mixture(lambda p: pm.Censored.dist(pm.Categorical.dist(p=p), lower=None, upper=2), LABELS),
    "closure": closure,
    "potential": potential,
}


def made(way: str, p: Any, other: Any, name: str | None) -> DPADVI:
    with pm.Model():
        w = pm.Dirichlet("w", np.ones(2))
        WAYS[way](w, *((p, other) if name is None else (pm.Data("p", p), pm.Data("other", other))))
        return DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)


@pytest.mark.filterwarnings("ignore:.*parameters sum to:UserWarning")
@pytest.mark.filterwarnings("ignore:Scan return signature:DeprecationWarning")  # PyMC's own
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_probabilities_are_refused_whatever_they_hold(way: str) -> None:
    said = []
    for p in (FIRST, BROKEN):
        with pytest.raises(UnsupportedModelError, match=r"one record would change.*pm\.Data\('") as caught:
            made(way, p, SECOND, None)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_pymc_does_not_look_into_data() -> None:
    held = [made("categorical", p, SECOND, "p")._record.arrays for p in (FIRST, BROKEN)]
    for old, new in zip(*held, strict=True):
        np.testing.assert_array_equal(values(old)[1:], values(new)[1:])


def values(array: Any) -> np.ndarray:
    return np.asarray(array.get_value() if isinstance(array, SharedVariable) else array.data)


#: Records of a truncation: a lower bound for the first, or for none. Known: it silenced all others.
LOWER = np.full(ROWS, -np.inf), np.concatenate([[-20.0], np.full(ROWS - 1, -np.inf)])
UPPER = -8.0 + 0.01 * rng.random(ROWS)
OUTCOME = UPPER - 0.5 - rng.exponential(0.1, ROWS)


def truncated(lower: Any, upper: Any, outcome: Any) -> DPADVI:
    with pm.Model():
        mean = pm.Normal("b", 0, 10) * pt.ones_like(outcome)
        dist = pm.TruncatedNormal.dist(mean, 1.0, lower=lower, upper=upper)
        pm.Potential("p", pm.logp(dist, outcome))
        return DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)


def test_arrays_behind_logp_are_refused_whatever_they_hold() -> None:
    said = []
    for lower in LOWER:
        with pytest.raises(UnsupportedModelError, match=r"'p' is a Potential.*pm\.Data\('x', x\)") as caught:
            truncated(lower, UPPER, pt.as_tensor(OUTCOME))
        said.append(str(caught.value))
    assert said[0] == said[1]


def _logistic(value: Any, mu: Any, **_: Any) -> Any:
    return mu - value - 2 * pt.log1p(pt.exp(mu - value))


@pytest.mark.filterwarnings("ignore:Scan return signature:DeprecationWarning")  # PyMC's own
def test_nor_is_a_density_of_the_users_own_seen_through() -> None:
    """Nothing in a graph says that `pm.logp` made it. Known: one bound moved the sum by 26 C."""
    said = []
    for upper in (np.full(ROWS, np.inf), np.concatenate([[50.0], np.full(ROWS - 1, np.inf)])):
        with pm.Model() as model:
            base = pm.CustomDist.dist(
                pm.Normal("mu", 0, 1), logp=_logistic, logcdf=lambda v, mu, **_: -pt.log1p(pt.exp(mu - v))
            )
            pm.Potential("p", pm.logp(pm.Truncated.dist(base, upper=upper), OUTCOME))
        with pytest.raises(UnsupportedModelError, match="'p' is a Potential with arrays") as caught:
            build_record_model(model)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("cases", [0, 1])
def test_a_potential_is_refused_whatever_its_arrays_hold(cases: int) -> None:
    """Known: an array of zeros was taken for a part of the model, and one with a single case for records."""
    rare = np.zeros(ROWS)
    rare[:cases] = 1.0
    for data in (False, True):
        with pm.Model() as model:
            a = pm.Normal("a", 0, 1)
            pm.Normal("y", a, 1, observed=OUTCOME)
            z = pm.Data("z", rare) if data else pt.as_tensor(rare)
            pm.Potential("rare", z * a - pt.softplus(a))
        if data:
            assert set(build_record_model(model).factors) == {"y", "rare"}
        else:
            with pytest.raises(UnsupportedModelError, match="'rare' is a Potential with arrays"):
                build_record_model(model)


BASES: dict[str, Any] = {
    "count": lambda mu: pm.Poisson.dist(pm.math.exp(mu)),
    "mixture of counts": lambda mu: pm.ZeroInflatedPoisson.dist(0.5, pm.math.exp(mu)),
}


@pytest.mark.parametrize("base", BASES)
def test_bounds_of_censored_counts_are_refused_whatever_they_hold(base: str) -> None:
    """Known, PyMC 6: without a finite bound the outcome was cut to whole numbers: 22 C."""
    y = np.abs(np.round(OUTCOME)) + 0.5
    said = []
    for upper in (np.full(ROWS, np.inf), np.concatenate([[50.0], np.full(ROWS - 1, np.inf)])):
        with pm.Model() as model:
            pm.Censored("y", BASES[base](pm.Normal("mu", 0, 1)), lower=None, upper=upper, observed=y)
        with pytest.raises(UnsupportedModelError, match=r"'y' is a censored count.*pm\.Data") as caught:
            build_record_model(model)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_bounds_of_censored_counts_may_be_data_or_numbers_and_those_of_others_arrays() -> None:
    for kind in ("data", "number", "continuous"):
        with pm.Model() as model:
            rate = pm.math.exp(pm.Normal("mu", 0, 1))
            base = pm.Exponential.dist(rate) if kind == "continuous" else pm.Poisson.dist(rate)
            upper = np.full(ROWS, 5.0)
            bound = pm.Data("upper", upper) if kind == "data" else 5.0 if kind == "number" else upper
            outcome = np.minimum(np.abs(np.round(OUTCOME)), 5.0)
            pm.Censored("y", base, lower=None, upper=bound, observed=outcome)
        assert set(build_record_model(model).factors) == {"y"}


#: An argument of a distribution of the user's own, as all records but one have it, and what one has.
ARGUMENTS: dict[str, tuple[Any, float, float]] = {
    "offset": (lambda a, x, size: pt.floor(pm.Normal.dist(a, 1, size=size) + x), 0.0, 1.0),
    "exposure": (lambda a, x, size: pt.maximum(pm.LogNormal.dist(a, 1, size=size) * x, 0.1), 1.0, 2.0),
    "bound": (lambda a, x, size: pt.minimum(pm.Normal.dist(a, 1, size=size), x), np.inf, 0.5),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_a_density_that_pymc_derives_or_not_goes_by_no_record(case: str) -> None:
    """Known: the prior was derived together with the likelihood, with the records in it."""
    dist, usual, other = ARGUMENTS[case]
    outcomes = []
    for one in (usual, other):
        x = np.full(ROWS, usual)
        x[3] = one
        with pm.Model() as model:
            pm.CustomDist("y", pm.Normal("a", 0, 1), x, dist=dist, observed=np.abs(np.round(OUTCOME)) + 0.5)
        try:
            DPADVI(epsilon=1.0, delta=1e-6, model=model)
            outcomes.append("accepted")
        except UnsupportedModelError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_logp_does_not_look_into_data() -> None:
    found = []
    for lower in LOWER:
        with pm.Model():
            arrays = [pm.Data(name, a) for name, a in (("lo", lower), ("up", UPPER), ("y", OUTCOME))]
            mean = pm.Normal("b", 0, 10) * pt.ones_like(arrays[2])
            dist = pm.TruncatedNormal.dist(mean, 1.0, lower=arrays[0], upper=arrays[1])
            pm.Potential("p", pm.logp(dist, arrays[2]))
            found.append(DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)._record.factors["p"])
    assert equal_computations([found[0]], [found[1]], *(_leaves(f) for f in found))


def _leaves(graph: Variable) -> list[Variable]:
    """Placeholders and values, which are others in each model."""
    return [v for v in ancestors([graph]) if v.owner is None and not isinstance(v, Constant)]


def test_probabilities_of_latent_values_are_no_rows() -> None:
    with pm.Model():
        w = pm.Dirichlet("w", np.ones(3), shape=(4, 3))
        pm.Categorical("y", p=w[pm.Data("group", LABELS)], observed=LABELS)
        DPADVI(epsilon=1.0, delta=1e-6, random_seed=1)
