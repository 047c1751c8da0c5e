r"""Rényi differential privacy (Mironov 2017), with allowances for rounding and for the factor two.

A mechanism is :math:`(\alpha, \varepsilon_\alpha)`-RDP if the Rényi divergence of order :math:`\alpha`
between its outputs on neighbouring data is at most :math:`\varepsilon_\alpha`. The divergences of steps add
up at every order. Those of Poisson-sampled Gaussians are by Mironov, Talwar and Zhang (2019), as
dp-accounting evaluates them; those of batches without replacement by Wang, Balle and Kasiviswanathan (2019,
Theorem 27; `fixed_size_rdp`); the conversion is that of Canonne, Kamath and Steinke (2020, Proposition 12).
About 8 % looser than PLD at usual settings, good for any delta.

What is added to dp-accounting's class:

* *Rounding.* For Poisson batches, dp-accounting sums :math:`\alpha + 1` terms in log space. The log-moment of
  one step fell short of 60-digit arithmetic by less than :math:`2\cdot10^{-14}(\alpha + 1)`, for :math:`q`
  from 1e-6 to 0.99 and :math:`z` from 1 to 1e8 (the series for fractional orders stop at a relative
  :math:`10^{-13}`). For tiny losses it can be negative, which dp-accounting takes for "epsilon 0". The
  allowance :math:`(10^{-12} + 2\cdot10^{-14}\,\alpha)/(\alpha - 1)` is added per step. For less noise,
  log-moments reach 10⁵ and fall short by a unit in the last place: the divergence is also multiplied by
  1 + 10⁻¹³.
* *The factor two.* Replacing a record moves the sum by twice its bound, which dp-accounting's class ignores.
  Here the noise is divided by the sensitivity.

**Orders are evaluated on demand.** With :math:`K(\alpha) = (\alpha-1)\varepsilon_\alpha`, which is convex,
the conversion gives

.. math:: \varepsilon(\alpha) = \frac{K(\alpha) + (\alpha-1)\ln(\alpha-1) - \alpha\ln\alpha - \ln\delta}
    {\alpha - 1}, \qquad
    \ln\delta(\alpha) = K(\alpha) + (\alpha-1)\ln(\alpha-1) - \alpha\ln\alpha - (\alpha-1)\,\varepsilon .

The second is convex, and the first is a convex function over :math:`\alpha - 1`: both fall to their minimum
and rise from there, so halving finds it with few orders. Any order gives a bound: a wrong search would make
epsilon larger, not false. The lowest order is always evaluated, because dp-accounting has another bound
there, by the Kullback-Leibler divergence, for tiny losses.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon

from pymc_dpvi.accounting.contract import (
    ADD_OR_REMOVE,
    BOTH,
    REPLACE,
    GaussianStep,
    Guarantee,
    Schemes,
    gaussian_step,
    refuse_unsupported,
    why_unsupported,
)
from pymc_dpvi.accounting.papers.fixed_size_rdp import fixed_size_divergence
from pymc_dpvi.accounting.relations import sensitivity_factor
from pymc_dpvi.arguments import check_number
from pymc_dpvi.errors import ArgumentError

__all__ = ["GuardedRdpAccountant", "rdp_curve"]

_COMPOSITIONS = (dp_accounting.SelfComposedDpEvent, dp_accounting.ComposedDpEvent)


def _is_not_about_an_order(record: logging.LogRecord) -> bool:
    return "_compute_log_a_frac failed to converge" not in str(record.msg)


@contextmanager
def _quiet_orders() -> Iterator[None]:
    """Drop the message that an order is left out: the minimum over the others is a bound."""
    logger = logging.getLogger("absl")
    logger.addFilter(_is_not_about_an_order)
    try:
        yield
    finally:
        logger.removeFilter(_is_not_about_an_order)


@functools.lru_cache(maxsize=2**14)
def _divergence(step: GaussianStep, noise: float, order: float) -> float:
    """Return an upper bound of a step's divergence; `noise` is over the distance a record moves the sum."""
    if step.scheme == "full_batch":
        return 0.5 * order / noise**2
    if step.scheme == "fixed_size":
        return fixed_size_divergence(step.sampling_prob, noise, order)
    event = dp_accounting.PoissonSampledDpEvent(step.sampling_prob, dp_accounting.GaussianDpEvent(noise))
    with _quiet_orders():
        found = float(RdpAccountant([order], NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event).rdp[0])
    if math.isnan(found):
        return math.inf
    return found * (1.0 + 1e-13) + (1e-12 + 2e-14 * order) / (order - 1.0)


class GuardedRdpAccountant(RdpAccountant):
    """dp-accounting's RDP accountant with an allowance for rounding and the relation's factor.

    Rényi orders are above 1; by default they are dp-accounting's.
    """

    name: ClassVar[str] = "rdp"
    guarantee: ClassVar[Guarantee] = "proven"
    source: ClassVar[str] = "Rényi DP (Mironov 2017; Mironov et al. 2019; Wang et al. 2019)"
    schemes: ClassVar[Schemes] = {"full_batch": BOTH, "poisson": ADD_OR_REMOVE, "fixed_size": REPLACE}

    def __init__(
        self,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
        orders: Sequence[float] | None = None,
    ) -> None:
        if orders is not None:
            orders = [check_number("orders", order, low=1.0) for order in orders]
            if not orders:
                raise ArgumentError("orders must hold at least one number above 1; found none.")
        self._counts: dict[GaussianStep, int] = {}
        super().__init__(orders, neighboring_relation)

    def _at(self, order: float) -> float:
        """Return the bound of the divergence at one order."""
        return math.fsum(
            count * _divergence(step, step.noise_multiplier / self._sensitivity, order)
            for step, count in self._counts.items()
        )

    @property
    def _sensitivity(self) -> float:
        return sensitivity_factor(self.neighboring_relation)

    @property
    def _rdp(self) -> np.ndarray:
        return np.array([self._at(float(order)) for order in self._orders])

    @_rdp.setter
    def _rdp(self, value: np.ndarray) -> None:
        """Ignore what dp-accounting's class sets: the steps are counted here."""

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> Any:
        if isinstance(event, _COMPOSITIONS):  # comes back here for each part
            return super()._maybe_compose(event, count, do_compose)
        reason = why_unsupported(event, self.neighboring_relation, self.schemes)
        if reason is not None:
            return self.CompositionErrorDetails(event, reason)
        step = gaussian_step(event)
        if do_compose and step is not None and step.sampling_prob > 0.0:  # others release nothing
            self._counts[step] = self._counts.get(step, 0) + count
        return None

    def compose(self, event: dp_accounting.DpEvent, count: int = 1) -> Any:
        """Add `count` times `event`; an UnsupportedEventError, and no change, if it is not supported."""
        refuse_unsupported(self, event)
        return super().compose(event, count)

    def get_epsilon(self, target_delta: float) -> float:
        """Return an upper bound of epsilon at `target_delta`."""
        return self._least(lambda order, rdp: compute_epsilon([order], [rdp], target_delta)[0])

    def get_delta(self, target_epsilon: float) -> float:
        """Return an upper bound of delta at `target_epsilon`, 0 or more."""
        return self._least(lambda order, rdp: compute_delta([order], [rdp], target_epsilon)[0])

    def _least(self, bound: Callable[[float, float], float]) -> float:
        """Return the least bound; it falls and then rises with the order."""
        orders = sorted(float(order) for order in self._orders)

        @functools.cache
        def of(order: float) -> float:
            rdp = self._at(order)
            return float(bound(order, rdp)) if rdp < math.inf else math.inf

        # The series of fractional orders may not converge: whole orders first, then those beside the best.
        whole = [order for order in orders if order.is_integer()] or orders
        low, high = 0, len(whole) - 1
        while low < high:
            middle = (low + high) // 2
            left, right = of(whole[middle]), of(whole[middle + 1])
            if left == right:  # both infinite, or rounded to the same: no direction
                return min(map(of, orders))
            low, high = (low, middle) if left < right else (middle + 1, high)
        below = whole[low - 1] if low > 0 else 1.0
        above = whole[low + 1] if low + 1 < len(whole) else math.inf
        return min(of(order) for order in orders if order == orders[0] or below < order < above)


def rdp_curve(
    event: dp_accounting.DpEvent,
    orders: Sequence[float],
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> np.ndarray:
    """Return an upper bound of the Rényi divergences of `event`.

    Parameters
    ----------
    event : dp_accounting.DpEvent
        Any composition of steps that the accountant ``"rdp"`` takes, as :func:`step_event` makes them
        for it: the noise multiplier does not contain the relation's factor, which is applied here.
    orders : sequence of float
        Rényi orders, above 1.
    neighboring_relation : dp_accounting.NeighboringRelation
        Add-or-remove-one or replace-one.

    Returns
    -------
    ndarray of float64, shape (len(orders),)
        Infinite at an order whose series did not converge.

    Raises
    ------
    ArgumentError
        If an order is not a finite number above 1.
    UnsupportedEventError
        If the event is not supported under this relation, such as Poisson sampling under replace-one.
    """
    return np.asarray(GuardedRdpAccountant(neighboring_relation, orders).compose(event).rdp, dtype=np.float64)
