"""No value of a record may make the step raise, read another row, or change another record's gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from oracle import latents_of
from pymc.pytensorf import compile as pm_compile
from pytensor.compile.builders import OpFromGraph
from pytensor.tensor.blockwise import Blockwise

from pymc_dpvi import DPADVI
from pymc_dpvi.compat import compile_mode
from pymc_dpvi.errors import NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph import guards
from pymc_dpvi.graph.blocks import as_matrix
from pymc_dpvi.graph.gradients import aligned_gradients, prior_gradients
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.traversal import array_value

HOSTILE_INTS = (3, 4, -4, -5, 50, 10**6, 2**31 - 1, -(2**31))


def gradient_function(record: RecordModel, backend: str) -> Callable[..., np.ndarray]:
    latents, start = latents_of(record.model)
    batch = [pt.tensor(dtype=r.dtype, shape=(None, *r.type.shape[1:])) for r in record.rows]
    z = pt.matrix("z", shape=(1, latents.size))
    graph = as_matrix(aligned_gradients(record, batch, latents, z, 1))
    kwargs: dict[str, Any] = {"mode": backend} if backend == "FAST_COMPILE" else compile_mode(backend, None)
    fn = pm_compile([*batch, z], graph, on_unused_input="ignore", **kwargs)
    point = (start + np.random.default_rng(0).normal(scale=0.3, size=start.shape))[None]

    def evaluate(*rows: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(fn(*rows, point))

    return evaluate


def group_model(style: str) -> pm.Model:
    group = np.array([0, 1, 2, 3, 1, 0])
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=4)
        s = pm.HalfNormal("s", 1)
        g = pm.Data("g", group)
        mu = {
            "index": lambda: a[g],
            "take": lambda: pt.take(a, g),
            "matrix": lambda: pt.stack([a, 2 * a], axis=1)[g, g % 2 if style == "x" else 1],
            "two": lambda: pt.outer(a, a)[g, g],
        }[style]()
        pm.Normal("y", mu, s, observed=np.linspace(-1, 1, 6))
    return model


STYLES = ("index", "take", "matrix", "two")
#: Compiled on every push; the rest of the compiled ones takes minutes.
OFTEN = {("index", "numba")}


@pytest.mark.parametrize(
    ("style", "backend"),
    [
        pytest.param(s, b, marks=[] if b == "FAST_COMPILE" or (s, b) in OFTEN else pytest.mark.slow)
        for s in STYLES
        for b in ("FAST_COMPILE", "numba", "c")
    ],
)
def test_an_index_out_of_range_touches_nobody(style: str, backend: str) -> None:
    record = build_record_model(group_model(style))
    gradient = gradient_function(record, backend)
    k = next(i for i, a in enumerate(record.arrays) if a.name == "g")
    rows = [array_value(a)[:3].copy() for a in record.arrays]
    plain = gradient(*rows)
    for value in HOSTILE_INTS:
        bad = [r.copy() for r in rows]
        bad[k][1] = value
        got = gradient(*bad)
        np.testing.assert_array_equal(got[[0, 2]], plain[[0, 2]])
        assert got.shape == plain.shape
        if not -4 <= value < 4:
            np.testing.assert_array_equal(got[1], 0.0)
        else:
            assert np.any(got[1] != 0)


REFUSED = {
    "mask": lambda x, b: (x * (x > 0))[pt.nonzero(x > 0)].sum() * b + x,
    "Scan": lambda x, b: pt.as_tensor(
        __import__("pytensor").scan(
            lambda v, c: v * c, sequences=[x], non_sequences=[b], return_updates=False
        )
    ),
    "searchsorted": lambda x, b: pt.searchsorted(pt.as_tensor([0.1, 0.7, 1.3]), x) * b,
}


def test_a_negative_integer_power_is_refused() -> None:
    """NumPy raises for it, whatever the rest of the batch."""
    count = np.array([0, 1, 2, 1, 0])
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b * pm.Data("base", count) ** pm.Data("power", count), 1.0, observed=np.zeros(5))
    with pytest.raises(NotSeparableError, match="Pow"):
        build_record_model(model)


@pytest.mark.parametrize("what", REFUSED)
def test_operations_of_unknown_behaviour_are_refused(what: str) -> None:
    with pm.Model() as model:
        x = pm.Data("x", np.linspace(-1, 1, 9))
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", REFUSED[what](x, b), 1.0, observed=np.zeros(9))
    with pytest.raises(NotSeparableError):
        build_record_model(model)


def test_a_constant_table_must_be_declared() -> None:
    table = np.random.default_rng(0).normal(size=5)
    index = np.array([0, 1, 2, 3, 4, 0, 1])

    def model(as_data: bool) -> pm.Model:
        with pm.Model() as m:
            t = pm.Data("table", table) if as_data else table
            b = pm.Normal("b", 0, 1)
            pm.Normal("y", b * pt.as_tensor(t)[pm.Data("index", index)], 1.0, observed=np.zeros(7))
        return m

    with pytest.raises(UnsupportedModelError, match="public_data"):
        build_record_model(model(False))
    with pytest.raises(UnsupportedModelError, match=r"public_data=\['table'\]"):
        build_record_model(model(True))
    record = build_record_model(model(True), public_data=["table"])
    assert any("table" in name for name in record.public_arrays)


def test_an_array_captured_in_a_scan_is_seen() -> None:
    hidden = pt.as_tensor(np.random.default_rng(0).normal(size=(11, 3)))

    def logp(value: Any, b: Any) -> Any:
        total = pytensor.scan(
            lambda j, c: (hidden[j] * c).sum(),
            sequences=[pt.arange(5)],
            non_sequences=[b],
            return_updates=False,
        )
        return -((value - total.sum()) ** 2)

    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=3)
        pm.CustomDist("y", b, logp=logp, signature="(k)->()", observed=np.zeros(11))
    with pytest.raises(UnsupportedModelError):
        build_record_model(model)


# ------------------------------------------------------------------------- other indices


def far_out(kind: str) -> tuple[pm.Model, dict[str, Any]]:
    """Models with an index that neither a record nor a constant decides on."""
    with pm.Model() as model:
        x = pm.Data("x", np.arange(24.0).reshape(6, 4) / 10)
        t = pm.Normal("t", 0.0, 10.0, shape=3, initval=np.full(3, 0.5))
        beta = pm.Normal("beta", 0.0, 1.0, shape=4, initval=np.full(4, 0.5))
        latent = pt.cast(pt.floor(t), "int64")
        public = pm.Data("public", np.array([3, 0, 1]))
        mu = {
            "into a record": lambda: x.reshape((6, 4, 1))[:, latent, latent * 0].sum(axis=1),
            "into a latent table": lambda: x[:, 0] * pt.outer(beta, beta)[latent, latent * 0].sum(),
            "of a public array": lambda: x[:, 0] * beta[public].sum(),
            "one entry": lambda: x[:, latent[0]],
            "in the prior": lambda: x[:, 0],
        }[kind]()
        if kind == "in the prior":
            pm.Potential("order", beta[latent].sum())
        pm.Normal("y", mu * beta[0], 1.0, observed=np.ones(6))
    return model, {"public_data": ["public"]}


FAR_OUT = ("into a record", "into a latent table", "of a public array", "one entry", "in the prior")


@pytest.mark.parametrize("kind", FAR_OUT)
@pytest.mark.parametrize("backend", ["FAST_COMPILE", pytest.param("numba", marks=pytest.mark.slow)])
def test_an_index_that_leaves_a_table_reads_nothing_beside_it(kind: str, backend: str) -> None:
    """The latent values go where they like, and a public array may be set to others before the fit."""
    model, public = far_out(kind)
    record = build_record_model(model, **public)
    latents, start = latents_of(model)
    batch = [pt.tensor(dtype=r.dtype, shape=(None, *r.type.shape[1:])) for r in record.rows]
    z = pt.matrix("z", shape=(1, latents.size))
    gradients = as_matrix(aligned_gradients(record, batch, latents, z, 1))
    prior = prior_gradients(record, latents, z, 1)
    kwargs: dict[str, Any] = {"mode": backend} if backend == "FAST_COMPILE" else compile_mode(backend, None)
    evaluate = pm_compile([*batch, z], [gradients, prior], on_unused_input="ignore", **kwargs)
    rows = [array_value(a)[:3] for a in record.arrays]
    at = {v.name: s for v, s in zip(latents.value_vars, latents.slices, strict=True)}
    inside, outside = start.copy(), start.copy()
    outside[at["t"]] = 40.0
    within, beside = (evaluate(*rows, point[None]) for point in (inside, outside))
    assert np.isfinite(within[0]).all() and np.isfinite(beside[0]).all()
    if kind == "of a public array":
        assert np.any(within[0]) and np.any(beside[0])
        with model:
            pm.set_data({"public": np.array([3, 40, 1])})
        beside = evaluate(*rows, inside[None])
    if kind != "in the prior":
        assert np.any(within[0]) and not np.any(beside[0])  # the likelihood is zero there, and flat
    else:
        assert np.isfinite(beside[1]).all()
        # Of the prior's normal densities, and of the Potential, which is three times the first entry.
        np.testing.assert_array_equal(within[1][0, at["beta"]], [3.0 - 0.5, -0.5, -0.5, -0.5])
        assert not np.any(beside[1][0, at["beta"]])


def hidden_index(how: str) -> pm.Model:
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=(2, 4))
        index = pt.cast(pt.floor(abs(beta[0])), "int64")
        if how == "Blockwise":
            one = beta[0][index].owner.op
            both = Blockwise(one, signature="(i),(j)->(j)")(beta, index[None])
        elif how == "OpFromGraph":
            table, at = pt.vector(), pt.lvector()
            inner = OpFromGraph([table, at], [table[at]])
            both = OpFromGraph([table, at], [inner(table, at) * 1.0])(beta[0], index)
        elif how == "Blockwise of a graph":
            table, at = pt.vector(), pt.lvector()
            inner = OpFromGraph([table, at], [table[at]])
            both = Blockwise(inner, signature="(i),(j)->(j)")(beta, index[None])
        else:
            both = pytensor.scan(lambda b: b[index].sum(), sequences=beta, return_updates=False)
        if how == "OpFromGraph":  # in the likelihood it is taken apart
            pm.Potential("order", both.sum())
        else:
            beta = beta * both.sum()
        pm.Normal("y", beta[0, 0] * pm.Data("x", np.arange(6.0)), 1.0, observed=np.ones(6))
    return model


@pytest.mark.parametrize("how", ["Blockwise", "Scan", "OpFromGraph", "Blockwise of a graph"])
def test_an_index_out_of_sight_is_refused(how: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"goes through Advanced\w+ within"):
        build_record_model(hidden_index(how))


def later(kind: str) -> tuple[pm.Model, np.ndarray]:
    """A model with a public array, and what leaves the table if the array is set to it."""
    with pm.Model() as model:
        x = pm.Data("x", np.arange(24.0).reshape(6, 4) / 10)
        beta = pm.Normal("beta", 0.0, 1.0, shape=4)
        table = pt.outer(beta, beta)
        now, then, use = {
            "index": ([3, 0], [3, 4], lambda p: beta[p].sum()),
            "index in the prior": ([3, 0], [-5, 0], lambda p: beta[p].sum()),
            "index beside a number": ([3, 0], [3, 4], lambda p: table[p, pt.constant(2)].sum()),
            "mask": ([True] * 4, [True] * 5, lambda p: beta[p].sum()),
            "mask of a matrix": (np.eye(4) > 0, np.ones((4, 40)) > 0, lambda p: table[p].sum()),
            "loop": ([0.5] * 5, [0.5] * 3, lambda p: looped(p, beta[0])),
        }[kind]
        public = pm.Data("public", np.array(now))
        if kind.endswith("prior"):
            pm.Potential("p", use(public))
            pm.Normal("y", x[:, 0] * beta[0], 1.0, observed=np.ones(6))
        else:
            pm.Normal("y", x[:, 0] * use(public), 1.0, observed=np.ones(6))
    return model, np.array(then)


def looped(sequence: Any, factor: Any) -> Any:
    return pytensor.scan(
        lambda s, b: s * b, sequences=sequence, non_sequences=factor, n_steps=5, return_updates=False
    ).sum()


LATER = ("index", "index in the prior", "index beside a number", "mask", "mask of a matrix", "loop")


@pytest.mark.parametrize("kind", LATER)
def test_a_public_array_that_is_set_to_lead_out_of_a_table_is_refused(kind: str) -> None:
    model, then = later(kind)
    with model:
        method = DPADVI(epsilon=1.0, delta=1e-5, sampling_prob=0.5, public_data=["public"])
        pm.set_data({"public": then})
        with pytest.raises(UnsupportedModelError, match="'public' holds other values now"):
            method.fit(2, progressbar=False, compile_kwargs={"mode": "FAST_COMPILE"})
        with pytest.raises(UnsupportedModelError, match=r"points beyond the end .* Nothing is spent"):
            DPADVI(epsilon=1.0, delta=1e-5, sampling_prob=0.5, public_data=["public"])


def test_an_empty_table_is_refused() -> None:
    """An index out of range is replaced by 0, and numba would read what lies beside the empty table."""
    group = np.array([0, 1, 2, 0, 1, 2])
    with pm.Model():
        table = pm.Data("table", np.arange(3.0))
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Normal("y", mu + table[pm.Data("group", group)], 1.0, observed=np.ones(6))
        pm.set_data({"table": np.zeros(0)})
        with pytest.raises(UnsupportedModelError, match=r"points beyond the end .* Nothing is spent"):
            DPADVI(epsilon=1.0, delta=1e-5, sampling_prob=0.5, public_data=["table"])
        pm.set_data({"table": np.zeros(1)})
        method = DPADVI(epsilon=1.0, delta=1e-5, sampling_prob=0.5, public_data=["table"])
        method.fit(2, progressbar=False, compile_kwargs={"mode": "FAST_COMPILE"})


def test_a_number_beside_an_index_is_held_in_range() -> None:
    """Numba checks it as little as the array beside it."""
    with pm.Model() as model:
        group = pm.Data("group", np.array([0, 1, 2, 0, 1, 2]))
        beta = pm.Normal("beta", 0.0, 1.0, shape=(3, 3))
        pm.Normal("y", beta[group, pt.constant(300)], 1.0, observed=np.ones(6))
    with pytest.raises(UnsupportedModelError, match="points beyond the end"):
        build_record_model(model)


@pytest.mark.parametrize("dtype", ["uint8", "uint64", "int8", "int64"])
@pytest.mark.parametrize("mode", ["FAST_COMPILE", "CVM"])
def test_indices_of_all_types_are_in_range(dtype: str, mode: str) -> None:
    """C takes a negative number for a large one beside an unsigned one."""
    index, table = pt.vector(dtype=dtype), pt.vector()
    safe, ok = guards._in_range(index, table, 0)
    held = pytensor.function([index, table], [safe, ok], mode=mode, on_unused_input="ignore")
    values = np.array([0, 2, 3, 100], dtype=dtype)
    got, inside = held(values, np.zeros(3))
    assert inside.tolist() == [True, True, False, False] and got.tolist() == [0, 2, 0, 0]
    if dtype[0] == "i":
        assert held(np.array([-3, -4], dtype=dtype), np.zeros(3))[1].tolist() == [True, False]


AXES: dict[str, Callable[[Any, Any], Any]] = {
    "sort": lambda y, k: pt.sort(y, axis=k),
    "argsort": lambda y, k: pt.argsort(y, axis=k),
    "join": lambda y, k: pt.join(k, y, y),
}


@pytest.mark.parametrize("how", AXES)
def test_an_axis_that_a_record_chooses_is_refused(how: str) -> None:
    """For one record the axis is there, for another it is not, and the step raises."""
    if hasattr(pt.join(0, pt.zeros(2), pt.zeros(2)).owner.op, "axis"):
        pytest.skip("PyTensor 3 takes no axis but a number")
    with pm.Model() as model:
        y = pm.Data("y_data", np.linspace(-1.0, 1.0, 6))
        axis = pm.Data("axis", np.zeros(6, dtype="int64"))
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Normal("y", mu + 0.1 * axis, 1.0, observed=y)
        pm.Potential("p", mu * AXES[how](y[:, None, None], 1 + axis[0])[:, 0, 0])
    with pytest.raises(NotSeparableError, match=r"'p'|A part|The likelihood"):
        build_record_model(model)


def test_a_sort_of_each_record_is_not_refused() -> None:
    with pm.Model() as model:
        x = pm.Data("x", np.random.default_rng(0).normal(size=(6, 3)))
        mu = pm.Normal("mu", 0.0, 1.0)
        highest = pt.concatenate([pt.sort(x, axis=1), x], axis=1)[:, 2]
        pm.Normal("y", mu * highest, 1.0, observed=np.ones(6))
    assert build_record_model(model).num_records == 6


@pytest.mark.parametrize("divisor", [-1, 0, "record", "public"])
@pytest.mark.parametrize("op", ["mod", "int_div", "pow"])
def test_integers_are_divided_by_harmless_constants_only(op: str, divisor: Any) -> None:
    """The least integer divided by -1 ends the process; anything divided by zero raises."""
    counts = np.arange(6)
    by = {"record": np.arange(1, 7), "public": pm.Data}.get(divisor, divisor)
    function = {"mod": pt.mod, "int_div": pt.int_div, "pow": pt.pow}[op]

    def model(by: Any) -> pm.Model:
        with pm.Model() as made:
            beta = pm.Normal("beta")
            x = pm.Data("x", counts)
            by = pm.Data("by", np.int64(3)) if divisor == "public" else by
            pm.Normal("y", beta * function(x, by), 1.0, observed=np.ones(6))
        return made

    if op == "pow" and divisor == 0:
        build_record_model(model(by))
    else:
        with pytest.raises(NotSeparableError, match=r"operation (Mod|IntDiv|Pow)"):
            build_record_model(model(by), public_data=["by"] if divisor == "public" else [])
    if isinstance(divisor, int):
        build_record_model(model(3))


@pytest.mark.parametrize("what", ["psi", "psi of a count", "polygamma", "hyp2f1"])
def test_no_record_lets_an_operation_run_on(what: str) -> None:
    """A trigamma at -1e15 takes as many steps; a record beyond the range has density and gradient zero."""
    x = np.linspace(0.1, 0.9, 7)
    with pm.Model() as model:
        t = pm.HalfNormal("t")
        data = pm.Data("x", np.arange(7) if "count" in what else x)
        mu = {
            "psi": lambda: pt.psi(t + data),
            "psi of a count": lambda: pt.psi(t + data),
            "polygamma": lambda: pt.polygamma(1, t + data),
            "hyp2f1": lambda: pt.hyp2f1(t, 1.0, 2.0, data),
        }[what]()
        pm.Normal("y", mu, 1.0, observed=np.ones(7))
    record = build_record_model(model)
    latents, start = latents_of(model)
    batch = [pt.tensor(dtype=r.dtype, shape=(None, *r.type.shape[1:])) for r in record.rows]
    z = pt.matrix("z", shape=(1, latents.size))
    gradients = as_matrix(aligned_gradients(record, batch, latents, z, 1))
    evaluate = pm_compile([*batch, z], gradients, mode="FAST_COMPILE")
    rows = [array_value(a).copy() for a in record.arrays]
    plain = evaluate(*rows, start[None])
    assert np.all(plain != 0.0)
    at = next(k for k, a in enumerate(record.arrays) if a.name == "x")
    hostile = [-(10**9)] if "count" in what else [-1e15, -1e300, np.nan, -np.inf]
    for value in hostile:
        rows[at][3] = value
        found = evaluate(*rows, start[None])
        assert not np.any(found[3])
        np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(plain, 3, 0))
