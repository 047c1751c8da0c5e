r"""A compiled private step on synthetic records, whose release can be read.

The release of a step is the vector :math:`\tilde s = \sum_{i \in B} \operatorname{clip}_C(g_i) + \eta`, the
output of `engine.private_sum`. All that an optimiser gets must be a function of it, of the parameters, the
base draws and the prior. A :class:`Probe` gives the step an optimiser that changes no parameter and looks at
the graph of its gradients. It cuts the graph at the noisy sum, keeps its value, and lists what else the
gradients depend on that is not public (:attr:`Probe.leaks`; there must be nothing).

A graph without a noisy sum is listed there, too. The gradients are then taken for the release, so that the
other checks have something to measure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.engine.private_sum import PrivateSum
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.engine.unit_batches import in_rows
from pymc_dpvi.graph.gradients import Latents
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.separability import write_for_several
from pymc_dpvi.graph.synthetic_records import Rows, hostile_records, synthetic_records
from pymc_dpvi.graph.traversal import walk
from pymc_dpvi.graph.units import Units
from pymc_dpvi.mechanism.mechanism import Draws, Mechanism, Streams
from pymc_dpvi.posterior.approximation import DPApproximation
from pymc_dpvi.randomness.keystream import KeyStream
from pymc_dpvi.sampling import FullBatchSampler

__all__ = ["Probe", "without_sampling"]

_ROWS = 2  # synthetic records that are made at a time
_MANY_ROWS = 500  # of one synthetic person, if a record is all rows of one
_POOL_NUMBERS = 20_000_000  # entries of the matrix of all records' contributions, at most

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class _SyntheticModel(RecordModel):
    """The user's model with synthetic records in place of the data."""

    synthetic: tuple[SharedVariable, ...] = field(default=(), repr=False)

    def data(self) -> list[SharedVariable]:
        """Return the synthetic records."""
        return list(self.synthetic)


class _Release:
    """An optimiser that moves nothing and keeps the release."""

    def __init__(self, record: _SyntheticModel, draw_shape: tuple[int, int]) -> None:
        self._record = record
        self._draw_shape = draw_shape
        self._values: list[SharedVariable] = []
        self._grads: list[Any] = []
        self._params: list[Any] = []

    def __call__(self, grads: list[Any], params: list[Any]) -> dict[Any, Any]:
        noisy = _noisy_sums(grads)
        self._grads, self._params = list(grads), list(params)
        released = [pt.concatenate([v.flatten() for v in noisy or grads]).astype("float64")]
        if noisy and len(noisy) == 1:
            released = noisy  # with its counts
        self._values = [pytensor.shared(np.zeros(v.type.shape)) for v in released]
        return dict(zip(self._values, released, strict=True))

    def leaks(self, step: PrivateStep) -> list[str]:
        """Name what the gradients and the clip norm depend on, other than the noisy sum and public things."""
        record = self._record
        updates = [*self._grads, *step.clip_updates.values()]
        noisy = _noisy_sums(updates)
        clip = () if step.running_clip is None else step.running_clip.state
        public = {*self._params, step.scale, *clip, *walk([record.prior_logp])}
        public -= {*record.arrays, *record.synthetic}
        found = [] if noisy else ["no noisy sum at all"]
        if len(noisy) > 1:
            found.append("more than one noisy sum")
        for var in walk(updates, stop=noisy):
            if var.owner is not None or var in noisy or var in public or _is_spacing(var):
                continue
            if isinstance(var, Constant) and var not in record.arrays:
                continue
            if not isinstance(var, SharedVariable | Constant) and var.type.shape == self._draw_shape:
                continue  # the base draws
            found.append(_what(var, record))
        return found

    def value(self) -> Vector:
        (shared,) = self._values
        return np.array(shared.get_value(borrow=True), dtype=np.float64)


def _is_spacing(var: Variable) -> bool:
    """Whether it is the spacing of the lattice, a public input of the step."""
    return var.name == "spacing" and var.type.ndim == 0 and not isinstance(var, SharedVariable | Constant)


def _noisy_sums(graphs: list[Any]) -> list[Any]:
    return [v for v in walk(graphs) if v.owner is not None and isinstance(v.owner.op, PrivateSum)]


def _what(var: Variable, record: _SyntheticModel) -> str:
    if var in record.synthetic or var in record.arrays:
        return f"the records ({var.name!r})"
    kind = {"indices": "the batch", "count": "the size of the batch", "noise": "the noise on its own"}
    return kind.get(str(var.name), f"{var.name!r}")


def without_sampling(mechanism: Mechanism) -> Mechanism:
    """Return the same mechanism with every record in every step, q = 1."""
    return dataclasses.replace(mechanism, sampler=FullBatchSampler())


class Probe:
    """One compiled private step on synthetic records; the user's arrays are never evaluated.

    Attributes: `leaks`, what the gradients depend on besides the noisy sum and public things; `pool`,
    synthetic rows; `members`, the rows of each synthetic record, the first `num_ordinary` ordinary and the
    others hostile: one row each, or those of a person (`_persons`); `blocks`, the entries of the release by
    free variable or variational parameter; `num_noise`, the release's length; `draw_shape`, that of a
    step's base draws; `rounding`, the unit of the coarsest floating-point type in use; `quiet`, noise of
    zeros; `l2_clip_norm`, C; `tally_weight`, κ, 0 if no records are counted; `spacing`, that of the
    lattice; `clip_scale`, an adaptive clip norm in multiples of C (in the units of the release, records are
    clipped at C all the same).
    """

    def __init__(
        self,
        record: RecordModel,
        approx: DPApproximation,
        mechanism: Mechanism,
        *,
        n_mc: int = 1,
        compile_kwargs: dict[str, Any],
        rows_kwargs: dict[str, Any] | None = None,
        cores: int | None = None,
        public_batch: float | None = None,
        rng: np.random.Generator,
    ) -> None:
        latents = approx.latents
        with quiet_pytensor():
            ordinary = _ordinary(record, latents, approx.start, rng)
            hostile = hostile_records(ordinary, rng)
            longest = max(32, _POOL_NUMBERS // (n_mc * latents.size))
            hostile = _some(hostile, longest - min(len(ordinary[0]), longest // 2), rng)
            ordinary = _some(ordinary, longest // 2, rng)
            if record.units is None:
                self.members = [np.array([i]) for i in range(len(ordinary[0]) + len(hostile[0]))]
                self.num_ordinary = len(ordinary[0])
            else:
                self.members, self.num_ordinary = _persons(len(ordinary[0]), len(hostile[0]), longest, rng)
            self.pool: Rows = [np.concatenate(both) for both in zip(ordinary, hostile, strict=True)]
            tables = [
                pytensor.shared(p[:1], name=a.name) for p, a in zip(self.pool, record.arrays, strict=True)
            ]
            fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(RecordModel)}
            synthetic = _SyntheticModel(**fields, synthetic=tuple(tables))
            self._release = _Release(synthetic, (n_mc, approx.groups[0].num_base_draws))
            self.step = PrivateStep(
                synthetic,
                latents,
                approx.groups[0],
                mechanism,
                n_mc=n_mc,
                optimizer=self._release,
                max_grad_norm=None,
                compile_kwargs=compile_kwargs,
                rows_kwargs=rows_kwargs,
                cores=cores,
                public_batch=public_batch,
            )
        self._tables = tables
        self.leaks = tuple(self._release.leaks(self.step))
        self.num_noise = self.step.num_noise
        self.draw_shape = self.step.draw_shape
        self.blocks = _blocks(latents, self.step, mechanism.gradient, n_mc)
        if mechanism.num_counts:
            first = self.num_noise - mechanism.num_counts
            self.blocks["counts of records"] = np.arange(first, self.num_noise)
        self.l2_clip_norm = mechanism.l2_clip_norm
        self.tally_weight = mechanism.tally_weight
        self.spacing = mechanism.noise.spacing
        self.clip_scale = 1.0
        floats = [p.dtype for p in self.pool if p.dtype.kind == "f"]
        self.rounding = max(float(np.finfo(d).eps) for d in (*floats, self.step.dtype))
        self.quiet = np.zeros_like(self.noise(mechanism, Streams.make(0), 1)[0])
        self._loaded = 0
        self._by_unit = record.units is not None
        self._units: Units | None = None
        self._stream = KeyStream.from_os()

    def __len__(self) -> int:
        """Return the number of synthetic records."""
        return len(self.members)

    def load(self, records: Sequence[int] | NDArray[np.int64]) -> None:
        """Make these synthetic records, by their numbers, the data set."""
        self._loaded = len(records)
        own = [self.members[i] for i in records]
        at = np.concatenate(own) if own else np.array([0])  # a table needs a row, which no batch will have
        self._units = None
        if self._by_unit and own:
            self._units = Units.by_codes(np.repeat(np.arange(len(own)), [len(m) for m in own]), "the same id")
        for table, records in zip(self._tables, self.pool, strict=True):
            table.set_value(records[at], borrow=True)

    def release(
        self,
        noise: NDArray[Any],
        draw: NDArray[Any],
        batch: NDArray[np.int64] | None = None,
    ) -> Vector:
        """Make one step with this noise (num_noise,) and base draw; return what it releases, (num_noise,).

        `batch` has indices into the loaded data set; by default all.
        """
        if batch is None:
            batch = np.arange(self._loaded, dtype=np.int64)
        if self.step.running_clip is not None:
            self.step.running_clip.reset(self.clip_scale)
        draws = Draws(batch, np.array([0, batch.size]), noise[None])
        if self._units is not None:
            draws = in_rows(draws, self._units, self._stream)
        self.step(draws.indices, draws.offsets, draws.noise, draw[None], np.zeros(1))
        return self._release.value()

    def draws(self, rng: np.random.Generator, n: int) -> NDArray[Any]:
        """Make the base draws of `n` steps, shape ``(n, *draw_shape)``."""
        return rng.standard_normal((n, *self.draw_shape)).astype(self.step.dtype)

    def noise(self, mechanism: Mechanism, streams: Streams, n: int) -> NDArray[Any]:
        """Draw the noise of `n` steps as the mechanism does, shape ``(n, num_noise)``."""
        return without_sampling(mechanism).draw(streams, 1, n, self.num_noise).noise

    def contributions(self, draw: NDArray[Any]) -> Vector:
        """Return each synthetic record's release alone and without noise, (len(self), num_noise)."""
        out = np.empty((len(self), self.num_noise))
        for i in range(len(self)):
            self.load([i])
            out[i] = self.release(self.quiet, draw)
        return out


def _ordinary(record: RecordModel, latents: Latents, start: np.ndarray, rng: np.random.Generator) -> Rows:
    many = write_for_several(record, _ROWS)
    z = pt.matrix("z", shape=(1, latents.size), dtype=pytensor.config.floatX)
    made = [rows for rows, _ in synthetic_records(record, many, latents, z, start, rng)]
    return [np.concatenate([rows[k] for rows in made]) for k in range(len(record.arrays))]


def _persons(
    ordinary: int, hostile: int, most: int, rng: np.random.Generator
) -> tuple[list[NDArray[np.int64]], int]:
    """Make up persons from rows, of which the ordinary ones come first; and count the ordinary persons.

    Some have one row, some a few, one has `_MANY_ROWS`. Of the rows of a hostile person, one or all are
    hostile.
    """

    def some(low: int, high: int, size: int) -> NDArray[np.int64]:
        return rng.integers(low, high, size=size)

    alone = [np.array([i]) for i in range(min(ordinary, most // 3))]
    several = [some(0, ordinary, size) for size in rng.integers(2, 8, size=min(ordinary, 2 + most // 8))]
    many = [some(0, ordinary, _MANY_ROWS)]
    bad = [
        np.append(some(0, ordinary, size), i)
        for i, size in zip(range(ordinary, ordinary + hostile), rng.integers(0, 4, size=hostile), strict=True)
    ]
    bad += [some(ordinary, ordinary + hostile, size) for size in (2, 5, _MANY_ROWS)]
    return [*alone, *several, *many, *bad], len(alone) + len(several) + len(many)


def _some(rows: Rows, most: int, rng: np.random.Generator) -> Rows:
    if len(rows[0]) <= most:
        return rows
    kept = rng.choice(len(rows[0]), size=most, replace=False)
    return [r[kept] for r in rows]


def _blocks(latents: Latents, step: PrivateStep, gradient: str, n_mc: int) -> dict[str, NDArray[np.int64]]:
    if gradient == "aligned":
        offsets = np.arange(n_mc)[:, None] * latents.size
        return {
            str(v.name): (offsets + np.arange(latents.size)[s]).ravel()
            for v, s in zip(latents.value_vars, latents.slices, strict=True)
            if s.stop > s.start  # a variable may be empty
        }
    ends = np.cumsum([0, *(p.get_value(borrow=True).size for p in step.params)])
    return {str(p.name): np.arange(a, b) for p, a, b in zip(step.params, ends[:-1], ends[1:], strict=True)}
