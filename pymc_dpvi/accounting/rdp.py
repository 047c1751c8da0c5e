r"""Rényi differential privacy (Mironov 2017), guarded against rounding and the factor two.

A mechanism is :math:`(\alpha, \varepsilon_\alpha)`-RDP if the Rényi divergence of order
:math:`\alpha` between its outputs on neighbouring data is at most :math:`\varepsilon_\alpha`. The
divergences of steps add up at every order. Poisson-sampled Gaussians are those of Mironov, Talwar
and Zhang (2019), batches without replacement those of Wang, Balle and Kasiviswanathan (2019, Theorem
27), the conversion is that of Canonne, Kamath and Steinke (2020, Proposition 12). About 8 % looser than
PLD at usual settings, good for any delta.

Two things are guarded.

* RDP sums :math:`\alpha + 1` terms in log space. Against 60-digit arithmetic over
  :math:`q` from 1e-6 to 0.99 and :math:`z` from 1 to 1e8, the log-moment of one step fell short by
  less than :math:`2\cdot10^{-14}(\alpha + 1)` (the series for fractional orders stop at a relative
  :math:`10^{-13}`). For tiny losses it can come out negative, which dp-accounting takes for
  "epsilon 0". The allowance :math:`(10^{-12} + 2\cdot10^{-14}\,\alpha)/(\alpha - 1)` is added per step.
* dp-accounting's class ignores that replacing a record moves the sum by twice its bound. This one
  halves the noise multiplier of what it hands on, unless a canary says that the installed class
  does so itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from pymc_dpvi.accounting.contract import (
    ADD_OR_REMOVE,
    BOTH,
    REPLACE,
    Guarantee,
    Schemes,
    doubles_sensitivity,
    refuse_unsupported,
    why_unsupported,
)
from pymc_dpvi.arguments import check_number
from pymc_dpvi.errors import ArgumentError

__all__ = ["GuardedRdpAccountant", "rdp_curve"]

_COMPOSITIONS = (dp_accounting.SelfComposedDpEvent, dp_accounting.ComposedDpEvent)
_SAMPLED = (dp_accounting.PoissonSampledDpEvent, dp_accounting.SampledWithoutReplacementDpEvent)


def _is_not_about_an_order(record: logging.LogRecord) -> bool:
    return "_compute_log_a_frac failed to converge" not in str(record.msg)


@contextmanager
def _quiet_orders() -> Iterator[None]:
    """Drop the message that an order is left out: the minimum over the others is still a bound."""
    logger = logging.getLogger("absl")
    logger.addFilter(_is_not_about_an_order)
    try:
        yield
    finally:
        logger.removeFilter(_is_not_about_an_order)


class GuardedRdpAccountant(RdpAccountant):
    """dp-accounting's RDP accountant with an allowance for rounding and the factor two.

    Parameters
    ----------
    neighboring_relation : dp_accounting.NeighboringRelation
        Add-or-remove-one or replace-one.
    orders : sequence of float, optional
        Rényi orders, above 1; by default those of dp-accounting.

    Raises
    ------
    ArgumentError
        If an order is not a finite number above 1.
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
        super().__init__(orders, neighboring_relation)
        self._rdp: np.ndarray = np.zeros(len(self._orders))

    def _scaled(self, event: Any) -> Any:
        """Return `event` such that dp-accounting's class sees the relation's sensitivity."""
        if self.neighboring_relation is not NeighboringRelation.REPLACE_ONE:
            return event
        without_replacement = isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent)
        gaussian = event.event if without_replacement else event
        doubled = doubles_sensitivity(RdpAccountant, without_replacement=without_replacement)
        scaled = dp_accounting.GaussianDpEvent(gaussian.noise_multiplier * (1.0 if doubled else 0.5))
        if not without_replacement:
            return scaled
        return dp_accounting.SampledWithoutReplacementDpEvent(
            event.source_dataset_size, event.sample_size, scaled
        )

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> Any:
        if isinstance(event, _COMPOSITIONS):  # comes back here for each part
            return super()._maybe_compose(event, count, do_compose)
        reason = why_unsupported(event, self.neighboring_relation, self.schemes)
        if reason is not None:
            return self.CompositionErrorDetails(event, reason)
        if not do_compose or isinstance(event, dp_accounting.NoOpDpEvent):
            return None
        with _quiet_orders():
            error = super()._maybe_compose(self._scaled(event), count, True)
        if isinstance(event, _SAMPLED):
            orders = self._orders
            self._rdp = self._rdp + count * (1e-12 + 2e-14 * orders) / (orders - 1.0)
        return error

    def compose(self, event: dp_accounting.DpEvent, count: int = 1) -> Any:
        """Add `count` times `event`.

        Parameters
        ----------
        event : dp_accounting.DpEvent
            What was released.
        count : int
            How often.

        Returns
        -------
        GuardedRdpAccountant
            This accountant.

        Raises
        ------
        UnsupportedEventError
            If the event, or a part of it, is not supported; nothing has changed then.
        """
        refuse_unsupported(self, event)
        return super().compose(event, count)

    def get_epsilon(self, target_delta: float) -> float:
        """Return an upper bound of epsilon at `target_delta`.

        Parameters
        ----------
        target_delta : float
            Delta of the guarantee.

        Returns
        -------
        float
        """
        # An order whose series did not converge comes back as infinity and is left out.
        if np.isnan(self._rdp).any():
            return math.inf
        return float(super().get_epsilon(target_delta))

    def get_delta(self, target_epsilon: float) -> float:
        """Return an upper bound of delta at `target_epsilon`.

        Parameters
        ----------
        target_epsilon : float
            Epsilon of the guarantee, 0 or more.

        Returns
        -------
        float
        """
        if np.isnan(self._rdp).any():
            return 1.0
        return float(super().get_delta(target_epsilon))


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
        for it: the noise multiplier is the noise standard deviation over `l2_clip_norm`, and the
        relation's factor two is put in here.
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
    accountant = GuardedRdpAccountant(neighboring_relation, orders)
    found = np.asarray(accountant.compose(event).rdp, dtype=np.float64)
    return np.where(np.isnan(found), math.inf, found)
