"""What `DPApproximation.sample` releases: all of it is put together in :func:`release`.

A record can change what is released in one way only: through the noisy sums of the fit, whose cost the report
states. The variational parameters, the moments of the noisy gradients and the noisy counts of an adaptive
clip norm are computed from these sums. Below, *post-processing* means a function of them, of the prior, of
settings and of public random numbers. It costs nothing more.

===========================  =================  ==============================================================
what leaves                  record changes it  why that is accounted for
===========================  =================  ==============================================================
which variables              no                 structure of the model: the free variables, and the
                                                Deterministics that depend only on them, on single numbers
                                                and on public arrays, whatever the number of records and the
                                                entries of arrays that may be data
                                                (`RecordModel.may_be_released`)
shapes, names of dims        no                 structure of the model, and the number of draws that was asked
                                                for; a variable with a dim of the records is withheld
labels of dims (coords)      no                 public: labels of a dim of a free variable or of a public
                                                array, which the report lists; every other axis is numbered
                                                (`RecordModel.released_dims`)
``posterior``                by the noisy sums  the draws: post-processing
``unconstrained_posterior``  by the noisy sums  the same draws before the transformation: post-processing
``noise_aware``              by the noisy sums  which posterior the draws are of, which depends on the number
                                                of steps and on whether draws are finite: post-processing
``bounded_by_prior``         by the noisy sums  post-processing (`FitDiagnostics.attrs`)
``released_variables``       no                 structure of the model: their names
``privacy_report``           by the noisy sums  settings and structure of the model, but for the number of
                                                steps run: a callback may end the fit by what it sees, which
                                                is post-processing (`PrivacyReport`)
``privacy_epsilon``          no                 settings: the cost of all planned steps, with `refine`
``privacy_delta``            no                 settings
names and versions           no                 public: of the packages that ran
time of the call             no                 ArviZ notes it; run times are not covered by the guarantee
===========================  =================  ==============================================================

Nothing else leaves: no ``observed_data``, no ``constant_data``, no log-likelihood, no prediction of the
records, no coordinates of their axis.

What it may never do: read a record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable

from pymc_dpvi.compat import PosteriorData, posterior_data, versions
from pymc_dpvi.errors import PrivacyError
from pymc_dpvi.graph.gradients import Latents
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.traversal import own_loops
from pymc_dpvi.pages import SCALE_PREDICTORS
from pymc_dpvi.posterior.diagnostics import FitDiagnostics
from pymc_dpvi.posterior.over_points import over_points
from pymc_dpvi.release.report import PrivacyReport

__all__ = ["Source", "draw_from", "evaluator", "finite_draws", "release"]

_NOT_FINITE = (
    "The posterior lies where its variables are no finite numbers: the noise has left it wide open. "
    f"{SCALE_PREDICTORS} A larger epsilon or more records help too."
)
#: How often draws that are no numbers are made anew.
_ROUNDS = 30

Evaluate = Callable[[np.ndarray], list[np.ndarray]]


@dataclass(frozen=True)
class Source:
    """A posterior to draw from: a function of the noisy sums and of public randomness."""

    draw: Callable[[int], np.ndarray]  # unconstrained latent vectors, (n, D)
    dtype: np.dtype  # type in which the variables are computed from them
    diagnostics: Callable[[], FitDiagnostics] | None = None  # if the posterior is noise-aware


def release(
    record: RecordModel,
    latents: Latents,
    report: PrivacyReport,
    sources: Sequence[Source],
    draws: int,
    include_transformed: bool,
) -> PosteriorData:
    """Put together all that `sample` returns; the table at the top of this module says why each part may.

    The draws are of the first source that has finite ones; a PrivacyError if none has.
    """
    named, coords_now = record.whole_model.named_vars_to_dims, record.whole_model.coords
    released = [*record.fitted_RVs, *record.released]
    source, flat, values = draw_from(record, latents, sources, released, draws)
    posterior = {v.name: x[None] for v, x in zip(released, values, strict=True)}
    dims = {
        v.name: [d or f"{v.name}_dim_{k}" for k, d in enumerate(named[v.name])]
        for v in released
        if v.name in named
    }
    used = {d for names in dims.values() for d in names} & record.released_dims
    coords = {d: list(c) for d, c in coords_now.items() if d in used and c is not None}
    transformed = None
    still = () if record.encoded is None else record.encoded.turns
    if include_transformed:
        transformed = {
            v.name: flat[:, s].reshape((1, len(flat), *shape))
            for v, s, shape in zip(latents.value_vars, latents.slices, latents.shapes, strict=True)
            if v.name not in posterior and v.name not in still
        }
    attrs = {
        "inference_library": "pymc_dpvi",
        "inference_library_version": versions()["pymc-dpvi"],
        "privacy_epsilon": float(report.epsilon),
        "privacy_delta": float(report.delta),
        "privacy_report": report.to_json(),
        "released_variables": json.dumps([*posterior, *(transformed or ())]),
        "noise_aware": int(source.diagnostics is not None),
        **(source.diagnostics().attrs if source.diagnostics else {}),
    }
    return posterior_data(posterior, coords=coords, dims=dims, attrs=attrs, transformed=transformed)


def draw_from(
    record: RecordModel,
    latents: Latents,
    sources: Sequence[Source],
    variables: Sequence[Variable],
    draws: int,
) -> tuple[Source, np.ndarray, list[np.ndarray]]:
    """Draw from the first source that has finite draws; return it, flat draws (draws, D), and the variables'.

    The first of the variables are free ones. A PrivacyError if no source has finite draws.
    """
    free = set(record.model.free_RVs)
    for source in sources:
        evaluate = evaluator(record.model, latents, variables, source.dtype)
        drawn = finite_draws(source.draw, evaluate, draws, sum(v in free for v in variables))
        if drawn is not None:
            return source, *drawn
    hint = " sample(noise_aware=False) may have them." if source.diagnostics else ""
    raise PrivacyError(_NOT_FINITE + hint)


def evaluator(model: pm.Model, latents: Latents, variables: Sequence[Variable], dtype: np.dtype) -> Evaluate:
    """Compile model variables as functions of unconstrained draws (draws, D); results lead with draws."""
    graphs = own_loops(model.replace_rvs_by_values(list(variables)))
    function = over_points(latents, graphs, latents.value_vars, str(dtype))

    def evaluate(flat: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.asarray(v) for v in function(flat)]

    return evaluate


def finite_draws(
    draw: Callable[[int], np.ndarray], evaluate: Evaluate, draws: int, num_free: int
) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Draw until every draw is finite: flat draws (draws, D) and their values, or None without success.

    The first `num_free` values, free variables, must be finite; a Deterministic only if at least half of its
    first draws are.
    """
    # The exponential of 800 is infinite, and a latent value may lie there if the noise leaves it wide open.
    # Drawing again gives the posterior under the condition that its variables are finite. A Deterministic
    # that is undefined for most draws is no reason to drop them.
    flat = draw(draws)
    values = evaluate(flat)
    fine = [_finite(v) for v in values]
    required = [k for k, f in enumerate(fine) if k < num_free or f.mean() >= 0.5]
    for _ in range(_ROUNDS):
        good = np.logical_and.reduce([fine[k] for k in required] + [_finite(flat)])
        if good.all():
            return flat, values
        (bad,) = np.nonzero(~good)
        flat[bad] = draw(len(bad))
        for k, new in enumerate(evaluate(flat[bad])):
            values[k] = np.array(values[k])
            values[k][bad] = new
            fine[k] = _finite(values[k])
    return None


def _finite(values: np.ndarray) -> np.ndarray:
    """Whether each draw is, shape ``(draws,)``."""
    return np.asarray(np.isfinite(values).reshape(len(values), -1).all(axis=1))
