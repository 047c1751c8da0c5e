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

**Clipping at the running bound.** :math:`C_t` is a function of earlier releases, so it is public in step t.
Gradients are divided by :math:`C_t / C_0` before they reach the kernel, which always clips at the start value
:math:`C_0`; the noisy sum is multiplied by it afterwards. The kernel, its lattice and its proof
(``docs/noise.md``) are those of a fixed bound.

**The gain** (post-processing). With noisy counts :math:`a_t, b_t`, the mean batch :math:`\hat m_t =
\frac1t\sum_{s \le t} (a_s + b_s)` and :math:`y_t = ((1-\gamma) a_t - \gamma b_t)/\hat m_t`, whose variance is
about

.. math:: R_t = \frac{\sigma_c^2(\gamma^2 + (1-\gamma)^2)}{\hat m_t^2} + \frac{\gamma(1-\gamma)}{\hat m_t},

the bound moves by :math:`\log C_{t+1} = \log C_t - \eta_t y_t`. Near the quantile :math:`\operatorname{E} y_t
\approx h\,(\log C_t - \log C^*)` with the slope :math:`h = (1-\gamma)\log\frac{1}{1-\gamma}` of norms whose
tail is exponential. The gain is that of a Kalman filter for a constant with the prior variance :math:`P_0`,
held above a floor so that the bound can follow norms that change as the fit goes on:

.. math:: \eta_t = \min\big(\tfrac12,\ \max\big(\frac{1}{h t + R_t/(h P_0)},\
          \min(\tfrac15, \tfrac{3h}{100 R_t})\big)\big) ,

where 1/5 is the rate of the paper, and the floor :math:`3h/(100 R_t)` keeps the noise of :math:`\log C` at a
standard deviation of about 0.12, however small the batches are.

**Which quantile** (post-processing). Clipping moves the optimum, and noise grows with the bound; neither is
worth avoiding below the other. The mean of t noisy gradients is known, in clip norms, up to
:math:`\sigma_s/(q\sqrt t)`; N gradients of that norm that point anywhere add up to :math:`\sqrt N`, which is
what the data themselves leave unknown. So while the noise is large beside the data's own uncertainty, much
may be clipped, and less as the steps add up:

.. math:: 1 - \gamma_t = \min\big(\tfrac1{10},\ \max\big(\tfrac1{100},\
          \rho\,\frac{\sigma_s}{q\sqrt{t \hat N_t}}\big)\big), \qquad \hat N_t = \hat m_t / q .

:math:`\rho` was chosen once, on the suite of ``benchmarks/utility.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.arguments import check_choice, check_number
from pymc_dpvi.clipping import SLACK, TALLY_COLUMNS
from pymc_dpvi.curvature_posterior import CurvatureScale
from pymc_dpvi.rounded_normal import LATTICE_BITS

__all__ = ["CLIP_NORM_RANGE", "AdaptiveClip", "RunningClip", "check_clip_norm"]

#: Between these a clip norm may lie, given or adapted: far inside the range of float64 and float32.
CLIP_NORM_RANGE = (1e-6, 1e12)

_CLIPPED_RANGE = (0.01, 0.1)  # between these the share of the records to clip is, if it follows the noise
_CLIPPED_FOR_NOISE = 0.3
_PRIOR_VARIANCE = 1.0  # of the log of the quantile about that of the start value
_LARGEST_GAIN = 0.5
_PAPER_GAIN = 0.2
_FLOOR = 0.03
_RECENT = 4.0


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


class RunningClip:
    r"""The running bound of a fit, and how the noisy counts move it.

    Parameters
    ----------
    rule : AdaptiveClip

    Attributes
    ----------
    log_scale : SharedVariable
        :math:`\log(C_t / C_0)`.
    """

    def __init__(self, rule: AdaptiveClip) -> None:
        self.rule = rule
        self.log_scale: SharedVariable = pytensor.shared(np.zeros(()), name="log_clip_scale")
        self._seen: SharedVariable = pytensor.shared(np.zeros(()), name="noisy_records_seen")
        self._steps: SharedVariable = pytensor.shared(np.zeros(()), name="tally_steps")
        self._beyond: SharedVariable = pytensor.shared(np.zeros(()), name="noisy_records_beyond")
        self._share: SharedVariable = pytensor.shared(np.asarray(self._first_share), name="share_to_clip")

    @property
    def state(self) -> tuple[SharedVariable, ...]:
        """All shared variables of it: functions of earlier releases, and so public."""
        return self.log_scale, self._seen, self._steps, self._beyond, self._share

    def reset(self, scale: float = 1.0) -> None:
        """Put everything back to the start, with the bound at a multiple of the start value."""
        self.log_scale.set_value(np.asarray(math.log(scale)))
        for variable in (self._seen, self._steps, self._beyond):
            variable.set_value(np.zeros(()))
        self._share.set_value(np.asarray(self._first_share))

    @property
    def _first_share(self) -> float:
        return _CLIPPED_RANGE[1] if self.rule.quantile is None else 1.0 - self.rule.quantile

    @property
    def scale(self) -> TensorVariable:
        """:math:`C_t / C_0`, for the graph of a step."""
        return pt.exp(self.log_scale)

    @property
    def l2_clip_norm(self) -> float:
        """:math:`C_t`, where the last step left it."""
        return self.rule.start * math.exp(float(self.log_scale.get_value()))

    @property
    def mean_batch_size(self) -> float:
        """Private estimate of the mean batch size, from all steps so far; NaN before the first."""
        steps = float(self._steps.get_value())
        return float(self._seen.get_value()) / steps if steps else math.nan

    @property
    def share_to_clip(self) -> float:
        """Share of the records to clip that the last step steered to."""
        return float(self._share.get_value())

    def clipped_share(self, noise_multiplier: float) -> tuple[float, float] | None:
        """Share of the records that were clipped, by the noisy counts of the later steps.

        Parameters
        ----------
        noise_multiplier : float
            Of the steps.

        Returns
        -------
        tuple of float, or None
            The share, not held between 0 and 1, and its standard deviation; None if the counts do not tell
            that anybody was seen.
        """
        steps = float(self._steps.get_value())
        size = self.mean_batch_size
        noise = noise_multiplier * math.hypot(1.0, 1.0 / self.rule.tally_weight)  # of a count
        if not steps or size < 4.0 * noise * math.sqrt(TALLY_COLUMNS / steps):
            return None
        # The weights of the mean fall to earlier steps as t^(_RECENT - 1).
        effective = steps * (2.0 * _RECENT - 1.0) / _RECENT**2
        return float(self._beyond.get_value()) / size, noise / (size * math.sqrt(effective))

    def curvature_scale(self, noise_multiplier: float, sampling_prob: float) -> CurvatureScale | None:
        """Say what the number of records and the quantile of their gradients' norms tell of the curvature.

        Parameters
        ----------
        noise_multiplier, sampling_prob : float
            Of the steps.

        Returns
        -------
        CurvatureScale or None
            None before the first step.
        """
        steps = float(self._steps.get_value())
        if not steps:
            return None
        noise = noise_multiplier * math.hypot(1.0, 1.0 / self.rule.tally_weight)  # of a count
        return CurvatureScale.of_clipping(
            self.mean_batch_size / sampling_prob,
            noise * math.sqrt(TALLY_COLUMNS / steps) / sampling_prob,
            self.l2_clip_norm,
            self.share_to_clip,
        )

    def updates(
        self, tally: TensorVariable, unit: TensorVariable, scale: TensorVariable
    ) -> dict[Variable, Variable]:
        """Return the new values of the state after a step.

        Parameters
        ----------
        tally : TensorVariable, shape (2,)
            The noisy counts as the private sum releases them, in the units of a gradient clipped at the
            start value.
        unit : TensorVariable
            Lattice unit of the sum, float64.
        scale : TensorVariable
            One over the sampling probability.

        Returns
        -------
        dict
            By shared variable.
        """
        rule = self.rule
        per_record = pt.floor(rule.tally_weight * rule.start * (1.0 - SLACK) / unit) * unit  # `tally_units`
        within, beyond = (tally[k] / per_record for k in range(TALLY_COLUMNS))
        noise = unit * 2.0**LATTICE_BITS / per_record  # standard deviation of a count
        steps = self._steps + 1.0
        seen = self._seen + within + beyond
        # Below what the noise hides it is taken for that: the bound then hardly moves.
        size = pt.maximum(seen / steps, noise * pt.sqrt(TALLY_COLUMNS / steps))
        if rule.quantile is None:
            share = _CLIPPED_FOR_NOISE * rule.tally_weight * noise * pt.sqrt(scale / (steps * size))
            up = pt.clip(share, *_CLIPPED_RANGE)
        else:
            up = pt.constant(1.0 - rule.quantile, dtype="float64")
        down = 1.0 - up
        moved = (up * within - down * beyond) / size
        variance = (up**2 + down**2) * (noise / size) ** 2 + up * down / size
        slope = -up * pt.log(up)
        filtered = 1.0 / (slope * steps + variance / (slope * _PRIOR_VARIANCE))
        gain = pt.maximum(filtered, pt.minimum(_PAPER_GAIN, _FLOOR * slope / variance))
        low, high = (math.log(c / rule.start) for c in CLIP_NORM_RANGE)
        new = pt.clip(self.log_scale - pt.minimum(_LARGEST_GAIN, gain) * moved, low, high)
        # A mean over the steps with weights t^(_RECENT - 1): of the bound where it is now, mostly.
        recent = self._beyond + pt.minimum(1.0, _RECENT / steps) * (beyond - self._beyond)
        return {
            self.log_scale: new,
            self._seen: seen,
            self._steps: steps,
            self._beyond: recent,
            self._share: up,
        }
