r"""How a local latent value is integrated out: at which places, with which weights.

The share of a person with data :math:`x_p` and local values u is the gradient of

.. math:: \log \int e^{\ell_p(u)}\,du \approx \log \sum_k w_k\, e^{\ell_p(u_k)}, \qquad
          \ell_p(u) = \log p(x_p \mid u, z) + \log p(u \mid z) .

*Quadrature* (Gauss and Hermite, adaptive: Naylor and Smith 1982; Liu and Pierce 1994): :math:`u_k = m + S
x_k` for the nodes :math:`x_k` of a product rule, about the person's own mode m, with :math:`S S^\top` the
inverse of minus the second derivatives there. The gradient holds the places still: it is the mean of the
gradients at the places with the weights of the posterior, which is exact but for the error of the rule.
*Enumeration*: all values of a discrete variable.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dpvi.arguments import check_integer
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError

__all__ = ["Places", "Quadrature", "enumeration", "quadrature", "rules_of"]

#: Nodes in each dimension, by the number of dimensions.
_NODES = {1: 15, 2: 7, 3: 4, 4: 3, 5: 3, 6: 3, 7: 3}
_MOST_PLACES = 2500
_MOST_NODES = 65


@dataclass(frozen=True)
class Quadrature:
    """Integrate local values by adaptive Gauss-Hermite quadrature.

    Parameters
    ----------
    nodes : int, optional
        Nodes in each dimension. By default 15 for one value of a person, 7 for two, 4 for three, 3 for more,
        up to seven.

    Raises
    ------
    ArgumentError
        If `nodes` is no whole number from 1 to 65.

    Notes
    -----
    With one node it is Laplace's approximation without its determinant, which is too rough for spreads of
    random effects. The time of a step grows with the number of places, ``nodes ** dimensions``.

    Examples
    --------
    >>> DPADVI(epsilon=1.0, delta=1e-6, unit="person", guide={"u": Quadrature(31)})
    """

    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.nodes is not None:
            object.__setattr__(self, "nodes", check_integer("nodes", self.nodes, high=_MOST_NODES))


@dataclass(frozen=True, eq=False)
class Places:
    """Where a person's integrand is evaluated.

    `at` are nodes, shape (K, d): values, or standard normal deviates from the mode if `adaptive`.
    `log_weights`, (K,), are added to the integrand's logarithm there.
    """

    at: np.ndarray
    log_weights: np.ndarray
    adaptive: bool

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two of them the same."""
        return self.at.shape, self.at.tobytes(), self.log_weights.tobytes(), self.adaptive

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def quadrature(dimensions: int, nodes: int | None) -> Places:
    """Return the product rule of some nodes in each dimension."""
    nodes = _NODES.get(dimensions, 0) if nodes is None else nodes
    if not nodes or nodes**dimensions > _MOST_PLACES:
        raise UnsupportedModelError(
            f"A person has {dimensions} local values, at too many places to integrate over "
            f"them{f' with {nodes} nodes in each dimension' if nodes else ''}: at most {_MOST_PLACES} "
            "places are supported. Give a person fewer values, or name fewer nodes: "
            "guide={'u': Quadrature(2)}."
        )
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    at = np.array(list(itertools.product(x, repeat=dimensions)))
    log_w = np.array([sum(terms) for terms in itertools.product(np.log(w), repeat=dimensions)])
    return Places(at, log_w + 0.5 * np.sum(at**2, axis=1), adaptive=True)


def enumeration(values: Sequence[np.ndarray]) -> Places:
    """Return all combinations of the values of some discrete variables."""
    at = np.array(list(itertools.product(*values)), dtype=np.float64)
    if len(at) > _MOST_PLACES:
        raise UnsupportedModelError(
            "The discrete local values of a person have too many combinations to add up (more than "
            f"{_MOST_PLACES})."
        )
    return Places(at, np.zeros(len(at)), adaptive=False)


def rules_of(guide: Any, local: Sequence[str], everything: Sequence[str]) -> dict[str, Quadrature]:
    """Check ``guide=``; `local` are the names of the local variables, `everything` those of all free ones."""
    if guide is None:
        return {}
    if not isinstance(guide, Mapping):
        raise ArgumentError(
            "guide must be a dict of variable name to family or rule, such as {'W': Point()} or "
            f"{{'u': Quadrature(7)}}; found a {type(guide).__name__}."
        )
    for name, rule in guide.items():
        if not isinstance(name, str) or name not in everything:
            found = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"
            raise ArgumentError(
                f"guide names {found}, which is no free variable; they are {sorted(everything)}."
            )
        if not isinstance(rule, Quadrature):
            raise ArgumentError(
                f"guide[{name!r}] must be a family, such as Point() or FullRank(), or, for a local variable, "
                f"a rule such as Quadrature(7); found a {type(rule).__name__}."
            )
        if name not in local:
            raise ArgumentError(
                f"guide[{name!r}] is a rule to integrate over a local variable, one with a value for each "
                f"person, and '{name}' is none: local are {sorted(local) or 'none'}. Leave it out."
            )
    return dict(guide)
