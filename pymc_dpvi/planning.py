r"""The signal-to-noise ratio of a fit, computed before any data are used.

A run of T steps releases :math:`\tilde s_t/q`, estimates of the sum of the N records' clipped gradients
with the noise :math:`N(0, (\sigma C/q)^2 I)`. The mean of all T of them has the noise

.. math:: \frac{\sigma C}{q\sqrt T} \approx \frac{C}{\mu}

in each of D entries. By the central limit theorem of Gaussian differential privacy (`accounting.gdp_limit`)
it goes to :math:`C/\mu` as q grows, whatever T, where :math:`\mu` is the parameter of the Gaussian trade-off
curve through (ε, δ). The largest sum of N clipped gradients has the norm :math:`N C`: all are at the bound
and point the same way. So

.. math:: \mathrm{SNR} = \frac{N q\sqrt T}{\sigma\sqrt D} \le \frac{N\mu}{\sqrt D}

is the *signal-to-noise ratio* of a run: the norm of the largest signal over that of the noise. It needs
neither C nor data. Real signals are smaller: near the optimum the gradients cancel.

Below an SNR of `MIN_SNR` :func:`plan` warns. N, D and ε do not tell how large the error of a posterior mean
will be: on the regressions of ``benchmarks/calibration.py`` the best multiple of √N/SNR is within a factor of
two of it in 0.44 of the fits.

The gradients of a network lie mostly in few directions, and the noise in all D, so a network learns at ratios
that would be hopeless for a regression: beyond `MOST_LATENTS` values the bound is `MIN_SNR_OF_LARGE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pymc_dpvi import accounting
from pymc_dpvi.accounting.calibration import EPSILON_RANGE
from pymc_dpvi.accounting.evaluation import MAX_STEPS
from pymc_dpvi.accounting.gdp_limit import clt_noise, gdp_mu
from pymc_dpvi.accounting.relations import check_relation, sensitivity_factor
from pymc_dpvi.arguments import check_integer, check_number
from pymc_dpvi.engine.gradient_moments import MOST_LATENTS
from pymc_dpvi.errors import CalibrationError, warn
from pymc_dpvi.mechanism.adaptive_clipping import AdaptiveClip, check_clip_norm
from pymc_dpvi.pages import Page, Section, Table, shown
from pymc_dpvi.plots.axes import new_axes

__all__ = ["MIN_SNR", "MIN_SNR_OF_LARGE", "Plan", "PlannedFit", "plan"]

MIN_SNR = 50.0
"""Signal-to-noise ratio below which the noise drowns much of the signal.

It is the norm of gradients that all point the same way; real ones cancel. Of the fits of
``benchmarks/calibration.py`` that lost more than half of what the predictors tell, 0.85 are below it.
"""
MIN_SNR_OF_LARGE = 1.0
"""The same of more than 4,096 latent values.

It stands between the ratios of ``benchmarks/papers/dpvd.py``: networks of 75,000 points without a prior got
0.93, 0.83 and 0.06 of the log score that can be gained on DIGITS, at ratios of 7.3, 1.3 and 0.17.
"""
_LOST_BELOW = 0.61  # share of the regressions below `MIN_SNR` that lost more than half

_STEPS = (300, 1000, 3000, 10_000, 30_000)
_RATES = (0.1, 0.3, 1.0, 3.0)  # of the default one
_LARGEST_EPSILON = 100.0


class _Bound(NamedTuple):
    """A signal-to-noise ratio, and in sentences what was measured below it and from it on."""

    snr: float
    measured: str
    enough: str


_REGRESSIONS = _Bound(
    MIN_SNR,
    f"Of regressions below {MIN_SNR:g} times, {100 * _LOST_BELOW:g} % lost more than half of what their "
    "predictors tell (benchmarks/calibration.py).",
    f"with {MIN_SNR:g} few fits lose much.",
)
_NETWORKS = _Bound(
    MIN_SNR_OF_LARGE,
    "A network learned most of what it can at 1.3 times, and next to nothing at 0.17 times "
    "(benchmarks/papers/dpvd.py).",
    f"a network learns from about {MIN_SNR_OF_LARGE:g} on.",
)


@dataclass(frozen=True)
class PlannedFit:
    """One choice of steps and sampling rate, with its signal-to-noise ratio.

    It is for comparison, not for accounting: outside the accountants' range its noise is approximated.

    Attributes
    ----------
    n_steps : int
    sampling_prob : float
    noise_multiplier : float
        What calibration gives; an approximation where `exact` is False.
    snr : float
        Norm of the largest signal over the norm of the noise, over the whole run.
    records_read : float
        Expected number of records that are read in the whole fit, a measure of its time.
    exact : bool
        Whether the noise multiplier is the accountant's.
    """

    n_steps: int
    sampling_prob: float
    noise_multiplier: float
    snr: float
    records_read: float
    exact: bool


@dataclass(frozen=True)
class Plan:
    """The signal-to-noise ratio of N records under (ε, δ), by number of steps and sampling rate.

    Attributes
    ----------
    num_records, num_params : int
    epsilon, delta : float
    neighboring_relation : str
    chosen : PlannedFit
        The fit that was asked for.
    fits : tuple of PlannedFit
        It and others to compare; by number of steps, then rate.
    noise_factor : float
        Factor by which the counts of an adaptive clip norm raise the noise of the gradients.
    smallest_num_records : int
        Number of records from which `chosen` reaches `min_snr`.
    smallest_epsilon : float or None
        Smallest ε from which these records reach it; None if none up to 100 does.
    """

    num_records: int
    num_params: int
    epsilon: float
    delta: float
    neighboring_relation: str
    chosen: PlannedFit
    fits: tuple[PlannedFit, ...]
    noise_factor: float
    smallest_num_records: int
    smallest_epsilon: float | None

    @property
    def min_snr(self) -> float:
        """Signal-to-noise ratio below which the noise drowns the signal of a model of this size."""
        return _bound(self.num_params).snr

    @property
    def drowned(self) -> bool:
        """Whether the noise of the chosen fit drowns the signal."""
        return self.chosen.snr < self.min_snr

    @property
    def warning(self) -> str | None:
        """What to do if the noise drowns the signal; None if it does not."""
        if not self.drowned:
            return None
        ways = [f"{self.smallest_num_records:,} records"]
        if self.smallest_epsilon is not None:
            ways.append(f"epsilon={shown(self.smallest_epsilon, up=True, digits=2)}")
        ways.append("a model with fewer parameters")
        return (
            f"The noise drowns much of the signal: even if the gradients of all {self.num_records:,} records "
            f"pointed the same way, they would be {shown(self.chosen.snr, digits=2)} times as long as the "
            f"noise of the whole fit. {_bound(self.num_params).measured} {self.min_snr:g} times takes "
            f"{', or '.join(ways)}."
        )

    def _page(self) -> Page:
        one = self.chosen
        facts = [
            ("records", f"{self.num_records:,}"),
            ("parameters", f"{self.num_params:,}"),
            ("privacy", f"epsilon {shown(self.epsilon)}, delta {shown(self.delta)}"),
            ("protects against", self.neighboring_relation.replace("_", " ")),
            ("chosen", f"{one.n_steps} steps, sampling_prob {shown(one.sampling_prob)}"),
            ("noise_multiplier", shown(one.noise_multiplier) + ("" if one.exact else " (about)")),
            ("signal to noise", shown(one.snr, digits=3)),
            ("enough would be", f"{self.smallest_num_records:,} records{self._or_epsilon()}"),
        ]
        rows = [
            [
                f"{fit.n_steps:,}",
                shown(fit.sampling_prob, digits=3),
                shown(fit.noise_multiplier, digits=3),
                shown(fit.sampling_prob * self.num_records, digits=3),
                shown(fit.snr, digits=3),
                f"{fit.records_read:.2g}",
                "chosen" if fit == one else "",
            ]
            for fit in self.fits
        ]
        columns = ("steps", "rate", "noise", "batch", "signal/noise", "records read", "")
        lines = (
            "signal/noise: all gradients pulling the same way, over the noise of the whole run; "
            f"{_bound(self.num_params).enough}",
            "The number of records enters this plan, and no fit with a sampling_prob.",
        )
        return Page(
            "Plan of a private fit", facts, [Section("Choices", lines, Table(columns, rows))], self.warning
        )

    def _or_epsilon(self) -> str:
        if self.smallest_epsilon is None:
            return ""
        return f" at this epsilon, or epsilon {shown(self.smallest_epsilon, up=True, digits=2)} with these"

    def __str__(self) -> str:
        return self._page().text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the plan for a notebook."""
        return self._page().html()

    def plot(self, ax: Any = None, plot_kwargs: Mapping[str, Any] | None = None) -> Any:
        """Plot the signal-to-noise ratio against the sampling rate, for several numbers of steps.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure by default.
        plot_kwargs : dict, optional
            For the ``plot`` of each curve.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed.

        Notes
        -----
        Curves are drawn by the central limit theorem, points by the accountant. Uses no data.
        """
        ax = new_axes(ax)
        rates = np.geomspace(1e-4, 1.0, 100)
        mu = gdp_mu(self.epsilon, self.delta)
        sensitivity = sensitivity_factor(self.neighboring_relation)
        for k, steps in enumerate(sorted({fit.n_steps for fit in self.fits})):
            noise = [
                clt_noise(mu, sampling_prob=q, n_steps=steps, sensitivity=sensitivity) for q in rates[:-1]
            ]
            snr = [
                _snr(self.num_records, self.num_params, steps, q, z * self.noise_factor)
                for q, z in zip(rates[:-1], noise, strict=True)
            ]
            style = {"color": f"C{k}", "label": f"{steps:,} steps", **(plot_kwargs or {})}
            ax.plot(rates[:-1], snr, **style)
            points = [(fit.sampling_prob, fit.snr) for fit in self.fits if fit.n_steps == steps]
            ax.plot(*zip(*points, strict=True), "o", color=style["color"], markersize=3)
        ax.plot([self.chosen.sampling_prob], [self.chosen.snr], "k*", markersize=12, label="chosen")
        ax.axhspan(0.0, self.min_snr, color="0.9")
        ax.axhline(self.min_snr, color="0.5", linestyle="--", label="noise drowns much of the signal below")
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="sampling rate q",
            ylabel="signal / noise of the whole run",
            title=f"N = {self.num_records:,}, D = {self.num_params:,}, "
            f"ε = {shown(self.epsilon)}, δ = {shown(self.delta)}",
        )
        ax.legend()
        return ax


def plan(
    num_records: int,
    epsilon: float,
    delta: float,
    *,
    n_steps: int = 10_000,
    sampling_prob: float | None = None,
    num_params: int = 10,
    l2_clip_norm: Any = "adaptive",
    neighboring_relation: str = "add_or_remove_one",
    accountant: Any = "pld",
    steps: Sequence[int] = _STEPS,
) -> Plan:
    """Show what a private fit can do with (ε, δ), before any data are used.

    Parameters
    ----------
    num_records : int
        N, exactly or roughly; with ``unit=``, the number of persons. It is used here only.
    epsilon, delta : float
        The target. Outside the range of the accountants (epsilon below 0.01) the noise is approximated.
    n_steps : int
        Steps of the fit; the default is that of `fit`.
    sampling_prob : float, optional
        Sampling probability q; by default as in `DPADVI`.
    num_params : int
        D, the number of unconstrained latent values of the model, without those of persons that are
        integrated out.
    l2_clip_norm : float, "adaptive" or AdaptiveClip
        As in `DPADVI`. Its value does not matter, but the noise of an adaptive one is somewhat larger.
    neighboring_relation : {"add_or_remove_one", "replace_one"}
    accountant : str, dp_accounting.PrivacyAccountant or callable
        As in `DPADVI`.
    steps : sequence of int
        Numbers of steps to compare with.

    Returns
    -------
    Plan
        With a table as text and in a notebook, ``.plot()``, ``.warning`` and ``.chosen``.

    Raises
    ------
    ArgumentError
        If an argument is out of range.

    Warns
    -----
    PrivacyWarning
        If the noise drowns much of the signal, with the smallest number of records, and the smallest
        epsilon, at which it would not.

    Notes
    -----
    Privacy: uses no data. The plan shows `num_records`: do not publish it if that number is not public.

    Examples
    --------
    >>> plan(50_000, epsilon=1.0, delta=1e-6).chosen.sampling_prob < 0.02
    True
    """
    num_records = check_integer("num_records", num_records)
    num_params = check_integer("num_params", num_params)
    epsilon = check_number("epsilon", epsilon, high=_LARGEST_EPSILON, closed_high=True, example=1.0)
    delta = check_number("delta", delta, low=1e-12, high=0.1, closed_low=True, closed_high=True, example=1e-6)
    n_steps = check_integer("n_steps", n_steps, high=MAX_STEPS)
    compared = {check_integer("steps", t, high=MAX_STEPS) for t in steps} | {n_steps}
    check_relation(neighboring_relation)
    clip = check_clip_norm(l2_clip_norm)
    factor = math.sqrt(1.0 + clip.tally_weight**2) if isinstance(clip, AdaptiveClip) else 1.0
    given: dict[str, Any] = {
        "delta": delta,
        "neighboring_relation": neighboring_relation,
        "accountant": accountant,
    }

    def fit(steps: int, rate: float, eps: float = epsilon, about: bool = False) -> PlannedFit:
        noise, exact = _noise(eps, steps, rate, about=about, **given)
        snr = _snr(num_records, num_params, steps, rate, noise * factor)
        return PlannedFit(steps, rate, noise, snr, steps * rate * num_records, exact)

    def default(steps: int, eps: float = epsilon) -> float:
        if sampling_prob is not None:
            return check_number("sampling_prob", sampling_prob, low=1e-6, high=1.0, closed_high=True)
        return _default_rate(eps, delta, steps)

    chosen = fit(n_steps, default(n_steps))
    others = [fit(t, default(t)) for t in sorted(compared - {n_steps})]
    if sampling_prob is None:
        rates = {min(1.0, factor * chosen.sampling_prob) for factor in _RATES} - {chosen.sampling_prob}
        others += [fit(n_steps, max(1e-6, rate)) for rate in sorted(rates)]
    found = Plan(
        num_records=num_records,
        num_params=num_params,
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=neighboring_relation,
        chosen=chosen,
        fits=tuple(sorted([chosen, *others], key=lambda f: (f.n_steps, f.sampling_prob))),
        noise_factor=factor,
        smallest_num_records=max(1, math.ceil(_bound(num_params).snr * num_records / chosen.snr)),
        smallest_epsilon=_smallest_epsilon(
            lambda eps: fit(n_steps, default(n_steps, eps), eps, about=True).snr,
            lambda eps: fit(n_steps, default(n_steps, eps), eps).snr,
            _bound(num_params).snr,
        ),
    )
    if found.warning is not None:
        warn(found.warning)
    return found


def _bound(num_params: int) -> _Bound:
    return _REGRESSIONS if num_params <= MOST_LATENTS else _NETWORKS


def _snr(num_records: int, num_params: int, n_steps: int, rate: float, noise: float) -> float:
    return num_records * rate * math.sqrt(n_steps) / (noise * math.sqrt(num_params))


def _default_rate(epsilon: float, delta: float, n_steps: int) -> float:
    return accounting.default_sampling_prob(
        epsilon=max(epsilon, EPSILON_RANGE[0]), delta=delta, n_steps=n_steps
    )


def _noise(
    epsilon: float,
    n_steps: int,
    rate: float,
    *,
    delta: float,
    neighboring_relation: str,
    accountant: Any,
    about: bool,
) -> tuple[float, bool]:
    """Return the noise multiplier, and whether it is the accountant's."""
    if epsilon >= EPSILON_RANGE[0] and not about:
        try:
            found = accounting.noise_multiplier(
                epsilon=epsilon,
                delta=delta,
                n_steps=n_steps,
                sampler="poisson",
                sampling_prob=rate,
                neighboring_relation=neighboring_relation,
                accountant=accountant,
            )
        except CalibrationError:
            pass
        else:
            return found, True
    sensitivity = sensitivity_factor(neighboring_relation)
    return clt_noise(
        gdp_mu(epsilon, delta), sampling_prob=rate, n_steps=n_steps, sensitivity=sensitivity
    ), False


def _smallest_epsilon(
    about: Callable[[float], float], exact: Callable[[float], float], least: float
) -> float | None:
    """Return about the smallest epsilon at which the signal is large enough, from above; None beyond 100.

    The search starts from the central limit theorem's answer and ends with the accountant's.
    """
    low, high = math.log(1e-6), math.log(_LARGEST_EPSILON)
    while high - low > 0.01:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if about(math.exp(middle)) >= least else (middle, high)
    found = math.exp(high)
    while found <= _LARGEST_EPSILON:
        if exact(found) >= least:
            return found
        found *= 1.02
    return None
