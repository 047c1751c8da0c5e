"""Made-up rows for several tables (`tables`): what stands in a table's columns in the rows of the others.

Each row's density is computed in all tables, and that of its own is taken. The gradient of what is not taken
is zero times a slope, and zero times infinity is not a number: the person would count as zero. So a row is
wanted at which a table's log-density and its slopes are finite wherever a fit may be. Synthetic rows are
tried, the same for all data, at some points around the start, and the first that is finite at most of them
is taken. Privacy does not rest on it: it is the same row whatever the records are, and what is not a number
is clipped to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.graph.gradients import Latents, in_draws, put
from pymc_dpvi.graph.records import RecordModel
from pymc_dpvi.graph.separability import write_for_several
from pymc_dpvi.graph.synthetic_records import Rows, python_function, synthetic_records

__all__ = ["pad_tables"]

#: How far from the start the points are at which a row is tried.
_SPREADS = (0.0, 0.5, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0)


@quiet_pytensor()
def pad_tables(record: RecordModel, latents: Latents, start: np.ndarray) -> None:
    """Choose the rows, if the model has several tables; `start` are the unconstrained values, (D,)."""
    if record.tables is None:
        return
    tables, which = record.tables, record.arrays.index(record.tables.which)
    rng = np.random.default_rng(0)
    z = pt.matrix("z", shape=(1, latents.size), dtype=pytensor.config.floatX)
    of_many = synthetic_records(record, write_for_several(record), latents, z, start, rng)
    made = [rows[: len(record.arrays)] for rows, _ in of_many]
    rows = [[r[i : i + 1] for r in several] for several in made for i in range(len(several[0]))]
    own = record.rows[len(record.arrays) :]  # values of persons, and whether a row is a person's first
    centres = [*(np.zeros(v.type.shape) for v in own), start[None]]
    points = [[c + s * rng.normal(size=c.shape) for c in centres] for s in _SPREADS]
    for number, table in enumerate(tables.tables):
        slopes = _slopes(record, latents, table.terms, z)
        finite = []
        for row in rows:
            row[which] = np.array([number], dtype=row[which].dtype)
            finite.append(sum(_is_finite(slopes, row, point) for point in points))
        best = rows[int(np.argmax(finite))]
        for array in table.arrays.values():
            if array is not tables.units.source:
                tables.padding[array] = best[record.arrays.index(array)][0]


def _slopes(
    record: RecordModel, latents: Latents, terms: Collection[str], z: TensorVariable
) -> Callable[..., list[np.ndarray]]:
    """Return the log-density of one row in its table, and its slopes, as a function of the row and z."""
    graphs, draw = in_draws([f.sum() for name, f in record.factors.items() if name in terms], latents)
    total = pt.add(*graphs) if len(graphs) > 1 else graphs[0]
    by = [*draw, *record.rows[len(record.arrays) :]]
    grads = pytensor.grad(total, by, disconnected_inputs="ignore", return_disconnected="zero")
    wanted = [total, *(g.flatten() for g in grads)]
    return python_function([*record.rows, z], put(wanted, draw, latents.split(z[0])))


def _is_finite(slopes: Callable[..., list[np.ndarray]], row: Rows, point: Sequence[np.ndarray]) -> bool:
    """Whether all of it is a number at a point."""
    at = [p.astype(pytensor.config.floatX) for p in point]
    try:
        with np.errstate(all="ignore"):
            return all(np.isfinite(part).all() for part in slopes(*row, *at))
    except Exception:  # the made-up integers do not suit the model
        return False
