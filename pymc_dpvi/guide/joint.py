r"""All families of a guide together, as one of PyMC's groups.

In: the model's variables, and which of them have which family. Out: what `engine.step_graph` and
`posterior.approximation` use of a group (`whole.Family`): parameters, the transform of base draws, the sum
of the families' entropies. The mean of all latent values is one parameter, ``mu``; a family's own are named
after its variables, ``rho[a,b]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.variational.opvi import Group, node_property
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.guide.family import GuideFamily
from pymc_dpvi.guide.mean_field import MeanField
from pymc_dpvi.lowering import fast_compile

__all__ = ["Joint", "Part"]

#: Most numbers drawn at once.
_MOST = 2**24


@dataclass(frozen=True, eq=False)
class Part:
    """A family, the flat places of its latent values, in order, its parameters and its base draws."""

    family: GuideFamily
    names: tuple[str, ...]
    places: np.ndarray
    params: Mapping[str, SharedVariable]
    base_draws: slice
    #: What the family made of them, asked for once: its deviation, entropy, deviations and covariance.
    graphs: tuple[TensorVariable, ...]


class Joint(Group):  # type: ignore[misc]
    """A group whose variables have families of their own.

    Besides PyMC's arguments it takes `families`: tuples of names of value variables to a `GuideFamily`. All
    other variables are mean-field. `start_sigma` has a value for each name.
    """

    takes_start_sigma: ClassVar[bool] = True
    has_logq = False
    short_name = "joint"

    def __init_group__(self, group: Any) -> None:
        super().__init_group__(group)
        # PyMC 6 has as many base draws as latent values.
        self.symbolic_initial = pt.matrix("base_draws", dtype=pytensor.config.floatX)
        families: dict[tuple[str, ...], GuideFamily] = dict(self._kwargs["families"])
        sigmas: Mapping[str, Any] = self._kwargs["start_sigma"]
        empty = {name for name, (_, at, _, _) in self.ordering.items() if at.start == at.stop}
        families = {names: family for names, family in families.items() if not set(names) <= empty}
        named = {name for names in families for name in names} | empty
        rest = tuple(name for name in self.ordering if name not in named)
        mu = np.asarray(self._prepare_start(self._kwargs.get("start")), dtype=pytensor.config.floatX)
        self.shared_params: dict[str, SharedVariable] = {"mu": pytensor.shared(mu, "mu")}
        self.parts: list[Part] = []
        if rest:
            self.parts.append(self._part(MeanField(), rest, "", sigmas, 0))
        for names, family in families.items():
            first = self.parts[-1].base_draws.stop if self.parts else 0
            self.parts.append(self._part(family, names, f"[{','.join(names)}]", sigmas, first))
        self.num_base_draws = self.parts[-1].base_draws.stop
        self._finalize_init()

    def _part(
        self, family: GuideFamily, names: tuple[str, ...], label: str, sigmas: Mapping[str, Any], first: int
    ) -> Part:
        own = [entry for name, entry in self.ordering.items() if name in names]
        places = np.concatenate([np.arange(at.start, at.stop) for _, at, _, _ in own])
        sigma = np.concatenate(
            [np.broadcast_to(np.asarray(sigmas[name], float), shape).ravel() for name, _, shape, _ in own]
        )
        params = {}
        for name, value in family.parameters(sigma).items():
            while name + label in self.shared_params:  # names with commas in them
                label += "'"
            start = np.asarray(value, dtype=pytensor.config.floatX)
            params[name] = pytensor.shared(start, name + label, shape=start.shape)
            self.shared_params[name + label] = params[name]
        draws = slice(first, first + family.num_base_draws(places.size))
        runs = [self.shared_params["mu"][run] for run in _runs(places)]
        mean = runs[0] if len(runs) == 1 else pt.concatenate(runs)
        graphs = (
            family.deviation(params, mean, self.symbolic_initial[:, draws]).astype(mean.type.dtype),
            family.entropy(params, mean),
            family.stddev(params, mean),
            family.covariance(params, mean),
        )
        return Part(family, names, places, params, draws, graphs)

    @property
    def not_noise_aware(self) -> tuple[str, ...]:
        """Names of the value variables for which there is no noise-aware posterior."""
        return tuple(name for part in self.parts if not part.family.noise_aware for name in part.names)

    def narrow(self) -> None:
        """Do nothing: ``start_sigma`` has set the standard deviations."""

    def _new_initial_shape(self, size: Any, dim: Any, more_replacements: Any = None) -> TensorVariable:
        return pt.stack([size, self.num_base_draws])

    def _joined(self, pieces: Sequence[TensorVariable]) -> TensorVariable:
        """Put pieces of the parts, along the last axis, into the order of the flat vector."""
        cut: list[tuple[int, TensorVariable]] = []
        for part, piece in zip(self.parts, pieces, strict=True):
            done = 0
            for run in _runs(part.places):
                size = run.stop - run.start
                cut.append((run.start, piece[..., done : done + size]))
                done += size
        ordered = [piece for _, piece in sorted(cut, key=lambda pair: pair[0])]
        return ordered[0] if len(ordered) == 1 else pt.concatenate(ordered, axis=-1)

    @node_property
    def mean(self) -> TensorVariable:
        """Mean of the unconstrained values, shape (D,)."""
        return self.shared_params["mu"]

    @node_property
    def std(self) -> TensorVariable:
        """Their standard deviations, shape (D,)."""
        return self._joined([p.graphs[2] for p in self.parts])

    @node_property
    def cov(self) -> TensorVariable:
        """Their covariance, shape (D, D)."""
        found = pt.zeros((self.ddim, self.ddim), dtype=pytensor.config.floatX)
        for p in self.parts:
            found = pt.set_subtensor(found[np.ix_(p.places, p.places)], p.graphs[3])
        return found

    @node_property
    def symbolic_random(self) -> TensorVariable:
        """Draws, shape (draws, D), from base draws, (draws, num_base_draws)."""
        return self.mean + self._joined([p.graphs[0] for p in self.parts])

    @property
    def symbolic_entropy(self) -> TensorVariable:
        """What the lower bound has beside the densities: the sum over the families."""
        found = [p.graphs[1] for p in self.parts]
        return pt.add(*found) if len(found) > 1 else found[0]

    @cached_property
    def _drawn(self) -> Callable[[np.ndarray], np.ndarray]:
        return pytensor.function([self.symbolic_initial], self.symbolic_random, mode=fast_compile())

    def draw(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw unconstrained latent vectors, shape ``(draws, D)``, with the parameters as they stand."""
        out = np.empty((draws, self.ddim), dtype=self.shared_params["mu"].type.dtype)
        piece = max(1, _MOST // max(1, self.ddim))
        for first in range(0, draws, piece):
            size = min(piece, draws - first)
            base = rng.standard_normal((size, self.num_base_draws)).astype(self.symbolic_initial.type.dtype)
            out[first : first + size] = self._drawn(base)
        return out


def _runs(places: np.ndarray) -> list[slice]:
    """Write increasing places as slices."""
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    return [slice(int(run[0]), int(run[-1]) + 1) for run in np.split(places, breaks)]
