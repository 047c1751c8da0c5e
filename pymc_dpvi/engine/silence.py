"""While a private step runs, NumPy, SciPy and JAX neither raise nor warn, whatever the user has set.

Each can be told to raise where a result is not finite: ``np.seterr``, ``scipy.special.seterr``, and JAX's
``jax_debug_nans`` and ``jax_debug_infs``. The gradient of one record would then end a fit or not. NumPy's and
JAX's settings are those of a thread, SciPy's those of the process (`process_wide`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from pymc_dpvi.engine.process_wide import SCIPY_IS_QUIET

__all__ = ["silence"]


@contextmanager
def silence() -> Iterator[None]:
    """Hold it in this thread."""
    with ExitStack() as settings:
        settings.enter_context(np.errstate(all="ignore"))
        settings.enter_context(SCIPY_IS_QUIET)
        if (jax := sys.modules.get("jax")) is not None:
            settings.enter_context(jax.debug_nans(False))
            settings.enter_context(jax.debug_infs(False))
        yield
