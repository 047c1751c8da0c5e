"""Compiled steps that fits of equal graphs share within a process.

A process never frees what numba has compiled: the machine code stays mapped, and PyTensor registers the
elementwise operations of every graph with numba for good, and with them the graph (some hundred functions and
1 to 10 MB for a step of a small model). So a step is compiled once in a process, and later fits of an equal
graph, on other data, use it again. `shared` keeps it under a name for the graph.

Two graphs have the same name only if they compute the same (`graph_keys`) and were compiled in the same way:
by numba in the default mode of a fit, with the same settings of PyTensor, on arrays of the same layout.
Everything else is compiled anew each time, and not kept.

Code that is written at run time (`generated_code`) is also kept on the disk, by numba, under a key for all
that it computes: `compiled_source`.

Privacy: a compiled step holds no records. Records are inputs of it, as are parameters, noise and batches. It
refers to no shared variable and no model, so data do not outlive their fit. It holds the model's own
constants, which are part of the name.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pytensor
from numba.core.sigutils import normalize_signature
from pytensor.graph.basic import Variable
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit

from pymc_dpvi.compat import default_numba_mode

__all__ = ["Postponed", "address_of", "compiled_source", "name_of", "shared"]

T = TypeVar("T")

#: Most compiled steps that are kept: more than an ordinary analysis makes. Dropping one frees little.
MOST = 64

_kept: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.Lock()


def name_of(
    key: str | None, compile_kwargs: Mapping[str, Any], values: Iterable[Any], *more: Hashable
) -> Hashable | None:
    """Return a name for what is compiled from a graph, or None if it must not be shared.

    `key` is that of `graph_keys.graph_key`, `values` are those of the shared variables behind the graph,
    `more` is all else that decides what is compiled.
    """
    if key is None or set(compile_kwargs) != {"mode"} or compile_kwargs["mode"] is not default_numba_mode():
        return None
    settings = (pytensor.config.numba__fastmath, pytensor.config.floatX)
    # For another layout numba compiles again, with constants that may have been changed in place since.
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
    """Return what `make`, which compiles, returned for this name before, or call it; None keeps nothing.

    What `make` returns must hold no data and no model.
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


def compiled_source(
    name: str, source: str, scope: dict[str, Any], key: str | None, **options: Any
) -> Callable[..., Any]:
    """Let numba compile the function `name` of a source that was written at run time.

    It is kept on the disk under `key`, a hash of all that it computes and of `numba_cache.source_hash`, if
    there is one.
    """
    scope = {**scope, "__name__": __name__}  # what is kept names the module of its function
    function = compile_numba_function_src(source, name, scope, cache_key=key)
    return numba_njit(function, fastmath=False, final_function=True, cache=key is not None, **options)  # type: ignore[no-any-return]


def address_of(function: Any, signature: str) -> int:
    """Compile what `compiled_source` returned for a signature, and return where its machine code is.

    A function that calls another by its name gets machine code of its own for it, which may round otherwise.
    `function` has to be kept for as long as the address is used.
    """
    arguments, _ = normalize_signature(signature)
    function.compile(arguments)
    made = function.overloads[arguments]
    return int(made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name))


class Postponed:
    """A PyTensor function that is compiled when first used: never, if the step around it is shared.

    `inputs` and `outputs` are its graph.
    """

    def __init__(
        self, compiled: Callable[[], Any], inputs: Sequence[Variable] = (), outputs: Sequence[Variable] = ()
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
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
