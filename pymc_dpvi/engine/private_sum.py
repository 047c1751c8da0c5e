r"""Clip, sum, add noise: the only place where a function of the records becomes public.

For per-record gradients :math:`g_1,\dots,g_B \in \mathbb{R}^P` and integer noise X in units u,

.. math::

    \tilde s &= (K + X)\,u, \qquad C' = C\,(1 - 2^{-12}) - \sqrt P\,u , \\
    K &= \operatorname{round}\Big(\frac1u \sum_{i=1}^{B} g_i \min(1, C'/\lVert g_i\rVert_2)\Big) ,

where a record with a non-finite norm (a NaN, an infinity, or an overflow of a squared norm) counts as
:math:`g_i = 0`. Adding or removing one record moves :math:`K u` by at most :math:`C` in Euclidean norm,
replacing one by at most :math:`2C`, whatever the record holds. The term :math:`\sqrt P\,u` covers the
rounding to the lattice; the slack :math:`2^{-12}` covers the rounding of the norm, of the scaling and of the
float64 sum, in whatever order its terms are added, for batches of up to :math:`2^{24}` records: blocks of
up to 1024 records are added up plainly, and the sums of the blocks with their rounding errors (Knuth's
TwoSum). K is held between :math:`\pm 2^{62}`, which moves neighbours no further apart and keeps
:math:`K + X` inside 64 bits. ``docs/noise.md`` has the proof.

**Counts.** A sum may have two more columns, the *tally*: how many records lie within the clip norm, and how
many beyond it. A record adds :math:`(k_i, k - k_i)` to them, in whole lattice units, where :math:`k =
\lfloor\kappa C (1 - 2^{-12})/u\rfloor` and

.. math:: k_i = \operatorname{round}\big(k\, b(\lVert g_i\rVert / C')\big), \qquad
          b(r) = \min\big(1, \max(0, \tfrac12 + 2(1 - r))\big) ,

a step from 1 to 0 that is a slope between 3/4 and 5/4, so that rounding errors of a norm move it as little as
they move the sum. Since :math:`k_i^2 + (k - k_i)^2 \le k^2`, a record's whole row is at most
:math:`C\sqrt{1+\kappa^2}` long; the tally is added up in integers, exactly, and held at :math:`2^{62}`. A
non-finite record adds (0, 0).

A gradient comes in blocks, dense or factored (`blocks`), whose norms and sums are those of `kernels`. All
blocks of a record share one norm. Vanilla gradients are :math:`T g_i + c` (`blocks.PullBack`): the norm is
that of :math:`T g_i + c`, and the sum :math:`T \sum_i f_i g_i + c \sum_i f_i` with the records' factors
:math:`f_i`. As the two parts may cancel in a record, its rounding errors are those of a vector of norm
:math:`C + 2\lVert c\rVert`, for which :math:`2^{-16} \lVert c\rVert` is taken off the bound :math:`C'`.

It is one PyTensor operation, so that the unnoised sum is no variable of any graph. Its kernels are
compiled without fastmath, under which a compiler may assume that NaN does not occur (the terms of a
squared norm may be reordered, nothing else).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.engine import kernels as block_sums
from pymc_dpvi.engine.graph_keys import source_hash
from pymc_dpvi.graph.blocks import Block, Form, PullBack
from pymc_dpvi.mechanism.limits import LARGEST_SUM, SLACK, TALLY_COLUMNS  # noqa: F401 (by the written code)

__all__ = ["PrivateSum", "private_sum"]

#: What is taken off the clip bound for each unit of ‖c‖, where gradients are pulled back.
SHIFT_SLACK = 2.0**-16
#: Records whose shares are added up in plain float64; the sums of such blocks are added with compensation.
BLOCK_RECORDS = 1024
_LARGEST_TALLY = 2**62

_kernel = numba.njit(cache=True, fastmath=False)
_kernel_here = numba.njit(fastmath=False)  # of functions written at run time, which numba cannot keep


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
def clip_bound(l2_clip_norm: float, unit: float, num_params: int) -> float:  # pragma: no cover
    """C': the largest norm of a record's share for which one record moves the rounded sum by at most C."""
    bound = l2_clip_norm * (1.0 - SLACK) - np.sqrt(num_params) * unit
    if not (unit > 0.0 and bound > 0.0):  # also for NaN
        raise ValueError("the lattice is too coarse for the clip norm")
    return bound


@_kernel
def pulled_bound(bound: float, shift_norm: float) -> float:  # pragma: no cover
    """Largest norm of a record's share where gradients are pulled back and ‖c‖ is `shift_norm`."""
    less = bound - SHIFT_SLACK * shift_norm
    return less if less > 0.0 else 0.0  # also for NaN


@_kernel
def tally_units(l2_clip_norm: float, unit: float, tally_weight: float) -> int:  # pragma: no cover
    """k: the lattice units that one record adds to the tally, 0 if there is none.

    A float64 that is a whole number, so that `add_tally` computes with k itself and no share exceeds it.
    """
    return int(np.floor(tally_weight * l2_clip_norm * (1.0 - SLACK) / unit))


@_kernel
def add_tally(
    squared_norms: np.ndarray, bound: float, units: int, tally: np.ndarray
) -> None:  # pragma: no cover
    """Share out `units` of each record between the columns "within the bound" and "beyond it"."""
    for i in range(squared_norms.size):
        norm = np.sqrt(squared_norms[i])
        if norm < np.inf:  # False for NaN and infinity
            # Where nothing is left of the bound, every norm is beyond it (and numba would raise).
            within = min(max(2.5 - 2.0 * (norm / bound), 0.0), 1.0) if bound > 0.0 else 0.0
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


@_kernel
def pull_back(
    high: np.ndarray,
    low: np.ndarray,
    place: np.ndarray,
    slope: np.ndarray,
    shift: np.ndarray,
    out: np.ndarray,
) -> None:  # pragma: no cover
    """Write T s + F c to `out`, where ``high + low`` is (s, F)."""
    weight = high[high.size - 1] + low[high.size - 1]
    for p in range(place.size):
        j = place[p]
        out[p] = slope[p] * (high[j] + low[j]) + shift[p] * weight
        if not np.isfinite(out[p]):  # only if slope or shift, which are public, are not finite
            out[p] = 0.0


def make_add_clipped(layout: Sequence[Form], pulled: bool = False) -> Callable[..., None]:
    """Write ``(*arrays, count, bound, units, high, low, tally) -> None``: clip the records and add them up.

    The blocks have different types, so numba needs one function per layout; for three blocks, the second
    outer and the third sparse with 50 columns::

        def add_clipped(x0, x1, x2, x3, x4, count, bound, units, high, low, tally):
            check(high.size == x0.shape[1] + x1.shape[1] * x2.shape[1] + 50)
            norms = zeros(count)
            add_squared_norms(x0, norms)
            add_squared_norms_outer(x1, x2, norms)
            entries3 = merged(x3, x4, count, 50, True)
            add_squared_norms(entries3, norms)
            factors = clip_factors(norms, bound)
            if tally.size:
                add_tally(norms, bound, units, tally)
            for first in range(0, count, BLOCK_RECORDS):
                last = min(first + BLOCK_RECORDS, count)
                weights = factors[first:last]
                at, to = 0, x0.shape[1]
                part = zeros(x0.shape[1])
                add_weighted_rows(x0[first:last], weights, part)
                add_block(part, high[at:to], low[at:to])
                at, to = to, to + x1.shape[1] * x2.shape[1]
                add_block(weighted_outer(x1[first:last], x2[first:last], weights), high[at:to], low[at:to])
                at, to = to, to + 50
                scatter(entries3[first:last], x4[first:last], weights, high[at:to], low[at:to])

    If gradients are pulled back, w, x and ‖c‖ (`kernels.column_weights`) follow `count`, and a last entry
    of ``high + low`` is the sum of the factors.
    """
    names: list[str] = []
    norms: list[str] = []
    sums: list[str] = []
    sizes: list[str] = []
    for form in layout:
        x, y = f"x{len(names)}", f"x{len(names) + 1}"
        names += [x, y][: form.num_arrays]
        rows = ", ".join(f"{name}[first:last]" for name in [x, y][: form.num_arrays])
        of_columns = "w[at:to], c[at:to], norms, mixed" if pulled else "norms"
        if form.kind == "dense":
            size = f"{x}.shape[1]"
            norms.append(f"{'add_pulled' if pulled else 'add_squared_norms'}({x}, {of_columns})")
            add = f"part = np.zeros({size}); add_weighted_rows({rows}, weights, part); {_ADD_PART}"
        elif form.kind == "outer":
            size = f"{x}.shape[1] * {y}.shape[1]"
            norms.append(f"{'add_pulled' if pulled else 'add_squared_norms'}_outer({x}, {y}, {of_columns})")
            add = f"part = weighted_outer({rows}, weights); {_ADD_PART}"
        elif form.kind == "products" and not pulled:
            size = f"{x}.shape[2] * {y}.shape[2]"
            norms.append(f"add_squared_norms_products({x}, {y}, norms)")
            # As many products at a time as there are records in other blocks.
            add = (
                f"step = max(1, BLOCK_RECORDS // max(1, {x}.shape[1]))\n"
                "for begin in range(first, last, step):\n"
                "    end = min(begin + step, last)\n"
                f"    part = weighted_products({x}[begin:end], {y}[begin:end], factors[begin:end])\n"
                f"    {_ADD_PART}"
            )
        elif form.kind == "sparse":
            size, entries = str(form.size), f"entries_{x}"
            norms.append(f"{entries} = merged({x}, {y}, count, {size}, {form.distinct})")
            if pulled:
                norms.append(f"add_pulled_sparse({entries}, {y}, {of_columns})")
            else:
                norms.append(f"add_squared_norms({entries}, norms)")
            add = f"scatter({entries}[first:last], {y}[first:last], weights, high[at:to], low[at:to])"
        else:
            raise ValueError(f"no form {form}")
        norms.insert(len(norms) - (2 if form.kind == "sparse" else 1), f"at, to = to, to + {size}")
        sums += [f"    at, to = to, to + {size}", *(f"    {line}" for line in add.split("\n"))]
        sizes.append(size)
    lines = [
        f"def add_clipped({', '.join([*names, 'count', *arguments_of_sum(pulled)])}):",
        f"if high.size != {' + '.join(sizes)}{' + 1' if pulled else ''}:",
        "    raise ValueError('one noise entry per column is needed')",
        f"if count < 0 or count > {' or count > '.join(f'{n}.shape[0]' for n in names)}:",
        "    raise ValueError('every block needs a row per record')",
        "norms, at, to = np.zeros(count), 0, 0",
        *(["mixed = np.zeros(count)"] if pulled else []),
        *norms,
        *(["finish_pulled(norms, mixed, shift_norm, high.size)"] if pulled else []),
        "factors = clip_factors(norms, bound)",
        "if tally.size:",
        "    add_tally(norms, bound, units, tally)",
        "for first in range(0, count, BLOCK_RECORDS):",
        "    last, to = min(first + BLOCK_RECORDS, count), 0",
        "    weights = factors[first:last]",
        *sums,
        *(["    add_block(np.array([weights.sum()]), high[to:], low[to:])"] if pulled else []),
    ]
    scope = {**vars(block_sums), **globals()}
    exec("\n    ".join(lines), scope)
    function: Callable[..., None] = scope["add_clipped"]
    return function


_ADD_PART = "add_block(part, high[at:to], low[at:to])"
_SUM = ("bound", "units", "high", "low", "tally")


def start_of_sum(pulled: bool) -> list[str]:
    """Lines that make what ``add_clipped`` gets after the count: the bound, and sums to add to."""
    start = [
        "bound = clip_bound(l2_clip_norm, unit, noise.size)",
        "units = tally_units(l2_clip_norm, unit, tally_weight)",
        "tally = np.zeros(TALLY_COLUMNS if tally_weight > 0.0 else 0, np.int64)",
        "size = noise.size - tally.size",
    ]
    if not pulled:
        return [*start, "high, low = np.zeros(size), np.zeros(size)"]
    return [
        *start,
        "if place.size != size or slope.size != size or shift.size != size:",
        "    raise ValueError('one noise entry per column is needed')",
        "columns = place.max() + 1",
        "w, c, shift_norm = column_weights(place, slope, shift, columns)",
        "bound = pulled_bound(bound, shift_norm)",
        "high, low = np.zeros(columns + 1), np.zeros(columns + 1)",
    ]


def arguments_of_sum(pulled: bool) -> list[str]:
    """Name what ``add_clipped`` gets after the count."""
    return [*(["w", "c", "shift_norm"] if pulled else []), *_SUM]


def end_of_sum(pulled: bool) -> list[str]:
    """Lines that return the release."""
    if not pulled:
        return ["return round_and_add(high, low, tally, noise, unit)"]
    return [
        "total = np.empty(size)",
        "pull_back(high, low, place, slope, shift, total)",
        "return round_and_add(total, np.zeros(size), tally, noise, unit)",
    ]


def _make_private_sum(
    layout: Sequence[Form], pulled: bool, compiled: bool = False
) -> Callable[..., np.ndarray]:
    """Write ``(*arrays, [place, slope, shift,] count, noise, l2_clip_norm, tally_weight, unit)``."""
    add_clipped = make_add_clipped(layout, pulled)
    names = ", ".join(f"x{k}" for k in range(sum(f.num_arrays for f in layout)))
    shared = "place, slope, shift, " if pulled else ""
    lines = [
        f"def private_sum({names}, {shared}count, noise, l2_clip_norm, tally_weight, unit):",
        *start_of_sum(pulled),
        f"add_clipped({names}, count, {', '.join(arguments_of_sum(pulled))})",
        *end_of_sum(pulled),
    ]
    own = {"add_clipped": _kernel_here(add_clipped) if compiled else add_clipped}
    scope = vars(block_sums) | globals() | own
    exec("\n    ".join(lines), scope)
    function: Callable[..., np.ndarray] = scope["private_sum"]
    return function


def sum_type(noise: Variable) -> TensorType:
    """Return the type of a noisy sum: as long as its noise."""
    return TensorType("float64", shape=noise.type.shape)


class PrivateSum(Op):
    """Noisy sum of clipped per-record gradients, on the lattice.

    Parameters
    ----------
    l2_clip_norm : float
        C, in the units of the gradient.
    layout : sequence of Form
        Per block, how it comes.
    tally_weight : float
        κ: norm of what one record adds to the tally, in units of C. 0 for no tally.
    pulled : bool
        Whether gradients are pulled back (`blocks.PullBack`) before they are clipped.

    Notes
    -----
    Inputs: the blocks' arrays, one or two each, all with one row per record; if pulled, ``place`` (int64),
    ``slope`` and ``shift`` (float64), vectors (num_params,); ``count``, how many of the rows are there, from
    the first (so that a batch can be empty where a backend cannot take arrays of length zero); ``noise``,
    int64 vector (num_params,), in units of the lattice; ``unit``, float64 number, the lattice unit u in the
    units of the gradient (`LatticeNoise.unit`; an input, so that another noise multiplier needs no other
    compiled function). Output: float64 vector (num_params,), multiples of u; noise and output
    have two entries more if there is a tally. An empty batch is a normal case: the output is the noise.
    """

    __props__ = ("l2_clip_norm", "layout", "tally_weight", "pulled")

    def __init__(
        self,
        l2_clip_norm: float,
        layout: Sequence[Form] = (Form("dense"),),
        tally_weight: float = 0.0,
        pulled: bool = False,
    ) -> None:
        self.l2_clip_norm = float(l2_clip_norm)
        self.layout = tuple(Form(*form) for form in layout)
        self.tally_weight = float(tally_weight)
        self.pulled = bool(pulled)
        self._function = _make_private_sum(self.layout, self.pulled)

    @property
    def num_shared(self) -> int:
        """Number of inputs between the blocks' arrays and the count."""
        return 3 if self.pulled else 0

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node; see the class for shapes."""
        # A bare Python float would become float32 where that holds it exactly.
        given = (np.asarray(i) if isinstance(i, float) else i for i in inputs)
        *arrays, count, noise, unit = (pt.as_tensor_variable(a) for a in given)
        shared = arrays[len(arrays) - self.num_shared :]
        arrays = arrays[: len(arrays) - self.num_shared]
        kinds = [(form, k) for form in self.layout for k in range(form.num_arrays)]
        if len(arrays) != len(kinds):
            raise TypeError("one array per dense block and two per other block are needed")
        for array, (form, k) in zip(arrays, kinds, strict=True):
            positions = form.kind == "sparse" and k == 1
            fits = array.type.dtype == "int64" if positions else array.type.dtype.startswith("float")
            if array.type.ndim != form.ndim or not fits:
                raise TypeError(
                    "the blocks must be float arrays, and positions int64, with one row per record"
                )
        if [v.type.dtype for v in shared] != ["int64", "float64", "float64"][: self.num_shared] or any(
            v.type.ndim != 1 for v in shared
        ):
            raise TypeError("place must be an int64 vector, slope and shift float64 vectors")
        if noise.type.ndim != 1 or noise.type.dtype != "int64":
            raise TypeError("noise must be an int64 vector")
        if count.type.ndim != 0 or count.type.dtype != "int64":
            raise TypeError("count must be an int64 number")
        if unit.type.ndim != 0 or unit.type.dtype != "float64":
            raise TypeError("unit must be a float64 number")
        return Apply(self, [*arrays, *shared, count, noise, unit], [sum_type(noise)()])

    def perform(self, node: Apply, inputs: list[np.ndarray], output_storage: list[list[Any]]) -> None:
        """Evaluate with the same kernels that the numba backend compiles in."""
        *arrays, count, noise, unit = inputs
        output_storage[0][0] = self._function(
            *arrays, int(count), noise, self.l2_clip_norm, self.tally_weight, float(unit)
        )

    def infer_shape(self, *args: Any) -> list[tuple[Variable, ...]]:
        """Return the shape of the noise."""
        shapes = args[-1]  # PyTensor 2 passes (fgraph, node, shapes), PyTensor 3 (node, shapes)
        return [tuple(shapes[-2])]


@register_funcify_and_cache_key(PrivateSum)
def _numba_private_sum(op: PrivateSum, node: Apply, **kwargs: Any) -> Any:
    kernel = _kernel_here(_make_private_sum(op.layout, op.pulled, compiled=True))
    names = ", ".join(f"x{k}" for k in range(len(node.inputs) - 3))
    scope = {"kernel": kernel, "l2_clip_norm": op.l2_clip_norm, "weight": op.tally_weight}
    body = f"return kernel({names}, count.item(), noise, l2_clip_norm, weight, unit.item())"
    exec(f"def private_sum({names}, count, noise, unit):\n    {body}", scope)
    numbers = f"{op.l2_clip_norm.hex()} {op.tally_weight.hex()}"
    key = f"pymc_dpvi.PrivateSum {op.layout} {op.pulled} {numbers} {source_hash()}"
    return _kernel_here(scope["private_sum"]), hashlib.sha256(key.encode()).hexdigest()


def private_sum(
    gradients: Sequence[Block],
    noise: TensorVariable,
    l2_clip_norm: float,
    unit: TensorVariable | float,
    count: TensorVariable | None = None,
    tally_weight: float = 0.0,
    pull_back: PullBack | None = None,
) -> TensorVariable:
    """Noisy sum of clipped gradients, as a graph.

    Parameters
    ----------
    gradients : sequence of Block
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
    pull_back : PullBack, optional
        What is done with every record's gradient before it is clipped.

    Returns
    -------
    TensorVariable, shape (num_params,)
        float64; the blocks' columns in order, pulled back, then the tally.
    """
    op = PrivateSum(l2_clip_norm, [b.form for b in gradients], tally_weight, pull_back is not None)
    arrays = [array for b in gradients for array in b.arrays]
    shared = [] if pull_back is None else [pull_back.place, pull_back.slope, pull_back.shift]
    return op(*arrays, *shared, arrays[0].shape[0] if count is None else count, noise, unit)
