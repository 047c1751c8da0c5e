"""Warnings of a fit that is not refused.

In: settings and a model. Out: warnings, before anything is charged, since Python may turn a warning into an
error; and lines in the log, one of them after a run, by what it has released.

What it must never do: let a warning depend on the number of records if that is not public.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pymc as pm

from pymc_dpvi.engine.local_search import roughness
from pymc_dpvi.engine.running_clip import RunningClip
from pymc_dpvi.errors import InsecureNoiseWarning, UnsupportedModelError, warn
from pymc_dpvi.graph.gradients import Latents
from pymc_dpvi.graph.precomputed import FORMULA_ADVICE, formula_mark
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.mechanism.mechanism import Mechanism
from pymc_dpvi.pages import shown
from pymc_dpvi.release.report import PrivacyReport, PrivacyRun
from pymc_dpvi.settings import PrivacySettings

__all__ = [
    "log_earlier_fit",
    "log_no_records",
    "warn_before_charge",
    "warn_of_lost_records",
    "warn_of_rough_integrals",
    "warn_of_single_precision",
]

_logger = logging.getLogger(__name__)

#: A delta that is too large for more than ten thousand records, and is warned of whatever their number.
_LARGE_DELTA = 1e-4
#: Number of records that the noisy counts should at least be able to tell from none.
_SEEN = 200.0
#: An error of the integrals over local variables that is warned of, in sizes of a gradient.
_ROUGH = 0.02

_SINGLE = (
    "This model computes in single precision (floatX='float32'). The proof that the noise hides a record in "
    "finite precision (docs/noise.md) is for gradients in float64: in float32 their last digits may depend "
    "on the other records of a large batch. Use pytensor.config.floatX = 'float64' for releases."
)


def warn_of_single_precision(value_vars: Any) -> None:
    """Warn of a model whose latent values are in single precision."""
    if any(v.type.dtype == "float32" for v in value_vars):
        warn(_SINGLE)


def warn_before_charge(settings: PrivacySettings, model: pm.Model, num_records: int, *, seeded: bool) -> None:
    """Warn of what is planned: noise from a seed, a formula package's model, a large delta."""
    if seeded:
        warn(
            "insecure_noise_seed= makes the noise predictable: use it for tests and papers, and do "
            "not release the result.",
            InsecureNoiseWarning,
        )
    if (mark := formula_mark(model)) is not None:
        warn(f"The name {mark!r} looks as if a formula package had written the model. {FORMULA_ADVICE}")
    _warn_of_large_delta(settings, num_records)


def warn_of_rough_integrals(record: RecordModel, latents: Latents, start: np.ndarray) -> None:
    """Warn if the quadrature of local variables is rough on made-up rows; no record is read."""
    try:
        error = roughness(record, latents, start)
    except UnsupportedModelError:  # no second derivative: better now than in `fit`
        raise
    except Exception:  # of made-up rows that do not suit the model
        error = 0.0
    if error > _ROUGH:
        assert record.local is not None
        named = ", ".join(map(repr, record.local.names))
        more = record.local.places.more_nodes
        first = next(v.name for v in record.local.variables if v.type.dtype.startswith("float"))
        warn(
            f"The integral over {named} is rough: on made-up rows, the gradient at the places of "
            f"the quadrature is off by {100 * error:.0f} % of its size. This is no matter of privacy, but "
            "the fit is of another model. Kinks (pm.Laplace, pt.maximum), heavy tails, values that bound "
            "what is possible, or enter as a square or a product, are the usual cause. Write the model "
            "without" + (f", or name more nodes: guide={{'{first}': Quadrature({more})}}." if more else ".")
        )


def warn_of_lost_records(names: Iterable[str]) -> None:
    """Warn that records count as zero whose outcomes the model itself may draw (`separability`)."""
    warn(
        f"The log-density of {', '.join(map(repr, names))} is finite, and its gradient is not, at some "
        "outcomes that the model itself may draw. Records with such outcomes count as zero, so the fit is of "
        "the others. This is no matter of privacy. The usual cause is a function without a value there, "
        "behind a pt.switch or in a mixture, such as pm.Beta at 0 beside pm.DiracDelta.dist(0): write a "
        "pm.Potential with pt.switch(y > 0, ..., ...), in which the function has another argument there, "
        "pt.switch(y > 0, y, 0.5)."
    )


def _warn_of_large_delta(settings: PrivacySettings, num_records: int) -> None:
    """Warn if δ is at least 1/N, or at least `_LARGE_DELTA` if N is not public."""
    public = settings.num_records_public
    if settings.delta >= (1.0 / num_records if public else _LARGE_DELTA):
        known = "not below" if public else "large: choose it below"
        warn(
            f"delta={settings.delta:g} is {known} 1 / (number of records). At such a delta a mechanism "
            "may publish a whole record and still satisfy the definition. Use a smaller one."
        )


def log_earlier_fit(earlier: PrivacyReport | None, cost: PrivacyRun) -> None:
    """Log what this fit and earlier ones by the same method cost together; no budget limits them."""
    if earlier is not None:
        _logger.warning(
            "This is another fit by the same method: together epsilon = %s, delta = %s. A PrivacyBudget "
            "would limit them.",
            shown(earlier.epsilon + cost.epsilon, up=True),
            shown(earlier.delta + cost.delta, up=True),
        )


def log_no_records(clip: RunningClip | None, mechanism: Mechanism, by_unit: bool) -> None:
    """Log that a run's noisy counts, which are released, tell of no record where they would see `_SEEN`.

    Their numbers are left out: what a fit says is the same for all data but at that edge.
    """
    found = clip and clip.records_and_noise(mechanism.noise_multiplier, mechanism.sampler.sampling_prob)
    if found and found[0] < 4.0 * found[1] <= _SEEN:
        one, many = ("person", "persons") if by_unit else ("record", "records")
        _logger.warning(
            f"The private counts of this fit tell of no {one} with a finite gradient, and the result may be "
            f"the prior. With at most two hundred {many} that is to be expected, as the noise is larger than "
            "the counts, and tells nothing. With more, look for NaN in the predictors, and try the model on "
            "made-up data (model.point_logps()): a log-density or its gradient is not finite there."
        )
