r"""DP-SGLD, the baseline of the papers: Langevin dynamics on noisy clipped gradients.

Stochastic gradient Langevin dynamics (Welling and Teh 2011) samples from the posterior by

.. math:: \theta_{t+1} = \theta_t + \tfrac{\eta_t}{2} \tilde g_t + \mathcal N(0, \eta_t), \qquad
          \tilde g_t = \nabla \log p(\theta_t) + \tfrac1q \sum_{i \in B_t} \nabla \log p(x_i \mid \theta_t) .

Wang, Fienberg and Smola (2015, "Privacy for Free") note that its noise is that of a private mechanism if it
is large enough. Here the gradients of records are clipped to C and get Gaussian noise of standard deviation
:math:`z C`, so that :math:`\tilde g_t` has noise :math:`z C / q`; what the dynamics asks for beyond that,
:math:`\eta_t - (\tfrac{\eta_t}{2} z C / q)^2`, is added where it is positive. The larger of the two noises
is in every step, which is their rule. The cost is that of the noisy gradients alone, by any accountant: a
tighter account than theirs.

The step sizes fall as :math:`\eta_0 (1 + t / t_0)^{-\gamma}`. Wang, Fienberg and Smola tie them to the noise;
here they are chosen so that the dynamics is stable without noise, and the noise comes on top.

The gradients are the library's own: its private step with a variational family that is a single point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import vectorize_graph
from workers import compiling

from pymc_dpvi.accounting import noise_multiplier
from pymc_dpvi.compat import compile_mode
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.graph.gradients import Latents
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.mechanism.mechanism import Mechanism, Streams
from pymc_dpvi.posterior.approximation import DPMeanField
from pymc_dpvi.sampling import PoissonSampler

__all__ = ["StepSizes", "calibrated", "dp_sgld"]


@dataclass(frozen=True)
class StepSizes:
    """Step sizes ``first * (1 + t / knee) ** -decay``.

    Attributes
    ----------
    first : float
        Of the first step, in squared units of the unconstrained latent values.
    knee : float
        Steps after which they begin to fall.
    decay : float
        How fast: Welling and Teh ask for more than a half, and at most 1.
    """

    first: float
    knee: float = 100.0
    decay: float = 0.55

    def __call__(self, t: Any) -> Any:
        """Return the size of step `t`, a number or a symbol."""
        return self.first * (1.0 + t / self.knee) ** -self.decay


def calibrated(
    *, epsilon: float, delta: float, n_steps: int, sampling_prob: float, l2_clip_norm: float
) -> Mechanism:
    """Return the mechanism whose `n_steps` steps cost (epsilon, delta) by the moments accountant."""
    sampler = PoissonSampler(sampling_prob)
    noise = noise_multiplier(
        epsilon=epsilon, delta=delta, n_steps=n_steps, sampler=sampler, accountant="moments"
    )
    return Mechanism(sampler, l2_clip_norm, noise, "add_or_remove_one", "aligned")


class _Point:
    """A variational family without width, as far as a private step asks for one."""

    def __init__(self, start: NDArray[np.float64]) -> None:
        self.mu = pytensor.shared(start, name="mu")
        self.params = [self.mu]
        self.num_base_draws = start.size
        self.symbolic_initial = pt.matrix("nothing", shape=(1, start.size))
        self.symbolic_random = self.mu + 0.0 * self.symbolic_initial
        self.symbolic_entropy = 0.0 * self.symbolic_random.sum()


def _drift(sizes: StepSizes) -> Callable[[Sequence[Any], Sequence[SharedVariable]], dict[Any, Any]]:
    """Return the deterministic half of a step, as an optimiser."""

    def updates(grads: Sequence[Any], params: Sequence[SharedVariable]) -> dict[Any, Any]:
        time = pytensor.shared(np.float64(0.0), name="time")
        moved = {p: p - 0.5 * sizes(time) * g for g, p in zip(grads, params, strict=True)}
        return {**moved, time: time + 1.0}

    return updates


def dp_sgld(
    model: pm.Model,
    mechanism: Mechanism,
    n_steps: int,
    sizes: StepSizes,
    *,
    random_seed: int,
    insecure_noise_seed: int | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Run DP-SGLD and return the second half of its iterates as posterior draws.

    Parameters
    ----------
    model : pm.Model
        Any model that `DPADVI` takes.
    mechanism : Mechanism
        With aligned gradients and a fixed clip norm; its cost over `n_steps` is the cost of all iterates.
    n_steps : int
        Number of steps.
    sizes : StepSizes
    random_seed : int
        Of the Langevin noise beyond the private one.
    insecure_noise_seed : int, optional
        Makes the private noise repeatable, and the result not private.

    Returns
    -------
    dict of str to ndarray of float64, shape (n_steps - n_steps // 2, ...)
        By free variable, in the variable's own space.

    Raises
    ------
    FloatingPointError
        If the iterates do not stay finite: the first step size is too large.
    """
    record = build_record_model(model)
    latents = DPMeanField(record, random_seed=0).latents
    initial = model.initial_point(0)
    start = np.concatenate([np.ravel(initial[v.name]) for v in latents.value_vars]).astype(np.float64)
    point: Any = _Point(start)
    step = PrivateStep(
        record,
        latents,
        point,
        mechanism,
        n_mc=1,
        optimizer=_drift(sizes),
        max_grad_norm=None,
        compile_kwargs=compile_mode(None, compiling().get("compile_kwargs")),
    )
    streams = Streams.make(insecure_noise_seed)
    rng = np.random.default_rng(random_seed)
    sigma = mechanism.noise.stddev / mechanism.sampler.sampling_prob
    iterates = np.empty((n_steps, start.size))
    one, nothing = np.zeros(1), np.zeros((1, 1, start.size))
    for t in range(n_steps):
        draws = mechanism.draw(streams, record.num_records, 1, step.num_noise)
        step(draws.indices, draws.offsets, draws.noise, nothing, one)
        size = sizes(float(t))
        missing = max(size - (0.5 * size * sigma) ** 2, 0.0)
        iterates[t] = point.mu.get_value() + np.sqrt(missing) * rng.standard_normal(start.size)
        point.mu.set_value(iterates[t])
        if not np.isfinite(iterates[t]).all():
            raise FloatingPointError(f"DP-SGLD diverged by step {t + 1}: take a smaller first step.")
    return _constrained(model, latents, iterates[n_steps // 2 :])


def _constrained(
    model: pm.Model, latents: Latents, flat: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Bring unconstrained draws into the spaces of the free variables."""
    z = pt.matrix("z", dtype="float64", shape=(None, latents.size))
    graphs = model.replace_rvs_by_values(model.free_RVs)
    split = dict(zip(latents.value_vars, latents.split(z), strict=True))
    function = pytensor.function([z], vectorize_graph(graphs, split), mode="FAST_COMPILE")
    return {rv.name: np.asarray(x) for rv, x in zip(model.free_RVs, function(flat), strict=True)}
