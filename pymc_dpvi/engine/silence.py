"""While a private step runs, NumPy, SciPy and JAX neither raise nor warn, whatever the user has set.

Each can be told to raise where a result is not finite: ``np.seterr``, ``scipy.special.seterr``, and JAX's
``jax_debug_nans`` and ``jax_debug_infs``. The gradient of one record would then end a fit or not. NumPy's and
JAX's settings are those of a thread, SciPy's those of the process (`process_wide`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from scipy import special

from pymc_dpvi.process_wide import ProcessWide

__all__ = ["SCIPY_IS_QUIET", "silence"]


class _QuietSciPy(ProcessWide):
    """SciPy's special functions neither raise nor warn, which `scipy.special.seterr` can make them do."""

    def _make(self) -> None:
        self._before: dict[str, Any] = special.seterr(all="ignore")

    def _put_back(self) -> None:
        special.seterr(**self._before)


SCIPY_IS_QUIET = _QuietSciPy()


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
