r"""(A) How far one record can move the release, with batch, base draws and noise fixed.

Two promises are measured, on ordinary and hostile synthetic records:

* each record alone adds a finite vector :math:`c_i` with :math:`\lVert c_i\rVert \le C`;
* the release of a data set is :math:`\sum_i c_i + \eta`: what one record adds depends neither on the other
  records nor on its place in the batch, and the noise is added as it was drawn.

From these follow the sensitivities C (one record more) and 2C (one record replaced). They are also measured
directly, on pairs of neighbouring data sets, and compared with what the mechanism claims. With an adaptive
clip norm, C stands for the norm of all that a record may add, gradient and counts.
"""

from __future__ import annotations

import numpy as np

from pymc_dpvi.auditing.probe import Probe, Vector
from pymc_dpvi.auditing.report import CheckResult
from pymc_dpvi.errors import ModelEvaluationError
from pymc_dpvi.mechanism.mechanism import Mechanism, Streams

__all__ = ["check_lattice", "check_one_way_out", "check_sensitivity"]

_DRAWS = 2  # latent draws at which everything is measured
_CLIP_SCALES = (1.0, 0.01)  # an adaptive clip norm at each of these draws, in start values
_DATA_SETS = 5  # data sets that get one record more, or one replaced
_NEIGHBOURS = 6  # records that are added to each of them, besides those that pull most


def check_one_way_out(probe: Probe) -> CheckResult:
    """Check that records reach the optimiser through the noisy sum alone, by the graph of its gradients."""
    found = len(probe.leaks)
    words = "The gradients of the compiled step were followed back to their inputs; behind the noisy sum "
    words += "stand only parameters, public draws and the prior."
    if found:
        words = f"The gradients of the compiled step also depend on: {', '.join(probe.leaks)}."
    return CheckResult(
        "one way out",
        "What an update learns of the records, it learns from the noisy sum.",
        not found,
        float(found),
        0.0,
        words,
    )


def check_sensitivity(
    probe: Probe, mechanism: Mechanism, streams: Streams, rng: np.random.Generator
) -> CheckResult:
    """Check (A): no record moves the release further than ``mechanism.sensitivity``; rng is public.

    The statistic is the largest distance in units of what is allowed.
    """
    clip, claim = mechanism.record_norm, mechanism.sensitivity
    replace = mechanism.neighboring_relation == "replace_one"
    # Rounding of the release itself: float64, or the lattice of the noise (2^-40 standard deviations).
    slack = 1e-9 * (1.0 + mechanism.noise_multiplier) * np.sqrt(probe.num_noise) * clip
    # Under replace-one the claim is for a replaced record, under add-or-remove-one for one more.
    one_more, another = (clip, claim) if replace else (claim, 2 * clip)
    # In the last bits, a gradient may come out differently in another batch: docs/noise.md, section 4.
    rounding = 4.0 * probe.rounding * clip
    worst, moved, shaken, broken = 0.0, 0.0, 0.0, ""

    def allow(distance: float, allowed: float, otherwise: str) -> None:
        nonlocal worst, broken
        ratio = distance / (allowed + slack) if np.isfinite(distance) else np.inf
        broken = otherwise if ratio > max(worst, 1.0) else broken
        worst = max(worst, ratio)

    def measure(draw: np.ndarray) -> None:
        nonlocal moved, shaken
        single = probe.contributions(draw)
        sizes = np.linalg.norm(single, axis=1)
        i = int(np.argmax(np.where(np.isfinite(sizes), sizes, np.inf)))
        kind = "an ordinary" if i < probe.num_ordinary else "a hostile"
        allow(float(sizes[i]), clip, f"{kind} record alone contributes more than C")
        if not np.isfinite(single).all():
            return
        noise = probe.noise(mechanism, streams, 1)[0]
        probe.load([])
        alone = probe.release(noise, draw)
        empty = probe.release(probe.quiet, draw)
        allow(float(np.linalg.norm(empty)), 0.0, "an empty batch releases more than noise")
        for count in (*range(1, _DATA_SETS), 4 * _DATA_SETS):
            base = rng.integers(len(probe), size=count)
            total = single[base].sum(axis=0)
            without = _release(probe, base, noise, draw)
            apart = float(np.linalg.norm(without - alone - total))
            allow(apart, (slack + rounding) * count, "what a record contributes depends on the others")
            shaken = max(shaken, apart / (count * clip))
            last: Vector | None = None
            for new in _neighbours(probe, single, total, rng):
                data = [*base, new] if rng.integers(2) else [new, *base]
                released = _release(probe, np.asarray(data), noise, draw)
                far = float(np.linalg.norm(released - without))
                allow(far, one_more, "a record more moves the sum too far")
                moved = max(moved, far / one_more)
                if last is not None:
                    far = float(np.linalg.norm(released - last))
                    allow(far, another, "another record moves the sum too far")
                    moved = max(moved, far / another)
                last = released

    try:
        for draw, scale in zip(probe.draws(rng, _DRAWS), _CLIP_SCALES, strict=True):
            probe.clip_scale = scale
            measure(draw)
    except ModelEvaluationError:
        broken, worst = "the step raises on a record", np.inf
    finally:
        probe.clip_scale = 1.0
    hostile = len(probe) - probe.num_ordinary
    words = (
        f"{len(probe)} synthetic records, {hostile} of them hostile (NaN, infinities, 1e300, subnormal), "
        f"alone and in {_DATA_SETS * _DRAWS} data sets; the furthest move was {moved:.4g} of the claim."
    )
    if probe.rounding > 1e-9:
        words += (
            f" In single precision, what the others contribute moves by up to {shaken:.1g} C each; the proof "
            "in docs/noise.md does not cover that in large batches. Use float64."
        )
    if broken:
        words = f"{broken[0].upper()}{broken[1:]}: {worst:.4g} of what is allowed."
    who = "Another record in its place" if replace else "A record more or less"
    return CheckResult(
        "sensitivity",
        f"{who} moves the sum by at most {'2C' if replace else 'C'}, whatever it holds.",
        worst <= 1.0,
        worst,
        1.0,
        words,
    )


def check_lattice(
    probe: Probe, mechanism: Mechanism, streams: Streams, rng: np.random.Generator
) -> CheckResult:
    """Check that the release consists of whole spacings: rounded sum plus integer noise; rng is public.

    The last bits of a float64 sum with float64 noise tell the sum (Mironov 2012). A whole number of spacings
    must be released as the float64 product of the two, and as no other number near it. The statistic is the
    number of released numbers off the lattice.
    """
    spacing, off, seen = mechanism.noise.spacing, 0, 0
    for draw in probe.draws(rng, _DRAWS):
        noise = probe.noise(mechanism, streams, _DATA_SETS)
        for k in range(_DATA_SETS):
            probe.load(rng.integers(len(probe), size=4 * k + 1))
            released = probe.release(noise[k], draw)
            off += int(np.count_nonzero(np.rint(released / spacing) * spacing != released))
            seen += released.size
    return CheckResult(
        "lattice",
        "What is released is a whole number of lattice units, whose last bits say nothing of the sum.",
        off == 0,
        off,
        0.0,
        f"{seen} released numbers, {off} of them off the lattice of {spacing:.3g}.",
    )


def _release(probe: Probe, rows: np.ndarray, noise: np.ndarray, draw: np.ndarray) -> Vector:
    probe.load(rows)
    return probe.release(noise, draw)


def _neighbours(probe: Probe, single: Vector, total: Vector, rng: np.random.Generator) -> np.ndarray:
    """Choose records to add to a data set: some at random, and those that pull most with and against it."""
    along = single @ total
    some = rng.choice(len(probe), size=min(_NEIGHBOURS, len(probe)), replace=False)
    first = int(np.argmax(np.linalg.norm(single, axis=1)))
    against = int(np.argmin(single @ single[first]))
    return np.array([*some, int(np.argmin(along)), int(np.argmax(along)), first, against])
