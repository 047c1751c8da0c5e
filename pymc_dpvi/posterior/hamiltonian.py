r"""Many short chains of Hamiltonian Monte Carlo, one for each draw.

Each chain starts at a draw of a normal approximation with covariance :math:`L L^{\top}`. Its mass is the
approximation's precision: :math:`z \leftarrow z + h L r` and
:math:`r \leftarrow r + h L^{\top} \nabla \log p(z)`. If the approximation is exact, the end of one trajectory
does not depend on its start (Neal 2011, section 4.1). Each chain adapts its own step size h in the first 70 %
of its steps.

PyMC's NUTS would compile a model for each of the mixture's components, which takes longer than the fit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["hamiltonian_draws"]

_STEPS, _LEAPS = 40, 8
_ADAPTING = 0.7
_ACCEPTANCE = 0.7
_SIZES = (0.01, 0.4, 1.2)  # of a step: least, first, largest

#: From points (chains, D) to log densities (chains,), up to a constant, and their gradients (chains, D).
Density = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@np.errstate(all="ignore")  # a trajectory that diverges is rejected
def hamiltonian_draws(
    density: Density, start: np.ndarray, root: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Move draws of normal approximations with covariances root rootᵀ, (chains, D), to draws of a density.

    Where the density is not finite at the start and everywhere near it, the start is returned.
    """
    z, (value, slope) = start, density(start)
    size = np.full(len(z), _SIZES[1])
    for step in range(_STEPS):
        r = rng.standard_normal(z.shape)
        before = -value + 0.5 * np.sum(r**2, axis=1)
        by = (size * rng.uniform(0.7, 1.3, len(z)))[:, None]
        at, push = z, slope
        for _ in range(_LEAPS):
            r = r + 0.5 * by * np.einsum("mji,mj->mi", root, push)
            at = at + by * np.einsum("mij,mj->mi", root, r)
            new, push = density(at)
            r = r + 0.5 * by * np.einsum("mji,mj->mi", root, push)
        after = -new + 0.5 * np.sum(r**2, axis=1)
        fine = np.isfinite(after) & np.isfinite(push).all(axis=1)
        gain = np.where(np.isfinite(before), before - after, np.inf)
        chance = np.where(fine, np.exp(np.minimum(0.0, np.where(fine, gain, 0.0))), 0.0)
        taken = rng.random(len(z)) < chance
        z = np.where(taken[:, None], at, z)
        value, slope = np.where(taken, new, value), np.where(taken[:, None], push, slope)
        if step < _ADAPTING * _STEPS:
            size = np.clip(size * np.exp(0.25 * (chance - _ACCEPTANCE)), _SIZES[0], _SIZES[2])
    return np.asarray(z)
