"""Every model by person against the slow and obvious way: PyMC's density, and integrals over a fine grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from persons_zoo import PERSONS_ZOO, Entry, P
from scipy import optimize

from pymc_dpvi import DPADVI, Quadrature
from pymc_dpvi.engine.local_search import find_modes
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.engine.unit_batches import in_rows
from pymc_dpvi.graph.fine_integrals import MarginalGradient
from pymc_dpvi.graph.gradients import in_draws, local_terms, put
from pymc_dpvi.graph.local_latents import PRIOR
from pymc_dpvi.graph.synthetic_records import python_function
from pymc_dpvi.graph.traversal import array_value, walk
from pymc_dpvi.mechanism.mechanism import Draws

pytestmark = [
    pytest.mark.filterwarnings("ignore:Scan return signature:DeprecationWarning"),  # PyMC's own
    pytest.mark.filterwarnings("ignore:The integral over .* is rough:pymc_dpvi.errors.PrivacyWarning"),
]

NAMES = list(PERSONS_ZOO)
LARGE = 1e6  # a clip norm that clips nobody
#: Integrals over several values take long in Python.
SLOW = {"three_effects", "correlated_effects", "own_spread", "ordered_answers", "frailty", "decisions"}
#: Python mode takes minutes for them.
MANY_CLASSES = {"topics", "classes_of_curves", "classes_with_a_reference"}
MANY = {"curves_of_five_terms", "tastes_and_items", "one_of_five_values"}
OPTIONS: dict[str, Any] = {"noise_multiplier": 2.0, "delta": 1e-5, "accountant": "rdp", "random_seed": 1}
#: The error of 15 nodes, or of the default in three dimensions, beside the gradient's length.
ALLOWED = 0.02
#: Two of its persons have two modes, and nodes about one of them.
ALLOWED_OF = {"own_spread": 0.1}


def method(entry: Entry, **more: Any) -> DPADVI:
    return DPADVI(**{**OPTIONS, "unit": "person", **entry.options, **more}, model=entry.build())


def continuous(entry: Entry) -> list[str]:
    """Return the names of its local variables that are not discrete."""
    model = entry.build()
    return [name for name in entry.local if not model[name].dtype.startswith("int")]


def released_of_everybody(
    made: DPADVI, mode: str, persons: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of persons' gradients, by default of all, and the latent values where they are taken."""
    kept: list[Any] = []

    def keep(grads: list[Any], params: list[Any]) -> dict[Any, Any]:
        (noisy,) = {v for v in walk(grads) if v.owner and type(v.owner.op).__name__ == "PrivateSum"}
        kept.append(pytensor.shared(np.zeros(noisy.type.shape)))
        return {kept[0]: noisy}

    record, approx = made._record, made._approx
    mechanism = made._settings.mechanism(10, record.num_units)
    step = PrivateStep(
        record,
        approx.latents,
        approx.groups[0],
        mechanism,
        n_mc=1,
        optimizer=keep,
        max_grad_norm=None,
        compile_kwargs={"mode": mode},
    )
    who = np.asarray(persons or np.arange(record.num_units))
    everybody = Draws(who, np.array([0, who.size]), np.zeros((1, step.num_noise), np.int64))
    draws = in_rows(everybody, record.units, None)  # type: ignore[arg-type]
    step(draws.indices, draws.offsets, draws.noise, np.zeros((1, *step.draw_shape)), np.zeros(1))
    return np.asarray(kept[0].get_value()), approx.start


def one_row(made: DPADVI) -> Any:
    """Return the terms of one row in Python: log-density and gradient by z."""
    record, latents = made._record, made._approx.latents
    z = pt.vector("z", shape=(latents.size,), dtype="float64")
    terms, draw = in_draws([f.sum() for f in record.factors.values()], latents)
    total = pt.add(*terms) if len(terms) > 1 else terms[0]
    grads = pytensor.grad(total, draw, disconnected_inputs="ignore", return_disconnected="zero")
    wanted = [total, pt.concatenate([g.flatten() for g in grads])]
    return python_function([*record.rows, z], put(wanted, draw, latents.split(z)))


def rows_of(made: DPADVI, p: int) -> list[list[np.ndarray]]:
    record = made._record
    own = record.units.rows[record.units.starts[p] : record.units.starts[p + 1]]  # type: ignore[union-attr]
    data = [array_value(a) for a in record.data()]
    return [[a[r : r + 1] for a in data] for r in own]


def test_the_zoo_is_complete():
    assert len(NAMES) >= 25
    assert sum(bool(e.local) for e in PERSONS_ZOO.values()) >= 20


@pytest.mark.zoo
@pytest.mark.parametrize("name", NAMES)
def test_rows_add_up_to_the_models_own_density(name: str):
    """At values of all variables, local ones too: PyMC's density, without the prior of global variables."""
    entry = PERSONS_ZOO[name]
    made = method(entry)
    record, model = made._record, made._record.whole_model
    assert tuple(made.approx.withheld) == (*entry.local, *entry.withheld)
    assert (() if record.local is None else record.local.names) == entry.local
    rng = np.random.default_rng(1)
    point = {k: np.asarray(v) for k, v in model.initial_point(0).items()}
    local = [] if record.local is None else [model.rvs_to_values[v].name for v in record.local.variables]
    for k, v in point.items():
        is_whole = v.dtype.kind == "i"
        moved = rng.integers(0, 2, size=v.shape) if is_whole else v + 0.3 * rng.normal(size=v.shape)
        point[k] = moved.astype(v.dtype)
    whole = float(model.compile_logp()(point))
    density = python_function(list(record.value_vars), [record.prior_logp])
    prior = float(density(*(point[v.name] for v in record.value_vars))[0])
    terms, rows = one_row(made), 0.0
    z = np.concatenate([np.ravel(point[v.name]) for v in made._approx.latents.value_vars])
    for p in range(P):
        own = [np.concatenate([np.ravel(point[n][p]) for n in local]).astype(float)[None]] if local else []
        for k, row in enumerate(rows_of(made, p)):
            first = [np.array([float(k == 0)])] if local else []
            rows += float(terms(*row, *own, *first, z)[0])
    assert rows + prior == pytest.approx(whole, rel=1e-8)


@pytest.mark.zoo
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NAMES])
def test_gradients_are_those_of_integrals_over_a_grid(name: str):
    entry = PERSONS_ZOO[name]
    own = name in {"three_effects", "fitted_intercepts", "decisions"} or not continuous(entry)
    if name in MANY:
        pytest.skip("a grid has too many points; tests/graph/test_local_rules.py has exact integrals")
    guide = {} if own else {"guide": dict.fromkeys(continuous(entry), Quadrature(15))}
    made = method(entry, sampler="full_batch", l2_clip_norm=LARGE, **guide)
    if made._record.units.max_rows is not None:  # type: ignore[union-attr]
        pytest.skip("rows are drawn at random")
    found, z = released_of_everybody(made, "FAST_COMPILE")
    record, latents = made._record, made._approx.latents
    terms = one_row(made) if record.local is None else None
    marginal = None if record.local is None else MarginalGradient(record, latents)
    expected = np.zeros(z.size)
    for p in range(P):
        rows = rows_of(made, p)
        expected += marginal(rows, z) if marginal else sum(terms(*row, z)[1] for row in rows)
    apart = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    exact = made._record.local is None or not made._record.local.places.continuous
    assert apart <= (1e-6 if exact else ALLOWED_OF.get(name, ALLOWED)), (found, expected)


@pytest.mark.zoo
@pytest.mark.parametrize("name", NAMES)
def test_searches_end_at_modes(name: str):
    """For everybody, where the fit begins and elsewhere: SciPy finds no larger density nearby."""
    made = method(PERSONS_ZOO[name])
    record, latents = made._record, made._approx.latents
    if record.local is None or not record.local.places.continuous:
        pytest.skip("there is nothing to search")
    rule = record.local.places
    z = pt.matrix("z", shape=(1, latents.size), dtype="float64")
    batch = [r.type.clone(shape=(None, *r.type.shape[1:]))() for r in record.rows]
    terms = python_function([*batch, z], local_terms(record, batch, latents, z))
    rng = np.random.default_rng(5)
    for here in (made._approx.start, made._approx.start + 0.8 * rng.normal(size=latents.size)):
        for p in range(P):
            rows = rows_of(made, p)
            data = [np.concatenate(column) for column in zip(*rows, strict=True)]
            first = np.eye(len(rows), 1)[:, 0]

            def derivatives(
                places: np.ndarray,
                at: np.ndarray,
                data: Sequence[np.ndarray] = data,
                first: np.ndarray = first,
                here: np.ndarray = here,
            ) -> list[np.ndarray]:
                with np.errstate(all="ignore"):
                    return list(terms(*(d[places] for d in data), at, first[places], here[None]))

            def cost(
                u: np.ndarray, values: np.ndarray, of: Any = derivatives, n: int = len(rows)
            ) -> tuple[float, np.ndarray]:
                value, slope, _ = of(np.arange(n), np.tile(np.concatenate([u, values]), (n, 1)))
                return (-value.sum(), -slope.sum(axis=0)) if np.isfinite(value).all() else (1e300, 0.0 * u)

            modes, _ = find_modes(derivatives, np.array([0, len(rows)]), rule)
            for mode, values in zip(modes, rule.values, strict=True):
                if cost(mode, values)[0] == 1e300:  # no density there: nor elsewhere
                    some = 3.0 * rng.normal(size=(50, mode.size))
                    assert all(cost(u, values)[0] == 1e300 for u in some), (p, mode)
                best = optimize.minimize(cost, mode, (values,), jac=True)
                assert cost(mode, values)[0] - best.fun < 0.05, (p, mode, best.x)


@pytest.mark.zoo
@pytest.mark.filterwarnings("ignore:The integral over:pymc_dpvi.errors.PrivacyWarning")
@pytest.mark.parametrize("name", ["random_intercept", "own_rate", "rasch"])
def test_more_nodes_are_more_exact(name: str):
    entry = PERSONS_ZOO[name]
    found = []
    for nodes in (3, 7, 15, 31):
        guide = dict.fromkeys(entry.local, Quadrature(nodes))
        made = method(entry, sampler="full_batch", l2_clip_norm=LARGE, guide=guide)
        found.append(released_of_everybody(made, "FAST_COMPILE")[0])
    apart = [np.linalg.norm(f - found[-1]) / np.linalg.norm(found[-1]) for f in found[:-1]]
    assert apart[0] > apart[1] > apart[2] and apart[2] < 1e-3, apart


@pytest.mark.zoo
@pytest.mark.filterwarnings("ignore:The integral over 'share' is rough:pymc_dpvi.errors.PrivacyWarning")
@pytest.mark.parametrize("name", NAMES)
def test_whole_fit_on_the_default_backend(name: str):
    """As a user fits it: no backend is named, and none falls back."""
    entry = PERSONS_ZOO[name]
    made = method(entry, sampling_prob=0.4)
    before = [p.get_value() for p in made.approx.params]
    approx = made.fit(4, progressbar=False)
    assert approx.privacy.runs[-1].backend == "numba"
    for old, new in zip(before, approx.params, strict=True):
        assert np.isfinite(new.get_value()).all() and (old != new.get_value()).all()
    posterior = approx.sample(3, noise_aware=False)["posterior"]
    assert not set(posterior.data_vars) & {*entry.local, *entry.withheld} and "who" not in posterior.dims
    assert PRIOR not in posterior.data_vars


@pytest.mark.zoo
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in MANY_CLASSES else name
        for name, entry in PERSONS_ZOO.items()
        if "max_rows_per_unit" not in entry.options
    ],
)
def test_numbas_sum_is_that_of_python(name: str):
    whole = {"sampler": "full_batch", "l2_clip_norm": LARGE}
    by_numba, _ = released_of_everybody(method(PERSONS_ZOO[name], **whole), "NUMBA")
    in_python, _ = released_of_everybody(method(PERSONS_ZOO[name], **whole), "FAST_COMPILE")
    np.testing.assert_allclose(by_numba, in_python, rtol=1e-6, atol=1e-6)
