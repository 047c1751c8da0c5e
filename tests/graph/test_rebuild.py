"""Remaking graphs for another number of records, node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import compare
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.raise_op import Assert

from pymc_dpvi.errors import NotSeparableError
from pymc_dpvi.graph.rebuild import resize_records, with_leading_indices
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.traversal import array_shape, array_value, is_array, substituted, walk

N = 13
X = np.random.default_rng(0).normal(size=(N, 3))
SECRET = 31.4159


def remake(build: Any, rows: int, *, array: np.ndarray = X, **kwargs: Any) -> Any:
    """`build(x)` on N rows, remade for the first `rows` of them."""
    x = pytensor.shared(array, name="x", shape=array.shape)
    placeholder = pt.tensor("row", dtype=x.dtype, shape=(rows, *array.shape[1:]))
    (new,), _ = resize_records([build(x)], {x: placeholder}, num_records=N, rows=rows, **kwargs)
    assert x not in set(walk([new], into_size=True))
    return pytensor.function([placeholder], new, mode="PYTHON", on_unused_input="ignore")(array[:rows])


def double(x: Any) -> Any:
    a = pt.matrix(shape=(N, 3))
    return OpFromGraph([a], [2 * a + pt.ones((N, 3))])(x)


BUILDS: dict[str, Any] = {
    "elementwise": lambda x: pt.exp(x) * 2,
    "matrix product": lambda x: x @ np.array([1.0, 2.0, 3.0]),
    "softmax": lambda x: pt.special.softmax(x, axis=-1),
    "alloc": lambda x: x[:, 0] + pt.alloc(2.0, N),
    "ones": lambda x: x + pt.ones((N, 3)),
    "zeros on its own": lambda x: pt.concatenate([pt.zeros((N, 1)), x], axis=1),
    "reshape": lambda x: x.reshape((N, 3, 1)),
    "specify shape": lambda x: pt.specify_shape(x * 2, (N, 3)),
    "shape of the array": lambda x: pt.broadcast_to(pt.as_tensor(1.5), (x.shape[0], 2)) + x[:, :1],
    "op from graph": double,
    "stack": lambda x: pt.stack([x[:, 0] ** k for k in range(3)], axis=1),
    "switch": lambda x: pt.switch(x > 0, x, pt.zeros_like(x)),
    "cumulated along a row": lambda x: pt.cumsum(x, axis=1),
}


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", BUILDS)
def test_remade_on_fewer_rows(name: str, rows: int):
    x = pytensor.shared(X, shape=X.shape)
    whole = pytensor.function([], BUILDS[name](x), mode="PYTHON")()
    np.testing.assert_allclose(remake(BUILDS[name], rows), whole[:rows], rtol=1e-14)


STEPS = {
    "exp": pt.exp,
    "affine": lambda v: 0.5 * v - 1,
    "ones": lambda v: v + pt.ones((N, 3)),
    "softmax": lambda v: pt.special.softmax(v, axis=-1),
    "swap": lambda v: v[:, ::-1],
    "specify": lambda v: pt.specify_shape(v, (N, 3)),
    "reshape": lambda v: v.reshape((N, 3)),
    "rows": lambda v: v - v.mean(axis=1, keepdims=True),
    "graph": double,
}


@settings(max_examples=25)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5), st.integers(1, 5))
def test_any_chain_of_row_wise_operations(names: list[str], rows: int):
    def build(x: Any) -> Any:
        for name in names:
            x = STEPS[name](x)
        return x

    x = pytensor.shared(X, shape=X.shape)
    whole = pytensor.function([], build(x), mode="PYTHON")()
    np.testing.assert_allclose(remake(build, rows), whole[:rows], rtol=1e-12)


def test_a_parameter_check_becomes_row_wise():
    # One invalid record must not silence the others.
    def build(x: Any) -> Any:
        return CheckParameterValue("positive")(x[:, 0], pt.all(x[:, 0] > 0))

    values = np.abs(X)
    np.testing.assert_allclose(remake(build, 1, array=values), values[:1, 0])
    bad = values.copy()
    bad[0, 0] = -1.0
    assert remake(build, 1, array=bad)[0] == -np.inf


def test_an_assertion_is_dropped():
    bad = X.copy()
    bad[0, 0] = SECRET
    got = remake(lambda x: Assert("small")(x[:, 0], pt.all(x < 10)), 1, array=bad)
    np.testing.assert_array_equal(got, bad[:1, 0])


@pytest.mark.parametrize("rows", [1, 4])
def test_random_variables_are_resized(rows: int):
    with pm.Model():
        x = pytensor.shared(X, shape=X.shape)
        y = pm.Normal.dist(x @ np.ones(3), 1.0, size=(N,))
        p = pm.Dirichlet.dist(np.ones(4), size=(N,))
    placeholder = pt.matrix(shape=(rows, 3))
    new, _ = resize_records([y, p], {x: placeholder}, num_records=N, rows=rows, resize=[y, p])
    assert [v.type.shape for v in new] == [(rows,), (rows, 4)]


def test_what_cannot_be_remade_is_named_and_shows_no_value():
    bad = X.copy()
    bad[0, 0] = SECRET
    x = pytensor.shared(bad, name="x", shape=bad.shape)
    fixed = pt.as_tensor(np.full(N, SECRET))
    row = pt.matrix(shape=(2, 3))
    with pytest.raises(NotSeparableError, match="'eta'") as caught:
        eta = x[:, 0] + fixed
        eta.name = "eta"
        resize_records([eta], {x: row}, num_records=N, rows=2, describe=lambda v: f"'{v.name}'")
    assert "31.4" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_memo_maps_what_changed_only():
    x = pytensor.shared(X, name="x", shape=X.shape)
    other = pt.vector("other") * 2
    row = pt.matrix(shape=(1, 3))
    out = x.sum(axis=1) * 2
    (new, same), memo = resize_records([out, other], {x: row}, num_records=N, rows=1)
    assert memo[out] is new and same is other and other not in memo


def test_walk_puts_inputs_first_and_each_once():
    a, b = pt.vector("a"), pt.vector("b")
    c = a + b
    d = c * a
    order = walk([d, c])
    assert len(order) == len(set(order))
    place = {v: k for k, v in enumerate(order)}
    for v in order:
        assert v.owner is None or all(place[i] < place[v] for i in v.owner.inputs)
    assert {a, b, c, d} <= set(order)
    assert b not in walk([d], stop=[c])


@pytest.mark.turns
def test_walk_is_not_recursive():
    deep: Variable = pt.vector("a")
    for _ in range(5000):
        deep = deep + 1
    assert len(walk([deep])) > 5000


def test_walk_through_sizes_and_shapes():
    x, n = pt.matrix("x"), pt.iscalar("n")
    width, length = x.shape[1], x.shape[0]
    assert x in walk([width]) and x not in walk([width], columns_of=[x])
    assert x in walk([length], columns_of=[x])  # the number of records is not free to read
    draw = pm.Normal.dist(0, 1, size=(n,))
    assert n not in walk([draw]) and n in walk([draw], into_size=True)


def test_arrays():
    value = np.arange(6.0).reshape(2, 3)
    shared, constant = pytensor.shared(value, borrow=True), pt.as_tensor(value)
    for var in (shared, constant):
        assert is_array(var) and array_shape(var) == (2, 3)
        assert np.shares_memory(array_value(var), value)
    assert not is_array(pt.matrix()) and not is_array(shared + 1)
    assert not is_array(pytensor.shared(np.random.default_rng(0)))


def test_substituted_variables_may_stand_behind_each_other() -> None:
    """PyTensor 2's graph_replace raises for the first of them."""
    x, y = pt.vector("x"), pt.vector("y")
    inner = pt.exp(x)
    outer = inner * y
    both = [outer.sum(), outer + inner]
    a, b = pt.vector("a"), pt.vector("b")
    total, added = substituted(both, {inner: a, outer: b})
    values = {a: np.array([1.0, 2.0]), b: np.array([10.0, 20.0])}
    np.testing.assert_allclose(total.eval({b: values[b]}), 30.0)
    np.testing.assert_allclose(added.eval(values), [11.0, 22.0])
    (alone,) = substituted([outer.sum()], {inner: a, outer: b})
    np.testing.assert_allclose(alone.eval({b: values[b]}), 30.0)
    assert substituted([x, inner], {x: a})[0] is a
    (same,) = substituted([pt.cos(y)], {x: a})
    assert same.owner.inputs[0] is y


TABLE = np.arange(5 * 3 * 4.0).reshape(5, 3, 4)
H, G = np.array([2, 0, 1, 1, 2, 0, 1]), np.array([3, 1, 0, 2, 2, 3, 0])

LOOK_UPS = {
    "last": lambda x, h, g: x[..., g],
    "middle": lambda x, h, g: x[:, h],
    "two": lambda x, h, g: x[:, h, g],
    "apart": lambda x, h, g: x[h + 1, :, g],
    "apart_sliced": lambda x, h, g: x[h + 1, 1:3, g],
    "step": lambda x, h, g: x[::-2, h, 1:],
    "new_axis": lambda x, h, g: x[None, h],
    "new_axis_behind": lambda x, h, g: x[:, h, None],
    "matrix": lambda x, h, g: x[:, h[:, None], g[None, :]],
    "broadcast": lambda x, h, g: x[h[:, None], :, g[None, :]],
}


@pytest.mark.parametrize("case", LOOK_UPS)
def test_leading_indices_give_the_same_as_numpy(case: str):
    h, g = pt.lvector("h"), pt.lvector("g")
    x = pt.as_tensor(TABLE)
    node = LOOK_UPS[case](x, h, g).owner
    # PyTensor 3 keeps slices in the operation, and vectorises them itself.
    with_slices = [i for i in node.inputs[1:] if not hasattr(i.type, "ndim")]
    if not with_slices:
        assert with_leading_indices(node.inputs) is None
        return
    out = with_leading_indices(node.inputs)
    assert out is not None
    assert all(hasattr(i.type, "ndim") for i in out.owner.inputs)
    found = pytensor.function([h, g], out, mode="FAST_COMPILE", on_unused_input="ignore")(H, G)
    np.testing.assert_array_equal(found, LOOK_UPS[case](TABLE, H, G))


@pytest.mark.parametrize("case", ["last", "middle", "two", "apart", "apart_sliced", "new_axis"])
def test_a_model_that_looks_up_beside_slices(case: str):
    rng = np.random.default_rng(3)
    h, g = rng.integers(0, 3, 26), rng.integers(0, 4, 26)
    with pm.Model() as model:
        table = pm.Normal("table", 0, 1, shape=(5, 3, 4))
        looked_up = LOOK_UPS[case](table, h, g)
        axis = next(k for k, length in enumerate(looked_up.type.shape) if length == 26)
        mu = looked_up.sum(axis=tuple(k for k in range(looked_up.type.ndim) if k != axis))
        pm.Normal("y", mu, 1.0, observed=rng.normal(size=26))
    worst = compare(build_record_model(model), "PYTHON")
    assert worst["rows"] <= 1e-8 and worst["gradient"] <= 1e-8, worst
