r"""The neighboring relations by name, and the one place that decides the sensitivity's factor.

A step releases a sum of contributions, one for each record, with noise of standard deviation :math:`zC`. Here
:math:`C` is the largest norm of a contribution (`l2_clip_norm`, or `Mechanism.record_norm` with an adaptive
one), and :math:`z` the `noise_multiplier`. Between neighbouring data sets the sum moves by at most the
sensitivity (Dwork and Roth 2014, Definition 3.8)

.. math:: \Delta = k\,C, \qquad
    k = \begin{cases}
          1 & \text{add or remove one record: } \lVert g\rVert \le C, \\
          2 & \text{replace one record: } \lVert g - g'\rVert \le \lVert g\rVert + \lVert g'\rVert \le 2C.
        \end{cases}

The noise does not depend on the relation, but its cost does: the accountants divide :math:`z` by :math:`k`.
No other module may write the factor; each asks :func:`sensitivity_factor`.
"""

from __future__ import annotations

from dp_accounting import NeighboringRelation

from pymc_dpvi.errors import ArgumentError

__all__ = ["RELATIONS", "check_relation", "sensitivity_factor"]

RELATIONS = {
    "add_or_remove_one": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": NeighboringRelation.REPLACE_ONE,
}


def check_relation(value: object) -> NeighboringRelation:
    """Return the relation that `value` names or is; an ArgumentError if it is none."""
    if isinstance(value, str) and value in RELATIONS:
        return RELATIONS[value]
    if isinstance(value, NeighboringRelation) and value in RELATIONS.values():
        return value
    raise ArgumentError(
        f"neighboring_relation must be 'add_or_remove_one' or 'replace_one'; found {value!r}."
    )


def sensitivity_factor(relation: object) -> float:
    """Return k: how far neighbours move a sum, in units of the largest norm of what one record adds."""
    return 2.0 if check_relation(relation) is NeighboringRelation.REPLACE_ONE else 1.0
