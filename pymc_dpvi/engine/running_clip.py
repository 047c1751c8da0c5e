r"""The adaptive clip norm, moved by the noisy counts of each step: a Kalman filter.

**Clipping at the running bound.** :math:`C_t` is a function of earlier releases, so step t may use it freely.
Gradients are divided by :math:`C_t / C_0` before they reach the kernel, which always clips at the start value
:math:`C_0`; the noisy sum is multiplied by it afterwards. The kernel, its lattice and its proof
(``docs/noise.md``) are those of a fixed bound.

**What is steered** (post-processing). The noisy counts of a step are :math:`b_t`, of the records beyond the
bound; :math:`a_t`, of those within it, each weighted with its norm in bounds; and :math:`r_t`, what these
weights lack to one. So :math:`a_t + b_t` adds up the clipped norms. The bound is moved until the records
beyond it carry the share :math:`\beta` of that sum, :math:`b_t = \beta(a_t + b_t)`.

Why not a share of the records: a fit learns the common kind of record first. Its gradients become small, and
those of a rare kind stay large. A bound that clips a share of the records falls with the common kind, clips
the rare kind to it, and the fit predicts the common kind for everybody. But where a fit ends, its gradients
add up to zero. If a rare kind pulls one way and the rest the other, each carries half of the sum, however
rare the one is; with :math:`\beta < \frac12`, the bound cannot stay below the rare kind's norms.

On its way there a fit can lose the rare kind: the norms of the common kind fall, the bound follows them and
clips the rare kind, so the fit goes on, and the norms fall further (``benchmarks/rare_answers.py``). So the
bound does not fall below the start value.

Of norms with an exponential tail of which the share :math:`p` is beyond the bound, :math:`c =
\log\frac1p` means of the norm, these carry

.. math:: \beta(p) = \frac{c\,p}{1-p} .

So :math:`\beta` is given by the share :math:`p` that such norms would have beyond the bound. 1, 5, 10 and
20 % of the records are 5, 16, 26 and 40 % of the sum.

**The gain** (post-processing). With a mean :math:`\hat s_t` of the later :math:`a_s + b_s` and :math:`y_t =
(\beta a_t - (1-\beta) b_t)/\hat s_t` of variance about

.. math:: R_t = \frac{\sigma_c^2(\beta^2 + (1-\beta)^2)}{\hat s_t^2} + \frac{\beta(1-\beta)}{\hat s_t},

the bound moves by :math:`\log C_{t+1} = \log C_t - \eta_t y_t`. Near its aim,
:math:`\operatorname{E} y_t \approx h\,(\log C_t - \log C^*)`, where exponential tails have the slope
:math:`h = \beta\,(c - 1 + \beta)`, 0.17 to 0.4 for one to ten percent. (The slope of two kinds of equal
weight, one of them beyond the bound, is 1/4.) The gain is that of a Kalman filter for a constant with the
prior variance :math:`P_0`, held above a floor so that the bound can follow norms that change as the fit goes
on:

.. math:: \eta_t = \min\big(\tfrac12,\ \max\big(\frac{1}{h t + R_t/(h P_0)},\
          \min(\tfrac15, \tfrac{3h}{100 R_t})\big)\big) ,

where 1/5 is the rate of the paper (`adaptive_clipping`), and the floor :math:`3h/(100 R_t)` keeps the noise
of :math:`\log C` at a standard deviation of about 0.12, however small the batches are.

A quantile :math:`\gamma` that the user gives is one of the records: :math:`\beta = p = 1 - \gamma`, with
:math:`a_t + r_t` in place of :math:`a_t`, the mean batch :math:`\hat m_t = \frac1t\sum_{s \le t} (r_s + a_s +
b_s)` in place of :math:`\hat s_t`, and :math:`h = pc`.

**Which share** (post-processing). A smaller bound means less noise, and an optimum that clipping moves
further. The mean of t noisy gradients has, in clip norms, the noise :math:`\sigma_s/(q\sqrt t)`; N gradients
of that norm in random directions add up to :math:`\sqrt N`, the data's own uncertainty. As long as the noise
is large beside that, many records may be clipped, and fewer as the steps add up:

.. math:: p_t = \min\big(\tfrac1{10},\ \max\big(\tfrac1{100},\
          \rho\,\frac{\sigma_s}{q\sqrt{t \hat N_t}}\big)\big), \qquad \hat N_t = \hat m_t / q .

:math:`\rho` was chosen once, on the suite of ``benchmarks/utility.py``. In large models, networks mostly, it
is one in place of 0.3: the noise of many latent values adds up in what a layer computes.
"""

from __future__ import annotations

import math

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.mechanism.adaptive_clipping import CLIP_NORM_RANGE, AdaptiveClip
from pymc_dpvi.mechanism.limits import SLACK, TALLY_COLUMNS
from pymc_dpvi.randomness.rounded_normal import LATTICE_BITS

__all__ = ["RunningClip"]

_CLIPPED_RANGE = (0.01, 0.1)  # least and greatest share p of records to clip, if it follows the noise
_CLIPPED_FOR_NOISE = 0.3
_CLIPPED_FOR_NOISE_OF_LARGE = 1.0
_PRIOR_VARIANCE = 1.0  # of the log of the quantile about that of the start value
_LARGEST_GAIN = 0.5
_PAPER_GAIN = 0.2
_FLOOR = 0.03
_RECENT = 4.0


class RunningClip:
    r"""The bound of a fit, moved by noisy counts; `log_scale` is :math:`\log(C_t / C_0)`."""

    def __init__(self, rule: AdaptiveClip, is_large: bool = False) -> None:
        self.rule, self.is_large = rule, is_large
        self.log_scale: SharedVariable = pytensor.shared(np.zeros(()), name="log_clip_scale")
        self._seen: SharedVariable = pytensor.shared(np.zeros(()), name="noisy_records_seen")
        self._steps: SharedVariable = pytensor.shared(np.zeros(()), name="tally_steps")
        self._beyond: SharedVariable = pytensor.shared(np.zeros(()), name="noisy_records_beyond")
        self._clipped_sum: SharedVariable = pytensor.shared(np.zeros(()), name="noisy_sum_of_clipped_norms")
        self._share: SharedVariable = pytensor.shared(np.asarray(self._first_share), name="share_to_clip")

    @property
    def state(self) -> tuple[SharedVariable, ...]:
        """All of its shared variables: functions of earlier noisy sums."""
        return self.log_scale, self._seen, self._steps, self._beyond, self._clipped_sum, self._share

    def reset(self, scale: float = 1.0) -> None:
        """Put everything back to the start, with the bound at a multiple of the start value."""
        self.log_scale.set_value(np.asarray(math.log(scale)))
        for variable in (self._seen, self._steps, self._beyond, self._clipped_sum):
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
        """:math:`C_t` after the last step."""
        return self.rule.start * math.exp(float(self.log_scale.get_value()))

    @property
    def mean_batch_size(self) -> float:
        """Estimate of the mean batch size from the noisy counts so far; NaN before the first step."""
        steps = float(self._steps.get_value())
        return float(self._seen.get_value()) / steps if steps else math.nan

    @property
    def share_to_clip(self) -> float:
        """Share of the records to clip that the last step aimed at, of norms with an exponential tail."""
        return float(self._share.get_value())

    def clipped_share(self, noise_multiplier: float) -> tuple[float, float] | None:
        """Share of the records clipped, by the noisy counts of the later steps, and its standard deviation.

        The share may be outside of 0 to 1. None if the counts cannot be told from noise.
        """
        steps = float(self._steps.get_value())
        size = self.mean_batch_size
        noise = noise_multiplier * math.hypot(1.0, 1.0 / self.rule.tally_weight)  # of a count
        if not steps or size < 4.0 * noise * math.sqrt(TALLY_COLUMNS / steps):
            return None
        # Step t has a weight in the mean that goes with t^(_RECENT - 1).
        effective = steps * (2.0 * _RECENT - 1.0) / _RECENT**2
        return float(self._beyond.get_value()) / size, noise / (size * math.sqrt(effective))

    def records_and_noise(self, noise_multiplier: float, sampling_prob: float) -> tuple[float, float] | None:
        """Noisy number of records, and the standard deviation of its noise; None before the first step."""
        steps = float(self._steps.get_value())
        if not steps:
            return None
        noise = noise_multiplier * math.hypot(1.0, 1.0 / self.rule.tally_weight)  # of a count
        stddev = noise * math.sqrt(TALLY_COLUMNS / steps) / sampling_prob
        return self.mean_batch_size / sampling_prob, stddev

    def updates(
        self, tally: TensorVariable, spacing: TensorVariable, scale: TensorVariable
    ) -> dict[Variable, Variable]:
        """Return the new values of the state after a step, by shared variable.

        `tally` are the noisy counts as the noisy sum releases them, in the units of a gradient clipped at
        the start value; `scale` is one over the sampling probability.
        """
        rule = self.rule
        per_record = (
            pt.floor(rule.tally_weight * rule.start * (1.0 - SLACK) / spacing) * spacing
        )  # `tally_units`
        rest, beyond, mass = (tally[k] / per_record for k in range(TALLY_COLUMNS))
        noise = spacing * 2.0**LATTICE_BITS / per_record  # standard deviation of a count
        steps = self._steps + 1.0
        seen = self._seen + rest + mass + beyond
        # Where the noise hides the size, its standard deviation stands for it: the bound then hardly moves.
        size = pt.maximum(seen / steps, noise * pt.sqrt(TALLY_COLUMNS / steps))

        def recent(mean: TensorVariable, new: TensorVariable) -> TensorVariable:
            """Mean over the steps with weights t^(_RECENT - 1): mostly of steps near the present bound."""
            return mean + pt.minimum(1.0, _RECENT / steps) * (new - mean)

        clipped_sum = recent(self._clipped_sum, mass + beyond)
        if rule.quantile is None:
            rho = _CLIPPED_FOR_NOISE_OF_LARGE if self.is_large else _CLIPPED_FOR_NOISE
            share = rho * rule.tally_weight * noise * pt.sqrt(scale / (steps * size))
            share = pt.clip(share, *_CLIPPED_RANGE)
            means = -pt.log(share)  # c
            up = means * share / (1.0 - share)  # beta
            within, slope = mass, up * (means - 1.0 + up)
            # As for the size: of two counts, in a mean that the later steps rule.
            whole = pt.maximum(clipped_sum, noise * pt.sqrt(2.0 * _RECENT / (steps + _RECENT)))
        else:
            share = up = pt.constant(1.0 - rule.quantile, dtype="float64")
            within, whole, slope = rest + mass, size, -up * pt.log(up)
        down = 1.0 - up
        moved = (up * within - down * beyond) / whole
        variance = (up**2 + down**2) * (noise / whole) ** 2 + up * down / whole
        filtered = 1.0 / (slope * steps + variance / (slope * _PRIOR_VARIANCE))
        gain = pt.maximum(filtered, pt.minimum(_PAPER_GAIN, _FLOOR * slope / variance))
        low, high = (math.log(c / rule.start) for c in CLIP_NORM_RANGE)
        if rule.quantile is None:
            low = 0.0  # not below the start value
        new = pt.clip(self.log_scale - pt.minimum(_LARGEST_GAIN, gain) * moved, low, high)
        return {
            self.log_scale: new,
            self._seen: seen,
            self._steps: steps,
            self._beyond: recent(self._beyond, beyond),
            self._clipped_sum: clipped_sum,
            self._share: share,
        }
