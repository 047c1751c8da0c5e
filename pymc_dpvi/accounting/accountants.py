r"""The accountants by name, what each guarantees, and guards on their numerics.

Accountants are `dp_accounting.PrivacyAccountant`, Google's and ours alike. Two come by name:

``"pld"``
    Privacy loss distributions with connect-the-dots discretisation (Doroshenko et al. 2022),
    composed by FFT. The tightest; the default.
``"rdp"``
    Rényi differential privacy (Mironov 2017; Mironov, Talwar and Zhang 2019; Wang, Balle and
    Kasiviswanathan 2019) with the conversion of Canonne, Kamath and Steinke 2020. About 8 % looser
    at usual settings, good for any delta.

Both are proven in exact arithmetic, and both lose a little of it in floating point:

* PLD computes :math:`\hat p^T` by FFT. Against the exact Gaussian curve, over :math:`T` from 3 to
  :math:`10^7`, steps :math:`h` from 1e-3 to 2e-6 and :math:`\mu` from 0.1 to 5, its delta fell
  short of the truth by at most :math:`7\cdot10^{-17}\,T` (at :math:`T = 10^7`,
  :math:`\delta = 10^{-10}` its epsilon is 4 % too small). :class:`GuardedPLDAccountant` therefore
  asks for epsilon at :math:`\delta - (10^{-15} + 2\cdot10^{-16}\,T)`, and refuses where this
  allowance is more than a quarter of delta, or delta is below 1e-10.
* RDP sums :math:`\alpha + 1` terms in log space. Against 60-digit arithmetic over
  :math:`q` from 1e-6 to 0.99 and :math:`z` from 1 to 1e8, the log-moment of one step fell short by
  less than :math:`2\cdot10^{-14}(\alpha + 1)` (the series for fractional orders stop at a relative
  :math:`10^{-13}`). For tiny losses it can come out negative, which dp-accounting takes for
  "epsilon 0". :class:`GuardedRdpAccountant` adds the allowance
  :math:`(10^{-12} + 2\cdot10^{-14}\,\alpha)/(\alpha - 1)` per step.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation, PrivacyAccountant
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from pymc_dpvi.accounting.relations import check_relation
from pymc_dpvi.errors import ArgumentError

__all__ = [
    "AccountantInfo",
    "GuardedPLDAccountant",
    "GuardedRdpAccountant",
    "accountant_info",
    "make_accountant",
]

PLD_MIN_DELTA = 1e-10
"""Smallest delta at which a PLD accountant is believed."""

DEFAULT_DISCRETIZATION = 1e-4
"""Grid step of the privacy loss where nothing is known about the run."""

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


class GuardedPLDAccountant(PLDAccountant):
    """dp-accounting's PLD accountant with an allowance for the noise of its FFT.

    Parameters
    ----------
    neighboring_relation : dp_accounting.NeighboringRelation
        Add-or-remove-one or replace-one.
    value_discretization_interval : float
        Grid step of the privacy loss.
    """

    def __init__(
        self,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval: float = DEFAULT_DISCRETIZATION,
    ) -> None:
        super().__init__(neighboring_relation, value_discretization_interval)
        self._fft_power = 0

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> Any:
        error = super()._maybe_compose(event, count, do_compose)
        if do_compose and isinstance(event, _SAMPLED):
            self._fft_power += count
        elif do_compose and isinstance(event, dp_accounting.GaussianDpEvent):
            self._fft_power += 1  # composed in closed form
        return error

    @property
    def numerical_delta(self) -> float:
        """Allowance that covers what the FFT may have taken from delta."""
        return 1e-15 + 2e-16 * self._fft_power

    @property
    def min_delta(self) -> float:
        """Smallest delta at which this accountant answers."""
        return max(PLD_MIN_DELTA, 4.0 * self.numerical_delta)

    def get_epsilon(self, target_delta: float) -> float:
        """Return an upper bound of epsilon at `target_delta`.

        Parameters
        ----------
        target_delta : float
            Delta of the guarantee.

        Returns
        -------
        float

        Raises
        ------
        ArgumentError
            If `target_delta` is below what the arithmetic can resolve.
        """
        if target_delta < self.min_delta:
            raise ArgumentError(
                f"delta={target_delta:g} is below {self.min_delta:.2g}, the smallest at which "
                f"the PLD accountant's arithmetic can be trusted for this many steps. Use "
                "accountant='rdp', or a larger delta."
            )
        return float(super().get_epsilon(target_delta - self.numerical_delta))

    def get_delta(self, target_epsilon: float) -> float:
        """Return an upper bound of delta at `target_epsilon`.

        Parameters
        ----------
        target_epsilon : float
            Epsilon of the guarantee.

        Returns
        -------
        float
        """
        found = max(float(super().get_delta(target_epsilon)), 0.0) + self.numerical_delta
        return min(1.0, max(found, PLD_MIN_DELTA))


class GuardedRdpAccountant(RdpAccountant):
    """dp-accounting's RDP accountant with an allowance for rounding.

    Parameters
    ----------
    neighboring_relation : dp_accounting.NeighboringRelation
        Add-or-remove-one or replace-one.
    """

    def __init__(
        self,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    ) -> None:
        super().__init__(None, neighboring_relation)
        self._rdp: np.ndarray = np.zeros(len(self._orders))

    def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> Any:
        with _quiet_orders():
            error = super()._maybe_compose(event, count, do_compose)
        if do_compose and isinstance(event, _SAMPLED):
            orders = self._orders
            self._rdp = self._rdp + count * (1e-12 + 2e-14 * orders) / (orders - 1.0)
        return error

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


@dataclass(frozen=True)
class AccountantInfo:
    """What an accountant is, and how to make a fresh one.

    Parameters
    ----------
    name : str
        Name for reports.
    guarantee : str
        ``"proven"`` or ``"unknown (user supplied)"``.
    source : str
        Where the bound is proven.
    factory : callable
        ``(neighboring_relation, value_discretization_interval) -> PrivacyAccountant``; each call
        returns a fresh accountant.
    cacheable : bool
        Whether equal inputs give equal answers, so that they may be remembered.
    """

    name: str
    guarantee: str
    source: str
    factory: Callable[[NeighboringRelation, float], PrivacyAccountant]
    cacheable: bool = False

    def make(
        self,
        neighboring_relation: NeighboringRelation,
        value_discretization_interval: float = DEFAULT_DISCRETIZATION,
    ) -> PrivacyAccountant:
        """Return a fresh accountant.

        Parameters
        ----------
        neighboring_relation : dp_accounting.NeighboringRelation
            The relation that it must account for.
        value_discretization_interval : float
            Grid step for those that have one; others ignore it.

        Returns
        -------
        dp_accounting.PrivacyAccountant

        Raises
        ------
        ArgumentError
            If what came back is not a fresh accountant for this relation.
        """
        made = self.factory(neighboring_relation, value_discretization_interval)
        if not isinstance(made, PrivacyAccountant):
            raise ArgumentError(
                "accountant must be 'pld', 'rdp', a dp_accounting.PrivacyAccountant or a factory "
                f"of one; the factory returned a {type(made).__name__}."
            )
        if made.neighboring_relation is not neighboring_relation:
            raise ArgumentError(
                f"the accountant was made for {made.neighboring_relation.name}, the run uses "
                f"{neighboring_relation.name}. Pass neighboring_relation="
                f"NeighboringRelation.{neighboring_relation.name} when making it."
            )
        if not isinstance(made.ledger, dp_accounting.NoOpDpEvent):
            raise ArgumentError("the accountant has already composed events. Pass a fresh one, or a factory.")
        return made


_REGISTRY: dict[str, AccountantInfo] = {
    "pld": AccountantInfo(
        name="pld",
        guarantee="proven",
        source="privacy loss distributions, connect-the-dots (Doroshenko et al. 2022)",
        factory=GuardedPLDAccountant,
        cacheable=True,
    ),
    "rdp": AccountantInfo(
        name="rdp",
        guarantee="proven",
        source="Rényi DP (Mironov 2017; Mironov et al. 2019; Wang et al. 2019)",
        factory=lambda relation, _interval: GuardedRdpAccountant(relation),
        cacheable=True,
    ),
}


def _call_factory(factory: Callable[..., Any], relation: NeighboringRelation, _interval: float) -> Any:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return factory()
    if "neighboring_relation" in parameters:
        return factory(neighboring_relation=relation)
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    if any(parameter.kind in positional for parameter in parameters.values()):
        return factory(relation)
    return factory()


def accountant_info(accountant: Any) -> AccountantInfo:
    """Return what is known about an accountant, given by name, instance or factory.

    Parameters
    ----------
    accountant : str, dp_accounting.PrivacyAccountant or callable
        ``"pld"``, ``"rdp"``; an accountant that has composed nothing yet (it is copied, never
        changed); or a callable of no argument, or of the neighboring relation, that returns one.

    Returns
    -------
    AccountantInfo

    Raises
    ------
    ArgumentError
        If `accountant` is none of these.
    """
    if isinstance(accountant, str):
        if accountant in _REGISTRY:
            return _REGISTRY[accountant]
        names = ", ".join(repr(name) for name in sorted(_REGISTRY))
        raise ArgumentError(f"accountant must be one of {names}; found {accountant!r}.")
    if isinstance(accountant, PrivacyAccountant):
        name = type(accountant).__name__

        def factory(_relation: NeighboringRelation, _interval: float) -> PrivacyAccountant:
            return copy.deepcopy(accountant)

        made: Callable[[NeighboringRelation, float], Any] = factory
    elif callable(accountant):
        name = getattr(accountant, "__name__", type(accountant).__name__)
        made = functools.partial(_call_factory, accountant)
    else:
        raise ArgumentError(
            "accountant must be 'pld', 'rdp', a dp_accounting.PrivacyAccountant or a factory of "
            f"one; found a {type(accountant).__name__}."
        )
    return AccountantInfo(
        name=name, guarantee="unknown (user supplied)", source="user supplied", factory=made
    )


def make_accountant(
    accountant: Any = "pld", *, neighboring_relation: Any = "add_or_remove_one"
) -> PrivacyAccountant:
    """Return a fresh accountant.

    Parameters
    ----------
    accountant : str, dp_accounting.PrivacyAccountant or callable
        As for :func:`accountant_info`.
    neighboring_relation : str
        ``"add_or_remove_one"`` or ``"replace_one"``.

    Returns
    -------
    dp_accounting.PrivacyAccountant

    Raises
    ------
    ArgumentError
        If either argument is not understood.

    Notes
    -----
    Compose it only with events of :func:`pymc_dpvi.accounting.step_event`: under replace-one the
    accountants disagree on what a Gaussian event means.
    """
    return accountant_info(accountant).make(check_relation(neighboring_relation))
