r"""Check that one-record log-densities add up to the model's own, and that records are independent.

Two facts are tested, both on synthetic records (`synthetic_records`) and never on the data, so that the
verdict cannot depend on any record:

1. the model's likelihood rebuilt with M records equals, row by row, the one-record log-density of those
   rows, at several values of z;
2. in the vectorised gradient, a hostile record (NaN, -1) leaves the rows of all the others as they were.

Privacy does not rest on the first: every record array has been replaced by one row of it. The first makes
sure that the user's model is fitted. In-graph centring, for example, gives a one-row graph of another model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.logprob.abstract import MeasurableOp
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.errors import NotSeparableError
from pymc_dpvi.graph.blocks import as_matrix
from pymc_dpvi.graph.densities import Likelihood, rebuild_likelihood
from pymc_dpvi.graph.gradients import Latents, aligned_gradients, in_draws, put
from pymc_dpvi.graph.local_latents import PRIOR
from pymc_dpvi.graph.model_checks import hint_of_loops, hint_of_own_rows
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.selections import cuts_records, has_bounds
from pymc_dpvi.graph.synthetic_records import Rows, python_function, synthetic_records
from pymc_dpvi.graph.traversal import array_shape, array_value, is_array, vectorized, walk
from pymc_dpvi.lowering import fast_compile

__all__ = ["CannotBeWrittenError", "check_separable", "write_for_several"]


class CannotBeWrittenError(NotSeparableError):
    """The likelihood cannot be written for several records; `mismatch` may know why."""


_UNSEEN = (
    " (Nothing is drawn for a pm.Potential: write an outcome that has to be whole numbers that add up, or in "
    "order, with observed=.)"
)
_BY_PERSON = (
    " If a person has several rows, and only these enter each other's terms (a lag, a running sum, a mean by "
    "person), give the ids of the persons: DPADVI(unit='person'), with person = pm.Data('person', ids)."
)
#: Records of the small batch; of the large one, at least and at most; beyond the model's largest integer.
FEW, MANY, MOST, BEYOND = 5, 23, 200, 3


@quiet_pytensor()
def check_separable(record: RecordModel, latents: Latents, start: np.ndarray) -> bool:
    """Raise unless the one-record log-density is the model's own and records are independent.

    Return whether outcomes that the model itself draws have a finite log-density and no finite gradient.

    `start` are the unconstrained values, shape (D,), around which z is drawn. The error names the variable
    whose terms differ, and the first operation that mixes records.
    """
    few = _remade(record, FEW)
    more = None if few is None else _remade(record, _rows_to_try(record, few))
    if few is not None:
        _refuse_cuts(record, few, more)
    many = _or_raise(record, more)
    z = pt.matrix("z", shape=(1, latents.size), dtype=pytensor.config.floatX)
    values = latents.split(z[0])
    graphs, draw = in_draws([*many.factors.values(), *record.factors.values()], latents)
    own, one = graphs[: len(many.factors)], graphs[len(many.factors) :]
    both = [_per_row(t) for t in (*own, *_over_rows(one, record.rows, many.rows))]
    terms = python_function([*many.rows, z], put(both, draw, values))
    grad = python_function([*many.rows, z], [as_matrix(aligned_gradients(record, many.rows, latents, z, 1))])
    names = list(many.factors)
    seen = dict.fromkeys(names, False)
    rng = np.random.default_rng(0)
    tolerance = 1e-6 if pytensor.config.floatX == "float64" else 1e-3
    for rows, point in synthetic_records(record, many, latents, z, start, rng, lambda: all(seen.values())):
        try:
            with np.errstate(all="ignore"):
                out = [np.asarray(o, dtype="float64") for o in terms(*rows, point)]
        except Exception:
            continue  # these synthetic integers do not suit the model, e.g. as an index
        for name, left, right in zip(names, out, out[len(names) :], strict=False):
            if left.shape != right.shape or not _same(left, right, tolerance):
                raise NotSeparableError(
                    f"The likelihood '{name}' is not a product over records: with several records its "
                    "terms differ from those of one record at a time. " + _mixing(record, many, rows)
                )
            seen[name] |= bool(np.isfinite(left[own_rows(record, name, rows)]).any())
        _check_isolated(grad, rows, point, tolerance)
    blind = [n for n, s in seen.items() if not s]
    if blind:
        raise NotSeparableError(
            f"The log-density of {blind} is finite for none of the synthetic records tried (values between "
            "0 and 1, and draws from the likelihood), so it cannot be shown that records are independent. "
            "Rescale the data to the unit interval, or give pm.CustomDist a random= or dist= function, or "
            "weights of a mixture that sum to one. Or "
            f"the variables {sorted(rv.name for rv in record.model.free_RVs)} start where the likelihood "
            "has no density, a scale below zero for example: give them initval=..."
            + _UNSEEN * any(pot.name in blind for pot in record.model.potentials)
            + hint_of_loops([record.factors[n] for n in blind], blind)
            + _hint_of_public(record)
        )
    if any(pot.name in record.factors for pot in record.model.potentials):
        return False  # nothing is drawn for a Potential, and made-up bounds may be in the wrong order
    drawn = list(synthetic_records(record, many, latents, z, start, rng, drawn_alone=True))
    if not any(_lacks_gradient(names, terms, grad, *made) for made in drawn):
        return False
    # A fit simplifies the gradient, so that it may have a value after all: 0 / 0 is cancelled.
    gradient = as_matrix(aligned_gradients(record, many.rows, latents, z, 1))
    grad = python_function([*many.rows, z], [gradient], fast_compile())
    return any(_lacks_gradient(names, terms, grad, *made) for made in drawn)


def _lacks_gradient(
    names: Sequence[str],
    terms: Callable[..., list[np.ndarray]],
    grad: Callable[..., list[np.ndarray]],
    rows: Rows,
    point: np.ndarray,
) -> bool:
    """Whether a made-up record has a finite log-density and no finite gradient."""
    try:
        with np.errstate(all="ignore"):
            values, (slopes,) = terms(*rows, point)[: len(names)], grad(*rows, point)
    except Exception:
        return False  # these synthetic records do not suit the model
    dense = [np.isfinite(np.reshape(v, (len(v), -1))).all(axis=1) for v in values if np.ndim(v)]
    return bool(dense and np.any(np.all(dense, axis=0) & ~np.isfinite(slopes).all(axis=1)))


def _remade(record: RecordModel, rows: int) -> Likelihood | None:
    """Remake the likelihood for some rows; None if that raises, as the exception tells how many records."""
    with suppress(Exception):
        return write_for_several(record, rows)
    return None


def _or_raise(record: RecordModel, many: Likelihood | None) -> Likelihood:
    if many is None:
        names = ", ".join(map(repr, record.factors))
        raise CannotBeWrittenError(
            f"The likelihood of {names} cannot be written for several records. It probably mixes records, "
            "takes some of them by their place, or has a length that is a number: give the model the rows to "
            "be fitted and no others, and drop fixed lengths from pt.zeros, pt.ones, reshape or shape=."
            + hint_of_loops(list(record.factors.values()), record.factors)
            + _hint_of_public(record)
        )
    return many


def _hint_of_public(record: RecordModel) -> str:
    """Name public arrays with a row for each record: a record's term then reads all of their rows."""
    length = (record.num_records,)
    names = sorted(str(v.name) for v in record.public if is_array(v) and array_shape(v)[:1] == length)
    if not names:
        return ""
    return (
        f" Or rows of {', '.join(map(repr, names))} belong to records: leave it out of public_data=, which "
        "is for arrays that no record has a row in."
    )


def _rows_to_try(record: RecordModel, few: Likelihood) -> int:
    """Return how many records are tried: more than the places and lags that are written in the model.

    ``pt.roll(x, 5)``, ``pt.arange(n) >= 7`` or ``mu[7:]`` do nothing, or something else, on fewer rows. The
    number of records enters only if a slice along them has a number as a bound: whether the slice takes all
    of them depends on how many there are.
    """
    model = record.model
    graphs = [*few.factors.values(), *model.observed_RVs, *model.potentials]
    written = [MANY - BEYOND]
    for var in walk(graphs, stop=model.free_RVs, into_size=True):
        if is_array(var) and var not in record.arrays and array_value(var).size == 1:
            number = float(array_value(var).item())
            if number.is_integer() and abs(number) <= MOST:
                written.append(int(abs(number)))
    rows = min(max(written) + BEYOND, MOST)
    return min(rows, record.num_records) if _has_cuts(record, few) else rows


def _has_cuts(record: RecordModel, few: Likelihood) -> bool:
    """Whether a slice with a number as a bound runs along an axis as long as the small batch."""
    model = record.model
    own = [
        v for rv in (*model.observed_RVs, *model.potentials) for v in (rv, model.rvs_to_values.get(rv, rv))
    ]

    def of_model(var: Variable) -> Collection[int]:
        return of_batch(few.memo[var]) if var in few.memo else []

    def of_batch(var: Variable) -> Collection[int]:
        return [k for k, length in enumerate(getattr(var.type, "shape", ())) if length == FEW]

    return has_bounds(walk(own, stop=model.free_RVs), of_model) or has_bounds(
        walk(few.factors.values()), of_batch
    )


def own_rows(record: RecordModel, name: str, rows: Rows) -> np.ndarray:
    """Return which of some rows belong to the table of a term, (rows,)."""
    if record.tables is None or name == PRIOR:
        return np.ones(len(rows[0]), dtype=bool)
    return np.asarray(rows[record.arrays.index(record.tables.which)] == record.tables.number_of(name))


def _rows_of(likelihood: Likelihood) -> int:
    return int(likelihood.rows[0].type.shape[0])  # type: ignore[arg-type]


def _refuse_cuts(record: RecordModel, few: Likelihood, many: Likelihood | None) -> None:
    """Raise if the model takes some of the records by their place, which a small batch does not show."""
    rows = (_rows_of(few), -1 if many is None else _rows_of(many))
    if rows[0] == rows[1]:
        return  # these are all records

    def axes(small: Variable | None, large: Variable | None) -> list[int]:
        shapes = [getattr(getattr(v, "type", None), "shape", ()) for v in (small, large)]
        return [k for k, pair in enumerate(zip(*shapes, strict=False)) if pair == rows]

    def leading(var: Variable | None) -> list[int]:
        return [0] if getattr(getattr(var, "type", None), "shape", ())[:1] == rows[:1] else []

    def of_model(var: Variable) -> Collection[int]:
        small = few.memo.get(var)
        return leading(small) if many is None else axes(small, many.memo.get(var))

    model = record.model
    terms = [*model.observed_RVs, *(p for p in model.potentials if p.name in few.factors)]
    for term in terms:
        own = walk([term, model.rvs_to_values.get(term, term)], stop=model.free_RVs)
        batch = few.factors[term.name]
        pairs = {} if many is None else _paired(batch, many.factors[term.name])

        def of_batch(var: Variable, pairs: dict[Variable, Variable] = pairs) -> Collection[int]:
            if var in pairs:
                return axes(var, pairs[var])
            return [] if set(few.rows).isdisjoint(walk([var])) else leading(var)

        def at_more(var: Variable, pairs: dict[Variable, Variable] = pairs) -> Variable:
            return pairs.get(var, var)

        if cuts_records(own, of_model, lambda var: var, rows, record.num_records) or cuts_records(
            [batch], of_batch, at_more, rows, record.num_records
        ):
            raise NotSeparableError(
                f"The likelihood '{term.name}' takes some of the records by their place (a slice of an "
                "array, by a number, that is not all of its rows, or by a bound that is computed). A batch "
                "has no such places, so it would be fitted as another model. Give the model the rows to be "
                "fitted and no others; write what depends on a record's place with a column of its own, and "
                "pt.switch."
            )


def _paired(small: Variable, large: Variable) -> dict[Variable, Variable]:
    """Map variables of a graph to those of the graph for more rows; empty if the two are not alike."""
    both = walk([small]), walk([large])
    pairs = list(zip(*both, strict=False))
    alike = len(both[0]) == len(both[1]) and all(
        type(getattr(a.owner, "op", None)) is type(getattr(b.owner, "op", None)) for a, b in pairs
    )
    return dict(pairs) if alike else {}


def write_for_several(record: RecordModel, rows: int = FEW) -> Likelihood:
    """Remake the likelihood for some rows, or raise whatever that raises."""
    own = record.model, record.num_records, record.record_dims, record.arrays
    return rebuild_likelihood(*own, rows=rows, local=record.local, tables=record.tables)


def _over_rows(
    graphs: Sequence[Variable], rows: Sequence[Variable], batch: Sequence[TensorVariable]
) -> list[TensorVariable]:
    """Vectorise one-row graphs over a batch, and drop their own row axis."""
    swap: dict[Variable, Variable] = {r: pt.expand_dims(b, 1) for r, b in zip(rows, batch, strict=True)}
    out = []
    for graph, many in zip(graphs, vectorized(graphs, swap), strict=True):
        if many.type.ndim > graph.type.ndim:
            out.append(many[:, 0])
        else:  # the same for every record
            out.append(
                pt.broadcast_to(many, (batch[0].type.shape[0], *[many.shape[k] for k in range(1, many.ndim)]))
            )
    return out


def _per_row(term: TensorVariable) -> TensorVariable:
    return term.sum(axis=tuple(range(1, term.type.ndim))) if term.type.ndim > 1 else term


def _same(left: np.ndarray, right: np.ndarray, tolerance: float) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True))


def _check_isolated(
    grad: Callable[..., list[np.ndarray]], rows: Rows, point: np.ndarray, tolerance: float
) -> None:
    """One hostile record must not change another record's gradient."""
    hostile = [r.copy() for r in rows]
    for r in hostile:
        if r.dtype.kind in "fi":
            r[0] = np.nan if r.dtype.kind == "f" else -1
    try:
        with np.errstate(all="ignore"):
            (before,), (after,) = grad(*rows, point), grad(*hostile, point)
    except Exception:
        return  # the synthetic records do not suit the model: no gradients to compare
    if not _same(before[1:], after[1:], tolerance):
        raise NotSeparableError(
            "The gradient of one record changes with the values of another one in the same batch, so "
            "clipping it would not bound anybody's influence. Please report this model to pymc_dpvi; "
            "parameter checks written by hand (pt.all, Assert, ifelse) over all records are the usual "
            "cause: write them row by row."
        )


def _mixing(record: RecordModel, many: Likelihood, rows: Rows) -> str:
    """Say which operation of the user's model is the first to differ."""
    one = write_for_several(record, 1)
    roots = [*record.model.observed_RVs, *record.model.potentials]
    order = [
        v
        for v in walk(roots, stop=record.model.free_RVs)
        if v in one.memo
        and set(one.rows) & set(walk([one.memo[v]]))
        and v in many.memo
        and v.owner is not None
        and not isinstance(v.owner.op, MeasurableOp)
        and isinstance(v.type, TensorType)
        and not is_array(v)
    ]
    free = [*many.free.values()]
    shapes = record.model.eval_rv_shapes()
    points = [np.full(shapes[rv.name], 0.5).astype(rv.type.dtype) for rv in many.free]
    swap = {one.free[k]: many.free[k] for k in many.free}
    for var in order:
        try:
            (single,) = graph_replace([one.memo[var]], swap, strict=False)
            (wide,) = _over_rows([single], one.rows, many.rows)
            fn = python_function([*many.rows, *free], [many.memo[var], wide])
            left, right = fn(*rows, *points)
            same = left.shape == right.shape and _same(left, right, 1e-9)
        except Exception:
            same = False  # a reduction over all records has another rank
        if not same:
            named = next((v.name for v in (var, *var.owner.inputs) if v.name), None)
            where = f" (at '{named}')" if named else ""
            return (
                f"The first operation that mixes records is {_op_name(var)}{where}. Put in its place a "
                "number that is known without these records (a known constant, not their mean: computed "
                "from them in NumPy it would be released unprotected), or do it along an axis of one record."
                + hint_of_own_rows(record.model, var.owner)
                + _BY_PERSON * (record.units is None)
            )
    return (
        "One record enters another record's term. Write the likelihood so that each term uses its own "
        "record's row and the parameters only." + _BY_PERSON * (record.units is None)
    )


def _op_name(var: Variable) -> str:
    assert var.owner is not None
    return str(var.owner.op).split("{")[0] if not hasattr(var.owner.op, "scalar_op") else str(var.owner.op)
