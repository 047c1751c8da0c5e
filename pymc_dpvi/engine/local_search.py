r"""The search of `local_modes` in Python, and how rough the places that it leads to are, on made-up rows.

`local_sums` places some nodes by the second derivatives at a mode. Where the density of a person's values
has a kink, heavy tails or several modes, these say little of it. :func:`roughness` compares with a fine
grid (`graph.fine_integrals`), for four values and more with a finer rule at the same modes, before a fit and
on synthetic rows, so that it tells nothing of the data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_dpvi.engine import local_modes, local_sums
from pymc_dpvi.graph.fine_integrals import MarginalGradient, can_integrate
from pymc_dpvi.graph.gradients import Latents, local_terms
from pymc_dpvi.graph.local_rules import Places
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.separability import write_for_several
from pymc_dpvi.graph.synthetic_records import Rows, python_function, synthetic_records

__all__ = ["Derivatives", "find_modes", "roughness"]

#: Numbers of rows of the synthetic persons.
_PERSONS = (1, 2, 4)

#: Log-densities of rows, their slopes and second derivatives, from their places and local values.
Derivatives = Callable[[np.ndarray, np.ndarray], list[np.ndarray]]


def find_modes(derivatives: Derivatives, starts: np.ndarray, rule: Places) -> tuple[np.ndarray, np.ndarray]:
    """Return modes, (searches, d), and minus the second derivatives there; `starts` as in `Units`."""
    combinations = len(rule.values)
    state = local_modes.begin_search((len(starts) - 1) * combinations, rule.continuous)
    at, best, _, _, left, curvature = state
    while rule.continuous and (left > 0).any():
        places, whose = local_modes.of_open(starts, left, combinations)
        sums = np.zeros(len(left)), np.zeros(at.shape), np.zeros(curvature.shape)
        values = np.concatenate([at[whose], rule.values[whose % combinations]], axis=1)
        found = map(np.ascontiguousarray, derivatives(places, values))
        local_modes.add_derivatives(*found, whose, 0, len(places), *sums)
        local_modes.move(*sums, *state)
    return best, curvature


def roughness(record: RecordModel, latents: Latents, start: np.ndarray) -> float:
    """Return the largest error of synthetic persons' gradients, in their own size (`error_at`)."""
    local = record.local
    if local is None or not local.places.continuous:
        return 0.0
    rule = local.places
    z = pt.matrix("z", shape=(1, latents.size), dtype=pytensor.config.floatX)
    batch = [r.type.clone(shape=(None, *r.type.shape[1:]))() for r in record.rows]
    graphs = local_terms(record, batch, latents, z)  # it raises if there are no second derivatives
    if rule.steps or not (can_integrate(record) or rule.fine):
        return 0.0
    rows = sum(_PERSONS)
    many = write_for_several(record, rows)
    terms = python_function([*batch, z], graphs)
    marginal = MarginalGradient(record, latents)
    starts = np.cumsum([0, *_PERSONS])
    first = np.zeros(rows, dtype=pytensor.config.floatX)
    first[starts[:-1]] = 1.0
    made: list[tuple[Rows, np.ndarray]] = list(
        synthetic_records(record, many, latents, z, start, np.random.default_rng(0))
    )
    errors = []
    for synthetic, point in made[-2 if rule.continuous == 1 else -1 :]:  # from the likelihood, if it can be
        data = synthetic[: len(record.arrays)]

        def derivatives(
            places: np.ndarray, values: np.ndarray, data: Rows = data, point: np.ndarray = point
        ) -> list[np.ndarray]:
            with np.errstate(all="ignore"):
                return list(
                    terms(*(d[places] for d in data), values.astype(first.dtype), first[places], point)
                )

        modes, curvature = find_modes(derivatives, starts, rule)
        placed, logs = _placed(modes, curvature, rule)
        finer = None if rule.fine is None else _placed(modes, curvature, rule.fine)
        for p, (a, b) in enumerate(itertools.pairwise(starts)):
            of_person = [[d[r : r + 1] for d in data] for r in range(a, b)]
            with np.errstate(all="ignore"):
                fine = None if finer is None else (finer[0][p], finer[1][p])
                errors.append(marginal.error_at(of_person, point[0], placed[p], logs[p], fine))
    return max([0.0, *(error for error in errors if np.isfinite(error))])


def _placed(modes: np.ndarray, curvature: np.ndarray, rule: Places) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of each person, and the logs of their weights."""
    logs = local_sums.begin_logs(curvature, len(rule.values), len(rule.at))
    logs += np.tile(rule.log_weights, len(rule.values))
    return local_sums.place_nodes(modes, curvature, rule.at, rule.values, True), logs
