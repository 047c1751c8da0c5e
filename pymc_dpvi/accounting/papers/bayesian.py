r"""The accountants of Triastcyn and Faltings, which are diagnostics and no bounds.

Papers use them, so they can be looked at beside a proven accountant. They neither calibrate nor satisfy a
budget unless the user says ``allow_unproven=True``, and the Bayesian one only if its distances are public,
too.

**Generic accountant** ("Improved Accounting for Differentially Private Learning", arXiv 1901.09697). With
:math:`c_t(\lambda) = q^2\lambda(\lambda+1)/(2z^2)` and Chernoff's bound,

.. math::
   \ln\delta \le \sum_t c_t(\lambda) - \lambda\varepsilon
   \quad\Longrightarrow\quad
   \varepsilon = r + 2\sqrt{r \ln(1/\delta)}, \qquad r = \sum_t \frac{q_t^2}{2z_t^2}.

For :math:`q = 1` this is zCDP, which is proven. For :math:`q < 1` the moment of a *mixture* of Gaussians is
replaced by that of the Gaussian at the mean of the mixture, which is smaller: at q=0.0005, z=0.5, one step
and delta=1e-8 it says 0.006, and the truth is 2.19. The tests hold twenty such settings.

**Bayesian accountant** ("Bayesian Differential Privacy for Machine Learning", ICML 2020). It looks at records
drawn like the data instead of the worst record. Let :math:`d_i` be the distance by which a pair of such draws
moves the sum, in units of the bound on one record. Then

.. math::
   c_i(\lambda) = \ln E_{k\sim\mathrm{Bin}(\lambda+1,q)} \exp\frac{k(k-1)\,d_i^2}{2z^2},

the same in both directions of the pair. A step's cost is :math:`\frac1H\ln` of an upper confidence bound
(Student's t, at level :math:`1-\gamma`) of the mean of :math:`e^{H c_i}`. All steps see the same record, for
which Hölder's inequality takes :math:`H = T`; :math:`H = 1` assumes that they do not. With :math:`m` such
estimates, each for all :math:`\lambda`,

.. math::
   \varepsilon = \min_\lambda
   \frac{\sum_t c_t(\lambda) - \ln\bigl(\delta - (1 - (1-\gamma)^m)\bigr)}{\lambda}.

It speaks of a typical record of the distribution that the distances were drawn from, and says nothing of an
outlier. It assumes that the t distribution fits a heavy-tailed mean. It is not differential privacy.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from dp_accounting import NeighboringRelation
from numpy.typing import ArrayLike
from scipy import stats

from pymc_dpvi.accounting.contract import BOTH, CountingAccountant, GaussianStep, Guarantee, Schemes
from pymc_dpvi.accounting.papers.moments import MAX_MOMENT, log_moments
from pymc_dpvi.arguments import check_number
from pymc_dpvi.errors import ArgumentError

__all__ = ["BayesianAccountant", "GenericAccountant"]

_MIN_PAIRS = 3


class GenericAccountant(CountingAccountant):
    """Generic accountant of Triastcyn and Faltings (2019): a heuristic, which can be too small for q < 1.

    Parameters
    ----------
    neighboring_relation : dp_accounting.NeighboringRelation
        Add-or-remove-one or replace-one.
    """

    name: ClassVar[str] = "generic"
    guarantee: ClassVar[Guarantee] = "heuristic"
    source: ClassVar[str] = "generic accountant (Triastcyn and Faltings 2019); no bound for sampled batches"
    schemes: ClassVar[Schemes] = {"full_batch": BOTH, "poisson": BOTH}

    def _epsilon(self, delta: float) -> float:
        r = math.fsum(
            count * (step.sampling_prob / self._noise(step)) ** 2 / 2.0
            for step, count in self._counts.items()
        )
        return r + 2.0 * math.sqrt(r * math.log(1.0 / delta))


class BayesianAccountant(CountingAccountant):
    r"""Bayesian accountant of Triastcyn and Faltings (2020): about typical records, not the worst.

    Parameters
    ----------
    gradient_distances : array_like of float, shape (num_pairs,) or (n_steps, num_pairs)
        How far pairs of records, drawn independently like the data, move the clipped sum of a step, in units
        of `l2_clip_norm`: under add-or-remove-one the norm of one record's clipped gradient, under
        replace-one the distance of two. At least three pairs. A single row stands for every step, and
        assumes that all steps have the same distribution of distances; several rows stand for one step
        each.
    neighboring_relation : dp_accounting.NeighboringRelation
        Add-or-remove-one or replace-one: the relation that the distances belong to.
    failure_prob : float, optional
        The probability :math:`\gamma` with which one confidence bound may fail. By default all of them
        together take half of delta.
    distances_are_public : bool
        Whether the distances come from public data. If not, the accountant neither calibrates nor satisfies a
        budget, whatever else the user says: the result would tell about the records.
    independent_steps : bool
        Whether to assume that steps do not see the same record (H = 1 in place of H = T). This makes
        epsilon smaller, and is not true of a fit on one data set.

    Raises
    ------
    ArgumentError
        If the distances have another shape, are not finite, or exceed what clipping allows.

    Notes
    -----
    Privacy: epsilon is computed from the records' gradients, and no account covers it. So it is private
    itself: do not publish it, nor a comparison that tells its size, and do not choose a run by it.
    :func:`require_proven` refuses it for a release, unless the distances are declared public.
    """

    name: ClassVar[str] = "bayesian"
    guarantee: ClassVar[Guarantee] = "bayesian"
    source: ClassVar[str] = "Bayesian accountant (Triastcyn and Faltings 2020); typical records only"
    schemes: ClassVar[Schemes] = {"full_batch": BOTH, "poisson": BOTH}

    def __init__(
        self,
        gradient_distances: ArrayLike,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
        *,
        failure_prob: float | None = None,
        distances_are_public: bool = False,
        independent_steps: bool = False,
    ) -> None:
        super().__init__(neighboring_relation)
        distances = np.array(gradient_distances, dtype=np.float64)
        if distances.ndim not in (1, 2) or distances.size == 0 or distances.shape[-1] < _MIN_PAIRS:
            raise ArgumentError(
                "gradient_distances must have the shape (num_pairs,) or (n_steps, num_pairs), with at least "
                f"{_MIN_PAIRS} pairs; found {distances.ndim} dimensions."
            )
        # No word about which value, or how large: the text would tell it.
        if not np.all((distances >= 0.0) & (distances <= self._sensitivity * (1.0 + 1e-6))):
            raise ArgumentError(
                f"gradient_distances must be numbers from 0 to {self._sensitivity:g}, in units of "
                "l2_clip_norm. Clip the gradients, and divide by l2_clip_norm."
            )
        self._distances = np.atleast_2d(distances)
        self._pooled = distances.ndim == 1
        self._failure_prob = (
            None if failure_prob is None else check_number("failure_prob", failure_prob, high=1.0)
        )
        self._independent_steps = bool(independent_steps)
        self._public = distances_are_public is True

    @property
    def data_dependent(self) -> bool:
        """Whether epsilon is computed from private records."""
        return not self._public

    def _cost(self, step: GaussianStep, distances: Any, n_steps: int, failure_prob: float) -> Any:
        """Return upper confidence bounds of a step's cost, one for each moment."""
        with np.errstate(divide="ignore"):
            noise = step.noise_multiplier / distances
        power = 1 if self._independent_steps else n_steps
        costs = power * log_moments(step.sampling_prob, noise)
        top = costs.max(axis=1)
        # exp(power * cost), over its largest value
        relative = np.exp(costs - top[:, None])
        n = len(distances)
        quantile = stats.t.isf(failure_prob, df=n - 1)
        error = relative.std(axis=1, ddof=1) / math.sqrt(n)
        # where: the quantile may be infinite while the sample has no spread
        bound = relative.mean(axis=1) + np.where(error > 0.0, quantile, 0.0) * error
        return (top + np.log(bound)) / power

    def _epsilon(self, delta: float) -> float:
        n_steps = sum(self._counts.values())
        if self._pooled:
            rows = [(step, count, self._distances[0]) for step, count in self._counts.items()]
        else:
            if len(self._counts) > 1 or n_steps != len(self._distances):
                raise ArgumentError(
                    "gradient_distances has one row for each step: compose exactly as many steps as it has "
                    "rows, all of the same kind, or give one pooled row."
                )
            (step,) = self._counts
            rows = [(step, 1, row) for row in self._distances]
        failure_prob = self._failure_prob
        if failure_prob is None:
            failure_prob = -math.expm1(math.log1p(-0.5 * delta) / len(rows))
        failed = -math.expm1(len(rows) * math.log1p(-failure_prob))
        if failed >= delta:
            raise ArgumentError(
                f"failure_prob={failure_prob:g} for each of {len(rows)} estimates uses up delta={delta:g}. "
                "Leave it out, or give a smaller one."
            )
        total = np.zeros(MAX_MOMENT)
        for step, count, distances in rows:
            total += count * self._cost(step, distances, n_steps, failure_prob)
        return float(np.min((total - math.log(delta - failed)) / np.arange(1, MAX_MOMENT + 1)))
