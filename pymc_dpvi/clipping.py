r"""Clip, sum, add noise: the only place where a function of the records becomes public.

For per-record gradients :math:`g_1,\dots,g_B \in \mathbb{R}^P` and integer noise X in units u,

.. math::

    \tilde s &= (K + X)\,u, \qquad C' = C\,(1 - 2^{-20}) - \sqrt P\,u , \\
    K &= \operatorname{round}\Big(\frac1u \sum_{i=1}^{B} g_i \min(1, C'/\lVert g_i\rVert_2)\Big) ,

where a record with a non-finite norm (a NaN, an infinity, or an overflow of a squared norm) counts as
:math:`g_i = 0`. Adding or removing one record moves :math:`K u` by at most :math:`C` in Euclidean norm,
replacing one by at most :math:`2C`, whatever the record holds. The term :math:`\sqrt P\,u` covers the
rounding to the lattice; the slack :math:`2^{-20}` covers the rounding of the norm, of the scaling and of the
float64 sum, in whatever order its terms are added, for batches of up to :math:`2^{24}` records: blocks of
128 records are added up plainly, and the sums of the blocks with their rounding errors (Knuth's TwoSum). K
is held between :math:`\pm 2^{62}`, which moves neighbours no further apart and keeps :math:`K + X` inside 64
bits. ``docs/noise.md`` has the proof.

**Counts.** A sum may have two more columns, the *tally*: how many records lie within the clip norm, and how
many beyond it. A record adds :math:`(k_i, k - k_i)` to them, in whole lattice units, where :math:`k =
\lfloor\kappa C (1 - 2^{-20})/u\rfloor` and

.. math:: k_i = \operatorname{round}\big(k\, b(\lVert g_i\rVert / C')\big), \qquad
          b(r) = \min\big(1, \max(0, \tfrac12 + 2(1 - r))\big) ,

a step from 1 to 0 that is a slope between 3/4 and 5/4, so that rounding errors of a norm move it as little as
they move the sum. Since :math:`k_i^2 + (k - k_i)^2 \le k^2`, a record's whole row is at most
:math:`C\sqrt{1+\kappa^2}` long; the tally is added up in integers, exactly, and held at :math:`2^{62}`. A
non-finite record adds (0, 0).

A gradient comes in blocks, :math:`g_i = (g_i^{(1)}, g_i^{(2)}, \dots)`, each either *dense*, a row of a
matrix, or *outer*, :math:`g_i^{(k)} = a_i \otimes \delta_i`, kept as its two factors: then
:math:`\lVert g_i^{(k)}\rVert^2 = \lVert a_i\rVert^2 \lVert\delta_i\rVert^2`, and the clipped sum
:math:`\sum_i c_i\, a_i \otimes \delta_i` is one matrix product. All blocks of a record share one norm.

It is one PyTensor operation, so that the unnoised sum is no variable of any graph. Its kernels are
compiled without fastmath, under which a compiler may assume that NaN does not occur (the terms of a
squared norm may be reordered, nothing else).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key
from pytensor.tensor.type import dvector
from pytensor.tensor.variable import TensorVariable

__all__ = ["LARGEST_SUM", "MAX_PARAMS", "MAX_RECORDS", "TALLY_COLUMNS", "Block", "PrivateSum", "private_sum"]

SLACK = 2.0**-20
#: Records of a batch, and columns of a gradient, up to which the slack is proven to suffice.
MAX_RECORDS = 2**24
MAX_PARAMS = 2**26
#: Records whose shares are added up in plain float64; the sums of such blocks are added with compensation.
BLOCK_RECORDS = 128
#: Bound of the rounded sum, in units of the lattice: with the noise, it stays inside int64.
LARGEST_SUM = 2.0**62
#: Columns of the tally.
TALLY_COLUMNS = 2
_LARGEST_TALLY = 2**62

_kernel = numba.njit(cache=True, fastmath=False)
_kernel_here = numba.njit(fastmath=False)  # of functions written at run time, which numba cannot keep


@dataclass(frozen=True)
class Block:
    """Some columns of the per-record gradients of a batch.

    Attributes
    ----------
    left : TensorVariable, shape (batch, a)
        The columns themselves, or the first factor.
    right : TensorVariable, shape (batch, b), optional
        The second factor; the block then has ``a * b`` columns, in the order of ``left ⊗ right``.
    """

    left: TensorVariable
    right: TensorVariable | None = None


@numba.njit(cache=True, fastmath={"reassoc"})
def _squared_norm(row: np.ndarray) -> float:  # pragma: no cover
    # The one sum whose terms may be added in any order, for the vector units. NaN and infinity are
    # honoured as without: of LLVM's flags only `nnan` and `ninf` would say that they do not occur.
    total = 0.0
    for j in range(row.size):
        total += np.float64(row[j]) * np.float64(row[j])
    return total


@_kernel
def _largest(row: np.ndarray) -> float:  # pragma: no cover
    top = 0.0
    for j in range(row.size):
        top = max(top, abs(np.float64(row[j])))
    return top


@_kernel
def _rescaled_squared_norm(left: np.ndarray, right: np.ndarray) -> float:  # pragma: no cover
    """Squared norm of ``left ⊗ right`` where the square of one factor may have underflowed."""
    p, q = _largest(left), _largest(right)
    if p == 0.0 or q == 0.0:
        return 0.0
    return (p * q) * (p * q) * _squared_norm(left / p) * _squared_norm(right / q)


@_kernel
def add_squared_norms(rows: np.ndarray, total: np.ndarray) -> None:  # pragma: no cover
    """Add the squared norms of the first rows of a dense block to `total`, shape ``(count,)``."""
    for i in range(total.size):
        total[i] += _squared_norm(rows[i])


@_kernel
def add_squared_norms_outer(
    left: np.ndarray, right: np.ndarray, total: np.ndarray
) -> None:  # pragma: no cover
    """Add the squared norms of the first ``left[i] ⊗ right[i]`` to `total`, shape ``(count,)``."""
    a, b = np.zeros(total.size), np.zeros(total.size)
    add_squared_norms(left, a)
    add_squared_norms(right, b)
    for i in range(total.size):
        if not (a[i] < np.inf and b[i] < np.inf):  # also for NaN
            total[i] = np.nan
        elif a[i] < 1e-280 or b[i] < 1e-280:
            total[i] += _rescaled_squared_norm(left[i], right[i])
        else:
            total[i] += a[i] * b[i]


@_kernel
def clip_factors(squared_norms: np.ndarray, bound: float) -> np.ndarray:  # pragma: no cover
    """Factor of each record: 1, `bound`/norm, or 0 for a non-finite norm; shape ``(count,)``."""
    factors = np.zeros(squared_norms.size)
    for i in range(squared_norms.size):
        norm = np.sqrt(squared_norms[i])
        if norm < np.inf:  # False for NaN and infinity
            factors[i] = 1.0 if norm <= bound else bound / norm
    return factors


@_kernel
def add_weighted_rows(rows: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:  # pragma: no cover
    """Add ``factors @ rows[:count]`` to `out`, leaving out rows of factor zero whatever they hold."""
    for i in range(factors.size):
        weight = factors[i]
        if weight != 0.0:
            for j in range(rows.shape[1]):
                out[j] += weight * np.float64(rows[i, j])


@_kernel
def add_weighted_outer(
    left: np.ndarray, right: np.ndarray, factors: np.ndarray, out: np.ndarray
) -> None:  # pragma: no cover
    """Add the sum of ``factors[i] * left[i] ⊗ right[i]`` to `out`, shape ``(a * b,)``."""
    if right.shape[1] == 1:
        weights = np.zeros(factors.size)
        for i in range(factors.size):
            if factors[i] != 0.0:
                weights[i] = factors[i] * np.float64(right[i, 0])
        add_weighted_rows(left, weights, out)
        return
    a = np.zeros((factors.size, left.shape[1]))
    b = np.zeros((factors.size, right.shape[1]))
    for i in range(factors.size):
        if factors[i] != 0.0:
            a[i] = left[i]
            b[i] = factors[i] * right[i]
    out += np.dot(a.T, b).ravel()


@_kernel
def add_block(block: np.ndarray, high: np.ndarray, low: np.ndarray) -> None:  # pragma: no cover
    """Add the sum of a block of records to ``high + low``; `low` collects the rounding errors of `high`.

    Knuth's TwoSum: ``total + error`` is ``high + block`` exactly, whichever is larger.
    """
    for j in range(block.size):
        total = high[j] + block[j]
        part = total - high[j]
        error = (high[j] - (total - part)) + (block[j] - part)
        high[j] = total
        low[j] += error


@_kernel
def clip_bound(l2_clip_norm: float, unit: float, num_params: int) -> float:  # pragma: no cover
    """C': the largest norm of a record's share for which one record moves the rounded sum by at most C."""
    bound = l2_clip_norm * (1.0 - SLACK) - np.sqrt(num_params) * unit
    if not (unit > 0.0 and bound > 0.0):  # also for NaN
        raise ValueError("the lattice is too coarse for the clip norm")
    return bound


@_kernel
def tally_units(l2_clip_norm: float, unit: float, tally_weight: float) -> int:  # pragma: no cover
    """k: the lattice units that one record adds to the tally, 0 if there is none."""
    return int(np.floor(tally_weight * l2_clip_norm * (1.0 - SLACK) / unit))


@_kernel
def add_tally(
    squared_norms: np.ndarray, bound: float, units: int, tally: np.ndarray
) -> None:  # pragma: no cover
    """Share out `units` of each record between the columns "within the bound" and "beyond it"."""
    for i in range(squared_norms.size):
        norm = np.sqrt(squared_norms[i])
        if norm < np.inf:  # False for NaN and infinity
            within = min(max(2.5 - 2.0 * (norm / bound), 0.0), 1.0)
            inside = np.int64(np.rint(within * units))
            # Held at the end of the range like the sum; nothing is ever subtracted.
            tally[0] = min(tally[0] + inside, _LARGEST_TALLY)
            tally[1] = min(tally[1] + units - inside, _LARGEST_TALLY)


@_kernel
def round_and_add(
    high: np.ndarray, low: np.ndarray, tally: np.ndarray, noise: np.ndarray, unit: float
) -> np.ndarray:  # pragma: no cover
    """Round the sum to the lattice, add the noise in integers, and return the release in float64."""
    out = np.empty(noise.size)
    for j in range(high.size):
        steps = np.rint((high[j] + low[j]) / unit)
        out[j] = np.float64(np.int64(min(max(steps, -LARGEST_SUM), LARGEST_SUM)) + noise[j]) * unit
    for j in range(tally.size):
        out[high.size + j] = np.float64(tally[j] + noise[high.size + j]) * unit
    return out


def make_add_clipped(outer: Sequence[bool]) -> Callable[..., None]:
    """Write ``(*factors, count, bound, units, high, low, tally) -> None``: clip the records and add them up.

    The blocks have different types, so numba needs one function per layout; for two blocks, the first
    outer::

        def add_clipped(x0, x1, x2, count, bound, units, high, low, tally):
            check(high.size == x0.shape[1] * x1.shape[1] + x2.shape[1])
            norms = zeros(count)
            add_squared_norms_outer(x0, x1, norms)
            add_squared_norms(x2, norms)
            factors = clip_factors(norms, bound)
            if tally.size:
                add_tally(norms, bound, units, tally)
            some = zeros(high.size)
            for first in range(0, count, BLOCK_RECORDS):
                last = min(first + BLOCK_RECORDS, count)
                weights = factors[first:last]
                some[:] = 0.0
                at = 0
                add_weighted_outer(x0[first:last], x1[first:last], weights, some[at : at + ...])
                at += x0.shape[1] * x1.shape[1]
                add_weighted_rows(x2[first:last], weights, some[at : at + x2.shape[1]])
                at += x2.shape[1]
                add_block(some, high, low)
    """
    names: list[str] = []
    norms: list[str] = []
    sums: list[str] = []
    sizes: list[str] = []
    for is_outer in outer:
        first = f"x{len(names)}"
        names.append(first)
        if is_outer:
            second = f"x{len(names)}"
            names.append(second)
            size = f"{first}.shape[1] * {second}.shape[1]"
            norms.append(f"add_squared_norms_outer({first}, {second}, norms)")
            pair = f"{first}[first:last], {second}[first:last]"
            sums.append(f"    add_weighted_outer({pair}, weights, some[at : at + {size}])")
        else:
            size = f"{first}.shape[1]"
            norms.append(f"add_squared_norms({first}, norms)")
            sums.append(f"    add_weighted_rows({first}[first:last], weights, some[at : at + {size}])")
        sums.append(f"    at += {size}")
        sizes.append(size)
    lines = [
        f"def add_clipped({', '.join(names)}, count, bound, units, high, low, tally):",
        f"if high.size != {' + '.join(sizes)}:",
        "    raise ValueError('one noise entry per column is needed')",
        f"if count < 0 or count > {' or count > '.join(f'{n}.shape[0]' for n in names)}:",
        "    raise ValueError('every block needs a row per record')",
        "norms = np.zeros(count)",
        *norms,
        "factors = clip_factors(norms, bound)",
        "if tally.size:",
        "    add_tally(norms, bound, units, tally)",
        "some = np.zeros(high.size)",
        "for first in range(0, count, BLOCK_RECORDS):",
        "    last = min(first + BLOCK_RECORDS, count)",
        "    weights = factors[first:last]",
        "    some[:] = 0.0",
        "    at = 0",
        *sums,
        "    add_block(some, high, low)",
    ]
    scope = dict(globals())
    exec("\n    ".join(lines), scope)
    function: Callable[..., None] = scope["add_clipped"]
    return function


def _make_private_sum(outer: Sequence[bool], compiled: bool = False) -> Callable[..., np.ndarray]:
    """Write ``(*factors, count, noise, l2_clip_norm, weight, unit) -> noisy sum`` for a layout."""
    add_clipped = make_add_clipped(outer)
    names = ", ".join(f"x{k}" for k in range(len(outer) + sum(outer)))
    lines = [
        f"def private_sum({names}, count, noise, l2_clip_norm, weight, unit):",
        "bound = clip_bound(l2_clip_norm, unit, noise.size)",
        "tally = np.zeros(TALLY_COLUMNS if weight > 0.0 else 0, np.int64)",
        "high, low = np.zeros(noise.size - tally.size), np.zeros(noise.size - tally.size)",
        "units = tally_units(l2_clip_norm, unit, weight)",
        f"add_clipped({names}, count, bound, units, high, low, tally)",
        "return round_and_add(high, low, tally, noise, unit)",
    ]
    scope = {**globals(), "add_clipped": _kernel_here(add_clipped) if compiled else add_clipped}
    exec("\n    ".join(lines), scope)
    function: Callable[..., np.ndarray] = scope["private_sum"]
    return function


class PrivateSum(Op):
    """Noisy sum of clipped per-record gradients, on the lattice.

    Parameters
    ----------
    l2_clip_norm : float
        C, in the units of the gradient.
    outer : tuple of bool
        Per block, whether it comes as two factors.
    tally_weight : float
        κ: norm of what one record adds to the tally, in units of C. 0 for no tally.

    Notes
    -----
    Inputs: the blocks' matrices, one or two each, all with one row per record; ``count``, how many of
    the rows are there, from the first (so that a batch can be empty where a backend cannot take
    arrays of length zero); ``noise``, int64 vector (num_params,), in units of the lattice; ``unit``, float64
    number, the lattice unit u in the units of the gradient (`LatticeNoise.unit`; an input, so that another
    noise multiplier needs no other compiled function). Output: float64 vector (num_params,), multiples of
    u; noise and output have two entries more if there is a tally. An empty batch is a normal case: the
    output is the noise.
    """

    __props__ = ("l2_clip_norm", "outer", "tally_weight")

    def __init__(
        self, l2_clip_norm: float, outer: Sequence[bool] = (False,), tally_weight: float = 0.0
    ) -> None:
        self.l2_clip_norm = float(l2_clip_norm)
        self.tally_weight = float(tally_weight)
        self.outer = tuple(bool(o) for o in outer)
        self._function = _make_private_sum(self.outer)

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node; see the class for shapes."""
        # A bare Python float would become float32 where that holds it exactly.
        arrays = (np.asarray(i) if isinstance(i, float) else i for i in inputs)
        *matrices, count, noise, unit = (pt.as_tensor_variable(a) for a in arrays)
        if len(matrices) != len(self.outer) + sum(self.outer):
            raise TypeError("one matrix per dense block and two per outer block are needed")
        if any(m.type.ndim != 2 or not m.type.dtype.startswith("float") for m in matrices):
            raise TypeError("the blocks must be float matrices with one row per record")
        if noise.type.ndim != 1 or noise.type.dtype != "int64":
            raise TypeError("noise must be an int64 vector")
        if count.type.ndim != 0 or count.type.dtype != "int64":
            raise TypeError("count must be an int64 number")
        if unit.type.ndim != 0 or unit.type.dtype != "float64":
            raise TypeError("unit must be a float64 number")
        return Apply(self, [*matrices, count, noise, unit], [dvector()])

    def perform(self, node: Apply, inputs: list[np.ndarray], output_storage: list[list[Any]]) -> None:
        """Evaluate with the same kernels that the numba backend compiles in."""
        *matrices, count, noise, unit = inputs
        output_storage[0][0] = self._function(
            *matrices, int(count), noise, self.l2_clip_norm, self.tally_weight, float(unit)
        )

    def infer_shape(self, *args: Any) -> list[tuple[Variable, ...]]:
        """Return the shape of the noise."""
        shapes = args[-1]  # PyTensor 2 passes (fgraph, node, shapes), PyTensor 3 (node, shapes)
        return [tuple(shapes[-2])]


@register_funcify_and_cache_key(PrivateSum)
def _numba_private_sum(op: PrivateSum, node: Apply, **kwargs: Any) -> Any:
    kernel = _kernel_here(_make_private_sum(op.outer, compiled=True))
    names = ", ".join(f"x{k}" for k in range(len(node.inputs) - 3))
    scope = {"kernel": kernel, "l2_clip_norm": op.l2_clip_norm, "weight": op.tally_weight}
    body = f"return kernel({names}, count.item(), noise, l2_clip_norm, weight, unit.item())"
    exec(f"def private_sum({names}, count, noise, unit):\n    {body}", scope)
    # The key must change with the code: PyTensor keeps compiled functions on disk between versions.
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    key = f"pymc_dpvi.PrivateSum {op.outer} {op.l2_clip_norm.hex()} {op.tally_weight.hex()} {source}"
    return _kernel_here(scope["private_sum"]), hashlib.sha256(key.encode()).hexdigest()


def private_sum(
    blocks: Sequence[Block],
    noise: TensorVariable,
    l2_clip_norm: float,
    unit: TensorVariable | float,
    count: TensorVariable | None = None,
    tally_weight: float = 0.0,
) -> TensorVariable:
    """Noisy sum of clipped gradients, as a graph.

    Parameters
    ----------
    blocks : sequence of Block
        The gradients of a batch.
    noise : TensorVariable, shape (num_params,)
        int64, in units of `unit`.
    l2_clip_norm : float
        C.
    unit : TensorVariable or float
        The lattice unit u, a float64 number.
    count : TensorVariable, optional
        How many rows there are, from the first; all by default.
    tally_weight : float
        κ, or 0 for no tally.

    Returns
    -------
    TensorVariable, shape (num_params,)
        float64; the blocks' columns in order, then the tally.
    """
    op = PrivateSum(l2_clip_norm, tuple(b.right is not None for b in blocks), tally_weight)
    matrices = [m for b in blocks for m in (b.left, b.right) if m is not None]
    return op(*matrices, matrices[0].shape[0] if count is None else count, noise, unit)
