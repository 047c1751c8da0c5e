"""Sums over persons: rows are added up first and clipped then, the same in every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_dpvi import DPADVI, ArgumentError
from pymc_dpvi.engine import clipping, generated_unit_sums
from pymc_dpvi.engine.generated_unit_sums import write_add_units
from pymc_dpvi.engine.unit_batches import in_rows
from pymc_dpvi.engine.unit_sums import most_rows, whole_persons
from pymc_dpvi.graph.blocks import Form
from pymc_dpvi.graph.units import Units
from pymc_dpvi.mechanism.limits import SLACK, TALLY_COLUMNS
from pymc_dpvi.mechanism.mechanism import Draws
from pymc_dpvi.randomness.keystream import KeyStream

SPACING = 2.0**-36
SIZE = 7
LAYOUT = (Form("dense"), Form("outer"), Form("products"), Form("sparse", SIZE), Form("sparse", SIZE, True))
WIDTH = 3 + 2 * 3 + 2 * 2 + 2 * SIZE
CLIP = 1.5
#: Which blocks of `LAYOUT` are formed for a person of few rows.
FACTORED = [(), (False, True, False, False, False), (False, True, True, False, False)]


def arrays_of(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    """Gradients of n rows in every form."""
    distinct = np.array([rng.permutation(SIZE)[:2] for _ in range(n)]).reshape(n, 2)
    return [
        rng.normal(size=(n, 3)).astype("float32"),
        rng.normal(size=(n, 2)),
        rng.normal(size=(n, 3)),
        rng.normal(size=(n, 4, 2)),
        rng.normal(size=(n, 4, 2)),
        rng.normal(size=(n, 3)),
        rng.integers(0, SIZE, size=(n, 3)),
        rng.normal(size=(n, 2)),
        distinct,
    ]


def dense(arrays: list[np.ndarray]) -> np.ndarray:
    """The same gradients written out, one row after the other."""
    a, l2, r2, l3, r3, e, p, e2, p2 = arrays
    rows = []
    for i in range(len(a)):
        sparse = np.zeros((2, SIZE))
        for entries, places, out in ((e[i], p[i], sparse[0]), (e2[i], p2[i], sparse[1])):
            for v, k in zip(entries, places, strict=True):
                out[k] += v
        products = sum(np.outer(x, y) for x, y in zip(l3[i], r3[i], strict=True))
        rows.append(np.concatenate([a[i], np.outer(l2[i], r2[i]).ravel(), np.ravel(products), *sparse]))
    return np.array(rows).reshape(len(a), WIDTH)


def summed(
    arrays: list[np.ndarray],
    units: Units,
    persons: Any,
    length: int = 1000,
    tally_weight: float = 0.0,
    factored: tuple[bool, ...] = (),
) -> np.ndarray:
    """What is released of a batch of persons, in microbatches of some number of rows."""
    tallies = TALLY_COLUMNS if tally_weight else 0
    noise = np.zeros(WIDTH + tallies, dtype=np.int64)
    persons = np.asarray(persons, dtype=np.int64)
    draws = in_rows(Draws(persons, np.array([0, persons.size]), noise[None]), units, KeyStream.from_os())
    bound, k, *sums = clipping.start_of_sum(noise.size, CLIP, tally_weight, SPACING)
    add, person = write_add_units(LAYOUT, factored), np.zeros(WIDTH)
    rows, first = draws.indices >> 1, 0
    while first < rows.size:
        count = min(length, rows.size - first)
        count = whole_persons(draws.indices, first, count) if factored else count
        some = [a[rows[first : first + length]] for a in arrays]
        add(*some, draws.indices, first, count, bound, k, person, *sums)
        first += count
    assert not person.any()
    return clipping.round_and_add(*sums, noise, SPACING)


def clipped(gradient: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(gradient)
    bound = CLIP * (1 - SLACK) - np.sqrt(WIDTH) * SPACING
    return gradient * min(1.0, bound / size) if np.isfinite(size) else np.zeros_like(gradient)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 9), st.sampled_from(FACTORED))
def test_sums_are_those_of_rows_written_out(
    seed: int, n_persons: int, length: int, factored: tuple[bool, ...]
):
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(n_persons), rng.integers(1, 12, size=n_persons)))
    arrays = arrays_of(rng, codes.size)
    units = Units.by_codes(codes, "the same id")
    persons = rng.permutation(n_persons)[: rng.integers(1, n_persons + 1)]
    rows = dense(arrays)
    expected = sum(clipped(rows[codes == p].sum(axis=0)) for p in persons)
    released = summed(arrays, units, persons, length, factored=factored)
    np.testing.assert_allclose(released, expected, rtol=1e-9, atol=1e-9)


def test_a_person_is_the_same_bit_by_bit_in_every_batch():
    """Alone in pieces of any length; with others, up to the rounding of the sum to the lattice."""
    rng = np.random.default_rng(3)
    codes = rng.permutation(np.repeat(np.arange(40), rng.integers(1, 60, size=40)))
    units, arrays = Units.by_codes(codes, "the same id"), arrays_of(rng, codes.size)
    alone = summed(arrays, units, [11])
    for length in (1, 7, 96):
        np.testing.assert_array_equal(alone, summed(arrays, units, [11], length))
    for others in ([3], [0, 39, 5], rng.permutation(np.delete(np.arange(40), 11))):
        without = summed(arrays, units, others, 24)
        together = summed(arrays, units, [*others, 11], 24)
        assert np.abs(together - without - alone).max() <= SPACING


@pytest.mark.parametrize("factored", FACTORED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_a_person_without_a_finite_sum_counts_as_zero(value: float, factored: tuple[bool, ...]):
    rng = np.random.default_rng(4)
    codes = np.repeat(np.arange(3), 5)
    units, arrays = Units.by_codes(codes, "the same id"), arrays_of(rng, codes.size)
    expected = summed(arrays, units, [0, 2], factored=factored)
    for place in range(9):
        if arrays[place].dtype == "float64":
            changed = [a.copy() for a in arrays]
            changed[place][(7, *[0] * (changed[place].ndim - 1))] = value  # of person 1
            np.testing.assert_array_equal(summed(changed, units, [0, 1, 2], factored=factored), expected)


@pytest.mark.parametrize("factored", FACTORED)
def test_a_position_outside_of_its_block_makes_the_person_zero(factored: tuple[bool, ...]):
    rng = np.random.default_rng(5)
    units, arrays = Units.by_codes(np.repeat(np.arange(3), 5), "the same id"), arrays_of(rng, 15)
    expected = summed(arrays, units, [0, 2], factored=factored)
    for wrong in (-1, SIZE, 2**62):
        arrays[6][8, 1] = wrong
        np.testing.assert_array_equal(summed(arrays, units, [0, 1, 2], factored=factored), expected)


@pytest.mark.parametrize("length", [1, 2, 5, 24, 600])
@pytest.mark.parametrize("factored", FACTORED[1:])
def test_a_person_moves_the_sum_by_at_most_c_whatever_stays_factored(length: int, factored: tuple[bool, ...]):
    """Rows that cancel, or nearly, persons that fit into a microbatch, and persons that do not."""
    rng = np.random.default_rng(8)
    codes = np.repeat(np.arange(12), [1, 1, 2, 2, 3, 4, 5, 6, 11, 30, 80, 500])
    arrays = [1e3 * a if a.dtype.kind == "f" else a for a in arrays_of(rng, codes.size)]
    for p in range(2, 12, 2):  # the second half of the rows is the first one with another sign
        own = np.flatnonzero(codes == p)
        half = own.size // 2
        for k in (0, 1, 3, 5, 7):
            arrays[k][own[half : 2 * half]] = -arrays[k][own[:half]] * (1 + 1e-9 * rng.normal())
        for k in (2, 4, 6, 8):
            arrays[k][own[half : 2 * half]] = arrays[k][own[:half]]
    units = Units.by_codes(codes, "the same id")
    everybody = summed(arrays, units, np.arange(12), length, factored=factored)
    for p in range(12):
        others = summed(arrays, units, np.delete(np.arange(12), p), length, factored=factored)
        alone = summed(arrays, units, [p], length, factored=factored)
        assert np.linalg.norm(everybody - others) <= CLIP
        assert np.linalg.norm(everybody - others - alone) <= 2 * np.sqrt(WIDTH) * SPACING


def test_a_person_of_many_rows_is_formed_as_ever():
    """Bit by bit, in microbatches that are shorter than the person, too."""
    rng = np.random.default_rng(9)
    codes = np.repeat(np.arange(3), [2, 200, 2])
    units, arrays = Units.by_codes(codes, "the same id"), arrays_of(rng, codes.size)
    for length in (7, 96, 1000):
        for factored in FACTORED[1:]:
            released = summed(arrays, units, [1], length, factored=factored)
            np.testing.assert_array_equal(released, summed(arrays, units, [1]))


def seen_from_the_side(rows: list[int]) -> DPADVI:
    """A model whose gradients are products of arrays that PyTensor makes in another order of axes."""
    ids = np.repeat(np.arange(len(rows)), rows)
    rng = np.random.default_rng(0)
    with pm.Model():
        x = pm.Data("x", rng.normal(size=(ids.size, 32, 4)))
        weights = pm.Normal("weights", 0, 1, shape=(32, 32))
        mean = pt.tanh(weights @ x).sum(axis=(1, 2))
        pm.Normal("y", mean, 1.0, observed=rng.normal(size=ids.size))
        return DPADVI(noise_multiplier=2.0, delta=1e-5, sampler="full_batch", unit=ids)


@pytest.mark.parametrize("rows", [[30, 30, 30], [30, 1, 30], [30, 16, 17]], ids=str)
def test_no_number_of_rows_makes_a_fit_in_python_raise(rows: list[int]):
    """Known: a person of few rows did, when the fit had been charged."""
    approx = seen_from_the_side(rows).fit(3, progressbar=False, backend="python")
    assert all(np.isfinite(p.get_value()).all() for p in approx.params)


@pytest.mark.parametrize("name", ["squared_norm_of_products", "add_row_products", "add_unit"])
def test_what_a_person_may_need_is_tried_on_no_records(name: str, monkeypatch: pytest.MonkeyPatch):
    """Whoever is in the data: here nobody has few rows."""
    real = generated_unit_sums.defined

    def raises(*args: Any) -> None:
        raise TypeError("cannot be compiled")

    monkeypatch.setattr(generated_unit_sums, "defined", lambda *a, **k: real(*a, **k, **{name: raises}))
    with pytest.raises(ArgumentError, match="Nothing is spent"):
        seen_from_the_side([30, 30, 30]).fit(3, progressbar=False, backend="python")


def test_the_norm_of_a_sum_takes_no_more_work_than_the_sum():
    assert most_rows(784 * 1000, 784 + 1000, 1) == 1024  # no more than the proof has room for
    assert most_rows(100 * 10, 110, 1) == 36
    assert most_rows(100 * 10, 110, 50) == 1
    assert most_rows(784 * 1000, 784 + 1000, 50) == 20


def test_microbatches_of_whole_persons():
    marked = np.array([0, 2, 5, 6, 8, 10, 13, 15])
    assert [whole_persons(marked, 0, most) for most in (0, 1, 2, 3, 5, 7, 8)] == [0, 1, 2, 3, 3, 7, 8]
    assert whole_persons(marked, 3, 2) == 2 and whole_persons(marked, 5, 2) == 2


@pytest.mark.parametrize("factored", FACTORED[1:])
def test_persons_are_counted_by_the_norm_of_their_sum(factored: tuple[bool, ...]):
    rng = np.random.default_rng(10)
    codes = np.repeat(np.arange(6), [1, 2, 3, 30, 4, 1])
    units = Units.by_codes(codes, "the same id")
    arrays = [0.05 * a if a.dtype.kind == "f" else a for a in arrays_of(rng, codes.size)]
    tallies = [summed(arrays, units, np.arange(6), 24, 0.5, f)[-TALLY_COLUMNS:] for f in (factored, ())]
    np.testing.assert_allclose(*tallies, rtol=1e-9, atol=8 * SPACING)


def test_persons_are_counted_once_whatever_their_rows():
    rng = np.random.default_rng(6)
    codes = np.repeat(np.arange(5), [1, 500, 3, 7, 2])
    units, arrays = Units.by_codes(codes, "the same id"), arrays_of(rng, codes.size)
    released = summed(arrays, units, np.arange(5), tally_weight=0.5)
    one = 0.5 * CLIP * (1 - SLACK)
    assert released[-TALLY_COLUMNS:].sum() == pytest.approx(5 * one, rel=1e-9)


def test_batches_of_rows_are_whole_persons():
    rng = np.random.default_rng(7)
    codes = rng.permutation(np.repeat(np.arange(9), rng.integers(1, 7, size=9)))
    units = Units.by_codes(codes, "the same id")
    persons, offsets = np.array([4, 1, 8, 0, 4], dtype=np.int64), np.array([0, 2, 2, 5])
    draws = in_rows(Draws(persons, offsets, np.zeros((3, 1), np.int64)), units, KeyStream.from_os())
    for t, own in enumerate(([4, 1], [], [8, 0, 4])):
        marked = draws.indices[draws.offsets[t] : draws.offsets[t + 1]]
        expected = [np.flatnonzero(codes == p) for p in own]
        np.testing.assert_array_equal(marked >> 1, np.concatenate([[], *expected]))
        ends = np.cumsum([len(e) for e in expected]) - 1
        np.testing.assert_array_equal(np.flatnonzero(marked & 1), ends)


def test_of_many_rows_a_uniform_subset_is_drawn_anew():
    codes = np.repeat(np.arange(3), [2, 6, 3])
    units = Units.by_codes(codes, "the same id", max_rows=3)
    stream, steps = KeyStream.from_insecure_seed(1, "sampling"), 6000
    persons = np.tile(np.arange(3), steps).astype(np.int64)
    draws = in_rows(Draws(persons, np.arange(steps + 1) * 3, np.zeros((steps, 1), np.int64)), units, stream)
    assert (np.diff(draws.offsets) == 2 + 3 + 3).all()
    batches = (draws.indices >> 1).reshape(steps, 8)
    assert (batches[:, :2] == [0, 1]).all() and (batches[:, 5:] == [8, 9, 10]).all()
    own = batches[:, 2:5]
    assert (np.diff(own, axis=1) > 0).all() and own.min() == 2 and own.max() == 7
    subsets, counts = np.unique(own, axis=0, return_counts=True)
    assert len(subsets) == 20  # of 3 rows of 6
    assert np.sum((counts - steps / 20) ** 2 / (steps / 20)) < 60.0  # chi-squared of 19 degrees: 1 in 10⁶


def test_arrays_of_another_width_are_refused():
    rng = np.random.default_rng(8)
    arrays, sums = arrays_of(rng, 2), clipping.start_of_sum(WIDTH + 1, CLIP, 0.0, SPACING)
    with pytest.raises(ValueError, match="one noise entry per column"):
        write_add_units(LAYOUT)(*arrays, np.array([0, 3]), 0, 2, *sums[:2], np.zeros(WIDTH), *sums[2:])
    right = clipping.start_of_sum(WIDTH, CLIP, 0.0, SPACING)
    with pytest.raises(ValueError, match="a row per record"):
        write_add_units(LAYOUT)(*arrays, np.array([0, 3]), 0, 3, *right[:2], np.zeros(WIDTH), *right[2:])
