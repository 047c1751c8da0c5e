"""What is random in the next steps, drawn while steps run: where a step is shared out (`split_step`).

Noise and latent draws of a large network take a tenth of its step. One thread draws batches and noise, and
another the public base draws, each in the order of the steps: what is drawn is the same as without threads.
Nothing is drawn before a fit asks for the first batch, which it does after the charge. What was drawn for
steps that are never made is thrown away.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["draw_ahead"]

T = TypeVar("T")


def draw_ahead(drawn: Generator[T, None, None], in_thread: bool) -> Generator[T, None, None]:
    """Yield what is drawn, of which the next ones are made in a thread meanwhile, or before.

    In both ways as much is drawn when a fit ends early, so that a seeded fit that goes on is the same.
    """
    drawer = ThreadPoolExecutor(1, thread_name_prefix="pymc_dpvi-draws") if in_thread else None

    def ahead() -> Future[T | None]:
        if drawer is not None:
            return drawer.submit(next, drawn, None)
        done: Future[T | None] = Future()
        try:
            done.set_result(next(drawn, None))
        except Exception as error:
            done.set_exception(error)
        return done

    try:
        coming = ahead()
        while (draws := coming.result()) is not None:
            coming = ahead()
            yield draws
    finally:
        if drawer is not None:
            drawer.shutdown()  # when what is being drawn is there
