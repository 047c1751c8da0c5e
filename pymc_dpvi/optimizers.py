r"""The optimiser of a private fit: Adam whose step size falls linearly to a twentieth.

Adam (Kingma and Ba 2015, algorithm 1) moves every parameter by about the learning rate times the
signal-to-noise ratio of its gradient. Under privacy noise that ratio stays small, and with a constant rate
the iterates wander around the optimum forever. So the rate starts large, to reach the optimum while the noise
averages out, and falls linearly over the planned steps,

.. math:: \alpha_t = \alpha\,\max\Big(1 - (1 - f)\,\frac{t - 1}{n},\ f\Big), \qquad t = 1, \dots, n,

after which `refine` goes on at the last rate, :math:`f\alpha`.

**Units.** The length of Adam's steps is the rate, whatever the size of the gradient. On gradients of noise
alone the means walk to a distance of :math:`\alpha\sqrt{n/3}`, 1.2 at the :math:`\alpha` below. That is far
outside of a narrow prior such as :math:`N(0, 0.3^2)`. So the steps of a mean are in units of its prior's
width (`prior_density`), if that is below one: the fit of a rescaled model is then the rescaled fit.

**Size.** The signal-to-noise ratio of a whole run does not depend on its number of steps (`planning`). So the
ratio of one step goes with :math:`1/\sqrt n`, and the distance covered with :math:`n\,\alpha/\sqrt n`. Hence
:math:`\alpha = 2/\sqrt n`, and at most 0.1: 0.02 for 10,000 steps. The number of steps is public, so this
costs nothing.

**Large models.** Where there are so many latent values that the widths of their priors are not computed, they
are mostly weights of networks. A layer adds up its inputs, and where every weight is off by :math:`\delta`, a
sum over k of them is off by :math:`\delta\sqrt k`. A square layer of D weights has :math:`k = \sqrt D`. So
that walks on noise move what a layer computes equally far whatever its size is, the rate goes with
:math:`D^{-1/4}`: it is :math:`\alpha\,(9/D)^{1/4}`, 0.01 for a network of 75,000 weights and 432 steps. The
nine was chosen on one network (DIGITS, 64-1000-10).

There, Adam also gets the gradients in units of an adaptive clip norm. The norm falls as the fit goes on, and
the noise with it. Adam remembers the squares of about 1,000 gradients: it would divide by the noise of the
start, and its steps would be the shorter, the more the norm has fallen.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pymc_dpvi.arguments import check_integer, check_number

__all__ = ["Optimizer", "falling_adam", "rate_of_large"]

#: ``(gradients, parameters) -> updates``, as PyMC's own (``pm.adam(learning_rate=...)``).
Optimizer = Callable[[list[Variable], list[SharedVariable]], dict[Variable, Variable]]

_LARGEST_RATE = 0.1
_REACH = 2.0
_SMALL = 9.0


def rate_of_large(n_steps: int, num_latents: int) -> float:
    """Return the first rate for a model with so many latent values that no widths are known."""
    return _rate(n_steps) * (_SMALL / num_latents) ** 0.25


def _rate(n_steps: int) -> float:
    return min(_LARGEST_RATE, _REACH / math.sqrt(n_steps))


def falling_adam(
    n_steps: int,
    learning_rate: float | None = None,
    *,
    widths: np.ndarray | None = None,
    final: float = 0.05,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Optimizer:
    """Return Adam with a learning rate that falls linearly over `n_steps` steps.

    Parameters
    ----------
    n_steps : int
        Planned steps.
    learning_rate : float, optional
        Rate of the first step; by default two over the root of `n_steps`, and at most 0.1.
    widths : ndarray, shape (D,), optional
        Factors of the rate for the means, a parameter named ``mu``; 1 by default.
    final : float
        Rate at the end, as a share of the first one, in (0, 1].
    beta1, beta2, epsilon : float
        As in ``pm.adam``.

    Returns
    -------
    callable
        For ``obj_optimizer``.

    Raises
    ------
    ArgumentError
        If a value is out of range.

    Notes
    -----
    Privacy: sees the noisy gradient alone, and the number of steps.
    """
    n_steps = check_integer("n_steps", n_steps)
    if learning_rate is None:
        learning_rate = _rate(n_steps)
    learning_rate = check_number("learning_rate", learning_rate, example=0.02)
    check_number("final", final, high=1.0, closed_high=True)
    check_number("epsilon", epsilon)
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        check_number(name, value, low=0.0, high=1.0, closed_low=True)

    def optimizer(grads: list[Variable], params: list[SharedVariable]) -> dict[Variable, Variable]:
        floatx = pytensor.config.floatX
        steps = pytensor.shared(np.asarray(0.0, dtype=floatx), name="adam_steps")
        # Variables, so that another number of steps needs no new compilation.
        planned = pytensor.shared(np.asarray(n_steps, dtype=floatx), name="adam_planned")
        first = pytensor.shared(np.asarray(learning_rate, dtype=floatx), name="adam_rate")
        step = steps + 1
        falling = 1.0 - (1.0 - final) * steps / planned
        rate = first * pt.maximum(falling, final)
        rate = rate * pt.sqrt(1.0 - beta2**step) / (1.0 - beta1**step)
        updates: dict[Variable, Variable] = {steps: step.astype(floatx)}
        for grad, param in zip(grads, params, strict=True):
            zeros = np.zeros_like(param.get_value(borrow=True))
            mean, square = (pytensor.shared(zeros, name=f"{param.name}_adam_{k}") for k in (1, 2))
            new_mean = beta1 * mean + (1.0 - beta1) * grad
            new_square = beta2 * square + (1.0 - beta2) * grad**2
            own = rate
            if widths is not None and param.name == "mu":
                own = rate * pytensor.shared(np.asarray(widths, dtype=param.type.dtype), name="adam_widths")
            moved = param - own * new_mean / (pt.sqrt(new_square) + epsilon)
            for variable, new in ((mean, new_mean), (square, new_square), (param, moved)):
                updates[variable] = new.astype(variable.type.dtype)
        return updates

    return optimizer
