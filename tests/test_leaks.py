"""Ways in which records could leave a fit by the side door, each closed and each with a test.

==============================================  ===========================================================
way                                             test
==============================================  ===========================================================
loss, ``hist``                                  `test_nothing_keeps_a_loss`, test_callbacks `test_tracker`
observed and constant data groups               test_release `test_released_object`
deterministics on record data                   test_sample `test_deterministics`, here
                                                `test_a_column_of_zeros_is_still_a_column`
coords of the record axis                       test_release `test_released_object`
pickle and copy                                 test_sample `test_pickling_and_copying_are_refused`
``sample_node`` and its relatives               `test_expressions_of_records_are_refused`
what else PyMC's class computes                 `test_every_attribute_of_the_approximation`
what callbacks are given                        `test_callbacks_are_given_no_more`
``sample_posterior_predictive`` on the data     `test_predictions_of_the_records_are_pymcs_own` (documented)
texts of errors, warnings, logs, progress       test_release; `test_two_datasets_say_the_same`
the text of a MemoryError                       `test_running_out_of_memory_does_not_tell_...`
texts of a source of records                    test_records_from_disk
                                                `test_a_source_that_fails_tells_nothing`
local variables on tracebacks                   `test_frames_are_emptied`, `test_frames_held_records`
compile caches on the disk                      `test_no_record_on_the_disk`
random seeds                                    test_seeds `test_random_seed_is_for_public_draws_only`
``start`` from the records                      test_arguments_of_fit `test_start_from_the_records_is_refused`
optimisers that read the records                `test_an_optimizer_that_reads_records_is_refused`
optimisers that look behind their gradients     `test_an_optimizer_sees_the_release_alone`
data exchanged after the checks                 `test_other_data_after_the_checks`,
                                                `test_a_number_that_becomes_records`
variables added after the checks                `test_other_variables_after_the_checks`
arrays and operations beside the records        `test_what_would_enter_beside_the_records`
lengths that turn on values                     `test_a_length_that_turns_on_values_is_refused`,
                                                `test_a_mask_is_refused_whatever_it_holds`
lengths that equal N, in what PyMC evaluates    `test_an_expression_does_not_tell_the_number_of_records`
two threads, one method                         `test_two_threads_cannot_share_a_report`
keys on tracebacks                              test_keystream `test_no_key_on_a_traceback`
early stopping, interrupts, errors              test_early_end
calling fit twice                               test_refine `test_fit_twice`, `test_refine_composes_...`
timing, memory                                  out of scope: ``docs/limitations.md``
==============================================  ===========================================================
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from planted_records import ERRORS, METHOD, N, in_array, in_bytes, in_idata, in_text, planted_model
from pymc.util import WithMemoization
from pymc.variational.approximations import MeanFieldGroup
from pymc.variational.opvi import Approximation
from pytensor.compile.ops import wrap_py
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from pymc_dpvi import DPADVI, ArgumentError, PrivacyError, UnsupportedModelError
from pymc_dpvi.engine.private_sum import PrivateSum
from pymc_dpvi.graph.traversal import walk
from pymc_dpvi.posterior.open_attributes import OPEN
from pymc_dpvi.redaction import clear_locals, sealed, shielded

pytestmark = [
    pytest.mark.filterwarnings("ignore::pymc_dpvi.errors.InsecureNoiseWarning"),
    pytest.mark.usefixtures("without_compiling"),
]


@pytest.fixture(scope="module")
def model() -> pm.Model:
    return planted_model()


@pytest.fixture(scope="module")
def method(model: pm.Model) -> DPADVI:
    private = DPADVI(model=model, **METHOD)
    private.fit(3, progressbar=False, compile_kwargs={"mode": "PYTHON"})
    return private


# -------------------------------------------------------------------------------- what PyMC's classes have

#: A function of the variational parameters, or a public fact: as private as a sample.
OF_PARAMETERS = {
    "diagnostics",
    "local_posterior",
    *("alias_names", "all_histograms", "any_histograms", "check_draws", "collect", "cov", "ddim"),
    *("draw_latents", "has_logq", "hist", "initial_dist_map", "initial_dist_name", "input", "inputs"),
    *("latents", "logq", "logq_norm", "mean", "mean_data", "ndim", "options", "ordering", "params"),
    *("params_dict", "privacy", "rho", "rng", "sample", "sample_dict_fn", "scale_cost_to_minibatch"),
    *("shared_params", "short_name", "single_symbolic_varlogp", "sized_symbolic_varlogp", "start", "std"),
    *("std_data", "symbolic_initial", "symbolic_logq", "symbolic_logq_not_scaled"),
    *("symbolic_normalizing_constant", "symbolic_random", "symbolic_randoms", "user_params"),
    *(
        "var_to_data",
        "varlogp",
        "varlogp_norm",
        "withheld",
        "L",
        "L_tril",
        "num_tril_entries",
        "tril_indices",
    ),
    *("rslice", "state", "include_transformed"),
}
#: Looks at the graph that it is given, and refuses records.
GUARDED = {
    *("get_optimization_replacements", "make_size_and_deterministic_replacements", "sample_node"),
    *("set_size_and_deterministic", "symbolic_sample_over_posterior", "symbolic_single_sample"),
    *("to_flat_input",),
}
#: The user's own model, or a way to it: for the process that has the data anyway (docs/limitations.md).
INSIDE = {"model", "group", "groups", "replacements"}
#: The class, not this approximation.
OF_THE_CLASS = {
    *("create_shared_params", "get_param_spec_for", "group_for_params", "group_for_short_name"),
    *("joint_histogram", "register"),
}
#: What PyMC computes on the records, or on the records among others.
ON_RECORDS = {
    *("_single_symbolic_varlogp_and_datalogp", "_sized_symbolic_varlogp_and_datalogp", "datalogp"),
    *("datalogp_norm", "logp", "logp_norm", "single_symbolic_datalogp", "single_symbolic_logp"),
    *("sized_symbolic_datalogp", "sized_symbolic_logp"),
}


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def variables(value: Any) -> Iterator[Variable]:
    if isinstance(value, Variable):
        yield value
    elif isinstance(value, dict):
        for item in [*value.keys(), *value.values()]:
            yield from variables(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from variables(item)


@pytest.mark.turns
def test_every_attribute_of_the_approximation(method: DPADVI) -> None:
    """Every name is known and its kind is true; a name that a new PyMC brings fails here."""
    approx = method.approx
    record = approx._record
    held = {*record.arrays, *record.model.observed_RVs}
    known = OF_PARAMETERS | GUARDED | INSIDE | OF_THE_CLASS
    assert public(dir(approx)) - known == set()
    for name in sorted(OF_PARAMETERS & set(dir(approx))):
        value = getattr(approx, name)
        for var in variables(value):
            assert not held & set(walk([var], into_size=True)), name
        if name in ("mean_data", "std_data"):
            assert in_idata_group(value) == []
        assert in_text(repr(value), name) == [] or name in ("latents",), name
    drawn = approx.sample_dict_fn(4)
    assert {k: v.shape[0] for k, v in drawn.items()} == {"beta": 4, "effect": 4, "sigma_log__": 4}
    for name in ("logq", "varlogp"):
        value = approx.set_size_and_deterministic(getattr(approx, name), 1, 0).eval()
        assert np.isfinite(value).all()


def in_idata_group(data: Any) -> list[str]:
    found = [hit for name, array in data.variables.items() for hit in in_array(array.values, str(name))]
    return found + in_text(repr(data), "repr")


@pytest.mark.parametrize("name", sorted(ON_RECORDS))
def test_the_density_of_the_records_is_refused(method: DPADVI, name: str) -> None:
    approx = method.approx
    assert name not in dir(approx)
    with pytest.raises(PrivacyError, match=f"{name} is refused: it is a function of the records"):
        getattr(approx, name)
    # It is there in PyMC's class, or this test would be about nothing; and there it reads the records.
    parent = pm.MeanField(model=approx.model)
    behind = walk(list(variables(getattr(parent, name))), into_size=True)
    assert set(approx._record.arrays) & set(behind)


@pytest.mark.parametrize("owner", [Approximation, MeanFieldGroup, WithMemoization])
@pytest.mark.parametrize(
    "made_up",
    [property(lambda self: self.model), lambda self: self.model, 3.0],
    ids=["property", "method", "value"],
)
def test_what_a_new_pymc_brings_is_closed(
    method: DPADVI, monkeypatch: pytest.MonkeyPatch, owner: type, made_up: Any
) -> None:
    approx, name = method.approx, "datalogp_of_each"
    assert not hasattr(approx, name)
    monkeypatch.setattr(owner, name, made_up, raising=False)
    assert name not in dir(approx)
    with pytest.raises(PrivacyError, match=f"{name} is refused: it is a function of the records"):
        getattr(approx, name)


def test_what_a_new_pymc_sets_on_the_approximation_is_closed(
    model: pm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Approximation.__init__

    def init(self: Any, groups: Any, model: Any = None) -> None:
        before(self, groups, model)
        self.datalogp_of_each = model

    monkeypatch.setattr(Approximation, "__init__", init)
    approx = DPADVI(model=model, **METHOD).approx
    assert "datalogp_of_each" not in dir(approx)
    with pytest.raises(PrivacyError, match="datalogp_of_each is refused"):
        approx.datalogp_of_each  # noqa: B018
    approx.note = "the user's own"
    assert approx.note == "the user's own" and "note" in dir(approx)


def test_what_is_open_is_known() -> None:
    assert not OPEN & ON_RECORDS
    assert public(OPEN) <= OF_PARAMETERS | GUARDED | INSIDE | OF_THE_CLASS


def test_nothing_keeps_a_loss(method: DPADVI) -> None:
    # PyMC's name for the loss: of a private fit it is norms of gradients that are released anyway.
    np.testing.assert_array_equal(method.hist, method.approx._trace.gradient_norms)
    np.testing.assert_array_equal(method.hist, method.approx.hist)
    known = {"approx", "fit", "hist", "l2_clip_norm", "refine", "run_profiling", "state"}
    assert public(dir(method)) - known == set()
    for name in ("objective", "step_function", "score_function"):  # what PyMC's own methods have
        assert not hasattr(method, name)


def test_callbacks_are_given_no_more(model: pm.Model) -> None:
    given: list[tuple[Any, ...]] = []

    def callback(*args: Any) -> None:
        given.append(args)

    private = DPADVI(model=model, **METHOD)
    private.fit(2, progressbar=False, callbacks=[callback])
    assert given == [(private.approx, None, 1), (private.approx, None, 2)]


# -------------------------------------------------------------------------------- expressions of records


def flat(model: pm.Model, node: Any) -> Any:
    return model.replace_rvs_by_values([node])[0]


EXPRESSIONS: dict[str, Callable[[Any, pm.Model], Any]] = {
    "node": lambda a, m: a.sample_node(m["mean"]),
    "list of nodes": lambda a, m: a.sample_node([m["spread"], m["total"]]),
    "data alone": lambda a, m: a.sample_node(m["age"]),
    "data in a replacement": lambda a, m: a.sample_node(
        m["spread"], more_replacements={m["sigma"]: m["age"].mean()}
    ),
    "observed": lambda a, m: a.sample_node(m["outcome"]),
    "single sample": lambda a, m: a.symbolic_single_sample(flat(m, m["mean"])),
    "over posterior": lambda a, m: a.symbolic_sample_over_posterior(flat(m, m["mean"])),
    "flat input": lambda a, m: a.to_flat_input(flat(m, m["total"])),
    "flat replacement": lambda a, m: a.to_flat_input(
        flat(m, m["spread"]), more_replacements={m.rvs_to_values[m["sigma"]]: m["age"].mean()}
    ),
    "sizes": lambda a, m: a.set_size_and_deterministic(m["age"] * 2, 1, 0),
    "size replacement": lambda a, m: a.set_size_and_deterministic(
        a.symbolic_single_sample(flat(m, m["spread"])), 1, 0, {a.params[0]: m["age"][:6]}
    ),
    "log-density of the model": lambda a, m: a.symbolic_single_sample(m.datalogp),
}


@pytest.mark.parametrize("case", EXPRESSIONS)
def test_expressions_of_records_are_refused(method: DPADVI, model: pm.Model, case: str) -> None:
    with pytest.raises(UnsupportedModelError, match="depends on the records"):
        EXPRESSIONS[case](method.approx, model)


def test_expressions_of_parameters_are_not(method: DPADVI, model: pm.Model) -> None:
    approx = method.approx
    assert approx.sample_node(model["spread"], size=5).eval().shape == (5,)
    assert approx.sample_node([model["beta"], model["spread"]])[0].eval().shape == (2,)
    swapped = approx.sample_node(model["spread"], more_replacements={model["sigma"]: model["effect"][0]})
    assert np.isfinite(swapped.eval())
    one = approx.symbolic_single_sample(flat(model, model["spread"]))
    assert np.isfinite(approx.set_size_and_deterministic(one, 1, 1).eval())
    with pytest.raises(ArgumentError, match="node must be an expression"):
        approx.sample_node("beta")
    table = pt.stack([flat(model, model["spread"]) * k for k in np.sqrt(np.arange(70.0))])
    for ask in (approx.sample_node, approx.symbolic_single_sample, approx.symbolic_sample_over_posterior):
        with pytest.raises(UnsupportedModelError, match="depends on the records"):
            ask(table)


@pytest.mark.parametrize("ask", ["symbolic_single_sample", "symbolic_sample_over_posterior", "to_flat_input"])
@pytest.mark.parametrize("entries", [np.zeros(41), np.arange(41.0), np.eye(41)[3]], ids=["0", "k", "one"])
def test_an_expression_does_not_tell_the_number_of_records(ask: str, entries: np.ndarray) -> None:
    """Nor what stands in a constant: an array may be data, however long it is."""
    for n in (40, 41, 42):
        with pm.Model() as model:
            b = pm.Normal("b")
            pm.Normal("y", b, 1.0, observed=np.linspace(-1, 1, n))
            approx = DPADVI(**METHOD).approx
        node = model.rvs_to_values[b] * pt.as_tensor(entries)
        with pytest.raises(UnsupportedModelError, match="depends on the records"):
            getattr(approx, ask)(node)
        getattr(approx, ask)(model.rvs_to_values[b] * pt.ones(41))


@pytest.mark.parametrize("order", ["factor, shape", "shape, factor"])
def test_an_expression_does_not_turn_on_what_was_asked_before(order: str) -> None:
    """A constant that passed as a shape has not passed as a factor."""
    with pm.Model() as model:
        b = pm.Normal("b", shape=12)
        pm.Normal("y", b.sum(), 1.0, observed=np.linspace(-1, 1, 7))
        approx = DPADVI(**METHOD).approx
    c, value = pt.constant(np.array([3, 4])), model.rvs_to_values[b]
    for use in order.split(", "):
        for ask in (approx.symbolic_single_sample, approx.symbolic_sample_over_posterior):
            if use == "shape":
                asked = ask(value.reshape(c, ndim=2))
                approx.set_size_and_deterministic(asked, 1, 0)
                continue
            with pytest.raises(UnsupportedModelError, match="depends on the records"):
                ask(value[:2] * c)
            with pytest.raises(UnsupportedModelError, match="depends on the records"):
                approx.set_size_and_deterministic(value[:2] * c, 1, 0)


def test_a_column_of_zeros_is_still_a_column() -> None:
    """A column that holds the same number throughout may be the answer of every record."""
    withheld = []
    for flagged in (False, True):
        flags = np.zeros(41)
        flags[3] = flagged
        with pm.Model():
            b = pm.Normal("b")
            pm.Deterministic("d", b * pt.as_tensor(flags))
            pm.Deterministic("e", (b + pt.as_tensor(flags)).sum())
            pm.Deterministic("f", b * pt.ones(3))
            pm.Normal("y", b, 1.0, observed=np.linspace(-1, 1, 41))
            withheld.append(tuple(DPADVI(**METHOD).approx.withheld))
    assert withheld == [("d", "e")] * 2


def test_predictions_of_the_records_are_pymcs_own(method: DPADVI, model: pm.Model) -> None:
    """PyMC predicts for the rows that the model holds, and adds the data: no release, and documented."""
    idata = method.approx.sample(3)
    assert in_idata(idata) == []
    with model:
        predicted = pm.sample_posterior_predictive(
            idata, var_names=["outcome"], progressbar=False, random_seed=1
        )
    found = in_idata(predicted)
    assert any("length N" in hit for hit in found) and any("observed_data" in hit for hit in found)
    page = (Path(__file__).parents[1] / "docs" / "limitations.md").read_text(encoding="utf-8")
    assert "sample_posterior_predictive" in page


# -------------------------------------------------------------------------------- what enters besides


def test_an_optimizer_that_reads_records_is_refused(model: pm.Model) -> None:
    private = DPADVI(model=model, **METHOD)
    for updates in (
        lambda grads, params: {params[0]: params[0] + model["age"].mean()},
        lambda grads, params: (
            {p: p - 0.1 * g for p, g in zip(params, grads, strict=True)}
            | {model["age"]: model["age"] + grads[0][0]}
        ),
    ):
        with pytest.raises(ArgumentError, match="obj_optimizer"):
            private.fit(2, progressbar=False, obj_optimizer=updates)
    with pytest.raises(PrivacyError, match="Nothing was spent"):
        _ = private.approx.privacy


def sum_behind(grads: Any) -> Any:
    """Return the node of the private sum, as anybody can who is handed a gradient."""
    nodes = [v.owner for v in walk(grads) if v.owner is not None]
    return next(node for node in nodes if isinstance(node.op, PrivateSum))


def hidden_update(grads: Any, params: Any) -> dict[Any, Any]:
    """A state of the optimiser's own, which PyTensor updates by itself."""
    state = pytensor.shared(np.zeros(()))
    state.default_update = state + sum_behind(grads).inputs[-3].sum()
    return {params[0]: params[0] + state}


LOOK_BEHIND: dict[str, Callable[[Any, Any], Any]] = {
    "rows before the clip": lambda g, p: {p[0]: p[0] + sum_behind(g).inputs[0].sum()},
    "noise taken off": lambda g, p: {p[0]: p[0] + sum_behind(g).inputs[-2].sum()},
    "size of the batch": lambda g, p: {p[0]: p[0] + sum_behind(g).inputs[-3]},
    "default_update": hidden_update,
}


@pytest.mark.parametrize("case", LOOK_BEHIND)
def test_an_optimizer_sees_the_release_alone(model: pm.Model, case: str) -> None:
    """Its gradients are graphs, and the records, the batch and the noise are their ancestors."""
    private = DPADVI(model=model, **METHOD)
    with pytest.raises(ArgumentError, match="what stands behind its gradients"):
        private.fit(2, progressbar=False, obj_optimizer=LOOK_BEHIND[case])
    with pytest.raises(PrivacyError, match="Nothing was spent"):
        _ = private.approx.privacy


BAD_OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "shape": lambda grads, params: {params[0]: pt.zeros(99)},
    "key": lambda grads, params: {5: params[0]},
    "not finite": lambda grads, params: {params[0]: params[0] / 0.0},
    "raises": lambda grads, params: {params[0]: params[0][pt.constant(10**6)] + params[0]},
}


@pytest.mark.parametrize("case", BAD_OPTIMIZERS)
def test_an_optimizer_that_cannot_work_costs_nothing(method: DPADVI, case: str) -> None:
    report = method.approx.privacy
    before = [p.get_value() for p in method.approx.params]
    with pytest.raises(ArgumentError):
        method.fit(2, progressbar=False, obj_optimizer=BAD_OPTIMIZERS[case])
    assert method.approx.privacy is report
    for param, value in zip(method.approx.params, before, strict=True):
        np.testing.assert_array_equal(param.get_value(), value)


@pytest.mark.parametrize("value", [1e308, -1e101, np.inf, np.nan, 1j, "bogus", np.array(["1"]), object()])
def test_a_start_that_leads_nowhere_is_refused(value: Any) -> None:
    with pm.Model(), pytest.raises(ArgumentError, match=r"start\['a'\] must be"):
        pm.Normal("y", pm.Normal("a"), 1.0, observed=np.linspace(-1, 1, 9))
        DPADVI(**METHOD, start={"a": value})


@pytest.mark.parametrize(
    "changed",
    [{"x": (5, 2), "y": (5,)}, {"x": (5, 2)}, {"x": (90, 2), "y": (90,)}, {"x": (61, 3)}],
    ids=["fewer", "fewer of one", "more", "more columns"],
)
def test_other_data_after_the_checks(changed: dict[str, tuple[int, ...]]) -> None:
    """Indices beyond the end of an array, or rows that are in no batch, are found before the charge."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x, y = pm.Data("x", rng.normal(size=(61, 2))), pm.Data("y", rng.normal(size=61))
        pm.Normal("outcome", x @ pm.Normal("b", shape=2), 1.0, observed=y)
        private = DPADVI(**METHOD)
        pm.set_data({name: np.zeros(shape) for name, shape in changed.items()})
    with pytest.raises(UnsupportedModelError, match="another shape now"):
        private.fit(2, progressbar=False)
    with pytest.raises(PrivacyError, match="Nothing was spent"):
        _ = private.approx.privacy
    with model:
        pm.set_data({"x": rng.normal(size=(61, 2)), "y": rng.normal(size=61)})
    assert private.fit(2, progressbar=False).privacy.n_steps == 2


@pytest.mark.parametrize("exchanged", ["values", "more values", "in place", "labels", "number"])
def test_what_was_public_cannot_be_exchanged_for_records(exchanged: str) -> None:
    """Known: fitted values of a declared grid were released, of whatever it held after the fit."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=41), rng.normal(size=41)
    with pm.Model(coords={"grid": range(5)}):
        a, b = pm.Normal("a"), pm.Normal("b", 0.0, pm.Data("scale", 1.0))
        grid = pm.Data("points", np.linspace(-1, 1, 5), dims="grid")
        pm.Deterministic("curve", a + b * grid, dims="grid")
        pm.Normal("y", a + b * pm.Data("x", x), 1.0, observed=y)
        method = DPADVI(**METHOD, public_data=["points"])
        approx = method.fit(3, progressbar=False)
        approx.sample(2)
        if exchanged == "values":
            pm.set_data({"points": x[:5]})
        elif exchanged == "more values":
            pm.set_data({"points": x}, coords={"grid": [f"person {i}" for i in range(41)]})
        elif exchanged == "in place":
            pm.modelcontext(None)["points"].get_value(borrow=True)[:] = x[:5]
        elif exchanged == "labels":
            pm.set_data({"points": np.linspace(-1, 1, 5)}, coords={"grid": list("ABCDE")})
        else:
            pm.set_data({"scale": y[0]})
        found = "labels" if exchanged == "labels" else "number" if exchanged == "number" else "values"
        for action in (
            lambda: approx.sample(2),
            lambda: method.refine(2),
            lambda: method.fit(2, progressbar=False),
            lambda: approx.sample_node(a + b),
        ):
            with pytest.raises(UnsupportedModelError, match=f"other {found} now than when") as caught:
                action()
            assert str(y[0]) not in str(caught.value) and "person" not in str(caught.value)
        pm.set_data({"points": np.linspace(-1, 1, 5), "scale": 1.0}, coords={"grid": range(5)})
        method.refine(2)
        assert "curve" in approx.sample(2)["posterior"]


def test_an_undeclared_table_of_zeros_is_refused() -> None:
    """It may be filled by ``pm.set_data`` when the checks are over."""
    with pm.Model() as model:
        table = pm.Data("table", np.zeros(3))
        pm.Normal("y", pm.Normal("a", shape=3).dot(table), 1.0, observed=np.linspace(-1, 1, 41))
    with pytest.raises(UnsupportedModelError, match=r"public_data=\['table'\]"):
        DPADVI(model=model, **METHOD)
    assert DPADVI(model=model, public_data=["table"], **METHOD).approx.latents.size == 3


def test_other_variables_after_the_checks() -> None:
    """What is added to the model later is judged when it would be released."""
    x, y = np.random.default_rng(0).normal(size=(41, 2)), np.linspace(-1, 1, 41)
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        pm.Normal("outcome", pt.as_tensor(x) @ b, 1.0, observed=y)
        private = DPADVI(**METHOD)
        approx = private.fit(2, progressbar=False)
        pm.Deterministic("fitted", pt.as_tensor(x) @ b)
        pm.Deterministic("twice", 2 * b)
        assert list(approx.sample(2)["posterior"].data_vars) == ["b", "twice"]
        assert tuple(approx.withheld) == ("fitted",)
        pm.Normal("late", b[0], 1.0, observed=y)
    for action in (lambda: private.fit(2), lambda: private.refine(2), lambda: approx.sample(2)):
        with pytest.raises(UnsupportedModelError, match="other variables now"):
            action()
    assert len(approx.privacy.runs) == 1
    assert "late" in model.named_vars


def test_a_number_cannot_become_records() -> None:
    """``pm.set_data`` can make a column of an array of one entry, so that it is refused; not of a number."""
    y = np.linspace(-1, 1, 41)
    with pm.Model():
        a, scale = pm.Normal("a"), pm.Data("scale", np.ones(1))
        pm.Normal("outcome", a * scale[0], 1.0, observed=y)
        with pytest.raises(UnsupportedModelError, match="'scale' enters the likelihood but is not indexed"):
            DPADVI(**METHOD)
    with pm.Model():
        a, scale = pm.Normal("a"), pm.Data("scale", 1.0)
        pm.Deterministic("scaled", a * scale)
        pm.Normal("outcome", a * scale, 1.0, observed=y)
        private = DPADVI(**METHOD)
        assert "scaled" in private.fit(2, progressbar=False).sample(2)["posterior"]
        for column in (y, y[:7]):
            with pytest.raises(ValueError, match="0 dimensions"):
                pm.set_data({"scale": column})


class Sums(Op):
    """Multiplies by the sum of numbers that it holds: a black box, with a gradient."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers

    def make_node(self, z: Any) -> Apply:
        return Apply(self, [pt.as_tensor(z)], [pt.dvector()])

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = inputs[0] * self.numbers.sum()

    def grad(self, inputs: Any, grads: Any) -> Any:
        return [grads[0] * self.numbers.sum()]

    pullback = grad


X = np.random.default_rng(3).normal(size=(41, 2))
DOUBLE = np.concatenate([X, X])


@wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
def times_sum(z: np.ndarray) -> np.ndarray:
    return z * X.sum()


BESIDE: dict[str, tuple[Callable[[Any], Any], str]] = {
    # of X.T PyMC leaves the mean alone, which has no axis over records any more
    "transposed": (lambda b: pt.as_tensor(X.T.copy()).mean(axis=1) * b, "as long as the observations"),
    "transposed zeros": (
        lambda b: pt.as_tensor(np.zeros((2, 41))).sum(axis=1) * b,
        "as long as the observations",
    ),
    "twice as long": (lambda b: pt.as_tensor(DOUBLE).mean(axis=0) * b, "holds numbers in the likelihood"),
    "raveled": (lambda b: pt.as_tensor(X.ravel()).mean() * b, "holds numbers in the likelihood"),
    "Gram matrix": (lambda b: pt.as_tensor(X.T @ X) @ b, "holds numbers in the likelihood"),
    "shared": (lambda b: pytensor.shared(DOUBLE, "double").mean() * b, "'double' enters the likelihood"),
    "black box": (lambda b: Sums(X)(b), "operation Sums in the likelihood"),
    "wrap_py": (lambda b: b + times_sum(pt.zeros(2)), "operation FromFunctionOp in the likelihood"),
}


@pytest.mark.parametrize("case", BESIDE)
def test_what_would_enter_beside_the_records(case: str) -> None:
    """One row stands for the records; what else holds data would enter every step without noise."""
    make, text = BESIDE[case]
    with pm.Model(), pytest.raises(PrivacyError, match=text):
        pm.Normal("y", pt.as_tensor(X) @ make(pm.Normal("b", shape=2)), 1.0, observed=X[:, 0])
        DPADVI(**METHOD)


def kept(reads: Any) -> Any:
    """A number that each call of a function adds the records to."""
    state = pytensor.shared(np.asarray(0.0), name="state")
    state.default_update = state + reads.sum()
    return state


DETERMINISTIC = ("deterministic", "deterministic alone")


def updated(place: str) -> pm.Model:
    with pm.Model() as model:
        x = pm.Data("x", X)
        b = pm.Normal("b", kept(x) if place == "prior" else 0.0, 1.0, shape=2)
        eta = x @ b + (kept(x) if place == "likelihood" else 0.0)
        if place == "custom":
            pm.CustomDist("y", eta, logp=lambda v, m: -((v - m) ** 2) + kept(x), observed=X[:, 0])
        else:
            pm.Normal("y", eta, 1.0, observed=X[:, 0])
        if place == "potential":
            pm.Potential("p", b.sum() * kept(x))
        if place == "deterministic":
            pm.Deterministic("d", b + kept(x))
        if place == "deterministic alone":
            pm.Deterministic("d", kept(x))
    return model


@pytest.mark.filterwarnings("ignore:Setting default_update")  # PyTensor 3
@pytest.mark.parametrize("place", ["prior", "likelihood", "custom", "potential", *DETERMINISTIC])
def test_a_number_that_steps_would_update_is_refused(place: str) -> None:
    """Nothing in the graph shows that it reads the records: PyTensor updates it by itself."""
    with updated(place), pytest.raises(UnsupportedModelError, match="'state' has a default_update"):
        DPADVI(**METHOD)


@pytest.mark.filterwarnings("ignore:Setting default_update")
def test_a_number_that_is_updated_from_now_on_is_refused() -> None:
    with pm.Model():
        x, state = pm.Data("x", X), pytensor.shared(np.asarray(0.0), name="state")
        b = pm.Normal("b", state, 1.0, shape=2)
        pm.Deterministic("d", b + state)
        pm.Normal("y", x @ b, 1.0, observed=X[:, 0])
        private = DPADVI(**METHOD)
        approx = private.fit(2, progressbar=False, backend="python")
        state.default_update = state + x.sum()
        for again in (private.fit, private.refine, approx.sample):
            with pytest.raises(UnsupportedModelError, match="'state' has a default_update"):
                again(2)
    assert len(approx.privacy.runs) == 1 and state.get_value() == 0.0


def test_an_array_that_is_declared_may_enter() -> None:
    with pm.Model():
        weights = pm.Data("weights", np.array([0.3, 1.0, 9.0]))
        b = pm.Normal("b", shape=3)
        pm.Normal("y", pt.as_tensor(X[:, 0]) * (weights * b).sum(), 1.0, observed=X[:, 1])
        assert DPADVI(public_data=["weights"], **METHOD).approx.latents.size == 3


def test_a_black_box_in_the_prior_is_refused() -> None:
    with pm.Model(), pytest.raises(UnsupportedModelError, match="operation Sums in the prior"):
        b = pm.Normal("b", shape=2)
        pm.Potential("likelihood", Sums(X)(b).sum())
        pm.Normal("y", b[0], 1.0, observed=X[:, 0])
        DPADVI(**METHOD)


@pytest.mark.parametrize("keep", [np.ones(41), np.arange(41.0)], ids=["all", "all but one"])
@pytest.mark.parametrize("potential", [False, True])
def test_a_length_that_turns_on_values_is_refused(keep: np.ndarray, potential: bool) -> None:
    """The same text for two data sets of which only one would have been refused."""
    with pm.Model(), pytest.raises(PrivacyError, match="depends on values of the data"):
        y, kept = pm.Data("y", X[:, 0]), pm.Data("kept", keep)
        a = pm.Normal("a")
        if potential:
            pm.Potential("p", -((y[kept > 0] - a) ** 2))
        else:
            pm.Normal("outcome", a, 1.0, observed=y[kept > 0])
        DPADVI(**METHOD)


#: A part of the records that a mask, or counts, choose; the second is what one record changes.
MASKS = [np.arange(41) >= 0, np.arange(41) != 3, np.arange(41) > 20]
CUTS = [np.array(c) for c in ([20, 21], [21, 20], [20, 20], [1, 1])]
CHOSEN: dict[str, tuple[list[np.ndarray], Callable[[Any, Any], Any]]] = {
    "predictor": (MASKS, lambda b, m: pm.Normal("y", b * pt.as_tensor(X[:, 0])[m], 1.0, observed=X[:, 1])),
    "mean": (MASKS, lambda b, m: pm.Normal("y", (b * pt.as_tensor(X[:, 0]))[m], 1.0, observed=X[:, 1])),
    "both": (MASKS, lambda b, m: pm.Normal("y", b * pt.as_tensor(X[:, 0])[m], 1.0, observed=X[m, 1])),
    "rows": (MASKS, lambda b, m: pm.Normal("y", b * pt.as_tensor(X)[m].sum(1), 1.0, observed=X[:, 1])),
    "outcome": (MASKS, lambda b, m: pm.Normal("y", b, 1.0, observed=pt.as_tensor(X[:, 1])[m])),
    "shared": (MASKS, lambda b, m: pm.Normal("y", b * pm.Data("x", X)[m, 0], 1.0, observed=X[:, 1])),
    "Potential": (MASKS, lambda b, m: pm.Potential("y", -((b - pt.as_tensor(X[:, 0])[m]) ** 2))),
    "repeated": (CUTS, lambda b, m: pm.Normal("y", pt.repeat(pt.stack([b, -b]), m), 1.0, observed=X[:, 1])),
    "split": (
        CUTS,
        lambda b, m: pm.Normal(
            "y",
            b * pt.concatenate(pt.split(pt.as_tensor(X[:, 0]), m, n_splits=2)),
            1.0,
            observed=X[:, 1],
        ),
    ),
}


@pytest.mark.parametrize("how", CHOSEN)
def test_a_mask_is_refused_whatever_it_holds(how: str) -> None:
    """By an error of one type and text."""
    values, make = CHOSEN[how]
    said = set()
    for value in values:
        with pm.Model(), pytest.raises(PrivacyError, match="depends on values of the data") as caught:
            make(pm.Normal("b"), value)
            DPADVI(**METHOD)
        said.add((type(caught.value), str(caught.value)))
    assert len(said) == 1


def test_a_mask_of_columns_and_a_public_one_may_stand() -> None:
    with pm.Model():
        b = pm.Normal("b", shape=3)
        keep = pm.Data("keep", np.array([True, False, True]))
        pm.Normal(
            "y", pt.as_tensor(X[:, :2]) @ b[keep] + b[np.array([True, True, True])][0], 1.0, observed=X[:, 1]
        )
        DPADVI(**METHOD, public_data=["keep"])


def test_a_length_beside_a_prior_of_an_array_is_found() -> None:
    """What is drawn of that prior is no part of the length."""
    with pm.Model():
        share = pm.Dirichlet("share", np.ones(2))
        pm.Potential("p", pt.log(pt.sigmoid(pm.Data("x", X)) @ share))
        assert DPADVI(**METHOD).approx.latents.size == 1


@pytest.mark.parametrize("function", [pt.linalg.det, pt.linalg.slogdet])
def test_a_matrix_that_has_no_inverse_stops_nobody(function: Callable[[Any], Any]) -> None:
    """The gradient of a determinant is an inverse, which raises for one record's singular matrix."""
    matrices = np.stack([np.eye(2) * (1 + i / 50) for i in range(41)])
    with pm.Model(), pytest.raises(UnsupportedModelError, match="can neither mix records nor fail"):
        found = function(pt.as_tensor(matrices) * pm.Normal("a"))
        pm.Normal("y", found[1] if isinstance(found, list | tuple) else found, 1.0, observed=X[:, 0])
        DPADVI(**METHOD)


@pytest.mark.parametrize("where", ["initval", "start"])
def test_a_start_from_another_copy_of_the_records_is_refused(where: str) -> None:
    """``pt.as_tensor(y)`` makes a constant that is not the one behind the observed variable."""
    start = pt.as_tensor(X[:, 0].copy()).mean()
    with pm.Model(), pytest.raises(UnsupportedModelError, match="depends on the records"):
        pm.Normal("y", pm.Normal("a", initval=start if where == "initval" else None), 1, observed=X[:, 0])
        DPADVI(**METHOD, start={"a": start} if where == "start" else None)


@pytest.mark.turns
def test_two_threads_cannot_share_a_report(model: pm.Model) -> None:
    """Each would add its run to what it read before the other's was there."""
    private = DPADVI(model=model, **METHOD)
    errors: list[str] = []

    def again(*args: Any) -> None:
        def other() -> None:
            for call in (private.fit, private.refine):
                with pytest.raises(PrivacyError, match="still running"):
                    call(2, progressbar=False)
                errors.append("refused")

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    private.fit(1, progressbar=False, callbacks=[again])
    assert errors == ["refused"] * 2
    assert len(private.approx.privacy.runs) == 1
    private.refine(1, progressbar=False)  # and it is free again


# -------------------------------------------------------------------------------- frames


def frames(error: BaseException) -> Iterator[Any]:
    """Yield the frames of the package on the tracebacks of an error and of its causes."""
    todo, seen = [error], []
    while todo:
        this = todo.pop()
        if any(this is e for e in seen):
            continue
        seen.append(this)
        todo += [e for e in (this.__cause__, this.__context__) if e is not None]
        for frame, _ in traceback.walk_tb(this.__traceback__):
            if str(frame.f_globals.get("__name__", "")).startswith(("pymc", "pytensor", "numba")):
                yield frame


def left_over(error: BaseException) -> list[str]:
    """Return the local variables that a crash report would show, other than in the outermost frames."""
    return [
        f"{frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name}: {name}"
        for frame in frames(error)
        for name in frame.f_locals
        if frame.f_code.co_name != "sealed_entry" or name not in ("entry", "error")
    ]


@pytest.mark.parametrize(
    "case", [c for c in ERRORS if c not in ("pickle", "deepcopy", "profiling", "sample")]
)
def test_frames_are_emptied(case: str) -> None:
    with pytest.raises(Exception) as caught:
        ERRORS[case]()
    assert list(frames(caught.value))
    assert left_over(caught.value) == []


def test_frames_held_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `sealed`, the frames of the same error hold the data; and so would a frame that runs on."""
    import pymc_dpvi.inference as inference

    original = inference.DPADVI.__init__.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(inference.DPADVI, "__init__", original)
    with pytest.raises(UnsupportedModelError) as caught:
        ERRORS["prior on data"]()
    assert any("model" in name for name in left_over(caught.value))
    clear_locals(caught.value)
    assert left_over(caught.value) == []


def test_sealed_leaves_the_users_frames() -> None:
    secret = object()

    def callback() -> None:
        mine = secret
        raise LookupError(str(mine is not None))

    library: dict[str, Any] = {"__name__": "pymc_dpvi.made_up"}
    exec("def run(action, data):\n    copy = data\n    action()", library)
    with pytest.raises(LookupError) as caught:
        sealed(library["run"])(callback, secret)
    kept = {f.f_code.co_name: dict(f.f_locals) for f, _ in traceback.walk_tb(caught.value.__traceback__)}
    assert kept["callback"]["mine"] is secret
    assert kept["run"] == {}
    assert secret not in kept["sealed_entry"].values()


@pytest.mark.parametrize("how", ["alone", "cause", "context", "deep"])
def test_sealed_takes_the_text_from_a_memory_error(how: str) -> None:
    """NumPy's says which shape it had no room for, and so how many rows there are."""

    def no_room() -> None:
        np.empty((7_230 + 1, 1 << 46))

    def action() -> None:
        try:
            no_room()
        except MemoryError as error:
            if how == "alone":
                raise
            if how == "cause":
                raise LookupError("of ours") from error
            if how == "context":
                raise LookupError("of ours")  # noqa: B904
            try:
                raise ValueError from error
            except ValueError as between:
                raise LookupError("of ours") from between

    expected = "not enough memory" if how == "alone" else "of ours"
    with pytest.raises((MemoryError, LookupError), match=expected) as caught:
        sealed(action)()
    assert "7231" not in "".join(traceback.format_exception(caught.value))
    assert "in no_room" in "".join(traceback.format_tb(caught.value.__traceback__)) or how != "alone"
    todo: list[BaseException | None] = [caught.value]
    while todo:
        this = todo.pop()
        if this is not None:
            assert type(this).__name__ != "_ArrayMemoryError"
            todo += [this.__cause__, this.__context__]


@pytest.mark.parametrize("call", ["fit", "refine", "sample"])
def test_running_out_of_memory_does_not_tell_how_many_rows_there_are(
    call: str, model: pm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = DPADVI(**METHOD, model=model)
    calls: dict[str, Callable[[], Any]] = {
        "fit": lambda: method.fit(2, progressbar=False),
        "refine": lambda: method.refine(2, progressbar=False),
        "sample": lambda: method.approx.sample(2),
    }
    if call != "fit":
        calls["fit"]()

    def no_room(*_: Any, **__: Any) -> Any:
        np.empty((7_230 + 1, 1 << 46))

    place = type(method.approx._record)
    monkeypatch.setattr(place, "data", no_room)
    monkeypatch.setattr(place, "check_unchanged", no_room)
    with pytest.raises(MemoryError, match="How much was asked for is left out") as caught:
        calls[call]()
    assert "7231" not in "".join(traceback.format_exception(caught.value))


def test_shielded() -> None:
    def quote() -> None:
        raise ValueError("7231.4159")

    with pytest.raises(ArgumentError, match=r"^a ValueError came$") as caught:
        shielded(quote, ArgumentError, "a {} came")
    assert caught.value.__context__ is None and caught.value.__cause__ is None

    def refuse() -> None:
        raise UnsupportedModelError("as it is")

    def run_out() -> None:
        raise MemoryError("Unable to allocate an array with shape (7231,)")

    with pytest.raises(UnsupportedModelError, match="as it is"):
        shielded(refuse, ArgumentError, "a {} came")
    with pytest.raises(MemoryError, match="There is not enough memory") as no_room:
        shielded(run_out, ArgumentError, "a {} came")
    assert no_room.value.__context__ is None
    assert shielded(lambda: 3, ArgumentError, "") == 3


# -------------------------------------------------------------------------------- two processes

PREAMBLE = """
import faulthandler, logging, sys, traceback, warnings
faulthandler.disable()
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
for name in ("numba", "h5py", "h5netcdf", "matplotlib", "asyncio", "filelock"):
    logging.getLogger(name).setLevel(logging.WARNING)
warnings.simplefilter("always")
sys.path.insert(0, {tests!r})
"""

SESSION = """
logging.disable()  # PyTensor compiles its linker once a machine, and says so
import pytensor.link.c.lazylinker_c
logging.disable(logging.NOTSET)
from test_leaks import DATASETS, session
for name in {names!r}:
    session(name, hostile={hostile!r}, backend={backend!r}, full={full!r})
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    tests = str(Path(__file__).parent)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PREAMBLE).format(tests=tests) + code],
        capture_output=True,
        text=True,
        timeout=3600,  # of all datasets on a backend that compiles each
        env={**os.environ, "COLUMNS": "200", **environment},
    )


def regression(
    change: Callable[[dict[str, np.ndarray]], None] | None, *, full: bool, centre: bool = False
) -> pm.Model:
    rng = np.random.default_rng(3)
    data = {
        "x": rng.normal(size=(40, 2)),
        "offset": rng.normal(size=40),
        "group": rng.integers(0, 3, size=40),
        "flag": np.zeros(40),
        "label": rng.integers(0, 2, size=40).astype(float),
        "count": rng.integers(0, 4, size=40),
        "kind": rng.integers(0, 3, size=40),
    }
    if change is not None:
        change(data)
    coords = {"person": [f"p{i}" for i in range(len(data["x"]))], "feature": ["a", "b"], "g": ["u", "v", "w"]}
    with pm.Model(coords=coords) as model:
        beta = pm.Normal("beta", dims="feature")
        effect = pm.Normal("effect", dims="g")
        group, offset = pm.Data("group", data["group"], dims="person"), data["offset"]
        label = pm.Data("label", data["label"], dims="person")
        x = data["x"] - pt.as_tensor(data["x"]).mean(0) if centre else data["x"]
        eta = pm.Deterministic("eta", x @ beta + effect[group] + offset, dims="person")
        pm.Deterministic("flagged", beta[0] * pt.as_tensor(data["flag"]))
        pm.Bernoulli("sick", logit_p=eta, observed=label, dims="person")
        if not full:
            return model
        pm.Poisson("visits", pm.math.exp(eta), observed=data["count"], dims="person")
        logits = pt.stack([eta, -eta, 0 * eta], axis=1)
        pm.Categorical("ward", logit_p=logits, observed=pm.Data("kind", data["kind"]))
    return model


def put(name: str, value: Any) -> Callable[[dict[str, np.ndarray]], None]:
    def change(data: dict[str, np.ndarray]) -> None:
        data[name][7] = value

    return change


def remove(data: dict[str, np.ndarray]) -> None:
    for name in data:
        data[name] = data[name][:-1]


WRONG = {
    "x": np.nan,
    "offset": np.inf,
    "group": -(10**9),
    "label": 1e300,
    "flag": 1.0,
    "count": -1,
    "kind": 99,
}

#: What the one record is in the other dataset.
DATASETS: dict[str, Callable[[dict[str, np.ndarray]], Any]] = {
    "not a number": put("x", np.nan),
    "infinite": put("x", np.inf),
    "huge": put("x", 1e308),
    "tiny": put("offset", 5e-324),
    "infinite offset": put("offset", -np.inf),
    "group out of range": put("group", 10**6),
    "negative group": put("group", -77),
    "wrong label": put("label", 3.0),
    "infinite label": put("label", np.inf),
    "huge label": put("label", 1e300),
    "negative count": put("count", -5),
    "wrong kind": put("kind", 1000),
    "flagged": put("flag", 1.0),
    "removed": remove,
    "wrong throughout": lambda data: [put(name, value)(data) for name, value in WRONG.items()],
}


def say(title: str, action: Callable[[], Any]) -> Any:
    """Run and report what a terminal would show."""
    print(f"--- {title}")
    try:
        return action()
    except BaseException:
        print(traceback.format_exc())


def session(name: str, *, hostile: bool, backend: str | None, full: bool) -> None:
    """Use everything that speaks to the user, on one of the two datasets."""
    print(f"=== {name}")
    change = DATASETS[name] if hostile else None
    compile_kwargs = {"mode": "PYTHON"} if backend is None else None
    model = regression(change, full=full)
    fitting = {"backend": backend, "compile_kwargs": compile_kwargs}

    def interrupt(approx: Any, losses: Any, i: int) -> None:
        print("callback", losses, i)
        if i == 3:
            raise KeyboardInterrupt

    def fit() -> Any:
        with model:
            return pm.fit(6, method=DPADVI(**METHOD), progressbar=True, **fitting)

    approx = say("fit", fit)
    print(approx.privacy, repr(approx), approx.withheld, approx.privacy.to_json(), approx.hist.shape)
    print([(k, v.shape) for k, v in say("sample", lambda: approx.sample(2))["posterior"].data_vars.items()])
    say("node", lambda: approx.sample_node(model["eta"]))
    say("density", lambda: approx.datalogp)
    say("trace", lambda: approx.sample(2, return_inferencedata=False))
    private = DPADVI(model=model, **{**METHOD, "delta": 0.01})
    say("interrupt", lambda: private.fit(5, callbacks=[interrupt], **fitting))
    say("score", lambda: private.fit(5, score=True))
    say("diverge", lambda: private.fit(3, obj_optimizer=pm.sgd(learning_rate=1e300), **fitting))
    say("start", lambda: DPADVI(model=model, start={"beta": model["eta"][:2]}, **METHOD))
    say("centred", lambda: DPADVI(model=regression(change, full=full, centre=True), **METHOD))
    say("dim", lambda: DPADVI(model=model, record_dim="feature", **METHOD))


CHANGING = {
    r"[\d,]+ steps/s": "",
    r"\d+:\d\d:\d\d|-:--:--": "",
    r"[━╸╺ ]{4,}": "",
    r"0x[0-9a-f]+": "",
    r"object at \w+": "",
    r"\d+\.\d+ seconds": "",
}


def settled(text: str) -> str:
    """Take out what differs between two runs on the same data: times, and addresses."""
    for pattern, new in CHANGING.items():
        text = re.sub(pattern, new, text)
    return text


def compare(backend: str | None, names: list[str], *, full: bool) -> None:
    said = []
    for hostile in (False, True):
        done = run(SESSION.format(names=names, hostile=hostile, backend=backend, full=full))
        assert done.returncode == 0, done.stderr[-3000:]
        said.append((settled(done.stdout), settled(done.stderr)))
    assert said[0][0].count("Traceback") >= 6 * len(names)  # there was something to compare
    assert "steps" in said[0][0] and "callback None 3" in said[0][0]
    for clean, other in zip(*said, strict=True):
        sections = zip(clean.split("=== "), other.split("=== "), strict=True)
        for one, two in sections:
            assert one.splitlines() == two.splitlines()


@pytest.mark.turns
def test_two_datasets_say_the_same() -> None:
    """Output, logs, warnings, errors and tracebacks are the same, whatever one record holds."""
    compare(None, ["wrong throughout", "removed"], full=False)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [None, "numba", "c"])
def test_two_datasets_say_the_same_for_every_record(backend: str | None) -> None:
    compare(backend, list(DATASETS), full=True)


DISK = """
from planted_records import METHOD, planted_model
from pymc_dpvi import DPADVI
with planted_model():
    for backend in ("numba", "c"):
        print(DPADVI(**METHOD).fit(3, progressbar=False, backend=backend).privacy.n_steps)
"""


@pytest.mark.slow
def test_no_record_on_the_disk(tmp_path: Path) -> None:
    """Compiled functions are kept between processes; the records are inputs of them, not constants."""
    done = run(
        DISK,
        PYTENSOR_FLAGS=f"base_compiledir={tmp_path / 'pytensor'}",
        NUMBA_CACHE_DIR=str(tmp_path / "numba"),
        TMPDIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5  # something was compiled and kept
    assert [hit for path in files for hit in in_bytes(path.read_bytes(), str(path))] == []
    assert N not in {path.stat().st_size for path in files}
