"""Synthetic records of a model's schema: the same types and row shapes, and no number of the data.

Checks that must not look at the records (`separability`, `auditing`) run on these: uniform numbers, small
integers, rows that sum to one, and draws from the model's own likelihood, which lie in its support.
:func:`hostile_records` puts into them the numbers that floating point handles worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytensor
from pymc.pytensorf import compile as pm_compile
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.graph.densities import Likelihood, in_values
from pymc_dpvi.graph.gradients import Latents, put
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.traversal import walk
from pymc_dpvi.lowering import python_as_it_stands

__all__ = ["Rows", "hostile_records", "python_function", "synthetic_records"]

#: One array per record array of the model, all of the same leading length.
Rows = list[np.ndarray]

_DRAWS = 3  # sets of records of each kind

#: NaN, infinities, overflow of the number, of its square and of a product, underflow, zeros, and numbers that
#: are only large, whose gradients are clipped.
_HOSTILE = (
    *(np.nan, np.inf, -np.inf, 1e300, -1e300, 1e150, -1e150, 5e-324, 0.0, -0.0),
    *(1e10, -1e10, 30.0, -30.0),
)


def python_function(
    inputs: Sequence[Variable], outputs: Sequence[Variable], mode: Mode | None = None
) -> Callable[..., list[np.ndarray]]:
    """Make a function that evaluates a graph in Python, as it stands by default: for few calls."""
    mode = python_as_it_stands() if mode is None else mode
    return pm_compile(list(inputs), list(outputs), mode=mode, on_unused_input="ignore", random_seed=0)


def synthetic_records(
    record: RecordModel,
    many: Likelihood,
    latents: Latents,
    z: TensorVariable,
    start: np.ndarray,
    rng: np.random.Generator,
    done: Callable[[], bool] = lambda: False,
    drawn_alone: bool = False,
) -> Iterator[tuple[Rows, np.ndarray]]:
    """Yield synthetic records and latent values, ever more elaborate ones, until `done`.

    With several tables, the rows belong to each in turn.

    `many` is the likelihood rebuilt for the wanted number of rows, `z` a placeholder of shape (1, D), `start`
    the unconstrained values, shape (D,), around which z is drawn. `done` is asked after each kind of records.
    With `drawn_alone`, only the last kind is made, the outcomes of which are drawn from the likelihood.
    Yields one array per record array, and a point of shape (1, D).
    """
    kinds = [(r.type.shape, np.dtype(r.type.dtype)) for r in many.rows]

    def point() -> np.ndarray:
        draw = start + rng.normal(scale=0.5, size=start.shape)
        return draw[None].astype(pytensor.config.floatX)

    def made(high: int, simplex: bool = False) -> Rows:
        rows = [_uniform(rng, *k, high=high, simplex=simplex) for k in kinds]
        if (tables := record.tables) is not None:
            which = record.arrays.index(tables.which)
            turn = rng.integers(len(tables.tables)) + np.arange(len(rows[which]))
            rows[which] = (turn % len(tables.tables)).astype(rows[which].dtype)
        return rows

    for high, simplex in () if drawn_alone else ((2, False), (1, False), (2, True)):
        for _ in range(_DRAWS):
            yield made(high, simplex), point()
        if done():
            return
    # Draws from the likelihood lie in its support, whatever that is.
    observed = [record.model.rvs_to_values[rv] for rv in record.model.observed_RVs]
    roots = [next((v for v in walk([o]) if v in record.arrays), None) for o in observed]
    made_of = [many.memo[rv] for rv in record.model.observed_RVs]
    draws = in_values(record.model, made_of, many.free, many.constrained)
    try:
        draw_fn = python_function([*many.rows, z], put(draws, latents.value_vars, latents.split(z[0])))
    except Exception:
        return
    for high in (2, 1):
        for _ in range(_DRAWS):
            rows, at = made(high), point()
            try:
                drawn = draw_fn(*rows, at)
            except Exception:
                continue
            for root, value in zip(roots, drawn, strict=True):
                if root is not None:
                    k = record.arrays.index(root)
                    rows[k] = np.asarray(value).astype(rows[k].dtype).reshape(rows[k].shape)
            yield rows, at
        if done():
            return


def _uniform(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, *, high: int, simplex: bool
) -> np.ndarray:
    if dtype.kind in "iub":
        return rng.integers(0, high, size=shape).astype(dtype)
    draw = rng.uniform(0.05, 0.95, size=shape)
    if simplex and len(shape) > 1:
        draw = draw / draw.sum(axis=-1, keepdims=True)
    return draw.astype(dtype)


def hostile_records(rows: Rows, rng: np.random.Generator) -> Rows:
    """Make records that are meant to break a sum: NaN, infinities, huge and tiny numbers.

    For each hostile value, one of the ordinary `rows` has it in one place of each array in turn, one has it
    all over that array, and one all over every array. Integers get the value cut to their type, for NaN -1.
    """
    made: list[Rows] = []
    for value in _HOSTILE:
        spots: list[tuple[tuple[int, ...], bool]]
        spots = [((k,), everywhere) for k in range(len(rows)) for everywhere in (False, True)]
        if len(rows) > 1:
            spots.append((tuple(range(len(rows))), True))
        for arrays, everywhere in spots:
            i = int(rng.integers(len(rows[0])))
            one = [r[i : i + 1].copy() for r in rows]
            for k in arrays:
                place = slice(None) if everywhere else int(rng.integers(one[k].size))
                one[k].reshape(-1)[place] = _as_type(value, one[k].dtype)
            made.append(one)
    return [np.concatenate([one[k] for one in made]) for k in range(len(rows))]


def _as_type(value: float, dtype: np.dtype) -> np.generic:
    """Return `value`, or what comes closest to its purpose in another type."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return dtype.type(value)
    if dtype.kind == "b":
        return dtype.type(value > 0)
    limits = np.iinfo(dtype)
    if np.isnan(value):
        return dtype.type(-1 if limits.min < 0 else limits.max)
    return dtype.type(
        limits.max if value >= limits.max else limits.min if value <= limits.min else int(value)
    )
