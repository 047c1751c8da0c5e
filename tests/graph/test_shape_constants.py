"""Arrays that say no more than their shape and a few numbers: what passes, and that data do not."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_dpvi.graph.shape_constants import is_grid, is_structural, shape_vectors, written_shapes
from pymc_dpvi.graph.traversal import array_value, walk

SECOND_DIFFERENCES = np.diff(np.eye(7), n=2, axis=0)
PAIRS = np.array(np.triu_indices(6, 1))

STRUCTURAL: dict[str, np.ndarray] = {
    "tril rows": np.tril_indices(5)[0],
    "tril columns": np.tril_indices(5)[1],
    "strict tril rows": np.tril_indices(5, -1)[0],
    "strict tril columns": np.tril_indices(5, -1)[1],
    "triu rows": np.triu_indices(5)[0],
    "triu columns": np.triu_indices(5)[1],
    "pairs, rows": PAIRS[0],
    "pairs, columns": PAIRS[1],
    "pairs": PAIRS,
    "pairs as rows": PAIRS.T,
    "tril of a wide matrix": np.array(np.tril_indices(4, 1, 7)),
    "triu of a tall matrix": np.array(np.triu_indices(7, -2, 3)),
    "flat positions": np.ravel_multi_index(np.tril_indices(6), (6, 6)),
    "flat positions above": np.ravel_multi_index(np.triu_indices(6, 1), (6, 9)),
    "as floats": np.tril_indices(5)[0].astype(float),
    "arange": np.arange(11),
    "backwards": np.arange(11)[::-1],
    "blocks": np.arange(12) // 3,
    "blocks, the last one short": np.arange(11) // 3,
    "in turns": np.arange(12) % 5,
    "tile of repeat": np.tile(np.repeat(np.arange(3), 4), 5),
    "meshgrid of indices": np.meshgrid(np.arange(4), np.arange(6), indexing="ij")[0],
    "all indices": np.indices((4, 5)),
    "all indices as points": np.indices((4, 5)).reshape(2, -1).T,
    "identity of whatever size": 0.1 * np.eye(4, 6, 1),
    "reversed identity": np.eye(5)[::-1],
    "tri": np.tri(5, 7, 1),
    "lower mask": np.tri(5, dtype=bool),
    "upper": np.triu(np.ones((4, 4)), 1),
    "differences": np.diff(np.eye(6), axis=0),
    "second differences": SECOND_DIFFERENCES,
    "group membership in blocks": np.repeat(np.eye(3), 4, axis=0),
    "group membership in turns": np.tile(np.eye(3), (4, 1)),
    "and transposed": np.kron(np.eye(3), np.ones(4)),
    "axes of length one": np.arange(4.0)[None, :, None],
}

#: What a user may have computed from records, and would take for an index or a design.
DATA: dict[str, np.ndarray] = {
    "group of each": np.array([0, 0, 1, 2, 1, 0, 2, 2]),
    "ranks": np.array([3, 1, 4, 0, 2, 5]),
    "counts": np.array([12, 9, 31]),
    "chosen columns": np.array([0, 3, 2]),
    "pairs that do not belong together": np.array([[0, 1, 1, 2, 2, 2], [0, 1, 2, 0, 1, 0]]),
    "a table": np.array([[4, 1], [2, 7]]),
    "tril with one wrong": np.array([0, 1, 1, 2, 2, 1]),
    "a run too long": np.array([0, 1, 1, 1, 2, 2]),
    "columns with a gap": np.array([0, 0, 1, 0, 2]),
    "an arange with one changed": np.where(np.arange(9) == 4, 5, np.arange(9)),
    "an identity with one changed": np.eye(4) + np.diag([0, 0, 1, 0]),
    "a correlation matrix": np.array([[1.0, 0.3], [0.3, 1.0]]),
    "a covariance matrix": np.array([[2.0, 0.3], [0.3, 1.0]]),
    "an autocovariance": np.array([[1, 0.3, 0.1], [0.3, 1, 0.3], [0.1, 0.3, 1]]),
    "membership as it happened": np.eye(3)[[0, 2, 1, 1, 0]],
    "adjacency of a ring": np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]),
    "adjacency": np.array([[0, 1, 0, 1], [1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 0]]),
    "large": np.array([1e300, 0.0, 1e300]),
    "a date": np.array([1.2e18, 3.4e18, 1.1e18]),
    "not a number": np.array([0.0, np.nan, 2.0]),
    "quantiles": np.array([-1.3, 0.1, 0.4, 2.2]),
    "text": np.array(["a", "b"]),
}


@pytest.mark.parametrize("name", STRUCTURAL)
def test_no_more_than_the_shape(name: str) -> None:
    assert is_structural(STRUCTURAL[name])


@pytest.mark.parametrize("name", DATA)
def test_data(name: str) -> None:
    assert not is_structural(DATA[name])
    assert not is_grid(DATA[name])


@pytest.mark.parametrize("name", [n for n, a in STRUCTURAL.items() if a.size > 12])
def test_one_changed_entry_is_seen(name: str) -> None:
    """Every entry is compared: whichever differs, the array is not the rule's any more."""
    array = STRUCTURAL[name].astype(float)
    for at in range(array.size):
        changed = array.copy()
        changed.flat[at] += 0.5
        assert not is_structural(changed), at


def test_grids_of_points() -> None:
    axes = [np.linspace(-1, 2, 4), np.linspace(0.5, 9, 6), np.linspace(3, 4, 3)]
    for grid in np.meshgrid(*axes), np.meshgrid(*axes, indexing="ij"):
        assert all(is_grid(g) and is_grid(g.ravel()) and not is_structural(g) for g in grid)
        assert is_grid(np.stack([g.ravel() for g in grid], axis=1))
        assert is_grid(np.stack(grid))
    assert not is_grid(np.arange(11) // 3 * 0.5)  # the last one short: only in whole numbers


@given(st.lists(st.integers(0, 3), min_size=10, max_size=16))
def test_few_index_arrays_say_nothing(values: list[int]) -> None:
    """What passes is told by a few lengths: the rule's own output for them is the array."""
    array = np.array(values)
    if not is_structural(array):
        return
    made = [np.full(array.size, values[0])]
    for run in range(1, array.size + 1):
        for period in range(1, array.size + 1):
            position = (np.arange(array.size) // run) % period
            made += [position, position.max() - position]
    for n in range(1, 12):
        for m in range(1, 12):
            for k in range(-n, m):
                for pair in (np.tril_indices(n, k, m), np.triu_indices(n, k, m)):
                    made += [p for p in pair if p.size == array.size]
    assert any(np.array_equal(array, one) for one in made), values


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros(4), True),
        (np.full((2, 3), 7.5), True),
        (np.eye(3), True),
        (np.arange(5), True),
        (np.tril_indices(4)[0], True),
        (np.tril_indices(4)[1], True),
        (np.array(3.2), True),
        (np.array([1.0, 2.0]), False),
        (np.diag([1.0, 2.0]), False),
        (np.array([0, 2, 1]), False),
    ],
)
def test_structural_arrays(array: np.ndarray, expected: bool) -> None:
    assert is_structural(array) is expected


X1, X2 = (g.ravel() for g in np.meshgrid([1.0, 2.0, 3.0], [4.0, 6.0]))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([5.0, 8.0]), True),  # two numbers
        (np.linspace(-0.3, 7.1, 12)[:, None], True),
        (np.pi * np.arange(1, 9), True),
        (np.stack([X1, X2], axis=1), True),
        (np.stack([X1, X2]), True),
        (np.full((3, 2), 7.0), True),
        (1e-4 * np.eye(3), True),
        (np.array([1.0, 2.0, 3.0 + 1e-9]), False),
        (np.array([1.0, 2.0, 4.0]), False),
        (np.array([1.0, 1.0, 2.0]), False),
        (np.array([1.0, 2.0, 1.0, 3.0]), False),
        (np.array([1.0, np.nan, 3.0]), False),
        (np.array([True, False, True, True]), False),
        (np.array([[1.0, 2.0], [3.0, 9.0]]), False),
        (np.array([[1.0, 2.0], [1.0, 4.0], [2.0, 8.0]]), False),
        (np.stack([X1, X2 + 1e-3 * X1], axis=1), False),
        (np.zeros((0, 2)), False),
        (np.zeros((2, 3, 2)), True),
    ],
)
def test_grids(array: np.ndarray, expected: bool) -> None:
    assert is_grid(array) is expected


def test_lengths_are_told_from_counts() -> None:
    x = pt.tensor("x", shape=(4, 3, 2))
    shape, counts, part = (pt.constant(np.array(v)) for v in ([12, 2], [5, 9], [3, 2]))
    graphs = [x.reshape(shape), x.sum() * counts[0] + counts[1], x.sum() * part[0] + part[1]]
    found = [find(walk(graphs)) for find in (shape_vectors, written_shapes)]
    assert [{tuple(array_value(v)) for v in one} for one in found] == [{(12, 2)}, {(12, 2), (3, 2)}]
