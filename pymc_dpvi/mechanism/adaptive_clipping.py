r"""A clip norm that follows the norms of the gradients, by noisy counts.

In Andrew, Thakkar, McMahan and Ramaswamy ("Differentially Private Learning with Adaptive Clipping", NeurIPS
2021, arXiv:1905.03871) a step releases, besides the clipped sum, a noisy count of the gradients that were
within the bound, and moves the bound towards the quantile :math:`\gamma` of their norms,

.. math:: C_{t+1} = C_t \exp(-\eta\,(\tilde b_t - \gamma)) .

**What is released.** They divide the count by the size of the batch, which is private here, and a count does
not tell how much of the sum is clipped. So a step releases three counts: of the records beyond the bound; of
those within it, where each counts as its norm divided by the bound; and of what these lack to one. What a
record adds is not negative and adds up to one, so it is a vector of norm at most 1 (replacing a record moves
them by at most :math:`\sqrt2`, less than 2). The counts are three more columns of the private sum, scaled to
the norm :math:`\kappa C` (``tally_weight``), under the same noise: one Gaussian mechanism on a vector to
which a record adds at most :math:`C\sqrt{1+\kappa^2}`. Its noise multiplier :math:`\sigma` is what is
calibrated and accounted for; there is nothing to compose. As two releases, it would be the sum at
:math:`\sigma_s = \sigma\sqrt{1+\kappa^2}` and the counts at :math:`\sigma_c = \sigma_s/\kappa`, with
:math:`\sigma_s^{-2} + \sigma_c^{-2} = \sigma^{-2}`, as in their section 2.2.

How the counts move the bound is in `engine.running_clip`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymc_dpvi.arguments import check_choice, check_number

__all__ = ["CLIP_NORM_RANGE", "AdaptiveClip", "check_clip_norm"]

#: Least and largest clip norm, given or adapted: far inside the ranges of float64 and float32.
CLIP_NORM_RANGE = (1e-6, 1e12)


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    r"""Clip at a norm that follows those of the records' gradients.

    Give it as ``l2_clip_norm=AdaptiveClip(...)``; ``l2_clip_norm="adaptive"`` is the same with the defaults.

    Parameters
    ----------
    quantile : float, optional
        Share of the records of a batch that is not clipped, in [0.01, 0.99]. By default the norm goes where
        the clipped records carry 5 to 26 % of the sum of the norms: the less noise there is beside what the
        data leave unknown, the less is clipped. Of norms with an exponential tail, these are 1 to 10 % of
        the records. Where few records have by far the longest gradients, as those with a rare outcome do,
        they are not clipped.
    start : float
        :math:`C_0`, the bound of the first step, in nats per unit of the unconstrained latent values. Without
        a `quantile` it is also the least bound. A record's gradient is about as long as its predictors, where
        the model is unsure of its outcome; give a smaller start if all of them are far smaller than one.
    tally_weight : float
        :math:`\kappa`, in [0.01, 1]: the norm of what a record adds to the counts, in clip norms. The noise
        in the sum is :math:`\sqrt{1+\kappa^2}` times larger: 3 % at 1/4.

    Raises
    ------
    ArgumentError
        If a value is out of range.

    Notes
    -----
    Privacy: each step of a fit releases three more noisy numbers; their cost is part of the reported (ε, δ).
    `start` must not be computed from the records.

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
    """Return a number or an AdaptiveClip, which ``"adaptive"`` stands for; an ArgumentError for all else."""
    if isinstance(value, AdaptiveClip):
        return value
    if isinstance(value, str):
        check_choice("l2_clip_norm", value, ("adaptive",), ", a positive number or an AdaptiveClip")
        return AdaptiveClip()
    low, high = CLIP_NORM_RANGE
    return check_number(
        "l2_clip_norm", value, low=low, high=high, closed_low=True, closed_high=True, example=1.0
    )
