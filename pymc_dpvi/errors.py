"""Errors and warnings of pymc_dpvi.

Every error is a :class:`PrivacyError`; the subclasses are also a `ValueError` or a `RuntimeError`. A message
names the argument or the model variable, says what was found, why it cannot be private, and what to type
instead. It never contains a data value: an error's text may leave the process, and is not accounted for.
"""

from __future__ import annotations

import sys
import warnings

__all__ = [
    "ArgumentError",
    "BudgetExceededError",
    "CalibrationError",
    "InsecureNoiseWarning",
    "LedgerError",
    "ModelEvaluationError",
    "NotSeparableError",
    "PrivacyError",
    "PrivacyWarning",
    "RecordSourceError",
    "UnsupportedModelError",
    "WorkersError",
]

#: Packages whose frames may be between a warning and the caller's line.
_BETWEEN = {"pymc_dpvi", "pymc", "contextlib"}


class PrivacyError(Exception):
    """Base class: what was asked for cannot be done privately."""


class ArgumentError(PrivacyError, ValueError):
    """An argument has a value, a type or a combination that cannot be used."""


class CalibrationError(PrivacyError, ValueError):
    """No noise meets the privacy target that was asked for."""


class BudgetExceededError(PrivacyError, ValueError):
    """A privacy budget has too little left for what was asked; nothing was charged."""


class LedgerError(PrivacyError, RuntimeError):
    """The file of a privacy budget is missing, busy, damaged, or another file; nothing was charged."""


class UnsupportedModelError(PrivacyError, ValueError):
    """The model has a part that cannot be fitted privately as written."""


class NotSeparableError(UnsupportedModelError):
    """The likelihood is not a product over records: one record enters another record's factor."""


class ModelEvaluationError(PrivacyError, RuntimeError):
    """The model's own graph raised while it was evaluated on the records.

    The original exception is not chained, because PyTensor quotes input values in its messages.
    """


class RecordSourceError(ModelEvaluationError):
    """A source of records (``DPADVI(records=...)``) raised while rows were read.

    The original exception is not chained, because its text may quote what was read.
    """


class WorkersError(ModelEvaluationError):
    """A cluster (``DPADVI(client=...)``) failed, or a worker returned what is no sum.

    The original exception is not chained, because its text may quote records.
    """


class InsecureNoiseWarning(UserWarning):
    """Noise comes from a seed that somebody may know: the result must not be released."""


class PrivacyWarning(UserWarning):
    """The guarantee holds but is weaker than a reader may think."""


def warn(message: str, category: type[Warning] = PrivacyWarning) -> None:
    """Warn at the line that called this package, directly or through PyMC.

    Python shows a warning once for each line of code that it points to.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
