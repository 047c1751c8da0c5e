r"""Private variational inference as its papers run it, on the library's own mechanism.

Algorithm 1 of Jälkö, Dikmen and Honkela (UAI 2017, arXiv 1610.08749) is `DPADVI(gradient="vanilla")`. Around
it their code has what the paper does not tell, and what `DPADVI` does otherwise by default:

- AdaGrad with a learning rate of 0.1 on the last ten steps only, :math:`\xi \leftarrow \xi + 0.1\, \tilde g_t
  / \sqrt{0.1 + \sum_{s > t - 10} \tilde g_s^2}`, which was PyMC3's default;
- standard deviations start at 1;
- the result is the last iterate. Nothing is averaged.

d3p (Prediger et al. 2022, arXiv 2103.11648) takes Adam with a constant learning rate of 0.001 in place of
AdaGrad.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from workers import compiling

__all__ = ["ADAGRAD", "ADAM", "LastIterate", "fit_as_published", "least_by_moments", "optimizer"]

ADAGRAD = {"learning_rate": 0.1, "epsilon": 0.1, "n_win": 10}
ADAM = {"learning_rate": 0.001}


def least_by_moments(delta: float) -> float:
    """Smallest epsilon to calibrate to by the moments accountant, whose orders end at 32.

    Whatever the noise, it states no less than log(1/delta)/32; close to that the noise has no bound.
    """
    return 1.1 * math.log(1.0 / delta) / 32.0


class LastIterate:
    """A callback that keeps the iterate of the last step, where `DPADVI` returns an average.

    Parameters
    ----------
    n_steps : int
        Of the fit. It is called after the first step and after this one.
    """

    def __init__(self, n_steps: int) -> None:
        self.every = n_steps
        self._values: list[NDArray[np.float64]] = []

    def __call__(self, approx: Any, losses: Any, i: int) -> None:
        """Keep the iterate, in place of an earlier one."""
        self._values = [param.get_value() for param in approx.params]

    def put_back(self, approx: Any) -> None:
        """Make the approximation that of the last iterate."""
        for param, value in zip(approx.params, self._values, strict=True):
            param.set_value(value)


def optimizer(name: str) -> Any:
    """Return ``"adagrad"``, as the UAI paper's code has it, or ``"adam"``, as d3p's experiments."""
    import pymc as pm

    return {"adagrad": lambda: pm.adagrad_window(**ADAGRAD), "adam": lambda: pm.adam(**ADAM)}[name]()


def fit_as_published(
    n_steps: int,
    *,
    optimizer_name: str = "adagrad",
    start_sigma: float = 1.0,
    **kwargs: Any,
) -> Any:
    """Run Algorithm 1 on the model in context and return the approximation of its last iterate.

    Parameters
    ----------
    n_steps : int
    optimizer_name : {"adagrad", "adam"}
    start_sigma : float
        Standard deviation at the start, of all variables.
    **kwargs
        For `DPADVI`: epsilon, delta, sampling_prob, l2_clip_norm, ...

    Returns
    -------
    DPApproximation
    """
    import pymc as pm

    from pymc_dpvi import DPADVI
    from pymc_dpvi.errors import PrivacyWarning

    model = pm.modelcontext(None)
    widths = {rv.name: start_sigma for rv in model.free_RVs}
    last = LastIterate(n_steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the papers' delta is one over the number of records
        method = DPADVI(gradient="vanilla", start_sigma=widths, **kwargs)
        approx = method.fit(
            n_steps,
            callbacks=[last],
            obj_optimizer=optimizer(optimizer_name),
            progressbar=False,
            **compiling(),
        )
    last.put_back(approx)
    return approx
