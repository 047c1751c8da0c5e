r"""Encoders in a model: a value of each record becomes a function of the record, of weights and of noise.

In: a model with a free variable u that has an entry for each record, and ``guide={"u": Amortized(m, s)}``.
Out: a view of the model without u. In place of u stands :math:`m(x) + s(x)\,e`, and a Potential with an entry
for each record has what the bound needs beside the likelihood (`guide.amortized`). All checks and the whole
engine see an ordinary model.

*The noise.* Each record has numbers of its own, uniform, :math:`r_i`, drawn when the method is made. Each
step has public ones, :math:`t`, the same for all records. Of their sum modulo one, which is uniform whatever
:math:`r_i` is, Box and Muller's formula makes :math:`e_i`, standard normal. So over the steps a record's
noise is that of fresh draws, and in one step it is independent from record to record.

*Privacy.* :math:`r_i` is part of record i: an array of the model like its data. It is a function of i and
of a secret key of the operating system's randomness (`randomness.keyed_words`). So it is drawn independently
of the data, and not from ``random_seed``, and it is released to nobody. If the records are in sources, it is
made when record i is read. Two data sets that differ in one record are coupled so that all others keep
theirs, and the mechanism is as private as for the data with :math:`r` in them: its output is a mixture over
r, the same on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.model_views import copied, swap_variables
from pymc_dpvi.graph.public_data import public_variables
from pymc_dpvi.graph.selections import refuse_masks
from pymc_dpvi.graph.traversal import depends_on
from pymc_dpvi.guide.amortized import Amortized
from pymc_dpvi.randomness.keyed_words import KeyedWords
from pymc_dpvi.randomness.keystream import words_to_uniforms

__all__ = ["BOUND", "Encoded", "Numbers", "encode"]

#: What the Potential of a variable, and the public numbers of a step, are called.
BOUND, _TURN = "bound of {}", "noise of {}"


@dataclass(frozen=True, eq=False)
class Numbers:
    """The uniform numbers that records have of their own for one encoder, by the records' places."""

    words: KeyedWords
    size: int

    def of(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers of these records, (records, size)."""
        return words_to_uniforms(self.words.words(places, self.size).ravel()).reshape(-1, self.size)


@dataclass(frozen=True)
class Encoded:
    """The variables that encoders stand for, and what their models have in their place."""

    user_model: pm.Model
    variables: tuple[TensorVariable, ...]
    encoders: tuple[Amortized, ...]
    shapes: tuple[tuple[int, ...], ...]  # of a record's entries
    numbers: dict[Variable, Numbers]  # by the array that holds those of all records of the model
    turns: tuple[str, ...]  # names of variables that no record and no fit moves
    found: tuple[int, ...]  # how many variables of each kind the user's model had

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variables, as the user wrote them."""
        return tuple(str(v.name) for v in self.variables)

    @property
    def held(self) -> tuple[Variable, ...]:
        """What holds a value of each record, in the user's model."""
        model = self.user_model
        return *self.variables, *(model.rvs_to_values[v] for v in self.variables), *model.observed_RVs

    def is_unchanged(self) -> bool:
        """Whether the user's model has the variables that it had."""
        return self.found == _counts(self.user_model)


def _counts(model: pm.Model) -> tuple[int, ...]:
    kinds = (model.free_RVs, model.observed_RVs, model.potentials)
    return tuple(len(kind) for kind in kinds)


@quiet_pytensor()
def encode(
    model: pm.Model,
    encoders: Mapping[Any, Amortized],
    insecure_seed: int | None,
    public_data: Iterable[str | Variable] = (),
) -> tuple[pm.Model, Encoded | None]:
    """Return a view of the model in which expressions stand in place of variables, and what was done.

    Nothing is computed but the shapes of the model's variables, after `refuse_masks` has seen that they turn
    on no value. The encoders' shapes are those that their types know.
    """
    if not encoders:
        return model, None
    refuse_masks(model, public_variables(model, public_data))
    view = copied(model)
    free = {str(rv.name): rv for rv in model.free_RVs}
    swap: dict[Any, Any] = {}
    bounds: dict[str, TensorVariable] = {}
    turns: list[str] = []
    shapes: list[tuple[int, ...]] = []
    numbers: dict[Variable, Numbers] = {}
    for name, encoder in encoders.items():
        if name not in free:
            found = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"
            raise ArgumentError(f"guide names {found}, which is no free variable; they are {sorted(free)}.")
        rv = free[name]
        shape = _check(model, rv, [free[n] for n in encoders if n in free], encoder)
        for taken in (_TURN.format(name), BOUND.format(name)):
            if taken in model.named_vars:
                raise ArgumentError(
                    f"The model has a variable named '{taken}', and the encoder of '{name}' needs one of "
                    "that name. Rename it."
                )
        shapes.append(shape[1:])
        size = int(np.prod(shape[1:], dtype=int))
        made = Numbers(KeyedWords(insecure_seed, f"encoder of {name}"), 2 * size)
        uniform = made.of(np.arange(shape[0]))
        own = pytensor.shared(uniform.astype(pytensor.config.floatX), _TURN.format(name))
        numbers[own] = made
        turn = _registered(view, _TURN.format(name), 2 * size)
        turns.append(str(turn.name))
        noise = _noise(own, turn, size)
        noise = noise if len(shape) == 2 else noise.reshape((-1, *shape[1:]))
        value = encoder.mean + encoder.sigma * noise
        swap[rv] = value.astype(rv.type.dtype)
        op = rv.owner.op
        one = op(*op.dist_params(rv.owner), size=None, rng=op.rng_param(rv.owner))  # as many as the value has
        terms = pm.logp(one, value) + pt.log(encoder.sigma)
        bounds[name] = terms.sum(axis=tuple(range(1, len(shape))))
    _replace(view, swap, bounds)
    variables = tuple(free[name] for name in encoders)
    given = tuple(encoders.values())
    return view, Encoded(model, variables, given, tuple(shapes), numbers, tuple(turns), _counts(model))


def _check(
    model: pm.Model, rv: TensorVariable, local: Sequence[TensorVariable], encoder: Amortized
) -> tuple[int, ...]:
    """Return the variable's shape; raise unless the encoder is one for it."""
    name = str(rv.name)
    op = rv.owner.op
    if not isinstance(op, RandomVariable) or op.ndim_supp:
        raise UnsupportedModelError(
            f"guide[{name!r}] is Amortized, independent normals, and '{name}' is no such variable. Make it "
            f"pm.Normal('{name}', ...), and write the rest in the model."
        )
    shape = tuple(int(n) for n in model.eval_rv_shapes()[name])
    if model.rvs_to_transforms[rv] is not None or rv.type.dtype not in ("float32", "float64"):
        raise UnsupportedModelError(
            f"guide[{name!r}] is Amortized, a normal posterior, and '{name}' does not live on the whole real "
            f"line. Make it pm.Normal, and transform it in the model: pm.math.exp({name})."
        )
    if not shape or not all(shape[1:]):
        raise UnsupportedModelError(
            f"guide[{name!r}] is Amortized, and '{name}' is one number, or has no entries, where each record "
            "should have some. Leave it out."
        )
    both = {"mean": encoder.mean, "sigma": encoder.sigma}
    for what, graph in both.items():
        if depends_on([graph], local):
            raise UnsupportedModelError(
                f"{what} of guide[{name!r}] depends on a variable with an encoder. An encoder reads data and "
                "weights."
            )
        found = tuple(graph.type.shape)
        if len(found) != len(shape) or any(n not in (None, m) for n, m in zip(found, shape, strict=True)):
            raise ArgumentError(
                f"{what} of guide[{name!r}] must have the shape of '{name}', an entry for each record first; "
                f"found {len(found)} axes for {len(shape)}, or another length."
            )
    if depends_on(list(rv.owner.inputs), local):
        raise UnsupportedModelError(
            f"The prior of '{name}' depends on another variable with an encoder. Give both one encoder: one "
            "variable with more columns."
        )
    return shape


def _registered(view: pm.Model, name: str, size: int) -> TensorVariable:
    """Give the view a standard normal variable; return it."""
    with view:
        return pm.Normal(name, 0.0, 1.0, shape=(1, size))


def _noise(own: TensorVariable, turn: TensorVariable, size: int) -> TensorVariable:
    """Return standard normal numbers, (rows, size), from uniform ones of rows and normal ones of a step."""
    step = 0.5 * pt.erfc(-turn / np.sqrt(2.0))
    both = own + step
    both = pt.switch(pt.ge(both, 1.0), both - 1.0, both)
    radius = pt.sqrt(-2.0 * pt.log1p(-both[:, :size]))
    return radius * pt.cos(2.0 * np.pi * both[:, size:])


def _replace(view: pm.Model, swap: Mapping[Any, Any], bounds: Mapping[str, TensorVariable]) -> None:
    """Put the expressions in place of the variables, wherever the view's terms read them."""
    own = [*view.observed_RVs, *view.potentials, *view.deterministics]
    new = graph_replace([*own, *bounds.values()], dict(swap), strict=False)
    swapped = dict(zip(own, new, strict=False))
    for old, made in swapped.items():
        made.name = old.name
    swap_variables(view, swapped, gone=swap)
    for name, bound in zip(bounds, new[len(own) :], strict=True):
        bound.name = BOUND.format(name)
        view.add_named_variable(bound)
        view.potentials.append(bound)
