"""The standard normal base draws of steps: public, and made by several threads where they are many.

Many are cut into blocks of a fixed length, and each block has a generator of its own. So the numbers do not
depend on who draws them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

__all__ = ["BaseDraws"]

#: Numbers of a block: some tenths of a millisecond.
_BLOCK = 1 << 16


class BaseDraws:
    """Base draws for at most `most` steps at once, each of `shape`, from a generator of public randomness."""

    def __init__(self, rng: np.random.Generator, most: int, shape: tuple[int, ...]) -> None:
        self._shape = shape
        blocks = int(np.ceil(most * np.prod(shape) / _BLOCK))
        self._generators = [rng] if blocks <= 1 else rng.spawn(blocks)

    def begun(self, n_steps: int) -> tuple[np.ndarray, list[Callable[[], object]]]:
        """Return an array, (n_steps, *shape), and what fills it, in any order."""
        draws = np.empty((n_steps, *self._shape))
        blocks = np.array_split(draws.reshape(-1), len(self._generators))
        filling: list[Callable[[], object]] = [
            partial(generator.standard_normal, out=block)
            for generator, block in zip(self._generators, blocks, strict=True)
        ]
        return draws, filling
