"""One line of a privacy budget's ledger: what is charged for a release, before it is made."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pymc_dpvi.accounting.accountants import accountant_info, require_proven
from pymc_dpvi.accounting.evaluation import check_steps
from pymc_dpvi.accounting.events import EventSampler
from pymc_dpvi.accounting.relations import RELATIONS
from pymc_dpvi.arguments import check_choice, check_number, check_run_id
from pymc_dpvi.errors import ArgumentError

__all__ = ["Charge", "draft_charge"]


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One line of the ledger. It holds nothing that depends on the records.

    Unlike a `PrivacyRun`, a charge need not be a fit, and it is written before the first step.

    Attributes
    ----------
    when : str
        UTC, in ISO 8601.
    label : str
        What was charged.
    epsilon, delta : float
        What the release guarantees by itself.
    neighboring_relation : str
        ``"add_or_remove_one"`` or ``"replace_one"``.
    accountant : str
        What computed epsilon; ``"declared"`` if the caller stated it.
    guarantee : str
        ``"proven"``, or what is known about the accountant's bound.
    n_steps : int or None
        Planned steps; None for what is not a fit.
    sampling_prob, noise_multiplier : float or None
        Of the fit's mechanism.
    renyi : tuple of float
        Rényi divergence at each order of the budget's filter; empty without one.
    run_id : str
        The fit's id, as in its report and its draws; empty for what is not a fit.
    record : str
        What one record is: ``"one row"``, or whose rows, such as "the same 'person'"; empty if nobody said.
    """

    when: str
    label: str
    epsilon: float
    delta: float
    neighboring_relation: str
    accountant: str
    guarantee: str
    n_steps: int | None = None
    sampling_prob: float | None = None
    noise_multiplier: float | None = None
    renyi: tuple[float, ...] = ()
    run_id: str = ""
    record: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the charge as plain strings and numbers; an infinite one is ``"inf"``."""
        fields = dataclasses.asdict(self)
        fields["renyi"] = ["inf" if math.isinf(value) else value for value in self.renyi]
        return fields

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Charge:
        """Return the charge that :meth:`to_dict` wrote; a ValueError for other fields, types or ranges."""
        # Ledgers of early versions have neither; their fits were by row.
        fields = {"run_id": "", "record": "one row" if fields.get("n_steps") else "", **fields}
        optional = type(None)
        kinds: dict[str, tuple[type, ...]] = {
            **dict.fromkeys(
                ("when", "label", "neighboring_relation", "accountant", "guarantee", "run_id", "record"),
                (str,),
            ),
            **dict.fromkeys(("epsilon", "delta"), (float,)),
            **dict.fromkeys(("sampling_prob", "noise_multiplier"), (float, optional)),
            "n_steps": (int, optional),
            "renyi": (list,),
        }
        if fields.keys() != kinds.keys():
            raise ValueError("fields")
        if not all(isinstance(fields[name], kind) for name, kind in kinds.items()):
            raise ValueError("types")
        renyi = tuple(math.inf if value == "inf" else float(value) for value in fields["renyi"])
        found = cls(**{**fields, "renyi": renyi})
        numbers = (found.epsilon, found.delta)
        if not all(math.isfinite(x) and x >= 0.0 for x in numbers) or not all(x >= 0.0 for x in renyi):
            raise ValueError("range")
        return found


def draft_charge(
    *,
    epsilon: float,
    delta: float,
    neighboring_relation: str | None,
    label: str,
    n_steps: int | None,
    noise_multiplier: float | None,
    sampler: EventSampler | None,
    accountant: Any,
    run_id: str,
    record: str,
    allow_unproven: bool,
) -> Charge:
    """Return a charge, checked as far as is possible without the ledger; an ArgumentError if a check fails.

    The arguments are those of :meth:`PrivacyBudget.charge`. If no relation is given, it is left empty.
    """
    for name, text in (("label", label), ("record", record)):
        if not isinstance(text, str) or not text.isprintable():
            raise ArgumentError(f"{name} must be a text of one line.")
    check_run_id("run_id", run_id)
    if neighboring_relation is not None:
        check_choice("neighboring_relation", neighboring_relation, tuple(RELATIONS))
    info = None if accountant is None else accountant_info(accountant)
    if info is not None:
        require_proven(info, allow_unproven)
    noise = noise_multiplier
    return Charge(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        label=label,
        epsilon=check_number("epsilon", epsilon, low=0.0, closed_low=True),
        delta=check_number("delta", delta, low=0.0, high=1.0, closed_low=True),
        neighboring_relation=neighboring_relation or "",
        accountant="declared" if info is None else info.name,
        guarantee="declared" if info is None else info.guarantee,
        n_steps=None if n_steps is None else check_steps(n_steps),
        sampling_prob=None if sampler is None else float(sampler.sampling_prob),
        noise_multiplier=None if noise is None else check_number("noise_multiplier", noise, low=0.0),
        run_id=run_id,
        record=record,
    )
