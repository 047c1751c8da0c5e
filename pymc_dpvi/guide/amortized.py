r"""A local value per record whose posterior an encoder computes: :math:`q(u_i) = N(m(x_i), s(x_i)^2)`.

Kingma and Welling, "Auto-encoding variational Bayes", 2014. What is optimised is each record's own bound,

.. math:: \log p(x_i \mid u_i, z) + \log p(u_i \mid z) + \sum_j \log s_{ij}, \qquad
          u_i = m(x_i; z) + s(x_i; z)\, e_i ,

at one draw of :math:`e_i` a step. It is a function of one record and of z, like any other term. The weights
of the encoder are variables of the model like any others. `graph.amortized` puts it into the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytensor.graph.basic import Variable

from pymc_dpvi.errors import ArgumentError

__all__ = ["Amortized"]


@dataclass(frozen=True, eq=False)
class Amortized:
    """The posterior of a variable with a value for each record, by an encoder of the record.

    Parameters
    ----------
    mean, sigma : TensorVariable
        Of the shape of the variable: expressions of the model's data and of other free variables, the
        encoder's weights. `sigma` must be positive, such as ``pm.math.exp(...)``.

    Raises
    ------
    ArgumentError
        If either is no expression.

    Notes
    -----
    The variable is local: it is never released, and `sample` leaves it out. The encoder's weights are
    released, so the codes of a new record can be computed from them. The variable must live on the whole
    real line, as ``pm.Normal`` does.

    Privacy: a record's bound depends on that record alone, so nothing changes in the proof.

    References
    ----------
    .. [1] Kingma, Welling, "Auto-encoding variational Bayes", 2014, arXiv:1312.6114.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     x = pm.Data("x", images)
    ...     V, S, W = (pm.Flat(name, shape=shape) for name, shape in shapes.items())
    ...     z = pm.Normal("z", 0, 1, shape=(len(images), 2))
    ...     pm.Bernoulli("pixel", logit_p=z @ W, observed=x)
    ...     encoder = Amortized(x @ V, pm.math.exp(x @ S))
    ...     guide = {"z": encoder, ("V", "S", "W"): Point()}
    ...     method = DPADVI(epsilon=1.0, delta=1e-5, guide=guide, start=start)
    """

    mean: Any
    sigma: Any

    def __post_init__(self) -> None:
        for name in ("mean", "sigma"):
            if not isinstance(getattr(self, name), Variable):
                raise ArgumentError(
                    f"{name} of Amortized must be an expression of the model's data and variables, such as "
                    f"x @ V; found a {type(getattr(self, name)).__name__}."
                )

    def __repr__(self) -> str:
        """Return the name alone."""
        return "Amortized(...)"
