r"""Whether a private fit converged, and what limits it, from private iterates and gradients alone.

With the optimum :math:`m_j` that the gradients point to, before any shrinkage, the family's standard
deviation :math:`\sigma_j` there, and the standard deviation :math:`\omega_j` that privacy noise and
subsampling leave in the optimum (`noise_aware`):

* *converged*: the average :math:`\hat\mu` of the iterates lies within half a posterior standard deviation
  of the optimum, :math:`|\hat\mu_j - m_j| \le \tfrac12 (\sigma_j^2 + \omega_j^2)^{1/2}`, in 95 % of the
  latent values. Otherwise more steps (at the same ε), or a larger learning rate, bring the plain posterior
  closer. The noise-aware posterior depends less on it: its mean moves from the draws towards the optimum
  as far as the gradients exceed the noise, unless prior and gradients conflict.
* *noise-dominated*: :math:`\omega_j > \sigma_j` for most latent values. The noise hides more than the data
  leave open. A larger ε, more records or a smaller clip norm help; further steps do not.
* *as wide as the prior*: where the noise hides more than the prior leaves open, nothing was learnt, and the
  noise-aware posterior is as wide as the prior (`noise_aware.NoiseAwarePosterior.bounded`).
* *clip-dominated*: more than half of the records' gradients were clipped in the later steps. It takes a
  private count, which only an adaptive clip norm releases, and is known if that count's noise leaves no
  doubt (two standard deviations). With a fixed clip norm no trace of clipped gradients tells of it.

Privacy: post-processing of released sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dpvi.adaptive_clipping import RunningClip
from pymc_dpvi.gradient_trace import GradientTrace, PathPoint
from pymc_dpvi.noise_aware import NoiseAwarePosterior
from pymc_dpvi.wording import SCALE_PREDICTORS, shown

__all__ = ["FitDiagnostics", "diagnose"]

_CLOSE = 0.5
_SHARE = 0.95
#: Latent values that a sentence names.
_MOST_NAMES = 8


@dataclass(frozen=True, repr=False)
class FitDiagnostics:
    """What the private iterates of a fit tell of it.

    All arrays have shape ``(D,)``, in the order of the flat latent vector, unconstrained.

    Attributes
    ----------
    names : tuple of str
    optimum : ndarray
        Where the gradients' linear model has the optimum.
    mean : ndarray
        Mean of the noise-aware posterior: the optimum, shrunk to the mean draw.
    average : ndarray
        Mean of the plain posterior: the averaged iterate.
    family_stddev : ndarray
        Standard deviation of the approximation at the optimum.
    noise_stddev : ndarray
        Standard deviation of the optimum, given the noisy gradients.
    noise_share : ndarray
        Share of the privacy noise in the variance of the gradients about the line; the rest is subsampling.
    n_steps_used : int
        Steps that the optimum was inferred from.
    n_steps_late : int
        Those of them that are taken in any case: the last half of the last run.
    stayed : bool
        Whether the mean of the noise-aware posterior stays at the mean draw, since gradients and prior
        conflict (in a group of latent values, where there are several).
    bounded : ndarray of bool
        Where the noise hides more than the prior leaves open, so that the noise-aware posterior is as wide
        as the prior.
    clipped_share, clipped_share_stddev : float or None
        Share of the records whose gradients were clipped in the later steps, by the private counts of an
        adaptive clip norm, and what their noise leaves open; None if nothing counted them, or all is noise.
    share_to_clip : float or None
        Share that the adaptive clip norm was steered to; None if it is fixed.
    epsilon : float
        What was spent.
    path : tuple of PathPoint
        Where the latent draws were.

    Notes
    -----
    Privacy: a function of what the fit released; costs nothing.
    """

    names: tuple[str, ...]
    optimum: np.ndarray
    mean: np.ndarray
    average: np.ndarray
    family_stddev: np.ndarray
    noise_stddev: np.ndarray
    noise_share: np.ndarray
    n_steps_used: int
    n_steps_late: int
    stayed: bool
    bounded: np.ndarray
    clipped_share: float | None
    clipped_share_stddev: float | None
    share_to_clip: float | None
    epsilon: float
    path: tuple[PathPoint, ...]

    @property
    def stddev(self) -> np.ndarray:
        """Standard deviation of the noise-aware posterior."""
        return np.hypot(self.family_stddev, self.noise_stddev)

    @property
    def distance(self) -> np.ndarray:
        """Distance of the averaged iterate from the optimum, in these standard deviations."""
        return np.abs(self.average - self.optimum) / self.stddev

    @property
    def noise_ratio(self) -> np.ndarray:
        """What the noise adds, in standard deviations of the approximation."""
        return self.noise_stddev / self.family_stddev

    @property
    def converged(self) -> bool:
        """Whether the averaged iterate is close to the optimum."""
        return bool(np.mean(self.distance <= _CLOSE) >= _SHARE)

    @property
    def noise_dominated(self) -> bool:
        """Whether the noise adds more than the approximation is wide, for most latent values."""
        return bool(np.median(self.noise_ratio) > 1.0)

    @property
    def clip_dominated(self) -> bool | None:
        """Whether most records were clipped; None if not known."""
        if self.clipped_share is None or self.clipped_share_stddev is None:
            return None
        excess = self.clipped_share - 0.5
        return excess > 0 if abs(excess) >= 2.0 * self.clipped_share_stddev else None

    @property
    def verdict(self) -> dict[str, int]:
        """The answers that are known, as 0 or 1: attributes of what `sample` returns."""
        known = {
            "converged": self.converged,
            "noise_dominated": self.noise_dominated,
            "bounded_by_prior": bool(self.bounded.any()),
            "clip_dominated": self.clip_dominated,
        }
        return {name: int(answer) for name, answer in known.items() if answer is not None}

    def __repr__(self) -> str:
        """Say it in words."""
        worst = int(np.argmax(self.distance))
        steps = "" if self.converged else " More steps at the same ε, or a larger learning rate, help."
        noise = " A larger ε or more records help." if self.noise_dominated else ""
        lines = [
            f"Converged: {'yes' if self.converged else 'no'}. The averaged iterate is at most "
            f"{shown(float(self.distance[worst]), digits=2)} posterior standard deviations from the optimum "
            f"that the gradients point to ({self.names[worst]}); median "
            f"{shown(float(np.median(self.distance)), digits=2)}.{steps}",
            f"Noise-dominated: {'yes' if self.noise_dominated else 'no'}. The noise's uncertainty is "
            f"{shown(float(np.median(self.noise_ratio)), digits=2)} times the approximation's (median)."
            + noise,
        ]
        if self.bounded.any():
            lines.append(self._bounded())
        lines.append(self._clipping())
        earlier = self.n_steps_used - self.n_steps_late
        lines.append(
            f"Inferred from {self.n_steps_used} steps: the last half of the run"
            + (
                f" and {earlier} earlier ones that agree with it."
                if earlier
                else "; earlier ones do not agree with it."
            )
        )
        if self.stayed:
            lines.append(
                "The noise-aware posterior is centred on the mean of the fit's own draws: the gradients "
                "there conflict with the prior, so that the linear model is not trusted to extrapolate."
            )
        return "\n".join(lines)

    def _bounded(self) -> str:
        names = [name for name, held in zip(self.names, self.bounded, strict=True) if held]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return (
            f"As wide as the prior: {', '.join(names[:_MOST_NAMES])}{more}. The noise hides more there than "
            f"the prior leaves open, so that nothing was learnt. {SCALE_PREDICTORS}"
        )

    def _clipping(self) -> str:
        if self.share_to_clip is None:
            return "Clip-dominated: not known. Only l2_clip_norm='adaptive' releases a count."
        word = {None: "not known", True: "yes", False: "no"}[self.clip_dominated]
        steered = f"The clip norm is steered to clip {shown(100 * self.share_to_clip, digits=2)} %"
        if self.clipped_share is None or self.clipped_share_stddev is None:
            counted = "the private counts see no record (tiny batches, or NaN in every gradient?)"
        else:
            share = min(max(self.clipped_share, 0.0), 1.0)
            error = 100 * self.clipped_share_stddev
            counted = f"of late {100 * share:.1f} ± {error:.1f} % were, by the private counts"
        return (
            f"Clip-dominated: {word}. {steered} of the gradients; {counted}. How far clipping moves the "
            "optimum is not measured, and no interval knows of it: a fit with a larger "
            "AdaptiveClip(quantile=...) tells."
        )

    def plot(self, **kwargs: Any) -> Any:
        """Plot the iterates; see :func:`pymc_dpvi.plots.plot_iterates`.

        Parameters
        ----------
        **kwargs
            For `plot_iterates`.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from pymc_dpvi.plots import plot_iterates

        return plot_iterates(self, **kwargs)


def diagnose(
    posterior: NoiseAwarePosterior,
    trace: GradientTrace,
    *,
    names: Sequence[str],
    average: np.ndarray,
    epsilon: float,
    running_clip: RunningClip | None = None,
    noise_multiplier: float = math.nan,
) -> FitDiagnostics:
    """Put together what is known of a fit.

    Parameters
    ----------
    posterior : NoiseAwarePosterior
        An available one.
    trace : GradientTrace
    names : sequence of str
        Of the latent values.
    average : ndarray, shape (D,)
        Mean of the plain posterior.
    epsilon : float
    running_clip : RunningClip, optional
        Of a fit with an adaptive clip norm.
    noise_multiplier : float, optional
        Of its last run.

    Returns
    -------
    FitDiagnostics
    """
    counted = None if running_clip is None else running_clip.clipped_share(noise_multiplier)
    return FitDiagnostics(
        names=tuple(names),
        optimum=posterior.optimum,
        mean=posterior.mean,
        average=np.asarray(average, dtype=float),
        family_stddev=posterior.family_stddev,
        noise_stddev=posterior.noise_stddev,
        noise_share=posterior.noise_share,
        n_steps_used=posterior.n_rows,
        n_steps_late=posterior.n_late,
        stayed=posterior.stayed,
        bounded=posterior.bounds_hold,
        clipped_share=None if counted is None else counted[0],
        clipped_share_stddev=None if counted is None else counted[1],
        share_to_clip=None if running_clip is None else running_clip.share_to_clip,
        epsilon=epsilon,
        path=trace.path,
    )
