"""The privacy kernel against a slow and obvious one, on rows that somebody hostile wrote."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from clipped_sums import noisy_sum, of_all_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pytensor.graph.basic import Variable

from pymc_dpvi.engine import clipping, fetching, kernels
from pymc_dpvi.engine.private_sum import PrivateSum, private_sum
from pymc_dpvi.graph import blocks
from pymc_dpvi.graph.blocks import Block, Form
from pymc_dpvi.mechanism.limits import MAX_BATCH, MAX_PARAMS, SLACK

HOSTILE = [
    0.0,
    -0.0,
    5e-324,
    -1e-310,
    1e-200,
    1e150,
    -1e153,
    1e154,
    1e155,
    1.7e308,
    np.nan,
    np.inf,
    -np.inf,
]

entries = st.one_of(
    st.sampled_from(HOSTILE), st.floats(-10, 10), st.floats(allow_nan=True, allow_infinity=True)
)
clip_norms = st.sampled_from([1e-3, 0.1, 1.0, 3.7, 1e4, 1e100])


@st.composite
def matrices(draw: Callable, dtype: type = np.float64) -> np.ndarray:
    # Up to nine columns: both the unrolled loop (by four) and its remainder.
    shape = draw(st.tuples(st.integers(0, 6), st.integers(1, 9)))
    with np.errstate(over="ignore"):
        return draw(arrays(np.float64, shape, elements=entries)).astype(dtype)


# The lattice of most tests, in clip norms: fine enough to see what the kernel computes. A hundred thousand
# records of norm C still lie on it exactly in float64.
FINE = 2.0**-36


def zeros(size: int) -> np.ndarray:
    return np.zeros(size, dtype=np.int64)


def integers(size: int, seed: int = 0) -> np.ndarray:
    """Noise in units of the lattice, of the order of the clip norm."""
    return np.rint(np.random.default_rng(seed).normal(size=size) * 2.0**36).astype(np.int64)


def layout_of(outer: tuple[bool, ...]) -> list[Form]:
    return [Form("outer" if is_outer else "dense") for is_outer in outer]


def release(
    matrices: list[np.ndarray], outer: tuple[bool, ...], c: float, noise: np.ndarray, fine: float = FINE
) -> np.ndarray:
    return noisy_sum(matrices, layout_of(outer), c, noise, c * fine)


def clipped_sum(gradients: np.ndarray, c: float, fine: float = FINE) -> np.ndarray:
    """What the kernel makes of one dense block, without noise."""
    return release([gradients], (False,), c, zeros(gradients.shape[1]), fine)


def steps(released: np.ndarray, unit: float) -> np.ndarray:
    """The release in units of the lattice: integers, exactly."""
    exact = [Fraction(float(r)) / Fraction(unit) for r in released]
    assert all(e.denominator == 1 for e in exact)
    return np.array([int(e) for e in exact])


def norm(row: np.ndarray) -> float:
    """Euclidean norm as the module's text defines it: by the squared norm, in float64."""
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.sum(np.asarray(row, dtype="float64") ** 2)))


def clipped_row(row: np.ndarray, c: float) -> np.ndarray:
    """One record's share: slow and obvious."""
    size = norm(row)
    if not math.isfinite(size):
        return np.zeros(len(row))
    bound = c * (1 - SLACK - math.sqrt(len(row)) * FINE)
    return np.asarray(row, dtype="float64") * min(1.0, bound / size if size > 0 else 1.0)


def exact_norm(vector: np.ndarray) -> float:
    """Euclidean norm without a rounding error that matters (and without overflow)."""
    total = sum((Fraction(float(v)) ** 2 for v in vector), Fraction(0))
    if total == 0:
        return 0.0
    scale = Fraction(2) ** ((total.numerator.bit_length() - total.denominator.bit_length()) // 2)
    return math.sqrt(total / scale**2) * float(scale)


def slow_sum(gradients: np.ndarray, c: float) -> np.ndarray:
    total = np.zeros(gradients.shape[1])
    for row in gradients:
        total += clipped_row(row, c)
    return total


def borderline(gradients: np.ndarray) -> bool:
    """Whether a squared norm is so near to overflow that the order of summation decides."""
    with np.errstate(all="ignore"):
        squares = np.sum((np.asarray(gradients, dtype="float64") / 1e154) ** 2, axis=1)
    return bool(np.any(np.abs(squares - np.finfo(float).max / 1e308) < 1e-6))


deep = settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])


@deep
@given(matrices(), clip_norms)
def test_kernel_is_the_obvious_sum(gradients: np.ndarray, c: float):
    if borderline(gradients):
        return
    expected = slow_sum(gradients, c)
    got = clipped_sum(gradients, c)
    assert got.dtype == np.float64 and got.shape == (gradients.shape[1],)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=c * (1e-13 * len(gradients) + FINE))


@deep
@given(matrices(np.float32), clip_norms)
def test_kernel_takes_float32_without_losing_it(gradients: np.ndarray, c: float):
    got = clipped_sum(gradients, c)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, clipped_sum(gradients.astype("float64"), c))


@deep
@given(matrices(), clip_norms)
def test_one_record_is_bounded_whatever_it_holds(gradients: np.ndarray, c: float):
    for row in gradients:
        alone = clipped_sum(row[None], c)
        assert exact_norm(alone) <= c
        if not math.isfinite(norm(row)):
            assert (alone == 0).all()


@deep
@given(matrices(), clip_norms, st.data())
def test_one_more_record_moves_the_sum_by_at_most_c(gradients: np.ndarray, c: float, data: st.DataObject):
    row = data.draw(arrays(np.float64, (1, gradients.shape[1]), elements=entries))
    before = clipped_sum(gradients, c)
    at = data.draw(st.integers(0, len(gradients)))
    after = clipped_sum(np.concatenate([gradients[:at], row, gradients[at:]]), c)
    assert exact_norm(after - before) <= c


@deep
@given(matrices(), clip_norms, st.data())
def test_replacing_a_record_moves_the_sum_by_at_most_2c(gradients: np.ndarray, c: float, data: st.DataObject):
    if not len(gradients):
        return
    neighbour = gradients.copy()
    at = data.draw(st.integers(0, len(gradients) - 1))
    neighbour[at] = data.draw(arrays(np.float64, gradients.shape[1], elements=entries))
    assert exact_norm(clipped_sum(neighbour, c) - clipped_sum(gradients, c)) <= 2 * c


def test_sensitivity_is_attained():
    # The bound is no looser than the slack says.
    row = np.array([[3.0, 4.0, 0.0]])
    moved = np.linalg.norm(clipped_sum(row, 2.0))
    assert 2.0 * (1 - 2 * SLACK) < moved <= 2.0
    opposite = np.linalg.norm(clipped_sum(row, 2.0) - clipped_sum(-row, 2.0))
    assert 4.0 * (1 - 2 * SLACK) < opposite <= 4.0


def test_short_rows_are_left_as_they_are():
    rows = np.array([[0.3, -0.4], [0.0, 1e-300]])
    np.testing.assert_allclose(clipped_sum(rows, 1.0), rows.sum(axis=0), rtol=0, atol=FINE / 2)


@pytest.mark.parametrize("num_params", [1, 2, 3, 4, 5, 7, 8, 11])
def test_every_column_is_in_the_norm(num_params: int):
    # One large entry anywhere clips the row, whether or not the loop over columns is unrolled there.
    for j in range(num_params):
        row = np.zeros((1, num_params))
        row[0, j] = 100.0
        assert np.linalg.norm(clipped_sum(row, 1.0)) <= 1.0
        row[0, j] = np.nan
        assert (clipped_sum(row, 1.0) == 0).all()


def test_many_records_stay_within_the_bound_in_spite_of_rounding():
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(20_000, 7)) * 10.0 ** rng.integers(-5, 5, size=(20_000, 1))
    base = clipped_sum(gradients, 1.0)
    for i in (0, 7, 19_999):
        without = clipped_sum(np.delete(gradients, i, axis=0), 1.0)
        assert exact_norm(base - without) <= 1.0


def rounding_error(records: np.ndarray) -> float:
    """How far the rounded sum of short rows is from the exact sum, in units of the proven bound."""
    fine, count = 2.0**-46, len(records)  # a lattice too fine to matter
    released = clipped_sum(records, 1.0, fine)
    exact = [math.fsum(column) for column in records.T]
    error = exact_norm(released - np.array(exact))
    # docs/noise.md: 1030 rounding units per record, and half a lattice unit per coordinate.
    return error / (1030 * 2.0**-53 * count + math.sqrt(records.shape[1]) * fine / 2)


@pytest.mark.parametrize("num_params", [1, 3])
def test_float_sums_stay_within_the_proven_error(num_params: int, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(1)
    constant = np.full((200_000, num_params), 0.1)  # rounded the same way again and again
    mixed = (
        rng.uniform(-0.99, 0.99, size=(200_000, num_params))
        / num_params
        * 10.0 ** rng.integers(-9, 1, (200_000, 1))
    )
    for records in (constant, mixed, np.concatenate([constant, -constant, mixed])):
        assert rounding_error(records) <= 1
    # Planted: one plain sum of all, as in a loop over the records.
    monkeypatch.setattr(clipping, "PLAIN_RECORDS", 10**9)
    assert rounding_error(np.full((1_000_000, num_params), 0.1)) > 1


def test_outer_sums_stay_within_the_proven_error():
    rng = np.random.default_rng(2)
    left, right = rng.normal(size=(20_000, 3)), rng.normal(size=(20_000, 2))
    dense = columns([left, right], (True,))
    norms = np.sqrt(np.sum(dense**2, axis=1))
    fine = 2.0**-47
    got = release([left, right], (True,), 1.0, zeros(6), fine)
    bound = 1.0 - SLACK - math.sqrt(6) * fine
    weights = np.minimum(1.0, bound / norms)
    exact = np.array([math.fsum(column) for column in (dense * weights[:, None]).T])
    # 3 more rounding units: in the reference, the norms and products are rounded too.
    assert exact_norm(got - exact) <= (1033 * 2.0**-53 * 20_000 + math.sqrt(6) * fine)


def test_the_slack_covers_the_largest_batch():
    # The inequality at the end of the proof, step by step (docs/noise.md).
    eps, batch, size = Fraction(1, 2**53), MAX_BATCH, MAX_PARAMS
    norm_error = (2 * size + 16) * eps
    # What a record adds in magnitude is this times its share, where a sum of products cancels.
    uncancelled = int(kernels.CANCELLATION)
    sum_error = 2 * 1030 * uncancelled * eps * batch
    assert (1 - Fraction(SLACK)) * (1 + norm_error) + sum_error <= 1 - Fraction(1, 2**14)
    assert max(clipping.PLAIN_RECORDS, blocks.MOST_PRODUCTS) + 6 <= 1030
    assert batch >= 10**7


@pytest.mark.parametrize("unit", [1e-3, 1e-9])
@pytest.mark.parametrize("num_params", [1, 4, 1000])
def test_rounding_to_the_lattice_is_inside_the_sensitivity(unit: float, num_params: int):
    """A coarse lattice: the clip bound leaves room for the rounding of every coordinate."""
    rng = np.random.default_rng(4)
    base = rng.normal(size=(5, num_params))
    for _ in range(20):
        row = rng.normal(size=(1, num_params)) * 10
        with_row, without = (clipped_sum(g, 1.0, unit) for g in (np.concatenate([base, row]), base))
        # A few roundings beyond C: of the released float64 numbers and of their difference here.
        assert exact_norm(with_row - without) <= 1.0 + 1e-13 * math.sqrt(num_params)


@pytest.mark.parametrize("unit", [0.0, -1e-9, np.nan, 1.0, 0.6, np.inf])
def test_a_lattice_that_is_no_lattice_or_too_coarse_is_refused(unit: float):
    with pytest.raises(ValueError, match="too coarse"):
        clipped_sum(np.ones((1, 4)), 1.0, unit)


def test_a_sum_beyond_64_bits_is_held_inside():
    unit = 2.0**-60
    rows = np.repeat([[0.9, -0.1], [0.9, -0.1]], 4, axis=0)
    noise = np.array([12 * 2**40, -12 * 2**40])
    got = release([rows], (False,), 1.0, noise, unit)
    assert steps(got, unit).tolist()[0] == int(float(2**62 + 12 * 2**40))
    assert steps(got, unit).tolist()[1] == pytest.approx(-0.8 * 2**60 - 12 * 2**40, rel=1e-12)
    # A held coordinate moves less than the sum did.
    fewer = release([rows[:-1]], (False,), 1.0, noise, unit)
    assert exact_norm(got - fewer) <= 1.0


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "every second column": lambda g: np.repeat(g, 2, axis=1)[:, ::2],
    "reversed": lambda g: np.ascontiguousarray(g[::-1, ::-1])[::-1, ::-1],
}

E = pt.matrix("g", dtype="float64")
ETA = pt.lvector("eta")
UNIT = 1.5 * FINE


COUNT = pt.lscalar("count")


def function(g: Variable, mode: str) -> Callable[..., np.ndarray]:
    """``(rows, noise, count=all) -> release``, compiled."""
    outputs = of_all_rows([private_sum([Block(g)], ETA, 1.5, UNIT, COUNT)], [g], mode)
    compiled = pytensor.function([g, ETA, COUNT], outputs[0], mode=mode)
    return lambda rows, noise, count=None: compiled(rows, noise, len(rows) if count is None else count)


@pytest.fixture(scope="module", params=["PYTHON", "CVM", "NUMBA"])
def compiled(request: pytest.FixtureRequest) -> Callable[..., np.ndarray]:
    return function(E, request.param)


@pytest.fixture(scope="module", params=["PYTHON", "CVM", "NUMBA"])
def compiled32(request: pytest.FixtureRequest) -> Callable[..., np.ndarray]:
    g = pt.matrix("g", dtype="float32")
    return function(g, request.param)


ROWS = np.array(
    [
        [0.1, 0.2, -0.3, 0.4, 0.5],
        [1e150, -1e150, 1.0, 0.0, 0.0],
        [np.nan, 1.0, 1.0, 1.0, 1.0],
        [np.inf, -np.inf, 0.0, 0.0, 0.0],
        [1e200, 0.0, 0.0, 0.0, 0.0],
        [5e-324, 1e-310, 0.0, -0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [3.0, -4.0, 5.0, 6.0, -7.0],
    ]
)


@pytest.mark.turns
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_in_a_graph(compiled: Callable[..., np.ndarray], layout: str):
    eta = integers(5)
    got = compiled(LAYOUTS[layout](ROWS), eta)
    np.testing.assert_array_equal(steps(got, UNIT), steps(clipped_sum(ROWS, 1.5), UNIT) + eta)
    np.testing.assert_allclose(got - eta * UNIT, slow_sum(ROWS, 1.5), rtol=0, atol=UNIT)


@pytest.mark.turns
def test_compiled_float32(compiled32: Callable[..., np.ndarray]):
    with np.errstate(over="ignore"):
        rows = ROWS.astype("float32")
    eta = integers(5)
    got = compiled32(rows, eta)
    assert got.dtype == np.float64
    expected = steps(clipped_sum(rows.astype("float64"), 1.5), UNIT) + eta
    np.testing.assert_array_equal(steps(got, UNIT), expected)


def test_empty_batch_is_the_noise(compiled: Callable[..., np.ndarray]):
    eta = np.array([1, -2, 0, 2**45 + 1, -(2**52)])
    np.testing.assert_array_equal(steps(compiled(np.empty((0, 5)), eta), UNIT), eta)


@deep
@given(matrices(), st.integers(0, 2**32 - 1))
def test_noise_enters_exactly_once(gradients: np.ndarray, seed: int):
    eta, unit = integers(gradients.shape[1], seed), 2.0 * FINE
    noisy = release([gradients], (False,), 2.0, eta)
    np.testing.assert_array_equal(steps(noisy, unit), steps(clipped_sum(gradients, 2.0), unit) + eta)


def test_inputs_are_not_written_to(compiled: Callable[..., np.ndarray]):
    rows, eta = ROWS.copy(), np.ones(5, dtype=np.int64)
    out = compiled(rows, eta)
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(eta, 1)
    assert not np.shares_memory(out, eta)


def test_no_rewrite_takes_the_noise_away_or_merges_it():
    other = pt.lvector("other")
    outputs = [private_sum([Block(E)], v, 1.0, FINE) for v in (ETA, other)]
    fn = pytensor.function([E, ETA, other], of_all_rows(outputs, [E], "FAST_RUN"), mode="FAST_RUN")
    a, b = fn(ROWS, zeros(5), zeros(5) + 7)
    np.testing.assert_array_equal(b - a, 7 * FINE)


def test_the_sum_has_no_gradient_and_no_name_for_the_unnoised():
    count = pt.lscalar("count")
    unit = pt.dscalar("unit")
    out = private_sum([Block(E)], ETA, 1.0, unit, count)
    assert out.owner.inputs == [E, count, ETA, unit] and len(out.owner.outputs) == 1
    with pytest.raises(NotImplementedError):
        pytensor.grad(out.sum(), E)
    with pytest.raises(NotImplementedError, match="a mark"):
        pytensor.function([E, count, ETA, unit], out, mode="PYTHON")(ROWS, 1, zeros(5), FINE)


def test_clip_norm_is_part_of_the_identity_of_the_op():
    assert PrivateSum(1.0) == PrivateSum(1) != PrivateSum(2.0)


@pytest.mark.parametrize(
    ("gradients", "noise"),
    [
        (np.zeros(3), zeros(3)),
        (np.zeros((2, 3), dtype="int64"), zeros(3)),
        (np.zeros((2, 3)), zeros(3)[None]),
        (np.zeros((2, 3)), np.zeros(3)),  # floats are no lattice
        (np.zeros((2, 3)), np.zeros(3, dtype="int32")),
    ],
)
def test_wrong_inputs(gradients: np.ndarray, noise: np.ndarray):
    with pytest.raises(TypeError):
        PrivateSum(1.0).make_node(gradients, len(gradients), noise, FINE)


def test_only_the_first_rows_count(compiled: Callable[..., np.ndarray]):
    eta = integers(5)
    for k in range(len(ROWS) + 1):
        expected = steps(clipped_sum(ROWS[:k], 1.5), UNIT) + eta
        np.testing.assert_array_equal(steps(compiled(ROWS, eta, k), UNIT), expected)
    with pytest.raises(ValueError):
        compiled(ROWS, eta, -1)


@pytest.mark.parametrize("length", [1, 4, 6])
def test_noise_of_another_length_is_refused(compiled: Callable[..., np.ndarray], length: int):
    # Broadcast, one deviate would stand in every coordinate; too short, the sum would be written past it.
    # (No rows, so that a kernel that does write past the end does not do it here.)
    with pytest.raises((ValueError, AssertionError)):
        compiled(ROWS, np.ones(length, dtype=np.int64), 0)


def test_kernels_may_not_assume_that_nan_does_not_occur():
    modules = (kernels, clipping, fetching)
    found = {k for m in modules for k in vars(m).values() if hasattr(k, "targetoptions")}
    assert len(found) >= 15
    for kernel in found:
        option = kernel.targetoptions.get("fastmath", False)
        assert option is False or set(option) <= {"reassoc"}, option


# ------------------------------------------------------------------------------------------------
# Outer blocks: left ⊗ right, never formed
# ------------------------------------------------------------------------------------------------

moderate = st.one_of(st.just(0.0), st.floats(-10, 10), st.sampled_from([1e-90, -1e70, 1e-140, 3e60]))


@st.composite
def layouts(
    draw: Callable, elements: st.SearchStrategy = entries
) -> tuple[list[np.ndarray], tuple[bool, ...]]:
    """Some blocks, dense and outer, for the same records."""
    batch = draw(st.integers(0, 5))
    outer = tuple(draw(st.lists(st.booleans(), min_size=1, max_size=3)))
    widths = [draw(st.integers(1, 5)) for _ in range(len(outer) + sum(outer))]
    return [draw(arrays(np.float64, (batch, w), elements=elements)) for w in widths], outer


def columns(matrices: list[np.ndarray], outer: tuple[bool, ...]) -> np.ndarray:
    """The blocks written out."""
    rest = iter(matrices)
    out = []
    for is_outer in outer:
        left = next(rest)
        with np.errstate(all="ignore"):
            block = left[:, :, None] * next(rest)[:, None, :] if is_outer else left
        out.append(block.reshape((len(left), int(np.prod(block.shape[1:])))))
    return np.concatenate(out, axis=1)


@deep
@given(layouts(moderate), clip_norms)
def test_outer_blocks_are_the_obvious_sum(blocks: tuple[list[np.ndarray], tuple[bool, ...]], c: float):
    matrices, outer = blocks
    dense = columns(matrices, outer)
    got = release(matrices, outer, c, zeros(dense.shape[1]))
    atol = c * (1e-12 * len(dense) + FINE)
    np.testing.assert_allclose(got, slow_sum(dense, c), rtol=1e-9, atol=atol)


@deep
@given(layouts(), clip_norms)
def test_one_record_is_bounded_in_any_layout(blocks: tuple[list[np.ndarray], tuple[bool, ...]], c: float):
    matrices, outer = blocks
    size = columns(matrices, outer).shape[1]
    for i in range(len(matrices[0])):
        alone = release([m[i : i + 1] for m in matrices], outer, c, zeros(size))
        assert np.isfinite(alone).all()
        assert exact_norm(alone) <= c


@deep
@given(layouts(), clip_norms, st.data())
def test_sensitivity_in_any_layout(
    blocks: tuple[list[np.ndarray], tuple[bool, ...]], c: float, data: st.DataObject
):
    matrices, outer = blocks
    size = columns(matrices, outer).shape[1]
    if not len(matrices[0]):
        return
    at = data.draw(st.integers(0, len(matrices[0]) - 1))
    other = [m.copy() for m in matrices]
    for m in other:
        m[at] = data.draw(arrays(np.float64, m.shape[1], elements=entries))
    eta = zeros(size)
    full, replaced = release(matrices, outer, c, eta), release(other, outer, c, eta)
    removed = release([np.delete(m, at, axis=0) for m in matrices], outer, c, eta)
    assert exact_norm(full - removed) <= c
    assert exact_norm(full - replaced) <= 2 * c


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("zero_side", ["left", "right"])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_zero_times_non_finite_contributes_nothing(bad: float, zero_side: str, width: int):
    # 0 · NaN and 0 · ∞ are NaN: a record must not get it past the norm.
    for place in range(2):
        row = np.zeros((1, 2))
        row[0, place] = bad
        nothing = np.zeros((1, width))
        left, right = (nothing, row) if zero_side == "left" else (row, nothing)
        got = release([left, right], (True,), 1.0, zeros(2 * width))
        np.testing.assert_array_equal(got, 0.0)
        narrow = release([nothing, row[:, place : place + 1]], (True,), 1.0, zeros(width))
        np.testing.assert_array_equal(narrow, 0.0)


@pytest.mark.parametrize(
    ("left", "right"), [(1e200, 1e-200), (1e-170, 1e150), (1e-200, 1e300), (3e-160, 1e160)]
)
def test_a_norm_does_not_underflow_in_one_factor(left: float, right: float):
    # ‖a‖² underflows to 0, but a ⊗ δ is long.
    got = release([np.full((1, 2), left), np.full((1, 3), right)], (True,), 0.1, zeros(6))
    assert exact_norm(got) <= 0.1


@pytest.mark.turns
@pytest.mark.parametrize("mode", ["PYTHON", "CVM", "NUMBA"])
def test_layouts_compiled_in_a_graph(mode: str):
    rng = np.random.default_rng(1)
    shapes = [(6, 3), (6, 2), (6, 4), (6, 5), (6, 1)]
    matrices = [rng.normal(size=s) * 3 for s in shapes]
    matrices[0][1] = np.nan
    matrices[2][2] = np.inf
    matrices[4][3] = 1e300
    matrices[1][4] = 0.0
    outer = (True, False, True)
    size = 3 * 2 + 4 + 5 * 1
    variables = [pt.matrix(dtype="float64") for _ in shapes]
    unit = 0.7 * FINE
    noisy = PrivateSum(0.7, layout_of(outer))(*variables, COUNT, ETA, unit)
    fn = pytensor.function([*variables, COUNT, ETA], of_all_rows([noisy], variables, mode)[0], mode=mode)
    eta = integers(size)
    expected = slow_sum(columns(matrices, outer), 0.7) + eta * unit
    np.testing.assert_allclose(fn(*matrices, 6, eta), expected, rtol=0, atol=unit)
    np.testing.assert_array_equal(fn(*matrices, 0, eta), eta * unit)
    strided = [np.asfortranarray(m) for m in matrices]
    np.testing.assert_allclose(fn(*strided, 6, eta), expected, rtol=0, atol=unit)


def test_outer_float32():
    rng = np.random.default_rng(2)
    left, right = rng.normal(size=(4, 3)).astype("float32"), rng.normal(size=(4, 2)).astype("float32")
    got = release([left, right], (True,), 1.0, zeros(6))
    wide = release([left.astype("float64"), right.astype("float64")], (True,), 1.0, zeros(6))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, wide, rtol=1e-6, atol=FINE)
    huge = np.full((1, 3), 3e38, dtype="float32")  # the product overflows float32, not float64
    assert exact_norm(release([huge, huge], (True,), 1.0, zeros(9))) <= 1.0


@deep
@given(layouts(), st.integers(0, 2**32 - 1))
def test_noise_enters_exactly_once_in_any_layout(
    blocks: tuple[list[np.ndarray], tuple[bool, ...]], seed: int
):
    matrices, outer = blocks
    size = columns(matrices, outer).shape[1]
    eta, unit = integers(size, seed), 2.0 * FINE
    noisy, silent = (steps(release(matrices, outer, 2.0, e), unit) for e in (eta, zeros(size)))
    np.testing.assert_array_equal(noisy, silent + eta)
