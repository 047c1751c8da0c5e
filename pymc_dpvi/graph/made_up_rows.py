"""Which formulas of a model take other rows of the same person, found on made-up rows.

:class:`MadeUpRows` are the rows of a few persons, person by person, with the types and widths of the model's
arrays and no number of theirs. On them it is seen whether a formula of data has an entry for each row, if it
depends on other rows, and whether two models say the same. So no verdict depends on a record. Privacy rests
on one thing here: :meth:`MadeUpRows.formulas` lets no array into a formula that is neither of rows nor
public.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pymc.logprob.abstract import MeasurableOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import indices_from_subtensor
from pytensor.tensor.type import TensorType

from pymc_dpvi.graph.indexing import INDEXING
from pymc_dpvi.graph.local_checks import number_of
from pymc_dpvi.graph.local_latents import by_ids_of
from pymc_dpvi.graph.opaque import is_opaque_value, opaque_part
from pymc_dpvi.graph.rebuild import resize_records
from pymc_dpvi.graph.shape_constants import shape_vectors
from pymc_dpvi.graph.traversal import array_shape, array_value, is_array, walk
from pymc_dpvi.graph.units import Units
from pymc_dpvi.lowering import python_as_it_stands

__all__ = ["MadeUpRows", "compiled", "placed_on_rows"]

#: Operations that a formula may consist of: they compute from their inputs alone, and end soon.
_OPERATIONS = {
    *INDEXING,
    *"""
    ARange Alloc All Any ArgSortOp Argmax BroadcastTo CAReduce CumOp DimShuffle Dot Elemwise ExtractDiag Eye
    Join MakeVector Max Mean Min Prod Reshape ScalarFromTensor Shape Shape_i SortOp SpecifyShape Sum
    TensorFromScalar Tri ViewOp
    """.split(),
}
#: From which input on an operation is given the lengths of what it makes.
_LENGTHS = {"ARange": 0, "Alloc": 1, "BroadcastTo": 1, "Eye": 0, "Reshape": 1, "Tri": 0}
#: Rows of the longest made-up person, at least, and the largest number in a formula that adds to them.
_LONGEST, _MOST = 45, 200
#: Ids of made-up persons, and how many rows each has; None for the longest. With ids that are places in a
#: table of two, three, four or five, or in none; in the order of the ids, or not.
_PERSONS: tuple[tuple[tuple[int, int | None], ...], ...] = (
    ((1, 8), (0, None)),
    ((2, 7), (0, None), (1, 1)),
    ((3, None), (1, 2), (0, 4), (2, 1)),
    ((0, 4), (1, 1), (2, 7), (3, 2), (4, None)),
    ((3, 2), (0, 4), (4, None), (1, 1), (2, 7)),
    ((0, None), (1000, 4), (7, 1), (40, 7), (12, 2)),
)
#: Of floats, the standard deviation; 0 for numbers as in `synthetic_records`. Of integers, the end.
_VALUES: tuple[tuple[float, int], ...] = ((0.0, 2), (3.0, 2), (3.0, 10), (1000.0, 3000))
#: Largest number in the model that is tried as an id, and how many are.
_LARGEST_ID, _IDS = 10**5, 8
#: Of numbers whose largest is below this, nothing is known.
_TINY = 1e-12


def placed_on_rows(
    graphs: Sequence[Variable], arrays: Sequence[Variable]
) -> tuple[list[Variable], list[Variable]]:
    """Remake graphs of data for any number of rows of `arrays`; return their placeholders, and the graphs."""
    rows = [a.type.clone(shape=(None, *array_shape(a)[1:]))() for a in arrays]  # type: ignore[attr-defined]
    made, _ = resize_records(graphs, dict(zip(arrays, rows, strict=True)), num_records=-1, rows=-1)
    return rows, made


def compiled(inputs: Sequence[Variable], graphs: Sequence[Variable]) -> Callable[..., list[np.ndarray]]:
    """Compile graphs as a function that Python computes, as they stand."""
    return pytensor.function(list(inputs), list(graphs), mode=python_as_it_stands(), on_unused_input="ignore")


class MadeUpRows:
    """Made-up rows of a few persons, on which formulas and models are compared."""

    def __init__(
        self, model: pm.Model, source: Variable, num_rows: int, public: Collection[Variable]
    ) -> None:
        self._model, self._source, self._num_rows, self._public = model, source, num_rows, public
        values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
        behind = walk([*model.observed_RVs, *values, *model.potentials], stop=model.free_RVs)
        self.arrays = [
            v for v in behind if is_array(v) and v not in public and array_shape(v)[:1] == (num_rows,)
        ]
        if source not in self.arrays:
            self.arrays.append(source)
        #: Constants that keep a formula from being a column.
        self.constants: list[Variable] = []
        self._rng = np.random.default_rng(0)
        shapes = model.eval_rv_shapes()
        #: What values are made up for, with their shapes: free variables, and arrays that nobody declared,
        #: such as covariates of persons. No entry of theirs may decide either.
        self._others = {rv: tuple(shapes[rv.name]) for rv in model.free_RVs}
        plain = shape_vectors(walk(behind, into_size=True))
        for v in behind:
            if v not in self.arrays and v not in public and v not in plain and _may_hold_data(v):
                self._others[v] = array_shape(v)
        lengths = set(model.dim_lengths.values())  # those of rows and persons are private
        numbers = _whole_numbers([v for v in behind if v not in lengths])
        #: Rows of the longest person: more than any lag that is written in the model.
        self.longest = max([_LONGEST, *(n + 3 for n in numbers if n <= _MOST)])
        # A formula may compare ids with a number: to both sides of it.
        some = [n for n in numbers if n <= _LARGEST_ID][-_IDS:]
        about = [((n, 4), (n + 1, None), (abs(n - 1), 7)) for n in some]
        persons = [(v, p) for v in _VALUES for p in _PERSONS] + [(_VALUES[1], p) for p in about]
        self._sets = [(*self._rows(p, *v), self._made_up(k, v[0])) for k, (v, p) in enumerate(persons)]

    def _made_up(self, number: int, spread: float) -> list[np.ndarray]:
        """Make values of `_others` for a set: of any sign; whole numbers are zeros, ones, or both."""
        made = []
        values: Any
        rng = np.random.default_rng([1, number])  # how many values there are decides on no rows
        for v, shape in self._others.items():
            dtype = np.dtype(v.type.dtype)  # type: ignore[attr-defined]
            if dtype.kind == "f":
                values = rng.normal(size=shape) if spread else rng.uniform(0.1, 0.9, shape)
            else:
                whole = (number + number // len(_PERSONS)) % 4
                values = rng.integers(0, 2, size=shape) if whole > 1 else np.full(shape, whole)
            made.append(np.asarray(values, dtype))
        return made

    def _rows(
        self, persons: Sequence[tuple[int, int | None]], spread: float, end: int
    ) -> tuple[list[np.ndarray], Units]:
        """Make rows of some persons, one array for each of `arrays`, and say whose they are."""
        ids = np.repeat([p for p, _ in persons], [n or self.longest for _, n in persons])
        made = []
        for array in self.arrays:
            dtype, shape = np.dtype(array.type.dtype), (ids.size, *array_shape(array)[1:])  # type: ignore[attr-defined]
            if array is self._source:
                values = ids
            elif dtype.kind == "f":
                draw = self._rng.uniform
                values = self._rng.normal(0, spread, shape) if spread else draw(0.05, 0.95, shape)
            else:
                values = self._rng.integers(0, 2 if dtype.kind == "b" else end, size=shape)
            made.append(values.astype(dtype))
        return made, Units.by_codes(np.unique(ids, return_inverse=True)[1], "")

    def _compiled(
        self, graphs: Sequence[Variable], number: int, more: Sequence[Variable] = ()
    ) -> Callable[..., list[np.ndarray]]:
        """Compile graphs as a function of `number` rows of `arrays` and `more`, and of `_others`."""
        of_rows = [*self.arrays, *more]
        shapes = {v: (number, *array_shape(v)[1:]) for v in of_rows}
        shapes |= self._others
        inputs = {v: v.type.clone(shape=shape)() for v, shape in shapes.items()}  # type: ignore[attr-defined]
        made, _ = resize_records(graphs, inputs, num_records=self._num_rows, rows=number)
        fn = compiled(list(inputs.values()), made)

        def evaluate(rows: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> list[np.ndarray]:
            with np.errstate(all="ignore"):
                return list(fn(*rows, *others))

        return evaluate

    def is_long(self, var: Variable) -> bool:
        """Whether a variable of the model has an entry for each row."""
        made, _, others = self._sets[0]
        try:
            (value,) = self._compiled([var], len(made[0]))(made, others)
        except Exception:
            return False
        return np.shape(value)[:1] == made[0].shape[:1]

    def formulas(self, view: pm.Model) -> list[Variable]:
        """Return the largest formulas of data with an entry for each row that read other rows, or the ids."""
        terms = [*view.observed_RVs, *view.potentials]
        found = walk(terms, stop=view.free_RVs)
        by_ids = by_ids_of(view, self._source).items()
        look_ups = {out for out, (base, _) in by_ids if self._source not in walk([base])}
        of_data = {v for v in found if is_array(v) or isinstance(v, Constant)}
        top: dict[Variable, None] = {}
        for var in found:
            if var.owner is None or var in view.free_RVs or var in look_ups:
                continue  # of what is looked up by the ids, see `local_latents` and `person_covariates`
            inputs = _inputs(var)
            if not _draws(var) and all(i in of_data for i in inputs):
                of_data.add(var)
            else:
                top.update(dict.fromkeys(i for i in inputs if i in of_data))
        top.update({t: None for t in terms if t in of_data})
        return [v for v in self._largest(list(top)) if self._source in walk([v]) or self._reads_others(v)]

    def _largest(self, top: Sequence[Variable]) -> list[Variable]:
        """Return which of some formulas may be columns, or parts of them that may."""
        found: dict[Variable, None] = {}
        stack = list(top)
        while stack:
            var = stack.pop()
            if var.owner is None or var in found or not _may_mix(var):
                continue
            if self._is_closed(var) and self.of_formula(var) is not None:
                found[var] = None
            else:
                stack += var.owner.inputs
        return list(found)

    def _is_closed(self, var: Variable) -> bool:
        """Whether a formula holds no number but of rows, what is public, and single ones."""
        found = walk([var], into_size=True)
        plain = shape_vectors(found)
        scalars = set(self._model.data_vars)
        for v in found:
            if v.owner is not None:
                op = v.owner.op
                kind = type(op.core_op if isinstance(op, Blockwise) else op).__name__
                if kind not in _OPERATIONS or opaque_part(op) is not None:
                    return False
                if self._has_length_of_rows(v.owner) or _is_cut_far(v.owner):
                    return False
            elif v in self._public or v in plain:
                continue
            elif isinstance(v, SharedVariable):
                rows = v in self.arrays
                if not rows and not (v in scalars and is_array(v) and array_value(v).ndim == 0):
                    return False
            elif isinstance(v, Constant) and not is_opaque_value(v):
                if isinstance(v.type, TensorType) and array_value(v).size > 1:
                    self.constants.append(v)
                    return False
            else:
                return False
        return isinstance(var.type, TensorType)

    def _has_length_of_rows(self, node: Apply) -> bool:
        """Whether an operation makes an array whose length is computed from the entries of rows.

        One person's entry could ask for any amount of memory. (All ids of a person are equal, and small.)
        """
        first = _LENGTHS.get(type(node.op).__name__)
        found = [] if first is None else _walk_entries(node.inputs[first:])
        return any(v in self.arrays and v is not self._source for v in found)

    def of_formula(self, var: Variable) -> Any:
        """Return a formula's entries for all made-up rows; None if it does not have one for each."""
        arrays, rows = self._shared(self._sets[0][0])
        try:
            with np.errstate(all="ignore"):
                (value,) = compiled(*placed_on_rows([var], arrays))(*rows)
        except Exception:
            return None
        return value if np.shape(value)[:1] == rows[0].shape[:1] else None

    def _shared(self, rows: Sequence[np.ndarray]) -> tuple[list[Variable], list[np.ndarray]]:
        """Return those of the arrays that are ``pm.Data``, and their rows."""
        pairs = [(a, r) for a, r in zip(self.arrays, rows, strict=True) if isinstance(a, SharedVariable)]
        return [a for a, _ in pairs], [r for _, r in pairs]

    def _reads_others(self, var: Variable) -> bool:
        """Whether an entry of a formula depends on other rows."""
        fn = compiled(*placed_on_rows([var], self._shared(self._sets[0][0])[0]))
        for made, _, _ in self._sets:
            _, rows = self._shared(made)
            with np.errstate(all="ignore"):
                try:
                    (whole,) = fn(*rows)
                except Exception:
                    continue  # these numbers do not suit the model, e.g. as an index
                try:
                    one = np.concatenate([fn(*(r[[i]] for r in rows))[0] for i in range(len(whole))])
                except Exception:
                    return True
            if not _same(whole, one):
                return True
        return False

    def other_term(
        self, view: pm.Model, columns: Sequence[Variable], values: Callable[..., list[np.ndarray]]
    ) -> str | None:
        """Name a term of which the view says something else than the model; None if there is none.

        `values` makes the view's `columns` of rows and whose they are.
        """
        pairs = zip(
            [*self._model.observed_RVs, *self._model.potentials],
            [*view.observed_RVs, *view.potentials],
            strict=True,
        )
        made = [values(dict(zip(self.arrays, rows, strict=True)), units) for rows, units, _ in self._sets]
        lengths = {len(rows[0]) for rows, _, _ in self._sets}
        for term, remade in pairs:
            compared = 0
            try:
                own = {n: self._compiled(_parameters(term), n) for n in lengths}
                new = {n: self._compiled(_parameters(remade), n, columns) for n in lengths}
            except Exception:
                return str(term.name)
            for (rows, _, others), of_columns in zip(self._sets, made, strict=True):
                try:
                    expected = own[len(rows[0])](rows, others)
                except Exception:
                    continue  # these numbers do not suit the model
                try:
                    found = new[len(rows[0])]([*rows, *of_columns], others)
                except Exception:
                    return str(term.name)
                if len(expected) != len(found) or not all(map(_same, expected, found)):
                    return str(term.name)
                compared += all(np.isfinite(e).any() for e in expected)
            if not compared:
                return str(term.name)
        return None


def _may_hold_data(var: Variable) -> bool:
    """Whether a variable is a ``pm.Data`` with entries, or a constant with several."""
    if not is_array(var) or not array_shape(var):
        return False
    return isinstance(var, SharedVariable) or array_value(var).size > 1


def _whole_numbers(found: Sequence[Variable]) -> list[int]:
    """Return the magnitudes of single whole numbers in a graph, in order."""
    numbers = [float(array_value(v).item()) for v in found if is_array(v) and array_value(v).ndim == 0]
    return sorted({int(abs(n)) for n in numbers if n.is_integer()})


def _is_cut_far(node: Apply) -> bool:
    """Whether a part is taken by a place that no made-up person has."""
    if type(node.op).__name__ not in ("Subtensor", "IncSubtensor"):
        return False
    first = 2 if type(node.op).__name__ == "IncSubtensor" else 1
    places = indices_from_subtensor(node.inputs[first:], node.op.idx_list)
    ends = [e for p in places for e in ((p.start, p.stop, p.step) if isinstance(p, slice) else (p,))]
    numbers = [number_of(e) if isinstance(e, Variable) else e for e in ends]
    return any(n is not None and abs(int(n)) > _MOST for n in numbers)


def _walk_entries(outputs: Sequence[Variable]) -> list[Variable]:
    """List what variables depend on, but for shapes."""
    of_shape = [v for v in walk(outputs) if isinstance(getattr(v.owner, "op", None), Shape | Shape_i)]
    return walk(outputs, stop=of_shape)


def _inputs(var: Variable) -> list[Variable]:
    assert var.owner is not None
    op = var.owner.op
    return list(op.dist_params(var.owner) if isinstance(op, RandomVariable) else var.owner.inputs)


def _draws(var: Variable) -> bool:
    return isinstance(getattr(var.owner, "op", None), RandomVariable | MeasurableOp)


def _may_mix(var: Variable) -> bool:
    """Whether a formula has an operation that is not entry by entry."""
    nodes = (v.owner for v in walk([var]) if v.owner is not None)
    return any(not isinstance(node.op, Elemwise | DimShuffle) for node in nodes)


def _parameters(term: Variable) -> list[Variable]:
    """Return what the distribution of a term is made of, through distributions of distributions."""
    found: list[Variable] = []
    stack = [term]
    while stack:
        var = stack.pop()
        if _draws(var):
            stack += _inputs(var)
        elif isinstance(var.type, TensorType):
            found.append(var)
    return found


def _same(left: Any, right: Any) -> bool:
    left, right = np.asarray(left, dtype=float), np.asarray(right, dtype=float)
    tolerance = 1e-6 if pytensor.config.floatX == "float64" else 1e-3
    if left.ndim != right.ndim:
        return False
    alike = all(m == n or 1 in (m, n) for m, n in zip(left.shape, right.shape, strict=True))
    finite = [np.abs(a[np.isfinite(a)]).max(initial=0.0) for a in (left, right)]
    small = tolerance * min(1.0, max(*finite, _TINY))  # what differs by little may itself be small
    return alike and bool(np.allclose(left, right, tolerance, small, equal_nan=True))
