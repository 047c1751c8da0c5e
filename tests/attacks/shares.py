"""The rows of a step, compiled once and asked for many records: what each adds, alone and beside others.

What is compiled is what a step compiles (`engine.microbatch`): the function that gives the gradients of a
piece of the batch, in the mode of the backend, and the kernel that clips and adds them. A hostile record is
put into a piece of ordinary ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import python_mode  # noqa: F401  # registers the mode "PYTHON"
from pytensor.graph.traversal import ancestors

from pymc_dpvi.compat import compile_mode, quiet_pytensor, rows_mode
from pymc_dpvi.engine import clipping
from pymc_dpvi.engine.backends import backends, bounded
from pymc_dpvi.engine.blas_threads import ONE_THREAD
from pymc_dpvi.engine.microbatch import MicrobatchedSum
from pymc_dpvi.engine.private_sum import private_sum
from pymc_dpvi.engine.sums_of_step import in_microbatches
from pymc_dpvi.graph.gradients import aligned_gradients, at_places, local_terms, log_densities
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.posterior.approximation import DPMeanField

__all__ = ["CLIP", "RowsOfPersons", "Shares", "alike"]

CLIP = 1.0
UNIT = 2.0**-40
#: Spread of the latent values at which gradients are taken, around the start.
SPREADS = (0.1, 3.0)


class Shares:
    """What the records of a model add to a step, as one backend computes it.

    Parameters
    ----------
    record : RecordModel
    backend : {"numba", "c", "jax", "python", "PYTHON"}
        The last is the graph as it stands: no backend that a user has, and quick to start.

    Raises
    ------
    ArgumentError
        The backend does not compute such a model.
    """

    def __init__(self, record: RecordModel, backend: str) -> None:
        plain = backend == "PYTHON"
        if not plain:
            bounded(backends(backend, None), record.factors.values())
        mode: dict[str, Any] = (
            {"mode": "PYTHON"} if plain else {**compile_mode(backend, None), **rows_mode(backend)}
        )
        approx = DPMeanField(record, random_seed=1)
        latents = approx.latents
        floatx = pytensor.config.floatX
        indices, noise = pt.lvector(), pt.tensor(dtype="int64", shape=(latents.size,))
        z = pt.matrix("z", dtype=floatx, shape=(1, latents.size))
        with quiet_pytensor():
            data = record.data()
            batch = [
                pt.specify_shape(d[indices], (None, *row.type.shape[1:]))
                for d, row in zip(data, record.rows, strict=True)
            ]
            gradients = aligned_gradients(record, batch, latents, z, 1)
            release = private_sum(gradients, noise, CLIP, np.asarray(UNIT), indices.size)
            (cut,) = in_microbatches([release], batch, data, indices, mode)
            (node,) = {
                v.owner for v in ancestors([cut]) if v.owner and isinstance(v.owner.op, MicrobatchedSum)
            }
            self._op: MicrobatchedSum = node.op
            places = node.inputs.index(indices)
            of_latents = pytensor.function(
                [z], node.inputs[len(data) : places], mode="PYTHON", on_unused_input="ignore"
            )
            rng = np.random.default_rng(0)
            self._shared = []
            for spread in SPREADS:
                point = approx.start + rng.normal(scale=spread, size=(1, latents.size))
                with np.errstate(all="ignore"):
                    self._shared.append(of_latents(point.astype(floatx)))
        self._size = latents.size
        self.piece = self._op.length

    def gradients(self, rows: Sequence[np.ndarray], point: int) -> list[np.ndarray]:
        """Return the arrays that a piece of records gives to the kernel, a row for each record."""
        with np.errstate(all="ignore"), ONE_THREAD:
            return [np.array(a) for a in self._op.per_record(*rows, *self._shared[point])]

    def release(self, gradients: Sequence[np.ndarray]) -> np.ndarray:
        """Return the clipped sum of some records, without noise."""
        bound, units, *sums = clipping.start_of_sum(self._size, CLIP, 0.0, UNIT)
        with np.errstate(all="ignore"):
            self._op.add_clipped(*gradients, len(gradients[0]), bound, units, *sums)
            return np.asarray(clipping.round_and_add(*sums, np.zeros(self._size, dtype=np.int64), UNIT))

    @property
    def points(self) -> range:
        """The latent values at which gradients are taken, by number."""
        return range(len(self._shared))


class RowsOfPersons(Shares):
    """The same of a model whose persons have latent values: a row's terms at some places of its person.

    A row has no share by itself. That of a person is what `test_planted_bugs_by_person` looks at.
    """

    def __init__(self, record: RecordModel, backend: str) -> None:
        plain = backend == "PYTHON"
        if not plain:
            bounded(backends(backend, None), record.factors.values())
        mode = "PYTHON" if plain else {**compile_mode(backend, None), **rows_mode(backend)}["mode"]
        approx = DPMeanField(record, random_seed=1)
        latents, rng = approx.latents, np.random.default_rng(0)
        self._size, self.piece = latents.size, 9
        values, weighed, own = at_places(record, latents)
        both = dict.fromkeys([*record.rows, *weighed.rows])
        batch = {r: r.type.clone(shape=(self.piece, *r.type.shape[1:]))() for r in both}
        z = pt.matrix("z", shape=(1, latents.size))
        with quiet_pytensor():
            placed = [batch[r] for r in weighed.rows]
            terms = [
                *local_terms(record, [batch[r] for r in record.rows], latents, z),
                log_densities(values, placed, own, z),
            ]
            blocks = aligned_gradients(weighed, placed, own, z, 1)
            arrays = [a for block in blocks for a in (block.left, block.right) if a is not None]
            self._terms = pytensor.function(
                [*batch.values(), z], [*terms, *arrays], mode=mode, on_unused_input="ignore"
            )
        self._points = [
            ((approx.start + rng.normal(scale=s, size=(1, latents.size))).astype(z.type.dtype), s)
            for s in SPREADS
        ]
        self._own = [r.type for r in list(batch)[len(record.arrays) :]]
        self._discrete = not record.local.places.continuous  # type: ignore[union-attr]

    def gradients(self, rows: Sequence[np.ndarray], point: int) -> list[np.ndarray]:
        """Return each row's terms at ordinary values, places and weights of its person, which are `_own`."""
        z, spread = self._points[point]
        many, rng = len(rows[0]), np.random.default_rng(1)
        local, first, placed, weights = (np.ones((many, *t.shape[1:]), t.dtype) for t in self._own)
        for values in (local, placed):
            values *= 0.0 if self._discrete else spread * rng.normal(size=values.shape)
        weights /= weights.shape[1]
        with np.errstate(all="ignore"), ONE_THREAD:
            return [np.array(a) for a in self._terms(*rows, local, first, placed, weights, z)]

    def release(self, gradients: Sequence[np.ndarray]) -> np.ndarray:
        """Return nothing: see the class."""
        return np.zeros(self._size)

    @property
    def points(self) -> range:
        """The latent values at which terms are taken, by number."""
        return range(len(self._points))


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are the same bit by bit."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
