r"""A clip norm that follows a private quantile of the gradient norms.

Andrew, Thakkar, McMahan and Ramaswamy ("Differentially Private Learning with Adaptive Clipping", NeurIPS
2021, arXiv:1905.03871) let a step release, besides the clipped sum, a noisy count of the gradients that were
within the bound, and move the bound towards the quantile :math:`\gamma` of their norms,

.. math:: C_{t+1} = C_t \exp(-\eta\,(\tilde b_t - \gamma)) .

**What is released.** They divide the count by the size of the batch, which is private here. So a step
releases two counts, of records within and beyond the bound: a record adds a vector of norm 1 to them
(another record in its place moves them by :math:`\sqrt2`, less than 2). They are two more columns of the
private sum, scaled to the norm :math:`\kappa C` (``tally_weight``), under the same noise: one Gaussian
mechanism on a vector to which a record adds at most :math:`C\sqrt{1+\kappa^2}`. Its noise multiplier
:math:`\sigma` is what is calibrated and accounted for; there is nothing to compose. In terms of two
releases, of the sum at :math:`\sigma_s = \sigma\sqrt{1+\kappa^2}` and of counts at :math:`\sigma_c =
\sigma_s/\kappa`, it is :math:`\sigma_s^{-2} + \sigma_c^{-2} = \sigma^{-2}`, as in section 2.2 there.

How the counts move the bound is in `engine.running_clip`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymc_dpvi.arguments import check_choice, check_number

__all__ = ["CLIP_NORM_RANGE", "AdaptiveClip", "check_clip_norm"]

#: Between these a clip norm may lie, given or adapted: far inside the range of float64 and float32.
CLIP_NORM_RANGE = (1e-6, 1e12)


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    r"""Clip at a private quantile of the norms of the records' gradients.

    Give it as ``l2_clip_norm=AdaptiveClip(...)``; ``l2_clip_norm="adaptive"`` is the same with the defaults.

    Parameters
    ----------
    quantile : float, optional
        Share of the records of a batch that is not clipped, in [0.01, 0.99]. Without it the share follows the
        noise, from 0.9 to at most 0.99: the less noise the fit's steps leave beside what the data themselves
        leave unknown, the fewer records are clipped.
    start : float
        :math:`C_0`, the bound of the first step, in nats per unit of the unconstrained latent values.
    tally_weight : float
        :math:`\kappa`, in [0.01, 1]: the norm of what a record adds to the counts, beside a clip norm of 1.
        The noise in the sum grows by :math:`\sqrt{1+\kappa^2}`: 3 % at 1/4.

    Raises
    ------
    ArgumentError
        If a value is out of range.

    Notes
    -----
    Privacy: nothing is released by making it. In a fit each step releases two noisy counts more; their cost
    is part of the (ε, δ) that is reported. The start value must not be computed from the records.

    References
    ----------
    .. [1] Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive Clipping",
       NeurIPS 2021, arXiv:1905.03871, algorithm 1.

    Examples
    --------
    >>> AdaptiveClip(quantile=0.5).tally_weight
    0.25
    """

    quantile: float | None = None
    start: float = 1.0
    tally_weight: float = 0.25

    def __post_init__(self) -> None:
        low, high = CLIP_NORM_RANGE
        bounds = {"quantile": (0.01, 0.99), "start": (low, high), "tally_weight": (0.01, 1.0)}
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if name == "quantile" and value is None:
                continue
            value = check_number(name, value, low=least, high=most, closed_low=True, closed_high=True)
            object.__setattr__(self, name, value)


def check_clip_norm(value: Any) -> float | AdaptiveClip:
    """Return a clip norm as given: a number, or an adaptive one; ``"adaptive"`` stands for the default.

    Raises
    ------
    ArgumentError
        If it is none of them.
    """
    if isinstance(value, AdaptiveClip):
        return value
    if isinstance(value, str):
        check_choice("l2_clip_norm", value, ("adaptive",), ", a positive number or an AdaptiveClip")
        return AdaptiveClip()
    low, high = CLIP_NORM_RANGE
    return check_number(
        "l2_clip_norm", value, low=low, high=high, closed_low=True, closed_high=True, example=1.0
    )
