"""Arrays of records whose numbers PyMC has looked at before anybody else saw the model.

Where an array is written into a model as a constant, some of PyMC's functions go by its numbers when they are
called, so that one record decides on what all others are compared with:

* `pm.Categorical.dist` and `pm.Multinomial.dist`: if one row of ``p=`` does not sum to one (`numpy.isclose`),
  they divide **all** rows by their sums, which moves each by up to a part in 10⁵;
* `pm.logp` and `pm.logcdf`, where a model calls them: a truncation or a censoring whose bounds are infinite
  throughout gets another formula, in which the bounds do not occur. Its gradient is finite where that of the
  general formula is NaN, and a record whose gradient is NaN adds nothing.

What they did leaves no trace, so such arrays are refused whatever they hold. They do not look into a
`pm.Data`. For an outcome with ``observed=`` the log-density is derived anew, from placeholders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import chain

import pymc as pm
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.random.basic import CategoricalRV, MultinomialRV

from pymc_dpvi.errors import UnsupportedModelError
from pymc_dpvi.graph.traversal import walk

__all__ = ["refuse_inspected"]


def refuse_inspected(model: pm.Model, arrays: Collection[Variable]) -> None:
    """Refuse constant arrays of records that PyMC's functions may have gone by.

    Parameters
    ----------
    model : pymc.Model
    arrays : collection of Variable
        The record arrays.

    Raises
    ------
    UnsupportedModelError
    """
    free, held = set(model.free_RVs), set(arrays)

    def roots(var: Variable) -> list[Variable]:
        return [v for v in walk([var], stop=free) if v.owner is None or v in free]

    for outcome in [*model.observed_RVs, *model.potentials]:
        found = walk([outcome], stop=free)
        nodes = {v.owner for v in found if v.owner is not None and v not in free}
        for of in chain.from_iterable(_probabilities(node, roots) for node in nodes):
            if all(isinstance(v, Constant) for v in of) and any(map(_has_rows, of)):
                raise UnsupportedModelError(
                    f"'{outcome.name}' has a categorical or multinomial distribution whose p= is an array "
                    "of several rows. PyMC divides all rows by their sums if one of them does not sum to "
                    "one, so one record would change what others add. Put the array into the model as "
                    "pm.Data('p', p), into which PyMC does not look."
                )
        derived = any(isinstance(node.op, CheckParameterValue) for node in nodes)
        if derived and any(isinstance(v, Constant) and v in held for v in found):
            raise UnsupportedModelError(
                f"'{outcome.name}' calls pm.logp or pm.logcdf with arrays of records. For some distributions "
                "(truncated ones) PyMC goes by the numbers in them, so one record would change what others "
                "add. Put each array of records into the model as pm.Data('x', x), into which PyMC does "
                "not look, or write the outcome with observed=."
            )


def _probabilities(node: Apply, roots: Callable[[Variable], list[Variable]]) -> Iterator[list[Variable]]:
    """Go through the categorical distributions in a node: what their probabilities are made of."""
    if isinstance(node.op, CategoricalRV | MultinomialRV):
        yield roots(node.op.dist_params(node)[-1])
    inner = getattr(node.op, "fgraph", None)  # of a truncated one, or a function of the user's
    if inner is None:
        return
    outer = dict(zip(inner.inputs, node.inputs, strict=False))

    def within(var: Variable) -> list[Variable]:
        found = [v for v in walk([var]) if v.owner is None]
        return [root for v in found for root in (roots(outer[v]) if v in outer else [v])]

    for each in inner.apply_nodes:
        yield from _probabilities(each, within)


def _has_rows(array: Variable) -> bool:
    return any(length != 1 for length in getattr(array.type, "shape", ())[:-1])
