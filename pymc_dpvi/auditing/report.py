"""The report of an audit, for people and as JSON."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from dataclasses import dataclass
from typing import Any

from pymc_dpvi.pages import Table, shown

__all__ = ["AuditReport", "CheckResult"]

_FORMAT = "pymc_dpvi.AuditReport"
_FORMAT_VERSION = 1

_COST = (
    "Costs no privacy: no record was read. Everything was measured on synthetic records of the model's types "
    "and shapes."
)
_LIMITS = (
    "An audit can find a mistake; it cannot prove that there is none. The guarantee rests on the proofs and "
    "the code."
)


@dataclass(frozen=True)
class CheckResult:
    """One promise, and whether it was kept.

    Attributes
    ----------
    name : str
        ``"one way out"``, ``"sensitivity"``, ``"gradient"``, ``"lattice"``, ``"noise"``, ``"sampling"``,
        ``"randomness"`` or ``"attack"``.
    promise : str
        What is promised, in a sentence.
    passed : bool
    statistic : float
        The number that decides.
    threshold : float
        What it is compared with; `words` says in which direction.
    words : str
        What was done and found.
    """

    name: str
    promise: str
    passed: bool
    statistic: float
    threshold: float
    words: str

    def __post_init__(self) -> None:
        # NumPy scalars would not survive JSON
        object.__setattr__(self, "passed", bool(self.passed))
        for name in ("statistic", "threshold"):
            object.__setattr__(self, name, float(getattr(self, name)))

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'FAILED'}  {self.name}: {self.promise} {self.words}"


@dataclass(frozen=True)
class AuditReport:
    """What :func:`pymc_dpvi.audit` found.

    Attributes
    ----------
    results : tuple of CheckResult
        One for each promise.
    epsilon_lower_bound : float
        Empirical lower bound on ε of one step that takes every record, at `delta`: weak evidence.
    confidence : float
        Confidence of that bound.
    epsilon_claimed : float
        The accountant's ε of the same step; NaN if it has none.
    delta : float
    settings : tuple of (str, str)
        What was audited.
    versions : tuple of (str, str)
        Packages that ran.

    Notes
    -----
    Privacy: holds nothing that depends on a record; it may be published.
    """

    results: tuple[CheckResult, ...]
    epsilon_lower_bound: float
    confidence: float
    epsilon_claimed: float
    delta: float
    settings: tuple[tuple[str, str], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return all(r.passed for r in self.results)

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(r.name for r in self.results if not r.passed)

    @property
    def evidence(self) -> str:
        """The empirical lower bound on ε, in words."""
        return (
            f"Weak evidence: with {self.confidence:.0%} confidence, one step that takes every record has an "
            f"epsilon of at least {self.epsilon_lower_bound:.3g} at delta {self.delta:.3g}; claimed is "
            f"{shown(self.epsilon_claimed, up=True, digits=3)}. It is a lower bound from one attack on one "
            "step, and says nothing of how much a better attack, or the whole fit, would show."
        )

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        if self.passed:
            return f"All {len(self.results)} promises were kept."
        return f"BROKEN: {', '.join(self.failures)}. Do not release what this method fits."

    def __str__(self) -> str:
        lines = ["Audit of the private mechanism", f"  {self.verdict}", "Promises"]
        for r in self.results:
            lines.append(f"  [{'passed' if r.passed else 'FAILED'}] {r.name}: {r.promise}")
            lines.append(f"           {r.words}")
        lines += ["Empirical epsilon", f"  {self.evidence}", "Audited"]
        lines += [f"  {a:<22} {b}" for a, b in self.settings]
        if self.versions:
            lines.append("  versions               " + ", ".join(f"{a} {b}" for a, b in self.versions))
        return "\n".join([*lines, "What this means", f"  {_COST}", f"  {_LIMITS}"])

    def _repr_html_(self) -> str:
        """Return the report for a notebook; every text is escaped."""
        promises = Table(
            ("", "check", "promise", "found"),
            [("passed" if r.passed else "FAILED", r.name, r.promise, r.words) for r in self.results],
            caption="Audit of the private mechanism",
        )
        settings = Table((), (*self.settings, *self.versions))
        return (
            f"<div>{promises.html()}<p><strong>{html.escape(self.verdict)}</strong></p>"
            f"<p>{html.escape(self.evidence)}</p>"
            f"<details><summary>Audited</summary>{settings.html()}</details>"
            f"<p>{html.escape(_COST)} {html.escape(_LIMITS)}</p></div>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, strings, booleans and numbers."""
        return {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "passed": self.passed,
            "results": [dataclasses.asdict(r) for r in self.results],
            "weak_evidence": {
                "epsilon_lower_bound": self.epsilon_lower_bound,
                "confidence": self.confidence,
                "epsilon_claimed": self.epsilon_claimed,
                "delta": self.delta,
                "words": self.evidence,
            },
            "settings": dict(self.settings),
            "versions": dict(self.versions),
            "notes": [_COST, _LIMITS],
        }

    def to_json(self) -> str:
        """Return the report as JSON; a number that is not finite is written as a string."""
        return json.dumps(_finite(self.to_dict()), allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
