r"""Measurements of a fit by its released iterates and gradients; no verdict.

With the mean :math:`m_j` and the standard deviation :math:`s_j` of the noise-aware posterior (`noise_aware`):

* the *share of the prior's width*, :math:`s_j` over the width of the prior. Near one, the noise hides nearly
  all that the records tell of the value. From 0.9 on the value is *as wide as the prior*, and is named. A
  larger ε or more records help; further steps do not.
* the *distance* of the average :math:`\hat\mu` of the iterates, the mean of the plain posterior, from
  :math:`m`, in units of :math:`s`. More steps at the same ε, or a larger learning rate, bring the plain
  posterior closer. The noise-aware posterior depends less on it.
* the *clipped share* of the records' gradients in the later steps. It takes noisy counts, which only an
  adaptive clip norm releases.

No threshold of these finds the fits that predict badly. A median share above 0.7 has a precision of 0.51 and
a recall of 0.74 for the fits in ``benchmarks/calibration.py`` that lost more than half of what the predictors
tell. `planning` predicts somewhat better, before the fit.

Privacy: post-processing of released sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dpvi.engine.gradient_moments import GradientTrace, PathPoint
from pymc_dpvi.engine.running_clip import RunningClip
from pymc_dpvi.pages import SCALE_PREDICTORS, shown
from pymc_dpvi.posterior.noise_aware import NoiseAwarePosterior

__all__ = ["FitDiagnostics", "diagnose"]

#: Share of the prior's width from which on a value is as wide as the prior.
_AS_WIDE = 0.9
#: Most latent values that a sentence names.
_MOST_NAMES = 8


@dataclass(frozen=True, repr=False)
class FitDiagnostics:
    """Measurements of a fit by its released iterates and gradients.

    All arrays have shape ``(D,)``, in the order of the flat latent vector, unconstrained.

    Attributes
    ----------
    names : tuple of str
    mean : ndarray
        Mean of the noise-aware posterior.
    average : ndarray
        Mean of the plain posterior: the averaged iterate.
    stddev : ndarray
        Standard deviation of the noise-aware posterior.
    family_stddev : ndarray
        What `stddev` would be without the noise.
    prior_stddev : ndarray
        Width of the prior; infinite where it is not known.
    noise_share : ndarray
        Share of the privacy noise in the variance of the gradients about their regression on the latent
        draws; the rest is subsampling.
    n_steps_used : int
        Steps that the optimum was inferred from.
    n_steps_late : int
        Those of them in the last half of the last run, which are always used.
    stayed : bool
        Whether the mean of the noise-aware posterior stays at the mean draw, because gradients and prior
        conflict (for at least one group of latent values, where there are several).
    clipped_share, clipped_share_stddev : float or None
        Share of the records whose gradients were clipped in the later steps, by the noisy counts of an
        adaptive clip norm, and its standard deviation; None if the clip norm is fixed, or all is noise.
    share_to_clip : float or None
        Share that the adaptive clip norm was steered to, for norms with an exponential tail; None if it is
        fixed.
    epsilon : float
        What was spent.
    path : tuple of PathPoint
        Means of latent draws and noisy gradients over a few steps each.

    Notes
    -----
    Privacy: a function of what the fit released; costs nothing.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    average: np.ndarray
    stddev: np.ndarray
    family_stddev: np.ndarray
    prior_stddev: np.ndarray
    noise_share: np.ndarray
    n_steps_used: int
    n_steps_late: int
    stayed: bool
    clipped_share: float | None
    clipped_share_stddev: float | None
    share_to_clip: float | None
    epsilon: float
    path: tuple[PathPoint, ...]

    @property
    def noise_stddev(self) -> np.ndarray:
        """What the noise adds to the standard deviation."""
        return np.sqrt(np.maximum(self.stddev**2 - self.family_stddev**2, 0.0))

    @property
    def distance(self) -> np.ndarray:
        """Distance of the averaged iterate from the mean of the noise-aware posterior, in its deviations."""
        return np.abs(self.average - self.mean) / self.stddev

    @property
    def bounded(self) -> np.ndarray:
        """Where the noise-aware posterior is about as wide as the prior."""
        return self.share_of_prior >= _AS_WIDE

    @property
    def noise_ratio(self) -> np.ndarray:
        """What the noise adds, in standard deviations of the approximation."""
        return self.noise_stddev / self.family_stddev

    @property
    def share_of_prior(self) -> np.ndarray:
        """Standard deviations of the noise-aware posterior, in widths of the prior; 0 if not known."""
        return self.stddev / self.prior_stddev

    @property
    def attrs(self) -> dict[str, int]:
        """What `sample` adds to the ``attrs`` of its draws, as 0 or 1."""
        return {"bounded_by_prior": int(self.bounded.any())}

    def __repr__(self) -> str:
        """Say it in words."""
        worst = int(np.argmax(self.distance))
        lines = [
            f"Iterates: their average is at most {shown(float(self.distance[worst]), digits=2)} standard "
            f"deviations of the noise-aware posterior from its mean ({self.names[worst]}); median "
            f"{shown(float(np.median(self.distance)), digits=2)}.",
            "Noise: the noise-aware posterior is "
            f"{shown(100 * float(np.median(self.share_of_prior)), digits=2)} % as wide as the prior "
            f"(median); the noise's part of that is {shown(float(np.median(self.noise_ratio)), digits=2)} "
            "times the rest.",
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
            f"As wide as the prior: {', '.join(names[:_MOST_NAMES])}{more}. The noise hides what the records "
            f"tell of it. {SCALE_PREDICTORS} A larger ε or more records help too."
        )

    def _clipping(self) -> str:
        if self.share_to_clip is None:
            return "Clipping: not known. Only l2_clip_norm='adaptive' releases a count."
        steered = f"the norm is steered to clip about {shown(100 * self.share_to_clip, digits=2)} %"
        if self.clipped_share is None or self.clipped_share_stddev is None:
            counted = "the private counts see no record (tiny batches, or NaN in every gradient?)"
        else:
            share = min(max(self.clipped_share, 0.0), 1.0)
            error = 100 * self.clipped_share_stddev
            counted = f"of late {100 * share:.1f} ± {error:.1f} % were, by the private counts"
        return (
            f"Clipping: {steered} of the gradients; {counted}. How far clipping moves the optimum is not "
            "measured, and no interval knows of it: a fit with a larger AdaptiveClip(quantile=...) tells."
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
    prior_stddev: np.ndarray,
    running_clip: RunningClip | None = None,
    noise_multiplier: float = math.nan,
) -> FitDiagnostics:
    """Make the diagnostics from a noise-aware posterior that is available.

    `average` (D,) is the mean of the plain posterior, `prior_stddev` (D,) the width of the prior. Running
    clip and noise multiplier are needed for an adaptive clip norm only.
    """
    counted = None if running_clip is None else running_clip.clipped_share(noise_multiplier)
    return FitDiagnostics(
        names=tuple(names),
        mean=posterior.mean,
        average=np.asarray(average, dtype=float),
        stddev=posterior.stddevs,
        family_stddev=posterior.family_stddev,
        prior_stddev=np.asarray(prior_stddev, dtype=float),
        noise_share=posterior.noise_share,
        n_steps_used=posterior.n_rows,
        n_steps_late=posterior.n_late,
        stayed=posterior.stayed,
        clipped_share=None if counted is None else counted[0],
        clipped_share_stddev=None if counted is None else counted[1],
        share_to_clip=None if running_clip is None else running_clip.share_to_clip,
        epsilon=epsilon,
        path=trace.path,
    )
