"""While a private step runs, NumPy, SciPy and JAX neither raise nor warn, whatever the user has set.

Each can be told to raise where a result is not finite: ``np.seterr``, ``scipy.special.seterr``, and JAX's
``jax_debug_nans`` and ``jax_debug_infs``. The gradient of one record would then end a fit or not. These are
settings of a thread, so each thread that runs a part of a step holds them. In old versions of SciPy, its own
is one of the process (`process_wide`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import Any

import numpy as np
from scipy import special

from pymc_dpvi.process_wide import ProcessWide

__all__ = ["silence"]


class _QuietSciPy(ProcessWide):
    """For versions of SciPy whose setting is the process's."""

    def _make(self) -> None:
        self._before: dict[str, Any] = special.seterr(all="ignore")

    def _put_back(self) -> None:
        special.seterr(**self._before)


def _scipy_is_of_a_thread() -> bool:
    """Whether what one thread sets for SciPy's special functions does not hold in another."""
    seen: list[dict[str, str]] = []
    for action in ("warn", "raise"):
        with special.errstate(singular=action):
            other = Thread(target=lambda: seen.append(special.geterr()))
            other.start()
            other.join()
    return seen[0] == seen[1]


_SCIPY = None if _scipy_is_of_a_thread() else _QuietSciPy()


@contextmanager
def silence() -> Iterator[None]:
    """Hold it in this thread."""
    with ExitStack() as settings:
        settings.enter_context(np.errstate(all="ignore"))
        settings.enter_context(special.errstate(all="ignore") if _SCIPY is None else _SCIPY)
        if (jax := sys.modules.get("jax")) is not None:
            settings.enter_context(jax.debug_nans(False))
            settings.enter_context(jax.debug_infs(False))
        yield
