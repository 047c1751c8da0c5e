r"""Per-record gradients, vectorised over a batch.

*Aligned* gradients (Jälkö, Prediger, Honkela, Kaski, "DPVIm: Differentially Private Variational Inference
Improved", 2023) are taken with respect to the latent values,
:math:`g_i = \nabla_z \log p(x_i \mid z)`. All variational parameters get their gradients from the same
noisy sum afterwards, which costs no privacy. With M latent draws :math:`z_1,\dots,z_M` the record's
gradient is the stack of the M gradients divided by :math:`\sqrt M`, clipped as one vector.

*Vanilla* gradients (Jälkö, Dikmen, Honkela, UAI 2017, Algorithm 1) are taken with respect to all
variational parameters :math:`\xi`, of one record's share of the evidence lower bound,

.. math:: L_i(\xi) = \frac1M \sum_m \left[\log p(x_i \mid z_m) + \frac1N \log p(z_m)\right]
          + \frac1N H(q_\xi), \qquad z_m = T(\xi, \zeta_m).

They follow from the gradients by z by the chain rule, and are formed in full.

The one-row graph is differentiated and then vectorised over the batch: row i is a function of record i and z.
Aligned gradients by variables that data multiply or look up stay factored (`factoring`, `blocks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.errors import UnsupportedModelError
from pymc_dpvi.graph.batched_ops import joined_at_once
from pymc_dpvi.graph.blocks import Block, as_matrix
from pymc_dpvi.graph.factoring import find_uses, lift_uses
from pymc_dpvi.graph.indexing import READING
from pymc_dpvi.graph.model_checks import hint_of_loops
from pymc_dpvi.graph.rebuild import fold_shapes
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.simplified import simplified
from pymc_dpvi.graph.tables import own_gradients
from pymc_dpvi.graph.traversal import depends_on, own_loops, vectorized, walk
from pymc_dpvi.guide.whole import Family

__all__ = [
    "Latents",
    "aligned_gradients",
    "at_places",
    "in_draws",
    "informed",
    "local_terms",
    "log_densities",
    "prior_and_slope",
    "prior_gradients",
    "put",
    "vanilla_gradients",
]


_NOT_VECTORISED = (
    "PyTensor cannot write the gradient of the model for several records at once. The usual cause is a "
    "look-up in an array of the record's own by an index of the record's own. Write a mask instead: (own * "
    "pt.eq(index[:, None], np.arange(k))).sum(axis=1), with an own of shape (rows, k)."
)
#: Most local values of a person whose second derivatives are graphs of their own.
_ONE_BY_ONE = 3


@dataclass(frozen=True)
class Latents:
    """Where each free variable's unconstrained value stands in the flat latent vector, in its order."""

    value_vars: tuple[TensorVariable, ...]
    slices: tuple[slice, ...]
    shapes: tuple[tuple[int, ...], ...]
    still: tuple[str, ...] = ()  # names of those by which no gradient is taken: no fit moves them

    @property
    def size(self) -> int:
        """D, the number of unconstrained latent values."""
        return sum(int(np.prod(s, dtype=int)) for s in self.shapes)

    def split(self, z: TensorVariable) -> list[TensorVariable]:
        """Cut latent vectors, shape ``(D,)`` or ``(..., D)``, into the free variables' values."""
        lead = tuple(z.shape[k] for k in range(z.type.ndim - 1))
        return [
            z[..., s].reshape((*lead, *shape)).astype(v.type.dtype)
            for v, s, shape in zip(self.value_vars, self.slices, self.shapes, strict=True)
        ]


def in_draws(
    graphs: Sequence[TensorVariable], latents: Latents
) -> tuple[list[TensorVariable], list[TensorVariable]]:
    """Write graphs in placeholders of the free variables' values, whose shapes are known; return both.

    The placeholders are to be replaced by :func:`put`.
    """
    draw = [  # not pt.tensor(name=...), which reads a name such as "1|g" or "a, b" as a signature
        TensorType(v.type.dtype, shape=shape)(name=f"{v.name}_draw")
        for v, shape in zip(latents.value_vars, latents.shapes, strict=True)
    ]
    swap: dict[Variable, Variable] = dict(zip(latents.value_vars, draw, strict=True))
    # vectorize_graph remakes the nodes, so the static shapes are taken up.
    return fold_shapes(own_loops(vectorized(graphs, swap))), draw


def put(
    graphs: Sequence[TensorVariable], draw: Sequence[TensorVariable], values: Sequence[TensorVariable]
) -> list[TensorVariable]:
    """Put values in place of the placeholders of :func:`in_draws`."""
    return list(graph_replace(list(graphs), dict(zip(draw, values, strict=True)), strict=False))


def informed(record: RecordModel, latents: Latents) -> np.ndarray:
    """Whether each latent value stands in a record's density, shape ``(D,)``."""
    found = set(walk(list(record.factors.values())))
    sizes = [s.stop - s.start for s in latents.slices]
    return np.repeat([v in found and v.name not in latents.still for v in latents.value_vars], sizes)


def prior_gradients(record: RecordModel, latents: Latents, z: TensorVariable, n_mc: int) -> TensorVariable:
    """Gradient of the log prior at each latent draw, shape ``(n_mc, D)``."""
    _, flat, blocks = prior_and_slope(record, latents)
    return pt.stack([put([flat], blocks, latents.split(z[m]))[0] for m in range(n_mc)])


def prior_and_slope(
    record: RecordModel, latents: Latents
) -> tuple[TensorVariable, TensorVariable, list[TensorVariable]]:
    """Log prior and its gradient, shape ``(D,)``, in the placeholders of `in_draws`, which come last."""
    (prior,), blocks = in_draws([record.prior_logp], latents)
    flat = pt.concatenate([g.flatten() for g in _gradient(_stable(prior), blocks)])
    return prior, flat, blocks


def _stable(graph: TensorVariable) -> TensorVariable:
    """Apply PyTensor's numerical stabilisation before differentiation, not only after it.

    Beyond x = 37, the gradient of ``log1p(-sigmoid(x))`` as written is NaN, and such a record would count as
    zero; that of the stable form ``-softplus(x)`` is -1.
    """
    (copy,) = clone_replace([graph])
    return rewrite_graph(copy, include=("stabilize",), clone=False)


def _of_record(record: RecordModel, graph: TensorVariable) -> TensorVariable:
    """Make a record's log-density stable and cheap, before differentiation."""
    return simplified(_stable(graph), record.rows)


def aligned_gradients(
    record: RecordModel,
    batch: Sequence[TensorVariable],
    latents: Latents,
    z: TensorVariable,
    n_mc: int,
) -> list[Block]:
    """Stack the gradients of a batch of records with respect to the latent draws.

    `batch` has the rows of each record array, shape (batch, ...), and `z` the latent draws, shape (n_mc, D).
    The blocks have ``n_mc * D`` columns in all, draw by draw, each draw in the order of the flat vector. They
    are divided by the square root of `n_mc`.
    """
    (logp,), draw = in_draws([record.row_logp], latents)
    constant = _constants(latents, draw)
    logp = put([logp], list(constant), list(constant.values()))[0] if constant else logp
    logp = lift_uses(_of_record(record, logp), draw, record.rows)
    uses = find_uses(logp, draw, record.rows, products=record.tables is None)
    grads = iter(_row_gradient(record, logp, [v for use in uses for v in use.by]))
    one = [
        [a if use.form.kind == "sparse" and k else _as_float(a) for k, a in enumerate(use.arrays(by))]
        for use in uses
        for by in [[next(grads) for _ in use.by]]
    ]
    # Placeholders, as for the draws: what is put in then stands in the graph itself, and not as a copy.
    rows = [b.type() for b in batch]
    many = _over_batch(record, [a for arrays in one for a in arrays], rows)
    out = []
    for m in range(n_mc):
        values = latents.split(z[m])
        constants = [value for value, d in zip(values, draw, strict=True) if d in constant]
        swap = [*draw, *constant.values(), *rows], [*values, *constants, *batch]
        found = iter(put(many, *swap))
        for arrays, use in zip(one, uses, strict=True):
            left, *right = [next(found) for _ in arrays]
            block = Block(left, right[0] if right else None, use.form)
            out.append(block.scaled(1.0 / np.sqrt(n_mc)) if n_mc > 1 else block)
    return out


def _constants(latents: Latents, draw: Sequence[TensorVariable]) -> dict[TensorVariable, TensorVariable]:
    """Return further placeholders of the values that are `still`, so that no gradient finds them."""
    own = zip(latents.value_vars, draw, strict=True)
    return {d: d.type(name=f"{d.name}_still") for v, d in own if v.name in latents.still}


def local_terms(
    record: RecordModel, batch: Sequence[TensorVariable], latents: Latents, z: TensorVariable
) -> list[TensorVariable]:
    """Return what finds the mode of local values (`engine.local_sums`).

    They are the log-density of each row at its local values and the latent draw `z`, (1, D): (batch,); and by
    the d continuous ones of its person, its gradient, (batch, d), and its second derivatives, (batch, d, d).
    """
    assert record.local is not None
    (logp,), draw = in_draws([record.row_logp], latents)
    logp = _of_record(record, logp)
    local = record.rows[len(record.arrays)]
    value = logp[None] if logp.type.ndim == 0 else logp
    derivatives = [pt.zeros(0), pt.zeros((0, 0))]
    if size := record.local.places.continuous:
        slope = _row_gradient(record, logp, [local])[0][0, :size]
        derivatives = [slope, _curvature(record, slope, local)]
    one = [_as_float(a) for a in (value, *derivatives)]
    rows = [b.type() for b in batch]
    value, slope, curvature = put(
        _over_batch(record, one, rows), [*draw, *rows], [*latents.split(z[0]), *batch]
    )
    return [value[:, 0], slope, curvature]


def _curvature(record: RecordModel, slope: TensorVariable, local: TensorVariable) -> TensorVariable:
    """Differentiate a row's slope by its local values again, (d, d); for many of them in one graph."""
    size = int(slope.type.shape[0])  # type: ignore[arg-type]
    if size <= _ONE_BY_ONE:
        return pt.stack([_row_gradient(record, slope[k], [local])[0][0, :size] for k in range(size)])
    direction = TensorType(slope.type.dtype, shape=(size,))()
    (along,) = _row_gradient(record, (slope * direction).sum(), [local])
    swap: dict[Variable, Variable] = {direction: pt.eye(size, dtype=slope.type.dtype)}
    for index in _indices_of_rows([along], direction, record.rows[: len(record.arrays)]):
        swap[index] = pt.broadcast_to(index, (size, *(index.shape[k] for k in range(index.type.ndim))))
    (all_directions,) = vectorized([along[0, :size]], swap)
    return pt.broadcast_to(all_directions, (size, size)) if all_directions.type.ndim < 2 else all_directions


class AtPlaces(NamedTuple):
    """Models of a row's log-density at all places of its person's local values.

    Their rows are those of the record arrays, `first`, and `Locals.placeholders_at_places`. The factors of
    `values` are log-densities, (K,), those of `weighed` their sums with the weights of the places. `latents`
    is for both.
    """

    values: RecordModel
    weighed: RecordModel
    latents: Latents


def at_places(record: RecordModel, latents: Latents) -> AtPlaces:
    """Write a row's log-density at all places; what does not depend on local values stays as it is."""
    assert record.local is not None
    arrays, (local, first) = record.rows[: len(record.arrays)], record.rows[len(record.arrays) :]
    placed, weights = record.local.placeholders_at_places()
    sums, draw = in_draws([f.sum() for f in record.factors.values()], latents)  # lengths are numbers then
    for d, value in zip(draw, latents.value_vars, strict=True):
        d.name = value.name
    swap: dict[Variable, Variable] = {local: pt.expand_dims(placed[0], 1)}
    count = int(placed.type.shape[1])  # type: ignore[arg-type]
    for index in _indices_of_rows(sums, local, arrays):
        swap[index] = pt.broadcast_to(index, (count, *(index.shape[k] for k in range(index.type.ndim))))
    found = joined_at_once(vectorized(sums, swap))
    values = {name: v + pt.zeros_like(weights[0]) for name, v in zip(record.factors, found, strict=True)}
    weighed = {name: (v * weights[0]).sum() for name, v in values.items()}
    rows = (*arrays, first, placed, weights)
    of_values, of_sums = (replace(record, rows=rows, factors=factors) for factors in (values, weighed))
    return AtPlaces(of_values, of_sums, replace(latents, value_vars=tuple(draw)))


def _indices_of_rows(
    graphs: Sequence[Variable], local: Variable, arrays: Sequence[Variable]
) -> dict[TensorVariable, None]:
    """Return indices by which a row looks up something that depends on local values.

    PyTensor 2 cannot vectorise such a look-up over records once it has been vectorised over places, unless
    its indices are vectorised too.
    """
    found: dict[TensorVariable, None] = {}
    for node in io_toposort([], list(graphs)):
        indices = [i for i in node.inputs[1:] if isinstance(i, TensorVariable)]
        if type(node.op).__name__ in READING and depends_on(node.inputs[:1], [local]):
            if indices and depends_on(indices, arrays) and not depends_on(indices, [local]):
                found.update(dict.fromkeys(indices))
    return found


def log_densities(
    record: RecordModel, batch: Sequence[TensorVariable], latents: Latents, z: TensorVariable
) -> TensorVariable:
    """Return log-densities of a batch of rows at all places, (batch, K).

    If places are not weighed by them (`Variational`), their slopes there, (batch, K, d). `record` is the
    first model of `at_places`, with its `latents`; `z` is the latent draw, (1, D).
    """
    assert record.local is not None
    (values,), draw = in_draws([pt.add(*record.factors.values())], latents)
    wanted = _of_record(record, values)
    if record.local.places.steps:
        placed = record.rows[-2]
        wanted = _row_gradient(record, wanted.sum(), [placed])[0][0]
    rows = [b.type() for b in batch]
    many = _over_batch(record, [_as_float(wanted)], rows)
    return put(many, [*draw, *rows], [*latents.split(z[0]), *batch])[0]


def _as_float(factor: TensorVariable) -> TensorVariable:
    """Make a factor float32 or float64: a column of integer data is a factor as it stands."""
    kept = factor.type.dtype in ("float32", "float64")
    return factor if kept else factor.astype(pytensor.config.floatX)


def vanilla_gradients(
    record: RecordModel,
    batch: Sequence[TensorVariable],
    latents: Latents,
    family: Family,
    base_draws: TensorVariable,
    z: TensorVariable,
    entropy: TensorVariable,
    n_mc: int,
) -> list[Block]:
    """Stack the gradients of a batch of records with respect to all variational parameters.

    Arguments as in :func:`aligned_gradients`, with the variational `family`, its standard normal
    `base_draws`, shape (n_mc, D), and the scalar `entropy`, a function of its parameters. Returns a dense
    block for each of ``family.params``, in their order.
    """
    n = record.num_units
    params = list(family.params)
    entropy_grads = [h / n for h in _gradient(entropy, params)]
    prior = prior_gradients(record, latents, z, n_mc) / n
    stacked = as_matrix(aligned_gradients(record, batch, latents, z, n_mc))
    shares = stacked.reshape((batch[0].shape[0], n_mc, latents.size)) * np.sqrt(n_mc) + prior
    out = []
    for p, h in zip(params, entropy_grads, strict=True):
        chains = [family.chain(p, base_draws[m]) for m in range(n_mc)]
        by_draw = [shares[:, m, place] * slope for m, (place, slope) in enumerate(chains)]
        out.append(Block(pt.add(*by_draw) / n_mc + h.flatten()))
    return out


def _row_gradient(
    record: RecordModel, cost: TensorVariable, wrt: Sequence[TensorVariable]
) -> list[TensorVariable]:
    """Differentiate one row's log-density, or a slope of it."""
    if record.tables is None:
        return _gradient(cost, wrt, record.factors)
    which = record.rows[record.arrays.index(record.tables.which)]

    def grad(cost: Any, wrt: Sequence[TensorVariable], **more: Any) -> list[TensorVariable]:
        return _gradient(cost, wrt, record.factors, **more)

    return own_gradients(cost, wrt, which, grad)


def _gradient(
    cost: TensorVariable, wrt: Sequence[TensorVariable], terms: Iterable[str] = (), **more: Any
) -> list[TensorVariable]:
    failure = ""
    missing: dict[str, Any] = {"disconnected_inputs": "ignore", "return_disconnected": "zero"}
    try:
        return list(pytensor.grad(cost, list(wrt), **missing, **more))
    except Exception as error:  # operations that have none raise exceptions of many types
        failure = type(error).__name__
    raise UnsupportedModelError(
        "The model's log-density has no gradient with respect to its free variables "
        f"({failure}). Replace the operation that has none, or marginalise it."
        + hint_of_loops([] if cost is None else [cost], terms)
    )


def _over_batch(
    record: RecordModel, grads: Sequence[TensorVariable], batch: Sequence[TensorVariable]
) -> list[TensorVariable]:
    """Vectorise one-row gradients over the batch; each gets a leading batch axis."""
    swap: Mapping[Variable, Variable] = {
        row: pt.expand_dims(b, 1) for row, b in zip(record.rows, batch, strict=True)
    }
    known = fold_shapes(list(grads))
    try:
        vectorised = vectorized(known, swap)
    except NotImplementedError:
        raise UnsupportedModelError(_NOT_VECTORISED) from None
    size = batch[0].shape[0]
    out = []
    for grad, many in zip(known, vectorised, strict=True):
        if many.type.ndim == grad.type.ndim:  # the same for every record
            shape = [grad.shape[k] if n is None else n for k, n in enumerate(grad.type.shape)]
            many = pt.broadcast_to(many, (size, *shape))
        out.append(many)
    return out
