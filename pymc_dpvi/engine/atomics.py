"""What several threads may do to one number at a time, in compiled code that does not hold Python's lock."""

from __future__ import annotations

import os
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["at_address", "call_at", "exchange", "give_way", "load", "store", "take_turn"]


def _first(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Return a pointer to the first entry of an array."""
    return context.make_array(kind)(context, builder, array).data


@intrinsic
def take_turn(typing_context: Any, turns: Any) -> Any:  # pragma: no cover
    """Return the first entry of an int64 array, and add one to it, in one go for all threads."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = _first(context, builder, signature.args[0], args[0])
        return builder.atomic_rmw("add", data, ir.IntType(64)(1), "monotonic")

    return types.int64(turns), codegen


@intrinsic
def load(typing_context: Any, numbers: Any) -> Any:  # pragma: no cover
    """Return the first entry of an int64 array, which another thread may change."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_first(context, builder, signature.args[0], args[0]), "seq_cst", 8)

    return types.int64(numbers), codegen


@intrinsic
def store(typing_context: Any, numbers: Any, value: Any) -> Any:  # pragma: no cover
    """Set the first entry of an int64 array, so that other threads see it in this order."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _first(context, builder, signature.args[0], args[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.none(numbers, types.int64), codegen


@intrinsic
def exchange(typing_context: Any, numbers: Any, old: Any, new: Any) -> Any:  # pragma: no cover
    """Set the first entry of an int64 array to `new` if it is `old`; return whether it was."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = _first(context, builder, signature.args[0], args[0])
        pair = builder.cmpxchg(data, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(numbers, types.int64, types.int64), codegen


@intrinsic
def at_address(typing_context: Any, address: Any) -> Any:  # pragma: no cover
    """Return the pointer that an int64 stands for, for `numba.carray`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@intrinsic
def call_at(typing_context: Any, address: Any, task: Any, number: Any) -> Any:  # pragma: no cover
    """Call the compiled function ``(int64, int64) -> int64`` at an address (`compile_cache.address_of`)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = ir.IntType(64)
        kind = ir.FunctionType(whole, [whole, whole])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(types.int64, types.int64, types.int64), codegen


if hasattr(os, "sched_yield"):
    _sched_yield = types.ExternalFunction("sched_yield", types.int32())

    @njit
    def give_way() -> None:  # pragma: no cover
        """Let another thread have this one's core, if one waits for it."""
        _sched_yield()

else:  # Windows: nothing, until the system takes the core away

    @njit
    def give_way() -> None:  # pragma: no cover
        """Do nothing."""
