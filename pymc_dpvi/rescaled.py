"""Rows of probabilities that PyMC may have divided by their sums before anybody saw the model.

`pm.Categorical.dist` and `pm.Multinomial.dist` look at the numbers of ``p=`` where it is an array. If one row
does not sum to one (`numpy.isclose`), they divide **all** rows by their sums: one record changes what others
add, each by up to a part in 10⁵. What they did leaves no trace, so that an array with several rows is refused
whatever it holds. They do not look into a `pm.Data`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import pymc as pm
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.random.basic import CategoricalRV, MultinomialRV

from pymc_dpvi.errors import UnsupportedModelError
from pymc_dpvi.graphs import walk

__all__ = ["refuse_rescaled"]

#: What PyMC asks of such probabilities, in the message of its check.
_SUM = re.compile(r"sum\(p\) ?= ?1")


def refuse_rescaled(model: pm.Model) -> None:
    """Refuse a categorical distribution of a likelihood that is given constant rows of probabilities.

    Raises
    ------
    UnsupportedModelError
    """
    free = set(model.free_RVs)
    for outcome in [*model.observed_RVs, *model.potentials]:
        for var in walk([outcome], stop=free):
            if any(_has_rows(of) and all(isinstance(v, Constant) for v in of) for of in _given(var, free)):
                raise UnsupportedModelError(
                    f"'{outcome.name}' has a categorical or multinomial distribution whose p= is an array "
                    "of several rows. PyMC divides all rows by their sums if one of them does not sum to "
                    "one, so one record would change what others add. Put the array into the model as "
                    "pm.Data('p', p), into which PyMC does not look."
                )


def _given(var: Variable, free: Collection[Variable]) -> Iterator[list[Variable]]:
    """Go through the categorical distributions in an operation: what their probabilities are made of."""
    if var.owner is None or var in free:
        return
    if isinstance(var.owner.op, CategoricalRV | MultinomialRV):
        yield _roots(var.owner.op.dist_params(var.owner)[-1], free)
    if isinstance(var.owner.op, CheckParameterValue) and _SUM.search(var.owner.op.msg):
        for condition in var.owner.inputs[1:]:  # of a density that a Potential asks for
            yield _roots(condition, free)
    inner = getattr(var.owner.op, "fgraph", None)  # of a truncated one, or a function of the user's
    if inner is None:
        return
    outer = dict(zip(inner.inputs, var.owner.inputs, strict=False))
    for node in inner.apply_nodes:
        if isinstance(node.op, CategoricalRV | MultinomialRV):
            given = _roots(node.op.dist_params(node)[-1], free)
            yield [v for root in given for v in _roots(outer.get(root, root), free)]


def _roots(var: Variable, free: Collection[Variable]) -> list[Variable]:
    return [v for v in walk([var], stop=free) if v.owner is None or v in free]


def _has_rows(roots: Sequence[Variable]) -> bool:
    shapes = (getattr(v.type, "shape", ()) for v in roots)
    return any(length != 1 for shape in shapes for length in shape[:-1])
