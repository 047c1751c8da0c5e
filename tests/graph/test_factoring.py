"""Gradients by uses of a variable against gradients by the variable itself, record by record."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pymc_dpvi.graph import factoring
from pymc_dpvi.graph.blocks import as_matrix
from pymc_dpvi.graph.gradients import Latents, aligned_gradients

BATCH = 5
HIDDEN, ROWS = 6, 3


@dataclasses.dataclass
class Net:
    """One record's log-density under construction: its data, and the variables it uses."""

    rng: np.random.Generator
    features: int
    groups: int
    latent: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        d, g = self.features, self.groups
        self.data = {
            "x": self.rng.normal(size=(BATCH, d)),
            "series": self.rng.normal(size=(BATCH, ROWS, d)),
            "group": self.rng.integers(-g, g, size=BATCH),  # as in Python, -1 is the last
            "pair": self.rng.integers(0, g, size=(BATCH, 2)),
            "y": self.rng.normal(size=BATCH),
        }
        self.rows = {k: pt.tensor(k, dtype=v.dtype, shape=(1, *v.shape[1:])) for k, v in self.data.items()}

    def new(self, *shape: int) -> Any:
        v = pt.tensor(f"v{len(self.latent)}", dtype="float64", shape=shape)
        self.latent.append(v)
        return v


def linear(n: Net) -> Any:
    return n.rows["x"] @ n.new(n.features)


def layer(n: Net) -> Any:
    return pt.tanh(n.rows["x"] @ n.new(n.features, HIDDEN) + n.new(HIDDEN)) @ n.new(HIDDEN)


def scaled_layer(n: Net) -> Any:
    w = n.new(n.features, HIDDEN) * pt.exp(n.new()) * n.new(HIDDEN) * n.new(n.features)[:, None]
    return pt.tanh(n.rows["x"] @ w) @ n.new(HIDDEN)


def turned_layer(n: Net) -> Any:
    return (n.new(HIDDEN) @ pt.tanh((2.0 * n.new(HIDDEN, n.features)) @ n.rows["x"].T))[None].sum(axis=1)


def recurrent(n: Net) -> Any:
    w, h = n.new(HIDDEN, HIDDEN), n.rows["x"] @ n.new(n.features, HIDDEN)
    for _ in range(2):
        h = pt.tanh(h @ w)
    return h @ n.new(HIDDEN)


def tied(n: Net) -> Any:
    """There and back through the same weights."""
    w = n.new(n.features, 4 * HIDDEN)
    return ((pt.tanh(n.rows["x"] @ w) @ w.T) ** 2).sum(axis=1)


def series(n: Net) -> Any:
    return (pt.tanh(n.rows["series"] @ n.new(n.features, 4 * HIDDEN)) @ n.new(4 * HIDDEN)).sum(axis=1)


def intercept(n: Net) -> Any:
    return n.new(n.groups)[n.rows["group"]]


def not_centred(n: Net) -> Any:
    return (n.new() + pt.exp(n.new()) * n.new(n.groups))[n.rows["group"]]


def difference(n: Net) -> Any:
    strength = n.new(n.groups)
    return strength[n.rows["pair"][:, 0]] - strength[n.rows["pair"][:, 1]]


def slopes(n: Net) -> Any:
    return (n.new(n.groups, n.features)[n.rows["group"]] * n.rows["x"]).sum(axis=1)


def slopes_across(n: Net) -> Any:
    return (n.new(n.features, n.groups)[:, n.rows["group"]].T * n.rows["x"]).sum(axis=1)


def correlated(n: Net) -> Any:
    both = pt.dot(n.new(2, 2), n.new(2, n.groups)).T + n.new(2)
    return both[n.rows["group"], 0] + both[n.rows["group"], 1] * n.rows["x"][:, 0]


def several(n: Net) -> Any:
    return pt.exp(0.1 * n.new(n.groups))[n.rows["pair"]].sum(axis=1)


def two_indices(n: Net) -> Any:
    return n.new(n.groups, n.groups)[n.rows["pair"][:, 0], n.rows["pair"][:, 1]]


def rows_and_columns(n: Net) -> Any:
    m = n.new(n.groups, n.groups)
    return m[n.rows["pair"][:, 0]].sum(axis=1) + m[:, n.rows["pair"][:, 1]].sum(axis=0)


def looked_up_and_summed(n: Net) -> Any:
    a = n.new(n.groups)
    return (a - a.mean())[n.rows["group"]]


def multiplied_and_penalised(n: Net) -> Any:
    w = n.new(n.features, HIDDEN)
    return (n.rows["x"] @ w).sum(axis=1) * (w**2).sum()


PARTS = (
    linear,
    layer,
    scaled_layer,
    turned_layer,
    recurrent,
    tied,
    series,
    intercept,
    not_centred,
    difference,
    slopes,
    slopes_across,
    correlated,
    several,
    two_indices,
    rows_and_columns,
    looked_up_and_summed,
    multiplied_and_penalised,
)


def log_density(n: Net, parts: list[Callable[[Net], Any]]) -> Any:
    total = pt.add(*[part(n) for part in parts]) if len(parts) > 1 else parts[0](n)
    return (-((n.rows["y"] - pt.tanh(total)) ** 2)).sum() - 0.1 * pt.softplus(total).sum()


def both(n: Net, logp: Any) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """Blocks, and per-record gradients by uses and by the variables."""
    shapes = [v.type.shape for v in n.latent]
    ends = np.cumsum([0, *(int(np.prod(s)) for s in shapes)])
    slices = tuple(slice(int(a), int(b)) for a, b in itertools.pairwise(ends))
    latents = Latents(tuple(n.latent), slices, tuple(shapes))
    record = SimpleNamespace(row_logp=logp, rows=tuple(n.rows.values()), factors={"y": logp}, tables=None)
    batch = [pt.as_tensor(v) for v in n.data.values()]
    z = pt.matrix("z", shape=(1, latents.size))
    blocks = aligned_gradients(record, batch, latents, z, 1)
    grads = pytensor.grad(logp, n.latent, disconnected_inputs="ignore")
    flat = pt.concatenate([g.flatten() for g in grads])
    rows = list(n.rows.values())
    mode = {"mode": "PYTHON", "on_unused_input": "ignore"}
    by_hand = pytensor.function([*n.latent, *rows], flat, **mode)
    factored = pytensor.function([z], as_matrix(blocks), **mode)
    at = n.rng.normal(size=(1, latents.size)) * 0.7
    values = [at[0, s].reshape(shape) for s, shape in zip(slices, shapes, strict=True)]
    one_by_one = [by_hand(*values, *(v[i : i + 1] for v in n.data.values())) for i in range(BATCH)]
    return blocks, factored(at), np.array(one_by_one)


@pytest.mark.turns
@settings(suppress_health_check=list(HealthCheck), max_examples=10)
@given(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from([2, 5, 40]),
    st.integers(0, 2**32 - 1),
)
def test_random_architectures(parts: list[Callable], features: int, groups: int, seed: int):
    n = Net(np.random.default_rng(seed), features, groups)
    _, factored, plain = both(n, log_density(n, parts))
    np.testing.assert_allclose(factored, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (linear, ["outer"]),
        (layer, ["outer", "dense", "outer"]),
        (scaled_layer, ["outer", "dense", "dense", "dense", "outer"]),
        (turned_layer, ["outer", "outer"]),
        (recurrent, ["products", "outer", "outer"]),
        (tied, ["products"]),
        (series, ["products", "products"]),
        (intercept, ["sparse"]),
        (not_centred, ["dense", "dense", "sparse"]),
        (difference, ["sparse"]),
        (slopes, ["sparse"]),
        (slopes_across, ["sparse"]),
        (correlated, ["outer", "sparse", "dense"]),
        (several, ["sparse"]),
        (two_indices, ["sparse"]),
        (rows_and_columns, ["sparse"]),
        (looked_up_and_summed, ["dense"]),
        (multiplied_and_penalised, ["dense"]),
    ],
)
def test_forms(part: Callable, expected: list[str], monkeypatch: pytest.MonkeyPatch):
    """Every use that is said to be factored is, and the others fall back."""
    monkeypatch.setattr(factoring, "_GAIN", 0)  # whatever the sizes
    n = Net(np.random.default_rng(0), 3, 40)
    blocks, factored, plain = both(n, log_density(n, [part]))
    order = [b.form.kind for b in blocks]
    assert order == expected or sorted(order) == sorted(expected)
    np.testing.assert_allclose(factored, plain, rtol=1e-10, atol=1e-10)


def test_what_no_density_uses_has_no_entries():
    """Parameters of priors alone: no zeros are formed for each record."""
    n = Net(np.random.default_rng(0), 3, 40)
    logp = log_density(n, [intercept])
    n.new(4, 5)
    n.new()
    blocks, factored, plain = both(n, logp)
    assert [b.form.size for b in blocks] == [40, 20, 1]
    assert [b.left.type.shape[-1] for b in blocks] == [1, 0, 0]
    np.testing.assert_array_equal(factored[:, 40:], 0.0)
    np.testing.assert_allclose(factored, plain, rtol=1e-10)


def test_a_density_that_is_the_variable_uses_it():
    v, row = pt.scalar("v"), pt.tensor("row", shape=(1,))
    (use,) = factoring.find_uses(v, [v], [row])
    assert use.form.kind == "dense"


@pytest.mark.turns
def test_positions_are_distinct_only_where_that_is_certain():
    for part, distinct in ((intercept, True), (slopes, True), (two_indices, True), (difference, False)):
        n = Net(np.random.default_rng(0), 3, 40)
        (block,), _, _ = both(n, log_density(n, [part]))
        assert block.form.distinct is distinct
    n = Net(np.random.default_rng(0), 3, 40)
    (block,), _, _ = both(n, log_density(n, [several]))
    assert not block.form.distinct


def test_small_gains_are_left_alone():
    n = Net(np.random.default_rng(0), 3, 2)
    blocks, _, _ = both(n, log_density(n, [difference, series]))
    # Two look-ups in two groups; three rows of 3 + 24 numbers for a matrix of 72.
    assert [b.form.kind for b in blocks] == ["dense", "dense", "dense"]


def test_a_wrong_use_is_found(monkeypatch: pytest.MonkeyPatch):
    """Planted: factors the wrong way round, and a look-up whose last use is forgotten."""
    n = Net(np.random.default_rng(0), HIDDEN, 40)
    real = factoring._Product.factors
    monkeypatch.setattr(factoring._Product, "factors", lambda self, grad: real(self, grad)[::-1])
    _, factored, plain = both(n, log_density(n, [layer]))
    assert np.abs(factored - plain).max() > 1e-3
    monkeypatch.undo()
    real_ends = factoring._ends
    monkeypatch.setattr(factoring, "_ends", lambda *args: (real_ends(*args) or [None])[:-1] or None)
    n = Net(np.random.default_rng(0), 3, 40)
    _, factored, plain = both(n, log_density(n, [difference]))
    assert np.abs(factored - plain).max() > 1e-3
