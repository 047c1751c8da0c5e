"""Many steps in one call against one step after the other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_dpvi.engine.multistep import Chunk

MODES = ["PYTHON", "CVM", "NUMBA"]
UNIT = 0.25
DATA = np.random.default_rng(0).normal(size=(20, 3))


def compiled(mode: str) -> tuple[Chunk, list[Any]]:
    """A step in which order, batch, count, noise, draws and weight all matter."""
    data = pytensor.shared(DATA, name="data")
    x, t = pytensor.shared(np.zeros(3), name="x"), pytensor.shared(np.asarray(0.0), name="t")
    mean = pytensor.shared(np.zeros((3, 1)), name="mean")
    batch, count = pt.lvector("batch"), pt.lscalar("count")
    noise, epsilon, weight = pt.lvector("noise"), pt.dmatrix("epsilon"), pt.dscalar("weight")
    unit = pt.dscalar("unit")
    total = pt.switch(count > 0, data[batch].sum(axis=0), 0.0)
    new = 0.9 * x + total * (1.0 + t) + noise * unit * epsilon[0]
    updates = {x: new, t: t + count, mean: mean + weight * (new[:, None] - mean)}
    chunk = Chunk(
        [batch, count, noise, epsilon, weight],
        [unit],
        updates,
        {"mode": mode},
        row=pt.concatenate([new, weight[None]]),
        width=4,
    )
    return chunk, [x, t, mean]


def expected(indices: Any, offsets: Any, noise: Any, epsilon: Any, weights: Any) -> list[np.ndarray]:
    x, t, mean = np.zeros(3), 0.0, np.zeros(3)
    for k, weight in enumerate(weights):
        batch = indices[offsets[k] : offsets[k + 1]]
        x = 0.9 * x + DATA[batch].sum(axis=0) * (1.0 + t) + noise[k] * UNIT * epsilon[k, 0]
        t += len(batch)
        mean = mean + weight * (x - mean)
    return [x, np.asarray(t), mean[:, None]]


@pytest.mark.turns
@pytest.mark.parametrize("mode", MODES)
def test_chunks_are_single_steps(mode: str):
    rng = np.random.default_rng(1)
    sizes = np.array([3, 0, 1, 20, 0, 0, 7, 2])
    indices = np.concatenate([rng.choice(20, size=s, replace=False) for s in sizes]).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    noise = rng.integers(-3, 4, size=(8, 3))
    epsilon, weights = rng.normal(size=(8, 1, 3)), rng.random(8)
    run, state = compiled(mode)
    start = [s.get_value() for s in state]
    want = expected(indices, offsets, noise, epsilon, weights)
    for cuts in ([0, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 3, 5, 8]):
        for s, value in zip(state, start, strict=True):
            s.set_value(value)
        rows = []
        for a, b in itertools.pairwise(cuts):
            rows.append(
                run(indices, offsets[a : b + 1], noise[a:b], epsilon[a:b], weights[a:b], np.asarray(UNIT))
            )
        for s, value in zip(state, want, strict=True):
            np.testing.assert_allclose(s.get_value(), value, rtol=1e-12, atol=1e-12)
        left = np.concatenate(rows)
        assert left.shape == (8, 4)
        np.testing.assert_array_equal(left[:, 3], weights)
        for k, row in enumerate(left):
            x = expected(indices, offsets[: k + 2], noise, epsilon, weights[: k + 1])[0]
            np.testing.assert_allclose(row[:3], x, rtol=1e-12, atol=1e-12)
    before = [s.get_value() for s in state]
    run(indices, offsets[:1], noise[:0], epsilon[:0], weights[:0], np.asarray(UNIT))
    for s, value in zip(state, before, strict=True):
        np.testing.assert_array_equal(s.get_value(), value)


@pytest.mark.parametrize("mode", MODES)
def test_noise_and_draws_have_the_shape_that_the_step_was_written_for(mode: str):
    """Compiled code does not look: it would read past the end."""
    x = pytensor.shared(np.zeros(3), name="x")
    noise, epsilon = pt.tensor("noise", dtype="int64", shape=(3,)), pt.tensor("epsilon", shape=(1, 3))
    per_step = [pt.lvector(), pt.lscalar(), noise, epsilon, pt.dscalar()]
    run = Chunk(per_step, [], {x: x + noise * epsilon[0]}, {"mode": mode})
    start, offsets, weights = np.zeros(0, dtype=np.int64), np.zeros(3, dtype=np.int64), np.zeros(2)
    run(start, offsets, np.ones((2, 3), dtype=np.int64), np.ones((2, 1, 3)), weights)
    for n, k in ((2, 3), (3, 2), (4, 3)):
        with pytest.raises(ValueError, match="of another shape"):
            run(start, offsets, np.ones((2, n), dtype=np.int64), np.ones((2, 1, k)), weights)
    np.testing.assert_array_equal(x.get_value(), np.full(3, 2.0))


@pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding:DeprecationWarning")
@pytest.mark.parametrize("mode", MODES)
def test_a_random_optimiser_draws_anew_in_every_step(mode: str):
    generator = pytensor.shared(np.random.default_rng(5), name="generator")
    x, seen = pytensor.shared(0.0, name="x"), pytensor.shared(np.zeros(4), name="seen")
    batch, count = pt.lvector("batch"), pt.lscalar("count")
    noise, epsilon, weight = pt.lvector("noise"), pt.dmatrix("epsilon"), pt.dscalar("weight")
    _, drawn = pt.random.normal(rng=generator).owner.outputs
    updates = {x: x + 1.0, seen: pt.set_subtensor(seen[x.astype("int64")], drawn)}
    run = Chunk([batch, count, noise, epsilon, weight], [], updates, {"mode": mode})
    run(
        np.zeros(0, dtype=np.int64),
        np.zeros(5, dtype=np.int64),
        np.zeros((4, 1), dtype=np.int64),
        np.zeros((4, 1, 1)),
        np.zeros(4),
    )
    np.testing.assert_allclose(seen.get_value(), np.random.default_rng(5).normal(size=4))


@pytest.mark.parametrize("mode", MODES)
def test_an_array_of_the_state_keeps_its_shape(mode: str):
    """The step is compiled for it."""
    x, grows = pytensor.shared(np.ones(2), name="x"), pytensor.shared(np.zeros(3), name="grows")
    per_step = [pt.lvector(), pt.lscalar(), pt.lvector(), pt.dmatrix(), pt.dscalar()]
    updates = {x: 2.0 * x, grows: pt.concatenate([grows, per_step[3][0]])}
    run = Chunk(per_step, [], updates, {"mode": mode})
    offsets, noise = np.zeros(2, dtype=np.int64), np.zeros((1, 1), dtype=np.int64)
    run(offsets[:0], offsets, noise, np.zeros((1, 1, 0)), np.zeros(1))
    with pytest.raises(ValueError, match="changed its shape"):
        run(offsets[:0], offsets, noise, np.zeros((1, 1, 1)), np.zeros(1))
    np.testing.assert_array_equal(x.get_value(), [2.0, 2.0])
    np.testing.assert_array_equal(grows.get_value(), np.zeros(3))
    x.set_value(np.ones(1))  # by hand, between two calls
    with pytest.raises(ValueError, match="changed its shape"):
        run(offsets[:0], offsets, noise, np.zeros((1, 1, 0)), np.zeros(1))
