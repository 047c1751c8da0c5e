"""Running moments against the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_dpvi.engine.gradient_moments import BLOCKS, GROUP, MOST_LATENTS, GradientTrace, merged


def fed(rows: np.ndarray, cuts: list[int], planned: int | None = None) -> GradientTrace:
    trace = GradientTrace((rows.shape[1] - 1) // 3)
    trace.begin(planned or len(rows))
    for part in np.split(rows, cuts):
        trace.take(part)
    return trace


def some_rows(n: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(1e4, 1.0, size=(n, 3 * size + 1))


@pytest.mark.parametrize(("n", "size"), [(1, 2), (7, 1), (203, 3), (2003, 5), (600, GROUP + 9), (300, 1100)])
def test_moments_are_those_of_the_rows(n: int, size: int) -> None:
    rows = some_rows(n, size)
    cuts = np.sort(np.random.default_rng(1).integers(0, n, 9)).tolist()
    trace = fed(rows, cuts)
    assert len(trace.blocks) <= BLOCKS
    whole = merged(trace.blocks, trace.columns)
    assert whole.n == n
    np.testing.assert_allclose(whole.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(whole.noise_variance, np.mean(rows[:, -1] ** 2), rtol=1e-12)
    assert np.concatenate([np.arange(size)[g] for g in trace.groups]).tolist() == list(range(size))
    for columns, scatter, spread in zip(trace.columns, whole.scatter, whole.spread, strict=True):
        centred = rows[:, columns] - rows[:, columns].mean(axis=0)
        k = len(columns) // 3
        np.testing.assert_allclose(scatter, centred[:, :k].T @ centred, rtol=1e-9, atol=1e-7)
        gradients = centred[:, k : 2 * k]
        np.testing.assert_allclose(spread, gradients.T @ gradients, rtol=1e-9, atol=1e-7)


def test_blocks_and_path_are_consecutive_steps() -> None:
    rows = some_rows(1000, 2)
    trace = fed(rows, [333, 340])
    at = 0
    for block in trace.blocks:
        np.testing.assert_allclose(block.mean, rows[at : at + block.n].mean(axis=0), rtol=1e-12)
        at += block.n
    assert at == 1000
    begin = 0
    for point in trace.path:
        part = rows[begin : point.step, :2]
        assert point.n == len(part)
        np.testing.assert_allclose(point.mean, part.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(point.variance, part.var(axis=0), rtol=1e-4)
        whole = rows[begin : point.step]
        gradient = (whole[:, 2:4] + whole[:, 4:6]).mean(axis=0)
        np.testing.assert_allclose(point.gradient, gradient, rtol=1e-12)
        np.testing.assert_allclose(point.noise_variance, np.mean(whole[:, -1] ** 2), rtol=1e-12)
        norms = trace.gradient_norms[begin : point.step]
        np.testing.assert_allclose(norms, np.linalg.norm(gradient), rtol=1e-12)
        begin = point.step
    assert begin == len(trace.gradient_norms) == 1000
    assert sum(b.n for b in trace.blocks[-trace.late_blocks :]) == 500


def test_how_calls_are_cut_changes_no_bit() -> None:
    # How many steps a call makes depends on the clock: nothing of it may be seen in what is released.
    rows = some_rows(1500, 4)
    one = fed(rows, [])
    for seed in range(5):
        other = fed(rows, np.sort(np.random.default_rng(seed).integers(0, 1500, 40)).tolist())
        for a, b in zip(one.blocks, other.blocks, strict=True):
            assert np.array_equal(a.mean, b.mean)
            assert all(np.array_equal(s, t) for s, t in zip(a.scatter, b.scatter, strict=True))
            assert all(np.array_equal(s, t) for s, t in zip(a.spread, b.spread, strict=True))
        assert all(
            np.array_equal(p.mean, q.mean) and np.array_equal(p.gradient, q.gradient) and p.step == q.step
            for p, q in zip(one.path, other.path, strict=True)
        )


def test_a_first_row_far_from_the_others_costs_no_digits() -> None:
    # Products are added up about it.
    rows = some_rows(1000, 2) - 1e4
    rows[0] += 1e4
    trace = fed(rows, [])
    whole = merged(trace.blocks, trace.columns)
    centred = rows - rows.mean(axis=0)
    np.testing.assert_allclose(whole.scatter[0], centred[:, :2].T @ centred[:, :6], rtol=1e-9)
    late = merged(trace.blocks[1:], trace.columns)
    assert np.all(np.diag(late.spread[0]) < 2000)


def test_steps_without_a_finite_gradient_are_left_out() -> None:
    rows = some_rows(400, 2)
    bad = rows.copy()
    bad[:60, 3] = np.nan
    bad[200, 4] = np.inf
    bad[0, 1] = bad[300, 5] = 1e200  # its square is none
    with np.errstate(over="ignore"):
        keep = np.isfinite(bad**2).all(axis=1)
    whole = merged(fed(bad, [50]).blocks, fed(bad, []).columns)
    assert whole.n == keep.sum()
    np.testing.assert_allclose(whole.mean, rows[keep].mean(axis=0), rtol=1e-12)


def test_runs_are_added_and_memory_stays() -> None:
    rows = some_rows(5000, 2)
    trace = GradientTrace(2)
    at = 0
    for n in (2000, 10, 1000, 1, 900, 300, 789):
        trace.begin(n)
        trace.take(rows[at : at + n])
        at += n
        assert len(trace.blocks) <= 2 * BLOCKS + 1
        assert len(trace.path) <= 130
    assert at == 5000 and trace.path[-1].step == 5000
    assert len(trace.gradient_norms) == 5000
    mean = sum(p.n * p.gradient for p in trace.path) / 5000
    np.testing.assert_allclose(mean, (rows[:, 2:4] + rows[:, 4:6]).mean(axis=0), rtol=1e-12)
    whole = merged(trace.blocks, trace.columns)
    assert whole.n == 5000
    np.testing.assert_allclose(whole.mean, rows.mean(axis=0), rtol=1e-12)
    assert sum(b.n for b in trace.blocks[-trace.late_blocks :]) == pytest.approx(789 / 2, abs=60)


def test_an_interrupted_run_counts_as_what_was_run() -> None:
    trace = fed(some_rows(250, 2), [], planned=1000)
    assert sum(b.n for b in trace.blocks) == 250
    assert trace.late_blocks == 1 and len(trace.blocks) == 2


def test_of_a_large_model_little_or_nothing_is_kept() -> None:
    small, many, most, more = (GradientTrace(n) for n in (1000, 1100, MOST_LATENTS, MOST_LATENTS + 1))
    numbers = [sum(len(c) ** 2 for c in trace.columns) for trace in (small, many, most)]
    assert numbers[1] < numbers[0] and numbers[2] < 2 * numbers[0]
    assert more.width == 0 and more.groups == ()
    more.begin(3)
    more.take(np.empty((3, 0)))
    assert more.blocks == () and more.path == () and more.gradient_norms.shape == (0,)
