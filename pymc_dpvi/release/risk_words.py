"""Bounds on attacks in words that need no definition of ε.

These sentences are for people who decide about a release. So each figure is rounded up, and comes with what
it is compared with and with its condition. It is false that ε fails with probability δ; no sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pymc_dpvi.accounting.curves.comparison import AccountantFigure
from pymc_dpvi.accounting.curves.tradeoff import PrivacyProfile
from pymc_dpvi.pages import Table, percent, shown

__all__ = [
    "FALSE_POSITIVE_RATES",
    "SHARES",
    "accountant_table",
    "attack_lines",
    "group_table",
    "odds_lines",
]

FALSE_POSITIVE_RATES = (1e-3, 1e-2)
"""Where true positive rates are given."""

SHARES = (1e-2, 1e-3)
"""Shares of releases in which a bound on odds may fail."""

_QUESTIONS = {
    "add_or_remove_one": ("whether one given record was among the data", "says yes"),
    "replace_one": ("which of two given records was among the data", "names the first"),
}
_PRIOR = 0.1


def _accuracy(profile: PrivacyProfile) -> str:
    return percent(0.5 + 0.5 * profile.advantage)


def attack_lines(
    profile: PrivacyProfile, from_epsilon_alone: PrivacyProfile, neighboring_relation: str
) -> tuple[str, ...]:
    """Say how well an attack can do, by the mechanism's profile and by one pair (epsilon, delta) alone."""
    question, yes = _QUESTIONS[neighboring_relation]
    lines = [
        "The attacker knows all other records, the model and this program, sees every step of the fit, "
        f"and wants to find out {question}. A real attacker knows less.",
        f"It guesses right at most {_accuracy(profile)} of the time, where tossing a coin gives "
        f"50 % (advantage {shown(profile.advantage, up=True)}).",
    ]
    for rate in FALSE_POSITIVE_RATES:
        found = percent(profile.true_positive_rate(rate))
        lines.append(
            f"If it {yes} wrongly in at most {percent(rate)} of cases, it {yes} rightly in at most "
            f"{found}; without the release, in {percent(rate)}."
        )
    instead = percent(from_epsilon_alone.true_positive_rate(FALSE_POSITIVE_RATES[0]))
    lines.append(
        "These figures come from the mechanism's whole curve. From epsilon and delta alone one could "
        f"only say: right at most {_accuracy(from_epsilon_alone)} of the time, and {instead} in place of the "
        "first of the two rates."
    )
    return tuple(lines)


def odds_lines(profile: PrivacyProfile) -> tuple[str, ...]:
    """Say how far a release moves a belief."""
    lines = [
        "Whatever somebody knew or believed about one record before, the release moves the odds for the "
        "truth, against its being otherwise, only so far. The program's own random draws decide how far."
    ]
    for share in SHARES:
        factor = profile.odds_factor(share)
        if not math.isfinite(factor):
            lines.append(f"In {percent(share)} of releases there is no limit that could be shown.")
            continue
        after = profile.posterior(_PRIOR, share)
        lines.append(
            f"In all but {percent(share)} of releases they grow at most {shown(factor, up=True)}-fold: "
            f"who held the truth {percent(_PRIOR)} likely then holds it at most {percent(after)} likely."
        )
    lines.append("Delta is not the share of releases in which e to the epsilon fails to be such a limit.")
    return tuple(lines)


def group_table(groups: Iterable[tuple[int, float, float, PrivacyProfile]]) -> Table:
    """Return the table of the guarantees for several records; `groups` has their number, ε, δ and profile."""
    rate = FALSE_POSITIVE_RATES[0]
    rows = [
        (
            str(records),
            shown(epsilon, up=True),
            shown(delta, up=True),
            _accuracy(profile),
            percent(profile.true_positive_rate(rate)),
        )
        for records, epsilon, delta, profile in groups
    ]
    found = f"found, {percent(rate)} false alarms"
    return Table(("records", "epsilon", "delta", "right guesses", found), rows)


def accountant_table(figures: Sequence[AccountantFigure]) -> Table:
    """Return epsilon by accountant."""
    rows = []
    for figure in figures:
        found = "not supported" if figure.epsilon is None else shown(figure.epsilon, up=True)
        proven = figure.guarantee == "proven"
        rows.append((figure.name, found, figure.guarantee if proven else f"{figure.guarantee}, NOT a bound"))
    return Table(("accountant", "epsilon", "guarantee"), rows)
