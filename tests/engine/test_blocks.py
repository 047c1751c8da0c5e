"""Factored gradients in the private kernel, against the same gradients written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from clipped_sums import noisy_sum, of_all_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pymc_dpvi.engine import kernels
from pymc_dpvi.engine.kernels import CANCELLATION
from pymc_dpvi.engine.private_sum import PrivateSum, private_sum
from pymc_dpvi.graph.blocks import Block, Form, as_matrix
from pymc_dpvi.mechanism.limits import SLACK

FINE = 2.0**-36
HOSTILE = [0.0, 5e-324, 1e-310, 1e-160, -1e-90, 1e77, 1e150, -1e154, 1e200, 1.7e308, np.nan, np.inf, -np.inf]
entries = st.one_of(st.sampled_from(HOSTILE), st.floats(-10, 10))
moderate = st.one_of(st.just(0.0), st.floats(-10, 10), st.sampled_from([1e-90, -1e70, 1e-140, 3e60]))
deep = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])

Arrays = list[np.ndarray]
Layout = list[Form]


@st.composite
def layouts(draw: Callable, elements: st.SearchStrategy) -> tuple[Arrays, Layout]:
    """Some blocks of any form for the same records."""
    batch = draw(st.integers(0, 4))
    kinds = st.sampled_from(["dense", "outer", "sparse", "products"])
    values: Arrays = []
    layout: Layout = []
    for kind in draw(st.lists(kinds, min_size=1, max_size=3)):
        a, b, r = (draw(st.integers(1, 4)) for _ in range(3))
        if kind == "sparse":
            size = draw(st.integers(1, 6))
            distinct = draw(st.booleans()) and r <= size
            layout.append(Form(kind, size, distinct))
            places = arrays(np.int64, r, elements=st.integers(0, size - 1), unique=distinct)
            positions = np.array([draw(places) for _ in range(batch)], dtype=np.int64).reshape(batch, r)
            values += [draw(arrays(np.float64, (batch, r), elements=elements)), positions]
            continue
        layout.append(Form(kind))
        shapes = {"dense": [(a,)], "outer": [(a,), (b,)], "products": [(r, a), (r, b)]}[kind]
        values += [draw(arrays(np.float64, (batch, *s), elements=elements)) for s in shapes]
    return values, layout


def columns(values: Arrays, layout: Layout) -> np.ndarray:
    """The blocks written out, with the obvious loops."""
    rest, out = iter(values), []
    for form in layout:
        left = next(rest)
        if form.kind == "dense":
            out.append(left)
            continue
        right = next(rest)
        with np.errstate(all="ignore"):
            if form.kind == "sparse":
                rows = np.zeros((len(left), form.size))
                for i in range(len(left)):
                    np.add.at(rows[i], right[i], left[i])
            elif form.kind == "outer":
                rows = np.array([np.outer(a, b).ravel() for a, b in zip(left, right, strict=True)])
                rows = rows.reshape(len(left), left.shape[1] * right.shape[1])
            else:
                rows = np.array([(a.T @ b).ravel() for a, b in zip(left, right, strict=True)])
                rows = rows.reshape(len(left), left.shape[2] * right.shape[2])
        out.append(rows)
    return np.concatenate(out, axis=1)


def zeros(size: int) -> np.ndarray:
    return np.zeros(size, dtype=np.int64)


def release(values: Arrays, layout: Layout, c: float, noise: np.ndarray) -> np.ndarray:
    return noisy_sum(values, layout, c, noise, c * FINE)


def cancels(values: Arrays, layout: Layout) -> bool:
    """Whether a record counts as longer than it is: its rows cancel, or are too small to tell."""
    rest = iter(values)
    for form in layout:
        pair = [next(rest) for _ in range(form.num_arrays)]
        if form.kind == "products":
            left, right = pair
            with np.errstate(all="ignore"):
                norms = np.array([np.linalg.norm(left, axis=2), np.linalg.norm(right, axis=2)])
                length = norms.prod(axis=0).sum(axis=1)
                if np.any((norms.min(axis=0) > 0) & (norms.min(axis=0) < 1.01 * kernels._SMALL**0.5)):
                    return True
                total = np.linalg.norm(columns(pair, [form]), axis=1)
            if np.any(total < length / CANCELLATION * 1.01):
                return True
    return False


def obvious(rows: np.ndarray, c: float) -> np.ndarray:
    total = np.zeros(rows.shape[1])
    for row in rows:
        with np.errstate(all="ignore"):
            size = float(np.sqrt(np.sum(row**2)))
        if math.isfinite(size):
            bound = c * (1 - SLACK - math.sqrt(rows.shape[1]) * FINE)
            total += row * (min(1.0, bound / size) if size > 0 else 1.0)
    return total


def test_a_product_too_small_for_its_square_counts_as_if_nothing_cancelled():
    """Longer than it is: that is safe. Found by the test below."""
    left = np.array([[[4.6e-157, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    right = np.ones((1, 3, 1))
    layout = (Form("products"),)
    assert cancels([left, right], layout)
    got = release([left, right], layout, 0.1, zeros(2))
    direction = np.array([1.0, 2.0])
    np.testing.assert_allclose(got, 0.1 * direction / (1.0 + math.sqrt(2.0)), rtol=1e-3)
    assert np.linalg.norm(got) <= 0.1
    ordinary = release([np.where(left == 4.6e-157, 0.0, left), right], layout, 0.1, zeros(2))
    np.testing.assert_allclose(ordinary, 0.1 * direction / math.sqrt(5.0), rtol=1e-3)


@deep
@given(layouts(moderate), st.sampled_from([0.1, 1.0, 1e4]))
def test_sums_are_those_of_the_gradients_written_out(case: tuple[Arrays, Layout], c: float):
    values, layout = case
    if cancels(values, layout):
        return
    dense = columns(values, layout)
    got = release(values, layout, c, zeros(dense.shape[1]))
    np.testing.assert_allclose(got, obvious(dense, c), rtol=1e-9, atol=c * (1e-11 * len(dense) + FINE))


@deep
@given(layouts(entries), st.sampled_from([1e-3, 1.0, 1e4]), st.data())
def test_one_record_moves_the_sum_by_at_most_c(case: tuple[Arrays, Layout], c: float, data: st.DataObject):
    values, layout = case
    if not len(values[0]):
        return
    size = columns(values, layout).shape[1]
    at = data.draw(st.integers(0, len(values[0]) - 1))
    full = release(values, layout, c, zeros(size))
    rest = release([np.delete(v, at, axis=0) for v in values], layout, c, zeros(size))
    assert np.isfinite(full).all()
    assert np.linalg.norm(full - rest) <= c * (1 + 1e-12)


@deep
@given(layouts(entries), st.integers(0, 2**32 - 1))
def test_noise_enters_exactly_once(case: tuple[Arrays, Layout], seed: int):
    values, layout = case
    size = columns(values, layout).shape[1]
    noise = np.random.default_rng(seed).integers(-(2**30), 2**30, size=size)
    noisy, silent = (release(values, layout, 2.0, n) for n in (noise, zeros(size)))
    np.testing.assert_array_equal(np.rint((noisy - silent) / (2.0 * FINE)), noise)


# ------------------------------------------------------------------------------------------------
# Norms that must not come out too small
# ------------------------------------------------------------------------------------------------


@deep
@given(st.integers(2, 5), st.integers(0, 2**32 - 1), st.floats(-16, 0), st.sampled_from([1e-60, 1.0, 1e60]))
def test_products_that_cancel_are_not_let_through(rows: int, seed: int, left_over: float, scale: float):
    """The last row takes back what the others add, but for a part of 10^left_over."""
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(1, rows, 3)), rng.normal(size=(1, rows, 4))
    right[0, :] = right[0, 0]
    left[0, -1] = -left[0, :-1].sum(axis=0) * (1 + 10.0**left_over)
    norms = np.zeros(1)
    kernels.add_squared_norms_products(left * scale, right / scale, norms)
    exact = (left[0].T.astype("longdouble") @ right[0].astype("longdouble")).astype("float64")
    length = np.sum(np.linalg.norm(left[0], axis=1) * np.linalg.norm(right[0], axis=1))
    counted = math.sqrt(norms[0])
    assert counted >= np.linalg.norm(exact)
    assert counted >= length / CANCELLATION
    assert counted <= max(np.linalg.norm(exact), length / CANCELLATION) * (1 + 1e-6) + 1e-6 * length


def test_a_double_sum_alone_would_let_them_through():
    """Planted: without the second term, rows that cancel exactly count as nothing, or as NaN."""
    left = np.array([[[1e8, 1.0], [-1e8, 1e-9]]])
    right = np.array([[[1.0, 0.0], [1.0, 1e-9]]])
    gram = np.einsum("ra,sa->rs", left[0], left[0]) * np.einsum("ra,sa->rs", right[0], right[0])
    assert gram.sum() < 0.5 * np.linalg.norm(left[0].T @ right[0]) ** 2
    norms = np.zeros(1)
    kernels.add_squared_norms_products(left, right, norms)
    assert norms[0] >= np.linalg.norm(left[0].T @ right[0]) ** 2


@deep
@given(
    st.integers(2, 64),
    st.sampled_from([16, 128, 512]),
    st.integers(-560, -440),
    st.floats(0.0, 1.0),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_products_that_underflow_are_not_let_through(
    terms: int, length: int, exponent: int, size: float, swapped: bool, seed: int
):
    """One factor is so small that its squares are lost, and the other so large that they matter."""
    rng = np.random.default_rng(seed)
    left = np.full((1, terms, length), 2.0**exponent) * (1 + 0.1 * rng.random((1, terms, 1)))
    right = np.full((1, terms, length), 2.0 ** (511.9 * size) / math.sqrt(length))
    pair = [right, left] if swapped else [left, right]
    c = 1e-6
    move = release(pair, [Form("products")], c, zeros(length * length))
    assert np.linalg.norm(move) <= c


def test_products_that_underflow_reached_beyond_the_bound():
    """What was let through once: eight times the clip norm."""
    left = np.full((1, 64, 512), 2.0**-538)
    right = np.full((1, 64, 512), 2.0**511.99 / math.sqrt(512))
    norms = np.zeros(1)
    kernels.add_squared_norms_products(left, right, norms)
    assert math.sqrt(norms[0]) >= 64 * math.sqrt(512) * 2.0**-538 * 2.0**511.98


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
@pytest.mark.parametrize("kind", ["dense", "outer", "products", "sparse"])
def test_a_record_that_is_not_finite_counts_as_zero(bad: float, kind: str):
    good = {
        "dense": [np.ones((2, 4))],
        "outer": [np.ones((2, 2)), np.ones((2, 2))],
        "products": [np.ones((2, 3, 2)), np.ones((2, 3, 2))],
        "sparse": [np.ones((2, 3)), np.array([[0, 1, 1], [3, 2, 3]])],
    }[kind]
    layout = [Form(kind, 4 if kind == "sparse" else 0)]
    alone = release([g[:1] for g in good], layout, 1.0, zeros(4))
    assert np.linalg.norm(alone) > 0.5
    for which in range(len(good) if kind != "sparse" else 1):
        values = [g.astype("float64") if g.dtype == np.float64 else g for g in (v.copy() for v in good)]
        values[which][1].flat[0] = bad
        np.testing.assert_array_equal(release(values, layout, 1.0, zeros(4)), alone)


@pytest.mark.parametrize("position", [-1, 4, 2**62, -(2**62)])
@pytest.mark.parametrize("distinct", [False, True])
def test_a_position_outside_makes_a_record_count_as_zero(position: int, distinct: bool):
    values, positions = np.ones((2, 2)), np.array([[0, 3], [1, position]])
    form = [Form("sparse", 4, distinct)]
    both = release([values, positions], form, 1.0, zeros(4))
    np.testing.assert_array_equal(both, release([values[:1], positions[:1]], form, 1.0, zeros(4)))


def test_entries_at_one_position_have_one_norm():
    values, positions = np.array([[3.0, -3.0, 4.0, 4.0]]), np.array([[1, 1, 2, 2]])
    entries = kernels.merged(values, positions, 1, 3, False)
    np.testing.assert_array_equal(entries, [[0.0, 0.0, 8.0, 0.0]])
    got = release([values, positions], [Form("sparse", 3)], 1.0, zeros(3))
    np.testing.assert_allclose(got, [0, 0, 1], atol=2 * SLACK)


def test_sparse_sums_stay_within_the_proven_error():
    rng = np.random.default_rng(0)
    values = rng.uniform(0.1, 0.2, size=(50_000, 1)) * 10.0 ** rng.integers(-9, 1, (50_000, 1))
    positions = rng.integers(0, 2, size=(50_000, 1))
    got = release([values, positions], [Form("sparse", 2, True)], 1.0, zeros(2))
    exact = [math.fsum(values[positions == k]) for k in (0, 1)]
    assert np.abs(got - exact).max() <= 2 * 2.0**-53 * 50_000 + FINE


# ------------------------------------------------------------------------------------------------
# In a graph
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["PYTHON", pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_all_forms_compiled_in_a_graph(mode: str):
    rng = np.random.default_rng(1)
    forms = [Form("dense"), Form("outer"), Form("sparse", 7), Form("sparse", 5, True), Form("products")]
    values = [
        rng.normal(size=(6, 3)),
        rng.normal(size=(6, 2)),
        rng.normal(size=(6, 4)),
        rng.normal(size=(6, 3)),
        rng.integers(0, 7, size=(6, 3)),
        rng.normal(size=(6, 1)),
        rng.integers(0, 5, size=(6, 1)),
        rng.normal(size=(6, 2, 3)),
        rng.normal(size=(6, 2, 4)),
    ]
    values[0][2] = np.nan
    variables = [pt.tensor(dtype=v.dtype, shape=(None,) * v.ndim) for v in values]
    rest, given_blocks = iter(variables), []
    for form in forms:
        given_blocks.append(Block(*[next(rest) for _ in range(form.num_arrays)], form=form))
    noise, count = pt.lvector(), pt.lscalar()
    noisy = private_sum(given_blocks, noise, 0.7, np.asarray(0.7 * FINE), count)
    outputs = [*of_all_rows([noisy], variables, mode), as_matrix(given_blocks)]
    fn = pytensor.function([*variables, noise, count], outputs, mode=mode)
    expected = columns(values, forms)
    eta = rng.integers(-(2**36), 2**36, size=expected.shape[1])
    got, rows = fn(*values, eta, 6)
    np.testing.assert_allclose(rows, expected, rtol=1e-12, atol=1e-12)
    expected_sum = obvious(expected, 0.7) + eta * 0.7 * FINE
    np.testing.assert_allclose(got, expected_sum, rtol=0, atol=2 * 0.7 * FINE)
    np.testing.assert_array_equal(fn(*values, eta, 0)[0], eta * 0.7 * FINE)


def test_scaled_blocks():
    rng = np.random.default_rng(2)
    left, right = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    places = rng.integers(0, 5, size=(3, 2))
    for block in (
        Block(pt.as_tensor(left)),
        Block(pt.as_tensor(left), pt.as_tensor(right)),
        Block(pt.as_tensor(left), pt.as_tensor(places), Form("sparse", 5)),
    ):
        both = pytensor.function([], [as_matrix([block]), as_matrix([block.scaled(0.25)])], mode="PYTHON")
        plain, scaled = both()
        np.testing.assert_array_equal(scaled, 0.25 * plain)


def test_wrong_arrays_are_refused():
    unit, noise = np.asarray(FINE), zeros(4)
    two, three = np.zeros((2, 4)), np.zeros((2, 1, 4))
    for layout, values in (
        ([Form("dense")], [two, two]),
        ([Form("products")], [two, two]),
        ([Form("outer")], [three, three]),
        ([Form("sparse", 4)], [two, two]),
        ([Form("sparse", 4)], [two.astype("int64"), two]),
    ):
        with pytest.raises(TypeError):
            PrivateSum(1.0, layout).make_node(*values, 2, noise, unit)
