"""Inline one compiled function where another calls it.

A function that numba inlines into its only caller is compiled once, and one that it calls is compiled with a
level of its own: seconds of every first fit. But Python hands more than 30 arguments over as one tuple
(``CALL_FUNCTION_EX``; `STACK_USE_GUIDELINE` in CPython's compiler), and numba inlines no such call: "Calling
a closure with *args is unsupported". A model with many variables, or a likelihood that reads many
intermediate results, has as many arguments. So from 31 arguments on the function is rewritten to take them in
groups, each a tuple::

    def function(a0, ..., a45):      ->     def function(g0, g1):
        ...                                     (a0, ..., a29,) = g0
                                                (a30, ..., a45,) = g1
                                                ...

which is the same computation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pytensor.link.numba.dispatch.basic import numba_njit

__all__ = ["inlined"]

#: Arguments of a call that Python hands over one by one, at the most.
MOST_ARGUMENTS = 30

_HEAD = re.compile(r"def\s+(\w+)\(([^()]*)\):[ \t]*\n([ \t]+)")


def inlined(function: Any, arguments: Sequence[str]) -> tuple[Any, str]:
    """Return a function for numba to inline, and the arguments to write in its call.

    Parameters
    ----------
    function : numba dispatcher
        As `numba_funcify` makes it of a graph, from source that it keeps.
    arguments : sequence of str
        The arguments of the call, as source.

    Returns
    -------
    function : numba dispatcher
    arguments : str
        What to write between the parentheses of the call.
    """
    python = function.py_func
    if len(arguments) > MOST_ARGUMENTS:
        groups = [arguments[k : k + MOST_ARGUMENTS] for k in range(0, len(arguments), MOST_ARGUMENTS)]
        grouped = _grouped(python, [len(group) for group in groups])
        if grouped is None or len(groups) > MOST_ARGUMENTS:
            return numba_njit(python, fastmath=False), ", ".join(arguments)
        python = grouped
        arguments = [f"({', '.join(group)},)" for group in groups]
    return numba_njit(python, fastmath=False, inline="always"), ", ".join(arguments)


def _grouped(python: Any, lengths: Sequence[int]) -> Any | None:
    """Write a function anew to take its arguments in tuples; None if its source is not of the known form."""
    source = getattr(python, "__source__", "")
    head = _HEAD.search(source)
    names = [] if head is None else [name.strip() for name in head[2].split(",") if name.strip()]
    if head is None or len(names) != sum(lengths) or not all(map(str.isidentifier, names)):
        return None
    groups = [f"_arguments_{k}" for k in range(len(lengths))]
    rest = iter(names)
    unpacked = [
        f"({', '.join(next(rest) for _ in range(length))},) = {group}"
        for group, length in zip(groups, lengths, strict=True)
    ]
    indent = head[3]
    text = f"def {head[1]}({', '.join(groups)}):\n" + "".join(f"{indent}{line}\n" for line in unpacked)
    scope: dict[str, Any] = {}
    exec(text + indent + source[head.end() :], python.__globals__, scope)
    return scope[head[1]]
