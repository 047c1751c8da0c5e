"""`PrivacyBudget`: what all fits on the same data may spend together.

A fit's whole planned cost is charged before it draws its first noise; a fit that does not fit in is refused,
and the ledger stays as it was. A charge is never taken back, not even after an early stop, an interrupt or a
crash: what was released until then is out, and costs at most the plan. So the ledger can only over-report.
`composition` says why charges add up although results of earlier fits decide on later ones.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from pymc_dpvi.accounting.budget.charge import Charge, draft_charge
from pymc_dpvi.accounting.budget.composition import BasicComposition, Composition, EpsilonDelta, RefusedError
from pymc_dpvi.accounting.budget.ledger import FileLedger, Ledger, MemoryLedger
from pymc_dpvi.accounting.budget.ledger_table import as_html, as_text, heading
from pymc_dpvi.accounting.budget.renyi_filter import RenyiFilter
from pymc_dpvi.accounting.events import EventSampler
from pymc_dpvi.accounting.relations import RELATIONS
from pymc_dpvi.arguments import check_choice, check_number
from pymc_dpvi.errors import ArgumentError, BudgetExceededError, LedgerError

__all__ = ["PrivacyBudget"]

_FORMAT = "pymc_dpvi.PrivacyBudget"
_RULES = ("basic", "renyi_filter")


class PrivacyBudget:
    r"""What all fits on one data set may spend together; it refuses the fit that would exceed it.

    ``budget = PrivacyBudget(epsilon=3.0, delta=1e-6)`` lives in the memory of this process. :meth:`create`
    makes one in a file, which other processes :meth:`open`, at the same time or next year.

    Parameters
    ----------
    epsilon, delta : float
        What may be spent in all.
    dataset : str
        Name of the data that the budget belongs to, for people. It must not be secret.
    neighboring_relation : {"add_or_remove_one", "replace_one"}, optional
        What every charge must protect. By default the first charge decides.
    composition : {"basic", "renyi_filter"}
        How charges add up. ``"basic"`` sums epsilons and deltas, of any proven accountant; it suits a
        few fits. ``"renyi_filter"`` sums Rényi divergences; it admits more where many fits each take a
        small part.
    orders : sequence of int, optional
        Rényi orders of the filter, each at least 2; delta is shared between them. By default two are
        chosen from epsilon and delta.
    allow_unproven : bool
        Admit fits whose accountant proves no bound. A budget with such a charge guarantees nothing, and
        says so.

    Raises
    ------
    ArgumentError
        If an argument has a bad value.

    Notes
    -----
    Privacy: if everything that is released about the data is charged here first, the releases together are
    (epsilon, delta)-private under the neighbouring relation, although the analyst chooses each in view of
    the earlier ones. ``"basic"`` is the basic composition filter of Rogers et al. (2016, section 3),
    ``"renyi_filter"`` the filter of Feldman and Zrnic (2021, Theorem 4.3) at several orders; proofs are
    in ``docs/accounting.md``, sections 5 and 6. The ledger holds nothing that depends on the records.

    The budget cannot know which data a fit is given. Two tables on the same people need one budget, and a
    subset of a table spends from the table's.

    Examples
    --------
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6, dataset="survey 2024")
    >>> _ = budget.charge(epsilon=0.25, delta=0.0, label="histogram of ages, published in May")
    >>> budget.remaining
    EpsilonDelta(epsilon=0.75, delta=1e-06)
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        dataset: str = "",
        neighboring_relation: str | None = None,
        composition: str = "basic",
        orders: Sequence[int] | None = None,
        allow_unproven: bool = False,
    ) -> None:
        self._epsilon = check_number("epsilon", epsilon, low=0.0, example=1.0)
        self._delta = check_number("delta", delta, low=0.0, high=1.0, example=1e-6)
        if not isinstance(dataset, str) or not dataset.isprintable():
            raise ArgumentError("dataset must be a name of one line.")
        if not isinstance(allow_unproven, bool):
            raise ArgumentError("allow_unproven must be True or False.")
        if neighboring_relation is not None:
            check_choice("neighboring_relation", neighboring_relation, tuple(RELATIONS))
        check_choice("composition", composition, _RULES)
        self._dataset = dataset
        self._relation = neighboring_relation
        self._allow_unproven = allow_unproven
        self._rule: Composition
        if composition == "renyi_filter":
            self._rule = RenyiFilter.make(self._epsilon, self._delta, orders)
        elif orders is None:
            self._rule = BasicComposition(self._epsilon, self._delta)
        else:
            raise ArgumentError("orders= goes with composition='renyi_filter' only.")
        self._composition = composition
        self._ledger: Ledger = MemoryLedger()

    # ---------------------------------------------------------------------------- files

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], epsilon: float, delta: float, **options: Any
    ) -> PrivacyBudget:
        """Make a budget that lives in a new file.

        Parameters
        ----------
        path : str or os.PathLike
            Where, on a local disk. No file may be there yet.
        epsilon, delta : float
            What may be spent in all.
        **options
            As for the class.

        Returns
        -------
        PrivacyBudget

        Raises
        ------
        ArgumentError
            If an argument has a bad value.
        LedgerError
            If something is at `path`, or the file cannot be written.
        """
        budget = cls(epsilon, delta, **options)
        budget._ledger = FileLedger.create(
            path,
            # The id tells this file from another one with the same terms.
            json.dumps({**budget._terms(), "id": secrets.token_hex(16)}, allow_nan=False),
        )
        return budget

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, epsilon: float | None = None, delta: float | None = None
    ) -> PrivacyBudget:
        """Open the budget in a file.

        Parameters
        ----------
        path : str or os.PathLike
            Where :meth:`create` made it.
        epsilon, delta : float, optional
            What you expect the budget to allow in all; checked against the file.

        Returns
        -------
        PrivacyBudget

        Raises
        ------
        LedgerError
            If there is no file, it is not an intact budget, or it allows another epsilon or delta.
        """
        ledger = FileLedger.open(path)
        try:
            terms = json.loads(ledger.terms)
            if terms.pop("format") != _FORMAT or not isinstance(terms.pop("id"), str):
                raise ValueError
            budget = cls(**terms)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise LedgerError(
                f"{ledger.path} is not an intact budget file: its terms cannot be read."
            ) from None
        for name, expected in (("epsilon", epsilon), ("delta", delta)):
            if expected is not None and expected != getattr(budget, name):
                raise LedgerError(
                    f"The budget in {ledger.path} has {name}={getattr(budget, name)!r}, not {expected!r}. "
                    "What a budget allows cannot be changed."
                )
        budget._ledger = ledger
        budget._check_total(ledger.read())
        return budget

    def _terms(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "epsilon": self._epsilon,
            "delta": self._delta,
            "dataset": self._dataset,
            "neighboring_relation": self._relation,
            "composition": self._composition,
            "orders": list(self.orders) or None,
            "allow_unproven": self._allow_unproven,
        }

    def _check_total(self, charges: Sequence[Charge]) -> None:
        """Raise unless this budget could have admitted these charges."""
        counts = {len(charge.renyi) for charge in charges}
        if charges and (counts != {len(self.orders)} or not self._rule.admits(charges)):
            raise LedgerError(
                "The budget's file holds other or more charges than the budget admits: it is not intact. "
                "Nothing was charged."
            )

    # ---------------------------------------------------------------------------- what it allows

    epsilon = property(lambda self: self._epsilon, doc="What may be spent in all.")
    delta = property(lambda self: self._delta, doc="What may be spent in all.")
    dataset = property(lambda self: self._dataset, doc="Name of the data that the budget belongs to.")
    allow_unproven = property(lambda self: self._allow_unproven, doc="Whether unproven bounds are admitted.")

    composition = property(lambda self: self._composition, doc="How charges add up.")

    @property
    def orders(self) -> tuple[int, ...]:
        """Rényi orders of the filter; empty for basic composition."""
        return self._rule.orders if isinstance(self._rule, RenyiFilter) else ()

    @property
    def path(self) -> Path | None:
        """The budget's file; None if it lives in memory."""
        return self._ledger.path if isinstance(self._ledger, FileLedger) else None

    @property
    def neighboring_relation(self) -> str | None:
        """What every charge must protect; None until the first charge, if that decides."""
        return self._relation_of(self._ledger.read())

    def _relation_of(self, charges: Sequence[Charge]) -> str | None:
        return self._relation or (charges[0].neighboring_relation if charges else None)

    @property
    def name(self) -> str:
        """One line for reports; it does not name the file."""
        total = f"epsilon {self._epsilon!r} and delta {self._delta!r} in all, {self._rule.title}"
        return f"{self._dataset!r} ({total})" if self._dataset else f"unnamed ({total})"

    @property
    def ledger(self) -> tuple[Charge, ...]:
        """All charges, oldest first."""
        return self._ledger.read()

    @property
    def remaining(self) -> EpsilonDelta:
        """What is left under basic composition; a charge of exactly this epsilon and delta is admitted.

        Raises
        ------
        ArgumentError
            For a Rényi filter: no single epsilon says what is left of it.
        """
        if not isinstance(self._rule, BasicComposition):
            raise ArgumentError(
                "A Rényi filter has no remaining epsilon: what fits depends on the mechanism. Look at "
                "budget.used, or try budget.charge(..., dry_run=True)."
            )
        return self._rule.remaining(self._ledger.read())

    @property
    def used(self) -> float:
        """Fraction of the budget that is used, from 0 to 1."""
        return self._rule.used(self._ledger.read())

    # ---------------------------------------------------------------------------- charges

    def charge(
        self,
        *,
        epsilon: float,
        delta: float,
        neighboring_relation: str | None = None,
        label: str = "",
        n_steps: int | None = None,
        noise_multiplier: float | None = None,
        sampler: EventSampler | None = None,
        accountant: Any = None,
        run_id: str = "",
        record: str = "",
        dry_run: bool = False,
    ) -> Charge:
        """Charge a release before it is made. Fits do this themselves.

        Call it for the releases of other software: give `epsilon`, `delta` and a `label`.

        Parameters
        ----------
        epsilon, delta : float
            What the release guarantees by itself.
        neighboring_relation : {"add_or_remove_one", "replace_one"}, optional
            What it protects. By default what the budget protects; add-or-remove-one if that is open.
        label : str
            What is released, for the ledger. It must not be secret.
        n_steps : int, optional
            Steps of the run.
        noise_multiplier : float, optional
            Noise standard deviation divided by the largest norm of all that one record adds.
        sampler : Sampler, optional
            The run's sampler. A Rényi filter needs `n_steps`, `noise_multiplier` and `sampler`.
        accountant : str, dp_accounting.PrivacyAccountant or callable, optional
            What computed `epsilon`; None if you vouch for it.
        run_id : str
            The fit's id, as in its report; empty for what is not a fit.
        record : str
            What one record is: of a fit ``"one row"``, or whose rows they are, by ``unit=``. Charges with
            different records do not add up; a charge without one is taken to protect what the others do.
        dry_run : bool
            Charge nothing, but raise if the charge would not be admitted now.

        Returns
        -------
        Charge
            The line of the ledger.

        Raises
        ------
        ArgumentError
            If an argument has a bad value, the relation or the record differs from the budget's, or the
            accountant proves no bound.
        BudgetExceededError
            If the charge does not fit. The message says what would.
        LedgerError
            If the budget's file is missing, busy or damaged.

        Notes
        -----
        Privacy: nothing is released. When this returns, the charge is in the ledger, on the disk if that is a
        file. When it raises, nothing was charged, except that an interrupt or a failing disk during the write
        can leave the charge in the file, which is the safe side.
        """
        draft = draft_charge(
            epsilon=epsilon,
            delta=delta,
            neighboring_relation=neighboring_relation,
            label=label,
            n_steps=n_steps,
            noise_multiplier=noise_multiplier,
            sampler=sampler,
            accountant=accountant,
            run_id=run_id,
            record=record,
            allow_unproven=self._allow_unproven,
        )
        try:
            if dry_run:
                return self._admit(self._ledger.read(), draft, sampler)
            return self._ledger.append(lambda charges: self._admit(charges, draft, sampler))
        except RefusedError as refused:
            # After the ledger was released: finding what would fit may take seconds.
            advice = self._rule.advice(refused.charges, refused.charge, sampler)
            raise BudgetExceededError(
                f"Privacy budget {self.name}: epsilon={refused.charge.epsilon!r} at "
                f"delta={refused.charge.delta!r} would exceed it. {advice} Nothing was charged."
            ) from None

    def _admit(self, charges: tuple[Charge, ...], draft: Charge, sampler: EventSampler | None) -> Charge:
        """Return the completed charge; raise if it may not follow `charges`."""
        self._check_total(charges)
        fixed = self._relation_of(charges)
        relation = draft.neighboring_relation or fixed or "add_or_remove_one"
        if relation != (fixed or relation):
            raise ArgumentError(
                f"This budget protects against {fixed}, and the charge is under {relation}; the two do not "
                f"add up. Use neighboring_relation={fixed!r}, or a budget of its own."
            )
        records = {c.record for c in charges if c.record}
        if draft.record and records - {draft.record}:
            raise ArgumentError(
                f"A record of this budget's fits is {' or '.join(sorted(records))}, and of this one "
                f"{draft.record}; the two do not add up, as one person may be several of the one and a part "
                "of the other. Fit all with the same unit=, named in the same way, or use a budget of its "
                "own."
            )
        charge = self._rule.priced(replace(draft, neighboring_relation=relation), sampler)
        if not self._rule.admits([*charges, charge]):
            raise RefusedError(charges, charge)
        return charge

    # ---------------------------------------------------------------------------- words

    def __str__(self) -> str:
        charges = self._ledger.read()
        return as_text(heading(self.name, self._relation, charges), charges, self._rule.summary(charges))

    def _repr_html_(self) -> str:
        """Return the ledger for a notebook; every text is escaped."""
        charges = self._ledger.read()
        return as_html(heading(self.name, self._relation, charges), charges, self._rule.summary(charges))

    def __repr__(self) -> str:
        where = "" if self.path is None else f", path={str(self.path)!r}"
        return f"<PrivacyBudget {self.name}{where}>"

    def to_dict(self) -> dict[str, Any]:
        """Return terms and ledger as plain dicts, lists, strings and numbers.

        Returns
        -------
        dict
        """
        charges = self._ledger.read()
        return {
            **self._terms(),
            "used": self._rule.used(charges),
            "charges": [charge.to_dict() for charge in charges],
        }

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled or copied: a copy would be spent a second time."""
        way = (
            "Share a file instead: PrivacyBudget.create(path, epsilon, delta), and PrivacyBudget.open(path)"
            if self.path is None
            else "Hand over its path, and use PrivacyBudget.open(path)"
        )
        raise TypeError(f"A privacy budget cannot be pickled or copied. {way} in each process.")
