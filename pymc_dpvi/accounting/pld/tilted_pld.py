r"""The PLD accountant that answers at any delta: the default.

The same dominating pairs as in `pld`, on a grid of its own (`dominating_pairs`, `batch_pairs`), composed by
a tilted FFT (`gaussian_steps`), so that its error is relative to delta and bounded, in place of an absolute
one that is measured: it answers at :math:`\delta = 10^{-12}` and :math:`T = 10^7` alike. The tests hold it
against the inverted moment generating function, which knows neither grid nor FFT: epsilon is never below the
truth, and within 1e-3 of it, but where a few rare steps lose nearly everything.

Events are kept as counts; composing costs nothing until a question is asked. The distribution of
dp-accounting (``_pld``) is composed only if somebody asks for it.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from numpy.typing import ArrayLike, NDArray

from pymc_dpvi.accounting.contract import gaussian_step
from pymc_dpvi.accounting.gaussian import gaussian_epsilon, log_gaussian_delta
from pymc_dpvi.accounting.pld.accountant import DEFAULT_DISCRETIZATION, GuardedPLDAccountant
from pymc_dpvi.accounting.pld.batch_pairs import FixedSizePair
from pymc_dpvi.accounting.pld.dominating_pairs import GaussianPair
from pymc_dpvi.accounting.pld.gaussian_steps import (
    LossPair,
    composed_delta,
    composed_epsilon,
    composed_profile,
)
from pymc_dpvi.arguments import check_number
from pymc_dpvi.errors import ArgumentError

__all__ = ["TiltedPLDAccountant"]


class TiltedPLDAccountant(GuardedPLDAccountant):
    """Privacy loss distributions of Gaussian steps, composed by a tilted FFT with a bounded error.

    Parameters
    ----------
    neighboring_relation : dp_accounting.NeighboringRelation
        Add-or-remove-one or replace-one.
    value_discretization_interval : float
        Grid step of ``_pld``. The grid behind `get_epsilon` and `get_delta` is chosen for each answer.
    """

    source: ClassVar[str] = (
        "privacy loss distributions, connect-the-dots (Doroshenko et al. 2022; fixed-size batches: "
        "Zhu, Dong and Wang 2022), tilted FFT with an error bound"
    )

    def __init__(
        self,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval: float = DEFAULT_DISCRETIZATION,
    ) -> None:
        self._pending: list[tuple[dp_accounting.DpEvent, int]] = []
        self._pairs: dict[LossPair, int] = {}
        self._full: dict[float, int] = {}  # noise over the sensitivity of steps on the full data
        super().__init__(neighboring_relation, value_discretization_interval)

    @property
    def _pld(self) -> Any:
        pending, self._pending = self._pending, []
        for event, count in pending:
            super()._maybe_compose(event, count, True)
        return self._distribution

    @_pld.setter
    def _pld(self, value: Any) -> None:
        self._distribution = value

    @property
    def numerical_delta(self) -> float:
        """Allowance that covers what the plain FFT of ``_pld`` may have taken from delta."""
        _ = self._pld
        return super().numerical_delta

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> Any:
        if isinstance(event, dp_accounting.SelfComposedDpEvent | dp_accounting.ComposedDpEvent):
            return super()._maybe_compose(event, count, do_compose)
        error = super()._maybe_compose(event, count, False)
        if error is None and do_compose and not isinstance(event, dp_accounting.NoOpDpEvent):
            self._pending.append((event, count))
            self._count(event, count)
        return error

    def _count(self, event: Any, count: int) -> None:
        replace_one = self.neighboring_relation is NeighboringRelation.REPLACE_ONE
        step = gaussian_step(event)
        assert step is not None  # or it would not be supported
        prob, noise = step.sampling_prob, step.noise_multiplier
        if prob == 0.0:
            return
        if prob == 1.0:
            noise /= 2.0 if replace_one else 1.0
            self._full[noise] = self._full.get(noise, 0) + count
            return
        elif step.scheme == "fixed_size":
            pair: LossPair = FixedSizePair(prob, noise)
        else:
            pair = GaussianPair(prob, noise, replace_one)
        self._pairs[pair] = self._pairs.get(pair, 0) + count

    @property
    def _mu(self) -> float:
        """The mu of the steps on the full data, rounded up."""
        found = math.sqrt(math.fsum(n / noise**2 for noise, n in self._full.items())) * (1.0 + 1e-14)
        return max(found, 1e-100)

    def _parts(self) -> list[tuple[LossPair, int]]:
        full = [(GaussianPair(1.0, 1.0 / self._mu), 1)] if self._full else []
        return [*self._pairs.items(), *full]

    def get_epsilon(self, target_delta: float) -> float:
        """Return an upper bound of epsilon at `target_delta`.

        Parameters
        ----------
        target_delta : float
            Delta of the guarantee, in (0, 1).

        Returns
        -------
        float
            May be infinite: also where a step alone loses more than `MAX_LOSS`.

        Raises
        ------
        ArgumentError
            If `target_delta` is not in (0, 1).
        """
        delta = check_number("target_delta", target_delta, low=0.0, high=1.0)
        if not self._pairs:
            return gaussian_epsilon(self._mu, delta) if self._full else 0.0
        return composed_epsilon(self._parts(), delta)

    def get_delta(self, target_epsilon: float) -> float:
        """Return an upper bound of delta at `target_epsilon`.

        Parameters
        ----------
        target_epsilon : float
            Epsilon of the guarantee, 0 or more.

        Returns
        -------
        float
            At most 1.

        Raises
        ------
        ArgumentError
            If `target_epsilon` is negative or not finite.
        """
        epsilon = check_number("target_epsilon", target_epsilon, closed_low=True)
        if not self._pairs:
            return min(1.0, math.exp(log_gaussian_delta(self._mu, epsilon))) if self._full else 0.0
        return composed_delta(self._parts(), epsilon)

    def delta_curve(self, epsilons: ArrayLike) -> NDArray[np.float64]:
        """Return upper bounds of delta at many epsilons, at the price of a few.

        Parameters
        ----------
        epsilons : array_like
            0 or more, of any shape.

        Returns
        -------
        numpy.ndarray
            Of the same shape; tight, relative to delta, from 1 down to 1e-40.

        Raises
        ------
        ArgumentError
            If an epsilon is negative or not finite.
        """
        points = np.asarray(epsilons, dtype=np.float64)
        if not (np.isfinite(points) & (points >= 0.0)).all():
            raise ArgumentError("epsilons must be finite, and 0 or more.")
        if self._pairs:
            return composed_profile(self._parts(), points)
        flat = [self.get_delta(float(x)) for x in points.ravel()]
        return np.array(flat).reshape(points.shape)
