"""The accountants by name: what each guarantees, what it takes, and how to make one.

========================  ==============  =====================================================
name                      guarantee       takes (add-or-remove-one, AR; replace-one, RO)
========================  ==============  =====================================================
``pld``                   proven          full batch, Poisson AR and RO; fixed size RO
``rdp``                   proven          full batch AR and RO; Poisson AR; fixed size RO
``moments``               proven          full batch AR and RO; Poisson AR
``advanced_composition``  proven          full batch, Poisson AR and RO; fixed size RO
``zcdp``                  proven          full batch AR and RO
``gdp``                   proven, exact   full batch AR and RO
``generic``               heuristic       full batch, Poisson AR and RO
``bayesian``              bayesian        full batch, Poisson AR and RO; made from gradients
========================  ==============  =====================================================

``pld`` is the default, and the tightest that is proven. A heuristic or Bayesian epsilon is no upper bound of
a differential privacy loss; it is a diagnostic. Such an accountant calibrates no noise and satisfies no
budget unless the user says ``allow_unproven=True`` (:func:`require_proven`); the report then says so in its
first line. An accountant that computes epsilon from the records is refused even then.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation, PrivacyAccountant
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from pymc_dpvi.accounting.contract import Schemes
from pymc_dpvi.accounting.papers.advanced_composition import AdvancedCompositionAccountant
from pymc_dpvi.accounting.papers.bayesian import BayesianAccountant, GenericAccountant
from pymc_dpvi.accounting.papers.concentrated import GdpAccountant, ZCdpAccountant
from pymc_dpvi.accounting.papers.moments import MomentsAccountant
from pymc_dpvi.accounting.papers.rdp import GuardedRdpAccountant
from pymc_dpvi.accounting.pld.accountant import TiltedPLDAccountant
from pymc_dpvi.accounting.relations import check_relation
from pymc_dpvi.errors import ArgumentError

__all__ = [
    "ACCOUNTANT_NAMES",
    "AccountantInfo",
    "accountant_info",
    "make_accountant",
    "require_proven",
]

UNKNOWN = "unknown (user supplied)"


@dataclass(frozen=True)
class AccountantInfo:
    """What an accountant is, and how to make a fresh one.

    Parameters
    ----------
    name : str
        Name for reports.
    guarantee : str
        ``"proven"``, ``"heuristic"``, ``"bayesian"`` or ``"unknown (user supplied)"``.
    source : str
        Where the bound is proven, or where the recipe comes from.
    factory : callable
        ``neighboring_relation -> PrivacyAccountant``; each call returns a fresh accountant.
    cacheable : bool
        Whether equal inputs give equal answers, so that answers may be remembered.
    schemes : mapping of str to frozenset of NeighboringRelation, optional
        The sampling schemes that it takes, by relation; None if that is not known.
    data_dependent : bool
        Whether its epsilon is computed from the records, and is therefore private itself.
    """

    name: str
    guarantee: str
    source: str
    factory: Callable[[NeighboringRelation], PrivacyAccountant]
    cacheable: bool = False
    schemes: Schemes | None = field(default=None, hash=False, compare=False)
    data_dependent: bool = False

    @property
    def proven(self) -> bool:
        """Whether its epsilon is a proven upper bound."""
        return self.guarantee == "proven"

    def make(self, neighboring_relation: NeighboringRelation) -> PrivacyAccountant:
        """Return a fresh accountant.

        Parameters
        ----------
        neighboring_relation : dp_accounting.NeighboringRelation
            The relation that the accountant must use.

        Returns
        -------
        dp_accounting.PrivacyAccountant

        Raises
        ------
        ArgumentError
            If what came back is not a fresh accountant for this relation.
        """
        made = self.factory(neighboring_relation)
        if not isinstance(made, PrivacyAccountant):
            raise ArgumentError(f"{_WANTED}; the factory returned a {type(made).__name__}.")
        if made.neighboring_relation is not neighboring_relation:
            raise ArgumentError(
                f"the accountant was made for {made.neighboring_relation.name}, the run uses "
                f"{neighboring_relation.name}. Pass neighboring_relation="
                f"NeighboringRelation.{neighboring_relation.name} when making it."
            )
        if getattr(made, "data_dependent", False) and not self.data_dependent:
            raise ArgumentError(
                f"the factory {self.name!r} returned a {type(made).__name__}, which computes epsilon from "
                "the records: no run may be calibrated to that. Use accountant='pld', or pass the "
                "accountant itself to look at its epsilon."
            )
        _check_fresh(made)
        return made


def _check_fresh(accountant: PrivacyAccountant) -> None:
    if not isinstance(accountant.ledger, dp_accounting.NoOpDpEvent):
        raise ArgumentError("the accountant has already composed events. Pass a fresh one, or a factory.")


def require_proven(info: AccountantInfo, allow_unproven: bool = False) -> None:
    """Raise unless the accountant's epsilon is a proven upper bound, or the user said it need not be.

    Calibration, a budget and a fit call this first. Computing an epsilon to look at does not need it.

    Parameters
    ----------
    info : AccountantInfo
        The accountant.
    allow_unproven : bool
        Whether the user accepts an epsilon without a proof.

    Raises
    ------
    ArgumentError
        If the guarantee is not "proven" and `allow_unproven` is False. Also, whatever `allow_unproven` is,
        if `info.data_dependent`: a calibrated noise multiplier, or a report, would publish such an epsilon.
    """
    if info.data_dependent:
        raise ArgumentError(
            f"accountant={info.name!r} computes epsilon from the records, so that the epsilon, and any noise "
            "calibrated to it, would tell about them. Use accountant='pld'. If gradient_distances come "
            "from public data, say distances_are_public=True when making the accountant."
        )
    if info.proven or allow_unproven:
        return
    raise ArgumentError(
        f"accountant={info.name!r} is {info.guarantee}: its epsilon is not a proven upper bound, so that it "
        "neither calibrates noise nor satisfies a budget. Use accountant='pld', or say "
        "allow_unproven=True, which the privacy report repeats in its first line."
    )


_KINDS: dict[str, type[PrivacyAccountant]] = {
    kind.name: kind
    for kind in (
        TiltedPLDAccountant,
        GuardedRdpAccountant,
        MomentsAccountant,
        AdvancedCompositionAccountant,
        ZCdpAccountant,
        GdpAccountant,
        GenericAccountant,
        BayesianAccountant,
    )
}

ACCOUNTANT_NAMES = tuple(_KINDS)
"""The accountants that come by name."""

_WANTED = (
    f"accountant must be one of {', '.join(map(repr, ACCOUNTANT_NAMES))}, "
    "a dp_accounting.PrivacyAccountant or a factory of one"
)


def _make_kind(kind: Any, relation: NeighboringRelation) -> PrivacyAccountant:
    if kind is BayesianAccountant:
        raise ArgumentError(
            "accountant='bayesian' computes epsilon from the distances between records' gradients. Pass "
            "accountant=pymc_dpvi.accounting.BayesianAccountant(gradient_distances, neighboring_relation)."
        )
    return kind(neighboring_relation=relation)  # type: ignore[no-any-return]


def _info_of(kind: Any, factory: Callable[[NeighboringRelation], PrivacyAccountant], **more: Any) -> Any:
    return AccountantInfo(
        **{"name": kind.name, "guarantee": kind.guarantee, "source": kind.source, "schemes": kind.schemes}
        | {"factory": factory, "data_dependent": kind is BayesianAccountant}
        | more
    )


_REGISTRY: dict[str, AccountantInfo] = {
    name: _info_of(kind, functools.partial(_make_kind, kind), cacheable=True) for name, kind in _KINDS.items()
}

# Google's accountants, and this package's in place of them, which bound their own rounding errors.
_GUARDED: dict[type[PrivacyAccountant], Any] = {
    PLDAccountant: TiltedPLDAccountant,
    RdpAccountant: GuardedRdpAccountant,
}


def _fresh_copy(accountant: Any, _relation: NeighboringRelation) -> PrivacyAccountant:
    """Return this package's accountant in place of one of Google's, and a copy of any other."""
    _check_fresh(accountant)
    if type(accountant) is PLDAccountant:
        return TiltedPLDAccountant(accountant.neighboring_relation)
    if type(accountant) is RdpAccountant:
        return GuardedRdpAccountant(accountant.neighboring_relation, [float(x) for x in accountant.orders])
    return copy.deepcopy(accountant)  # type: ignore[no-any-return]


def _call_factory(factory: Callable[..., Any], relation: NeighboringRelation) -> Any:
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
        One of `ACCOUNTANT_NAMES`; an accountant that has composed nothing yet (it is copied, never
        changed); or a callable of no argument, or of the neighboring relation, that returns one.

    Returns
    -------
    AccountantInfo
        An instance, or the class, of an accountant of this package has that accountant's guarantee.
        dp-accounting's `PLDAccountant` and `RdpAccountant` are replaced by this package's, which bound
        their own rounding errors. Anything else, subclasses included, is "unknown (user supplied)".

    Raises
    ------
    ArgumentError
        If `accountant` is none of these.
    """
    if isinstance(accountant, str):
        if accountant in _REGISTRY:
            return _REGISTRY[accountant]
        names = ", ".join(map(repr, ACCOUNTANT_NAMES))
        found = repr(accountant) if type(accountant) is str else f"a {type(accountant).__name__}"
        raise ArgumentError(f"accountant must be one of {names}; found {found}.")
    if isinstance(accountant, PrivacyAccountant):
        kind: Any = type(accountant)
        known = _GUARDED.get(kind, kind if kind in _KINDS.values() else None)
        factory: Callable[..., Any] = functools.partial(_fresh_copy, accountant)
        if known is not None:
            return _info_of(
                known,
                factory,
                name=known.name if known is kind else kind.__name__,
                data_dependent=getattr(accountant, "data_dependent", False),
            )
        name = kind.__name__
    elif isinstance(accountant, type) and accountant in (*_GUARDED, *_KINDS.values()):
        return _REGISTRY[_GUARDED.get(accountant, accountant).name]
    elif callable(accountant):
        name = getattr(accountant, "__name__", type(accountant).__name__)
        factory = functools.partial(_call_factory, accountant)
    else:
        raise ArgumentError(f"{_WANTED}; found a {type(accountant).__name__}.")
    own = getattr(accountant, "data_dependent", False)
    return AccountantInfo(
        name=name, guarantee=UNKNOWN, source="user supplied", factory=factory, data_dependent=own is True
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
    Compose it only with events of :func:`pymc_dpvi.accounting.step_event`: other packages' accountants
    disagree on what a Gaussian event means under replace-one.
    """
    return accountant_info(accountant).make(check_relation(neighboring_relation))
