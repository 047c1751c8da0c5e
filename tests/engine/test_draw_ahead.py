"""Draws for the next steps, made while steps run."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import closing

import numpy as np
import pytest

from pymc_dpvi.engine.draw_ahead import draw_ahead
from pymc_dpvi.errors import ModelEvaluationError
from pymc_dpvi.mechanism.mechanism import Draws

BOTH = pytest.mark.parametrize("in_thread", [False, True])


def numbered(made: list[int], until: int = 6) -> Generator[Draws, None, None]:
    """Yield draws whose noise is their number."""
    for k in range(until):
        made.append(k)
        yield Draws(np.zeros(0, np.int64), np.zeros(2, np.int64), np.full((1, 1), k))
    raise ModelEvaluationError("no room")


def threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("pymc_dpvi-draws")}


@BOTH
def test_they_come_in_order_and_so_does_an_error(in_thread: bool):
    found = []
    with pytest.raises(ModelEvaluationError, match="no room"):
        for draws in draw_ahead(numbered([]), in_thread):
            found.append(int(draws.noise[0, 0]))
    assert found == list(range(6)) and not threads()


@BOTH
def test_one_is_drawn_ahead(in_thread: bool):
    """As many in both ways, so that a seeded fit that goes on is the same."""
    made: list[int] = []
    with closing(draw_ahead(numbered(made), in_thread)) as coming:
        assert not made  # nothing before it is asked for
        for k in range(3):
            assert next(coming).noise[0, 0] == k
        assert bool(threads()) == in_thread
    assert made == [0, 1, 2, 3] and not threads()


def test_it_is_drawn_while_steps_run():
    reached = threading.Event()

    def drawn() -> Generator[Draws, None, None]:
        empty = np.zeros(0, np.int64)
        yield Draws(empty, empty, empty)
        reached.set()
        yield Draws(empty, empty, empty)

    with closing(draw_ahead(drawn(), in_thread=True)) as coming:
        next(coming)
        assert reached.wait(30)
