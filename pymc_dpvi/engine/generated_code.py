"""Code that is written at run time: functions for numba whose arguments differ in number or type.

`generated_unit_sums` and `generated_local_sums` have more. All are short. What they call is ordinary code in
`clipping`, `kernels`, `unit_sums` and `fetching`.

* `write_add_clipped`: the clipped sum of some records, with one or two arrays for each block of the gradient.
  It could be ordinary code, a `literal_unroll` over a tuple of blocks. That was measured: it runs as fast,
  and takes numba twice as long to compile, a second more in every first fit.
* `write_microbatched_sum`: the sum of a batch, one microbatch at a time.
* `write_loop`: many steps in one loop. numba compiles a function for a fixed list of arguments, and in a loop
  it makes no tuple of arrays of different types, which this one and the one above would need.

**Inlining.** numba compiles a function that it inlines into its only caller once; one that is called is
compiled on another level, too, which takes seconds of every first fit. But Python passes more than 30
arguments as one tuple (``CALL_FUNCTION_EX``; `STACK_USE_GUIDELINE` in CPython's compiler), and numba inlines
no such call: "Calling a closure with *args is unsupported". Models with many variables, and likelihoods that
read many intermediate results, need as many. So a function of more than 30 arguments is rewritten to take
them in groups, each a tuple::

    def function(a0, ..., a45):      ->     def function(g0, g1):
        ...                                     (a0, ..., a29,) = g0
                                                (a30, ..., a45,) = g1
                                                ...

which is the same computation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit

from pymc_dpvi.engine import clipping, kernels, lattice_sums, unit_sums
from pymc_dpvi.engine.fetching import in_order, places_of, take_entries, take_rows
from pymc_dpvi.graph.blocks import Form

__all__ = [
    "FETCH",
    "PIECE",
    "RELEASE",
    "ROWS",
    "SHAPE",
    "Ending",
    "defined",
    "inlined",
    "write_add_clipped",
    "write_loop",
    "write_microbatched_sum",
]

#: Messages of errors that come up at the rehearsal, before anything is spent.
ROWS = "every block needs a row per record of a microbatch"
SHAPE = "an array of the state changed its shape"

_PART = "add_block(part, high[at:to], low[at:to])"
#: For each form of a block: columns, squared norms, and the sum over records ``first:last``.
_BLOCKS = {
    "dense": (
        "{x}.shape[1]",
        ["add_squared_norms({x}, norms)"],
        ["part = np.zeros({x}.shape[1])", "add_weighted_rows({x}[first:last], weights, part)", _PART],
    ),
    "outer": (
        "{x}.shape[1] * {y}.shape[1]",
        ["add_squared_norms_outer({x}, {y}, norms)"],
        ["part = weighted_outer({x}[first:last], {y}[first:last], weights)", _PART],
    ),
    "products": (
        "{x}.shape[2] * {y}.shape[2]",
        ["add_squared_norms_products({x}, {y}, norms)"],
        [  # as many products at a time as there are records in other blocks
            "step = max(1, PLAIN_RECORDS // max(1, {x}.shape[1]))",
            "for begin in range(first, last, step):",
            "    end = min(begin + step, last)",
            "    part = weighted_products({x}[begin:end], {y}[begin:end], factors[begin:end])",
            f"    {_PART}",
        ],
    ),
    "sparse": (
        "{size}",
        [
            "entries_{x} = merged({x}, {y}, count, {size}, {distinct})",
            "add_squared_norms(entries_{x}, norms)",
        ],
        ["scatter(entries_{x}[first:last], {y}[first:last], weights, high[at:to], low[at:to])"],
    ),
}


def defined(name: str, lines: Sequence[str], **more: Any) -> Any:
    """Define a function from its source, over the modules of kernels, NumPy and `more`."""
    scope = {**vars(unit_sums), **vars(kernels), **vars(clipping), "np": np, **more}
    source = "\n".join(lines)
    exec(source, scope)
    scope[name].__source__ = source
    return scope[name]


def write_add_clipped(layout: Sequence[Form]) -> Callable[..., None]:
    """Write ``(*arrays, count, bound, units, high, low, tally) -> None``: clip the records and add them up.

    For two blocks, the second outer::

        def add_clipped(x0, x1, x2, count, bound, units, high, low, tally):
            check(high.size == x0.shape[1] + x1.shape[1] * x2.shape[1])
            norms = zeros(count)
            add_squared_norms(x0, norms)
            add_squared_norms_outer(x1, x2, norms)
            factors = clip_factors(norms, bound)
            if tally.size:
                add_tally(norms, bound, units, tally)
            for first in range(0, count, PLAIN_RECORDS):
                last = min(first + PLAIN_RECORDS, count)
                weights = factors[first:last]
                at, to = 0, x0.shape[1]
                part = zeros(x0.shape[1])
                add_weighted_rows(x0[first:last], weights, part)
                add_block(part, high[at:to], low[at:to])
                at, to = to, to + x1.shape[1] * x2.shape[1]
                part = weighted_outer(x1[first:last], x2[first:last], weights)
                add_block(part, high[at:to], low[at:to])
    """
    names: list[str] = []
    sizes, norms, sums = [], [], []
    for form in layout:
        if form.kind not in _BLOCKS:
            raise ValueError(f"no form {form}")
        own = {"x": f"x{len(names)}", "y": f"x{len(names) + 1}", "size": form.size, "distinct": form.distinct}
        names += [f"x{len(names) + k}" for k in range(form.num_arrays)]
        size, norm, add = _BLOCKS[form.kind]
        sizes.append(size.format(**own))
        norms += [line.format(**own) for line in norm]
        sums += [f"at, to = to, to + {sizes[-1]}", *(line.format(**own) for line in add)]
    return defined(
        "add_clipped",
        [
            f"def add_clipped({', '.join(names)}, count, bound, units, high, low, tally):",
            f"    if high.size != {' + '.join(sizes)}:",
            "        raise ValueError('one noise entry per column is needed')",
            f"    if count < 0 or count > {' or count > '.join(f'{n}.shape[0]' for n in names)}:",
            "        raise ValueError('every block needs a row per record')",
            "    norms = np.zeros(count)",
            *(f"    {line}" for line in norms),
            "    factors = clip_factors(norms, bound)",
            "    if tally.size:",
            "        add_tally(norms, bound, units, tally)",
            "    for first in range(0, count, PLAIN_RECORDS):",
            "        last, to = min(first + PLAIN_RECORDS, count), 0",
            "        weights = factors[first:last]",
            *(f"        {line}" for line in sums),
        ],
    )


@dataclass(frozen=True)
class Ending:
    """What becomes of a sum: an argument of the function, its length, and the last line."""

    argument: str
    size: str
    line: str


#: The noisy sum of a batch is returned, or the sum of a piece of it is added on the lattice (`lattice_sums`).
RELEASE = Ending("noise", "noise.size", "return round_and_add(high, low, tally, noise, spacing)")
PIECE = Ending("onto", "onto.shape[1]", "add_on_lattice(high, low, tally, spacing, onto)")

#: Code that fetches the rows of a microbatch, by the number of axes.
FETCH = {1: "take_entries({}, indices, first, length)", 2: "take_rows({}, indices, first, length)"}


def write_microbatched_sum(
    per_record: Any,
    add_clipped: Callable[..., None],
    num_axes: Sequence[int],
    num_shared: int,
    num_arrays: int,
    sampled: bool,
    by_unit: bool = False,
    whole: bool = False,
    ending: Ending = RELEASE,
    **numbers: Any,
) -> tuple[Callable[..., np.ndarray], str]:
    """Write ``(*records, *shared, [indices,] count, noise, spacing) -> release``; return it and its source.

    Parameters
    ----------
    per_record : numba dispatcher
        ``(*rows, *shared) -> arrays``.
    add_clipped : callable
        Of `write_add_clipped`, or of `generated_unit_sums.write_add_units`.
    num_axes : sequence of int
        Numbers of axes of the record arrays.
    num_shared, num_arrays : int
        Lengths of ``shared`` and of ``arrays``.
    sampled : bool
        Whether there are indices.
    by_unit : bool
        Whether they are those of `unit_sums`, and rows are added up by person.
    whole : bool
        Whether no person is cut that a microbatch has room for.
    ending : Ending
        With `PIECE`, the last but one argument is ``onto``, to which the sum is added on the lattice.
    **numbers
        ``length`` of a microbatch, ``l2_clip_norm``, ``tally_weight``.
    """
    records = [f"d{k}" for k in range(len(num_axes))]
    rows = [f"r{k}" for k in range(len(num_axes))]
    shared = [f"s{k}" for k in range(num_shared)]
    arrays = [f"x{k}" for k in range(num_arrays)]
    per_record, given = inlined(per_record, [*rows, *shared])
    fetch = [
        f"        {row} = {FETCH.get(axes, '{}[places_of(indices, first, length)]').format(name)}"
        for row, name, axes in zip(rows, records, num_axes, strict=True)
    ]
    indices = (["marked"] if by_unit else ["indices"]) if sampled else []
    names = [*records, *shared, *indices, "count", ending.argument, "number"]
    size = ending.size
    added = ", ".join(f"{array}_in_order" for array in arrays)
    if by_unit:
        add = f"{added}, marked, first, taken, bound, units, person, high, low, tally"
    else:
        add = f"{added}, taken, bound, units, high, low, tally"
    taken = "whole_persons(marked, first, min(length, n - first))" if whole else "min(length, n - first)"
    lines = [
        f"def microbatched_sum({', '.join(names)}):",
        "    spacing, n = number.item(), count.item()",
        *([] if sampled else ["    indices = np.arange(max(n, 1))"]),
        *(["    indices = marked >> 1"] if by_unit else []),
        f"    bound, units, high, low, tally = start_of_sum({size}, l2_clip_norm, tally_weight, spacing)",
        *(["    person = np.zeros(high.size)"] if by_unit else []),
        "    first = 0",
        "    while first < max(n, 1):",
        f"        taken = {taken}",
        *fetch,
        "        if n == 0:",
        *(f"            {row}.fill(0)" for row in rows),
        f"        {', '.join(arrays)}, = per_record({given})",
        f"        if {' or '.join(f'{array}.shape[0] != length' for array in arrays)}:",
        f"            raise ValueError({ROWS!r})",
        *(f"        {array}_in_order = in_order({array})" for array in arrays),
        f"        add_clipped({add})",
        "        first += max(taken, 1)",
        f"    {ending.line}",
    ]
    function = defined(
        "microbatched_sum",
        lines,
        in_order=in_order,
        places_of=places_of,
        take_entries=take_entries,
        take_rows=take_rows,
        whole_persons=unit_sums.whole_persons,
        add_on_lattice=lattice_sums.add_on_lattice,
        add_clipped=numba.njit(fastmath=False)(add_clipped),
        start_of_sum=numba.njit(fastmath=False)(clipping.start_of_sum),
        per_record=per_record,
        **numbers,
    )
    return function, "\n".join(lines)


def write_loop(step: Any, num_held: int, arrays: Sequence[int | None], width: int) -> tuple[Any, str]:
    """Write `Chunk`'s loop around a compiled step; return the step for its scope, and the source.

    `num_held` inputs are the same in all steps; `arrays` has the number of axes of each part of the state,
    None for what is no array; `width` is the length of a row.
    """
    state = [f"s{k}" for k in range(len(arrays))]
    new = [f"n{k}" for k in range(len(arrays))]
    held = [f"x{k}" for k in range(num_held)]
    of_a_step = ["batch", "count", "noise[t]", "base_draws[t]", "np.asarray(weights[t])"]
    step, given = inlined(step, [*of_a_step, *state, *held])
    copies = [f"    {s} = {s}.copy()" for s, ndim in zip(state, arrays, strict=True) if ndim is not None]
    # Contiguous, so that types stay the same from step to step: otherwise the step is compiled twice.
    changes = []
    for s, n, ndim in zip(state, new, arrays, strict=True):
        if ndim:
            changes += [f"        if {n}.shape != {s}.shape:", f"            raise ValueError({SHAPE!r})"]
            n = f"np.ascontiguousarray({n})"
        changes.append(f"        {s} = {n}")
    leave_row = [  # ``rows[t] = row`` takes numba seconds to compile, for the messages of its errors
        "        if row.size != rows.shape[1]:",
        "            raise ValueError('a row of another length')",
        "        for j in range(row.size):",
        "            rows[t, j] = row[j]",
    ]
    source = "\n".join(
        [
            f"def chunk(indices, offsets, noise, base_draws, weights, {', '.join([*state, *held])}):",
            "    nothing = np.empty(1, np.int64)",
            "    nothing[0] = 0",
            *copies,
            f"    rows = np.empty((weights.size, {width}))",
            "    for t in range(weights.size):",
            "        batch = indices[offsets[t] : offsets[t + 1]]",
            "        count = np.asarray(batch.size)",
            "        batch = batch if batch.size else nothing",
            f"        {', '.join([*new, *(['row'] if width else [])])}, = step({given})",
            *changes,
            *(leave_row if width else []),
            f"    return {', '.join([*state, 'rows'])}",
        ]
    )
    return step, source


#: Most arguments of a call that Python passes one by one.
MOST_ARGUMENTS = 30

_HEAD = re.compile(r"def\s+(\w+)\(([^()]*)\):[ \t]*\n([ \t]+)")


def inlined(function: Any, arguments: Sequence[str]) -> tuple[Any, str]:
    """Return a function for numba to inline, and the source between the parentheses of its call.

    `function` is a dispatcher as `numba_funcify` makes it, which keeps its source; `arguments` are those of
    the call, as source.
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
    """Rewrite a function to take its arguments in tuples; None if its source has not the known form."""
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
