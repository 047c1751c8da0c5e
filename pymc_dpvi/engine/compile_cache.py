"""Compiled steps that fits of equal graphs share, within a process.

What numba has compiled a process never gives back: its machine code stays mapped, and PyTensor registers the
elementwise operations of every graph with numba for good, and with them the graph (some hundred functions and
1 to 10 MB for a step of a small model). So a step is compiled once a process, and fits of an equal graph, on
other data, use it again: `shared` keeps what was compiled under a name for the graph.

Two graphs have one name only if they compute the same (`graph_keys`) and were compiled the same way: by
numba in the mode that a fit takes by default, with the same settings of PyTensor's, on arrays of the same
layout. Everything else is compiled as it always was, and nothing of it is kept here.

Privacy: a compiled step holds no records. They are inputs of it, as are parameters, noise and batches, and no
shared variable or model is behind it: data are gone with the fit that they came with. What it does hold are
the model's own constants, which are part of the name.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import pytensor

from pymc_dpvi.compat import default_numba_mode

__all__ = ["Postponed", "name_of", "shared"]

T = TypeVar("T")

#: Compiled steps that are kept. Dropping one frees little, and all are dropped by no ordinary analysis.
MOST = 64

_kept: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.Lock()


def name_of(
    key: str | None, compile_kwargs: Mapping[str, Any], values: Iterable[Any], *more: Hashable
) -> Hashable | None:
    """Return a name for what is compiled from a graph, or None if it must not be shared.

    `key` is of `graph_keys.graph_key`, `values` those of the inputs that do not change from call to call;
    `more` is what else decides on the compiled code.
    """
    if key is None or set(compile_kwargs) != {"mode"} or compile_kwargs["mode"] is not default_numba_mode():
        return None
    settings = (pytensor.config.numba__fastmath, pytensor.config.floatX)
    # Numba compiles again for another layout, and a constant that was changed in place would come in then.
    return key, settings, tuple(_layout(value) for value in values), more


def _layout(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        flags = value.flags
        return (
            value.dtype.str,
            value.ndim,
            flags.c_contiguous,
            flags.f_contiguous,
            flags.aligned,
            flags.writeable,
        )
    return type(value).__qualname__


def shared(name: Hashable | None, make: Callable[[], T]) -> T:
    """Return what `make`, which compiles, returned for this name, or call it; None keeps nothing.

    What it returns must hold no data and no model.
    """
    if name is None:
        return make()
    with _lock:
        if name in _kept:
            _kept.move_to_end(name)
            found: T = _kept[name]
            return found
    made = make()  # may take long: others need not wait
    with _lock:
        _kept[name] = made
        while len(_kept) > MOST:
            _kept.popitem(last=False)
    return made


class Postponed:
    """A PyTensor function that is compiled when first needed: never, if the step around it is shared."""

    def __init__(self, compiled: Callable[[], Any]) -> None:
        self._compile: Callable[[], Any] | None = compiled
        self._function: Any = None

    @property
    def function(self) -> Any:
        """The function."""
        if self._compile is not None:
            self._function, self._compile = self._compile(), None
        return self._function

    @property
    def maker(self) -> Any:
        """Its maker, with the graph."""
        return self.function.maker

    def __call__(self, *inputs: Any) -> Any:
        """Call it."""
        return self.function(*inputs)
