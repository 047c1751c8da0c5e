"""The sentences of a privacy report: what the guarantee rests on, what it does not cover, why not to release.

In: the settings of a fit. Out: sentences, which a report, an interpretation and a plan share.

What they must never do: depend on a record, or on the number of records where that is not public.
"""

from __future__ import annotations

from collections.abc import Sequence

from pymc_dpvi.pages import shown
from pymc_dpvi.release.privacy_run import PrivacyRun

__all__ = ["PROTECTS_AGAINST", "assumptions", "not_covered", "obstacles", "run_words"]

PROTECTS_AGAINST = {
    "add_or_remove_one": "adding or removing one record",
    "replace_one": "replacing one record",
}


def obstacles(*, secure_randomness: bool, noise: str, guarantee: str, accountant: str) -> tuple[str, ...]:
    """Say why a result must not be released as private; empty if no reason is known."""
    said = []
    if not secure_randomness:
        said.append("Noise and batches came from a seed. Whoever knows it can take the noise away.")
    if noise == "gaussian_float64":
        said.append(
            "Noise was added in floating point, and the last bits of the results can give records away."
        )
    if guarantee != "proven":
        said.append(
            f"Epsilon is not a proven bound: the accountant {accountant!r} is "
            f"{guarantee}. What was spent may be more."
        )
    return tuple(said)


def assumptions(
    *,
    was_run: bool,
    noise: str,
    num_records_public: bool,
    public_arrays: Sequence[str] = (),
    by_unit: bool = False,
    on_workers: bool = False,
) -> tuple[str, ...]:
    """Say what the guarantee of one run, or of a plan, rests on."""
    whose = (
        "All rows of one id are one record, and a person has one id. For somebody with k ids"
        if by_unit
        else "One person contributes one record. For somebody with k records"
    )
    said = [
        f"The model treats each record by itself; this {'was' if was_run else 'is'} checked before the fit.",
        f"{whose} multiply epsilon by k (delta grows too).",
    ]
    if noise == "gaussian_float64":
        said.append("Noise is added in floating point; its rounding is not accounted for.")
    else:
        said.append(
            "Noise is added in whole multiples of a fixed unit (a lattice); rounding to that unit is "
            "accounted for."
        )
    if on_workers:
        said.append(
            "Workers of a cluster held the records, and sent sums without noise. So whoever runs them or the "
            "scheduler, or reads along between them, is trusted."
        )
    if num_records_public:
        said.append(
            "The number of records is public, and so is what was computed from it (the sampling "
            "probability from a batch size, the prior's share in vanilla gradients): it is the same with "
            "and without a record."
        )
    if public_arrays:
        said.append(f"Taken as public, and not protected: {', '.join(public_arrays)}.")
    return tuple(said)


def not_covered(num_records_public: bool) -> tuple[str, ...]:
    """Say what the guarantee does not cover."""
    said = [
        "Preparation of the data (scaling, selection, encoding) done with the records.",
        "Choice of the model, its priors, the starting point and other settings, where results "
        "on these records guided it.",
        "Other analyses of the same records, and other fits; their costs add up.",
        "What can be learned about a person from the population as a whole.",
    ]
    if num_records_public:
        said.insert(2, "The number of records.")
    return tuple(said)


def run_words(run: PrivacyRun) -> str:
    """Say what one run cost and how it ran, in one line."""
    stopped = f" ({run.steps_run} run)" if run.steps_run != run.n_steps else ""
    chosen = " (chosen: a larger one would hardly reduce the noise)" if run.default_sampling else ""
    adaptive = ""
    if run.tally_weight:
        adaptive = (
            f" (adaptive from there, by noisy counts of norm {shown(run.tally_weight)} times it, which the "
            "noise multiplier counts in)"
        )
    named = f", id {run.run_id}" if run.run_id else ""
    named += f", backend {run.backend}" if run.backend else ""
    return (
        f"epsilon {shown(run.epsilon, up=True)}, delta {shown(run.delta, up=True)}, "
        f"{run.n_steps} steps planned{stopped}, sampling_prob {shown(run.sampling_prob)}{chosen}, "
        f"noise_multiplier {shown(run.noise_multiplier)}, l2_clip_norm {shown(run.l2_clip_norm)}"
        f"{adaptive}{named}"
    )
