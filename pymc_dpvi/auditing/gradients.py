r"""Whether what a record adds to the sum is its own clipped gradient, and nothing else.

The oracle is slow and simple: the log-density of one row, without the prior, which must not be in the sum.
It is differentiated and evaluated in Python, one row at a time, with no vectorisation, no factored blocks
and no rewriting for stability. The gradient of a person with several rows is the sum of theirs. If records
are counted, their counts are compared, too. This is measured for aligned gradients with one latent draw a
step; vanilla gradients contain a share of the prior.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace

from pymc_dpvi.auditing.probe import Probe
from pymc_dpvi.auditing.report import CheckResult
from pymc_dpvi.graph.fine_integrals import MarginalGradient
from pymc_dpvi.graph.gradients import in_draws, put
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.synthetic_records import python_function
from pymc_dpvi.mechanism.limits import SLACK
from pymc_dpvi.posterior.approximation import DPApproximation

__all__ = ["check_gradients"]

#: By how much the gradient of an integral may differ from that of a finer one, in its own length.
_OF_INTEGRALS = 0.05
_MOST_ROWS = 8  # of a person whose integral is compared
_LARGE = 1e3  # a clip norm, in units of the first one, at which few gradients are clipped


def check_gradients(
    probe: Probe, record: RecordModel, approx: DPApproximation, rng: np.random.Generator
) -> CheckResult:
    """Compare what ordinary records add, at one latent draw, with gradients computed one at a time.

    The statistic is the largest distance, in units of C, where nothing is clipped in units of the gradient's
    own length; rng is public and draws the latent values.
    """
    clip, latents, group = probe.l2_clip_norm, approx.latents, approx.groups[0]
    draw_at = pt.matrix("base_draws", dtype=pytensor.config.floatX, shape=probe.draw_shape)
    (where,) = graph_replace([group.symbolic_random], {group.symbolic_initial: draw_at}, strict=False)
    base_draws = 2.0 * probe.draws(rng, 1)[0]
    here = np.asarray(python_function([draw_at], [where])(base_draws)[0])[0]
    z = pt.vector("z", shape=(latents.size,), dtype=pytensor.config.floatX)
    own = [f.sum() for f in record.factors.values()]
    terms, draw = in_draws(own, latents)
    grads = pytensor.grad(pt.add(*terms), draw, disconnected_inputs="ignore")
    still = [v.name in latents.still for v in latents.value_vars]
    grads = [pt.zeros_like(g) if s else g for g, s in zip(grads, still, strict=True)]
    wanted = [pt.add(*terms), pt.concatenate([g.flatten() for g in grads])]
    oracle = python_function([*record.rows, z], put(wanted, draw, latents.split(z)))

    marginal = None if record.local is None else MarginalGradient(record, latents)

    def of_person(members: np.ndarray) -> np.ndarray:
        rows = [[p[r : r + 1] for p in probe.pool] for r in members]
        if marginal is None:
            return np.asarray(np.sum([oracle(*row, here)[1] for row in rows], axis=0, dtype=np.float64))
        return marginal(rows, here)

    worst, seen = 0.0, 0
    ordinary = [*range(probe.num_ordinary)]
    if record.local is not None:  # integrals in Python take long
        ordinary = [i for i in ordinary if len(probe.members[i]) <= _MOST_ROWS][:: 1 + len(ordinary) // 12]
    # Shorter gradients, in units of C, count as this long: they may be lost in the rounding to the lattice or
    # of the data.
    lattice = np.sqrt(probe.num_noise) * probe.spacing / clip
    shortest = max(1e-4, 1e5 * lattice, 1e6 * probe.rounding)
    # Where the clip norm can be moved, also at one so large that nothing is clipped, which shows the lengths.
    scales = (1.0,) if probe.step.running_clip is None else (1.0, _LARGE)
    for i, scale in itertools.product(ordinary, scales):
        with np.errstate(all="ignore"):
            gradient = of_person(probe.members[i]) / scale
        size = float(np.linalg.norm(gradient))
        if not np.isfinite(size):
            continue
        probe.load([i])
        probe.clip_scale = scale
        added = probe.release(probe.quiet, base_draws)
        bound = clip * (1.0 - SLACK)
        expected = gradient * min(1.0, bound / size) if size else gradient
        if probe.tally_weight:
            within = min(max(2.5 - 2.0 * size / bound, 0.0), 1.0)
            length = within * min(size / bound, 1.0)
            counts = np.array([within - length, 1.0 - within, length])
            expected = np.append(expected, probe.tally_weight * bound * counts)
        length = max(min(size, bound) / clip, shortest) if scale > 1.0 else 1.0
        worst = max(worst, float(np.linalg.norm(added - expected)) / clip / length)
        seen += scale == 1.0
    probe.clip_scale = 1.0
    # The kernel clips at a little less (rounding to the lattice), and float32 has fewer digits.
    allowed = (1e-4 if pytensor.config.floatX == "float64" else 1e-3) + 4.0 * lattice
    if record.local is not None:
        allowed += _OF_INTEGRALS
    return CheckResult(
        "gradient",
        "What a record adds is its own gradient, clipped; the prior is no part of it.",
        worst <= allowed and seen > 0,
        worst,
        allowed,
        f"{seen} synthetic records, one at a time; the largest difference from their own clipped "
        f"gradients is {worst:.2g} C.",
    )
