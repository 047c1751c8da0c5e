r"""How a local latent value is integrated out: at which places, with which weights.

The share of a person with data :math:`x_p` and local values u is the gradient of

.. math:: \log \int e^{\ell_p(u)}\,du \approx \log \sum_k w_k\, e^{\ell_p(u_k)}, \qquad
          \ell_p(u) = \log p(x_p \mid u, z) + \log p(u \mid z) .

*Quadrature* (Gauss and Hermite, adaptive: Naylor and Smith 1982; Liu and Pierce 1994): :math:`u_k = m + S
x_k` for the nodes :math:`x_k` of a product rule, about the person's own mode m, with :math:`S S^\top` the
inverse of minus the second derivatives there, along its principal axes (Jäckel 2005). The gradient holds
the places still: it is the mean of the gradients at the places with the weights of the posterior, which is
exact but for the error of the rule.
In four to seven dimensions the rule is Mysovskikh's of degree five (Stroud 1971, :math:`U_n` 5-3, with a
radial rule), which has :math:`d^2 + 3d + 3` places, fewer in seven, and no negative weight.

*Variational*: the integral is replaced by its lower bound,

.. math:: \max_{m, S} \; \mathbb{E}_{u \sim N(m, SS^\top)}[\ell_p(u)] + \log |S| + \text{const} ,

whose gradient by z is :math:`\mathbb{E}[\nabla_z \ell_p(u)]` at the best m and S, as these are stationary
(the envelope theorem). They are found by Newton's method on the expectation, from the mode and the second
derivatives there: :math:`(SS^\top)^{-1} \leftarrow \frac12 (SS^\top)^{-1} - \frac12
\mathbb{E}[\nabla^2 \ell_p]` and :math:`m \leftarrow m + SS^\top \mathbb{E}[\nabla \ell_p]` (Opper and
Archambeau 2009; Khan and Lin 2017; whole steps of the precision go round in circles where a person's density
is wide and skewed), with
:math:`\mathbb{E}[\nabla^2 \ell_p]\,S = \mathbb{E}[\nabla \ell_p(m + Sx)\, x^\top]` (Stein). Expectations are
sums over the places of a rule: of degree five up to seven dimensions, and beyond, of degree three with the 2d
places :math:`\pm\sqrt d\, e_j` (Arasaratnam and Haykin 2009).

*Enumeration*: all values of a discrete variable. Where a person has discrete values c besides continuous
ones, quadrature is done for each c, about the mode :math:`m_c` with :math:`S_c`:

.. math:: \log \sum_c \int e^{\ell_p(u, c)}\,du \approx
          \log \sum_c |S_c| \sum_k w_k\, e^{\ell_p(m_c + S_c x_k,\, c)} .
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pymc_dpvi.arguments import check_integer
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError

__all__ = ["LocalRule", "Places", "Quadrature", "Variational", "places_of", "rules_of"]

#: Nodes in each dimension, by the number of dimensions.
_NODES = {1: 15, 2: 9, 3: 5}
#: More of them, to be named where these are rough.
_MORE_NODES = {1: 31, 2: 15, 3: 9, 4: 5, 5: 5}
#: Of more values: what the rule of degree five is compared with.
_FINE_NODES = {4: 7, 5: 5, 6: 4, 7: 4}
#: Most dimensions for which the rule of degree five has no negative weight.
_DEGREE_FIVE = 7
_MOST_PLACES = 5000
_MOST_FINE_PLACES = 20_000
_MOST_NODES = 65
_STEPS, _MOST_STEPS = 10, 50
#: Most values of a person: the step holds a matrix of them for each person of the batch.
_MOST_VALUES = 64


@dataclass(frozen=True)
class Quadrature:
    """Integrate local values by adaptive Gauss-Hermite quadrature.

    Parameters
    ----------
    nodes : int, optional
        Nodes in each dimension. By default 15 for one value of a person, 9 for two, and 5 for three; for
        four to seven values, 31 to 57 places in all, which are exact for as many polynomials as 3 nodes.

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


@dataclass(frozen=True)
class Variational:
    """Fit a normal distribution to each person's local values, in each step, within the person's term.

    It is the default for more than seven values of a person; 64 are the most. Time and memory grow with the
    square of their number.

    Parameters
    ----------
    steps : int, optional
        Steps of the fit after the mode has been found; by default 10. They are the same for everybody.

    Raises
    ------
    ArgumentError
        If `steps` is no whole number from 1 to 50.

    Notes
    -----
    A person counts with a lower bound of the log-density, which is exact if the density of the person's
    values is normal. Otherwise spreads between persons come out too small, the more so the fewer rows people
    have; `Quadrature` has no such bias. Where a person's density is wide and skewed, as that of a rate of
    which a single zero is known and a spread of 5 or more, ten steps are too few for the best distribution.

    Examples
    --------
    >>> DPADVI(epsilon=1.0, delta=1e-6, unit="person", guide={"taste": Variational()})
    """

    steps: int | None = None

    def __post_init__(self) -> None:
        if self.steps is not None:
            object.__setattr__(self, "steps", check_integer("steps", self.steps, high=_MOST_STEPS))


#: How local values are integrated out.
LocalRule = Quadrature | Variational


@dataclass(frozen=True, eq=False)
class Places:
    """Where a person's integrand is evaluated: at some nodes for each combination of discrete values.

    `at` are the nodes of the d continuous values, shape (K, d), in standard normal deviates from the mode.
    `log_weights`, (K,), are added to the integrand's logarithm there. `values` are the combinations, (M, e)
    for e discrete values; without any, there is one combination of none. `steps` are those of `Variational`,
    0 if places are weighed by the integrand.
    """

    at: np.ndarray
    log_weights: np.ndarray
    values: np.ndarray = field(default_factory=lambda: np.zeros((1, 0)))
    steps: int = 0

    @property
    def count(self) -> int:
        """M K, the number of places."""
        return len(self.values) * len(self.at)

    @property
    def continuous(self) -> int:
        """d, the number of a person's continuous values. If there are none, no mode is searched for."""
        return int(self.at.shape[1])

    @property
    def more_nodes(self) -> int | None:
        """A number of nodes in each dimension that is finer than these, if there may be so many."""
        nodes = _MORE_NODES.get(self.continuous, _MOST_PLACES)
        more = nodes**self.continuous
        return nodes if more > len(self.at) and len(self.values) * more <= _MOST_PLACES else None

    @property
    def fine(self) -> Places | None:
        """A product rule to compare with, for four values and more; None if it would have too many places."""
        nodes = _FINE_NODES.get(self.continuous)
        if nodes is None or len(self.values) * nodes**self.continuous > _MOST_FINE_PLACES:
            return None
        return replace(_product(self.continuous, nodes), values=self.values)

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two of them the same."""
        arrays = self.at, self.log_weights, self.values
        return *((a.shape, a.tobytes()) for a in arrays), self.steps

    @property
    def weights(self) -> np.ndarray:
        """Weights of the nodes under a standard normal distribution, (K,)."""
        weights = np.exp(self.log_weights - 0.5 * np.sum(self.at**2, axis=1))
        return np.asarray(weights / weights.sum())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def places_of(dimensions: int, rule: LocalRule | None = None, discrete: Sequence[range] = ()) -> Places:
    """Return the places of a rule, by default of one that suits the number of dimensions.

    `discrete` has the values that each of a person's discrete variables may have.
    """
    values = _combinations(discrete)
    if dimensions == 0:
        return Places(np.zeros((1, 0)), np.zeros(1), values)
    if rule is None:
        rule = Quadrature() if dimensions <= _DEGREE_FIVE else Variational()
    if isinstance(rule, Variational) and discrete:
        raise UnsupportedModelError(
            f"A person has {dimensions} continuous local values beside discrete ones. With discrete ones, "
            f"continuous ones are integrated by Quadrature, and at most {_DEGREE_FIVE} of them. Leave "
            "Variational out of guide=, or give a person fewer values."
        )
    if isinstance(rule, Variational):
        if dimensions > _MOST_VALUES:
            raise UnsupportedModelError(
                f"A person has {dimensions} local values; at most {_MOST_VALUES} are supported. Give a "
                "person fewer values."
            )
        steps = _STEPS if rule.steps is None else rule.steps
        if dimensions > _DEGREE_FIVE:
            places = _degree_three(dimensions)
        else:
            places = _product(1, 7) if dimensions == 1 else _degree_five(dimensions)
        return replace(places, steps=steps)
    nodes = _NODES.get(dimensions) if rule.nodes is None else rule.nodes
    if nodes is None and dimensions <= _DEGREE_FIVE:
        places = _degree_five(dimensions)
    elif nodes is not None and nodes**dimensions <= _MOST_PLACES:
        places = _product(dimensions, nodes)
    else:
        most = _most_nodes(dimensions)
        ways = [f"name at most {most} nodes"] if most > 1 else []
        if not discrete:
            ways += ["fit a normal distribution to a person's values, guide={'u': Variational()}"]
        advice = ", ".join([*ways, "or give a person fewer values."])
        raise UnsupportedModelError(
            f"A person has {dimensions} local values, at too many places to integrate over "
            f"them{f' with {nodes} nodes in each dimension' if nodes else ''}: at most {_MOST_PLACES} "
            f"places are supported. {advice[0].upper()}{advice[1:]}"
        )
    if len(values) * len(places.at) > _MOST_PLACES:
        raise UnsupportedModelError(
            f"A person's discrete local values have {len(values)} combinations, and for each one continuous "
            f"values are integrated at {len(places.at)} places. At most {_MOST_PLACES} places are supported "
            "in all. Name fewer nodes, such as guide={'u': Quadrature(5)}, or give a person fewer values."
        )
    return replace(places, values=values)


def _most_nodes(dimensions: int) -> int:
    """Return the largest number of nodes in each dimension that makes no more places than are supported."""
    return max(n for n in range(1, _MOST_NODES + 1) if n**dimensions <= _MOST_PLACES)


def _weighed(at: np.ndarray, log_weights: np.ndarray) -> Places:
    """Return places from weights under a standard normal distribution, without those that have none."""
    some = log_weights > -np.inf
    at, log_weights = at[some], log_weights[some]
    return Places(at, log_weights + 0.5 * np.sum(at**2, axis=1))


def _degree_three(dimensions: int) -> Places:
    """Return the places ``±sqrt(d) e_j``, which have equal weights."""
    at = np.sqrt(dimensions) * np.concatenate([np.eye(dimensions), -np.eye(dimensions)])
    return _weighed(at, np.full(len(at), -np.log(len(at))))


def _degree_five(dimensions: int) -> Places:
    """Return the places of Mysovskikh's rule on the sphere, at one radius, and the centre."""
    n = dimensions
    # Corners of a regular simplex on the unit sphere, and the middles of its edges.
    corners = np.zeros((n + 1, n))
    for k in range(n):
        corners[k, k] = np.sqrt((n + 1) * (n - k) / (n * (n - k + 1)))
        corners[k + 1 :, k] = -corners[k, k] / (n - k)
    pairs = np.array(list(itertools.combinations(range(n + 1), 2)))
    middles = np.sqrt(n / (2 * (n - 1))) * corners[pairs].sum(axis=1)
    of_corner = n * (7 - n) / (2 * (n + 1) ** 2 * (n + 2))
    of_middle = 2 * (n - 1) ** 2 / (n * (n + 1) ** 2 * (n + 2))
    sphere = np.concatenate([corners, -corners, middles, -middles])
    weights = np.concatenate([np.full(2 * len(corners), of_corner), np.full(2 * len(middles), of_middle)])
    at = np.concatenate([np.zeros((1, n)), np.sqrt(n + 2) * sphere])
    with np.errstate(divide="ignore"):
        return _weighed(at, np.log(np.concatenate([[2 / (n + 2)], n / (n + 2) * weights])))


def _product(dimensions: int, nodes: int) -> Places:
    """Return the product rule of some nodes in each dimension."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    at = np.array(list(itertools.product(x, repeat=dimensions)))
    log_w = np.array([sum(terms) for terms in itertools.product(np.log(w), repeat=dimensions)])
    return _weighed(at, log_w)


def _combinations(values: Sequence[range]) -> np.ndarray:
    """Return all combinations of the values of some discrete variables, (M, e)."""
    if math.prod(len(v) for v in values) > _MOST_PLACES:
        raise UnsupportedModelError(
            "The discrete local values of a person have too many combinations to add up (more than "
            f"{_MOST_PLACES})."
        )
    return np.array(list(itertools.product(*values)), dtype=np.float64)


def rules_of(guide: Any, local: Sequence[str], everything: Sequence[str]) -> dict[str, LocalRule]:
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
        if not isinstance(rule, LocalRule):
            raise ArgumentError(
                f"guide[{name!r}] must be a family, such as Point() or FullRank(), or, for a local variable, "
                f"a rule such as Quadrature(7) or Variational(); found a {type(rule).__name__}."
            )
        if name not in local:
            raise ArgumentError(
                f"guide[{name!r}] is a rule to integrate over a local variable, one with a value for each "
                f"person, and '{name}' is none: local are {sorted(local) or 'none'}. Leave it out."
            )
    return dict(guide)
