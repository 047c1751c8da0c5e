"""Code that is written at run time for persons with local values (`local_sums`), as in `generated_code`.

* `write_add_pairs`: the sum of rows at all places of their persons' local values.
* `write_local_sum`: the sum of a batch of persons: their modes, the places, and the rows there.

The second is written once for numba and for Python, so that both compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np

from pymc_dpvi.engine import clipping, lattice_sums, local_sums
from pymc_dpvi.engine.fetching import in_order, take_entries, take_rows
from pymc_dpvi.engine.generated_code import (
    FETCH,
    RELEASE,
    ROWS,
    Ending,
    defined,
    inlined,
)
from pymc_dpvi.engine.generated_unit_sums import lines_of_rows
from pymc_dpvi.graph.blocks import Form

__all__ = ["write_add_pairs", "write_local_sum"]


def write_add_pairs(layout: Sequence[Form]) -> Callable[..., None]:
    """Write what `local_sums` adds up: rows at places.

    Its arguments are ``(*arrays, value, marked, first, count, logs, log_weights, sums, share, bound,
    units, high, low, tally)``: as `write_add_units`, with each gradient added to the sum at its place.
    """
    names, sizes, rows = lines_of_rows(layout, "sums")
    of_places = "logs, log_weights, sums, share, bound, units, high, low, tally"
    return defined(
        "add_pairs",
        [
            f"def add_pairs({', '.join(names)}, value, marked, first, count, {of_places}):",
            f"    if not share.size == high.size == {' + '.join(sizes)}:",
            "        raise ValueError('one noise entry per column is needed')",
            f"    if count < 0 or count > {' or count > '.join(f'{n}.shape[0]' for n in [*names, 'value'])}:",
            "        raise ValueError('every block needs a row per record')",
            "    for i in range(count):",
            "        row, place = (first + i) // logs.size, (first + i) % logs.size",
            "        to = place * share.size",
            *(f"        {line}" for line in rows),
            "        last = place == logs.size - 1 and (marked[row] & 1) == 1",
            f"        add_place(np.float64(value[i]), place, last, {of_places})",
        ],
        **vars(local_sums),
    )


def write_local_sum(
    per_record: tuple[Any, Sequence[str]],
    derivatives: tuple[Any, Sequence[str]],
    num_axes: Sequence[int],
    num_arrays: int,
    dtype: str,
    *,
    compiled: bool,
    ending: Ending = RELEASE,
    **numbers: Any,
) -> tuple[Callable[..., np.ndarray], str]:
    """Write ``(*records, *shared, marked, count, noise, spacing) -> release``; return it and its source.

    Parameters
    ----------
    per_record, derivatives : tuple
        ``(*rows, local, first, *shared) -> arrays, value`` and ``-> value, slope, curvature``, each with
        the names of its shared inputs among ``s0``, ``s1``, ...
    num_axes : sequence of int
        Numbers of axes of the record arrays.
    num_arrays : int
        Number of the gradients' arrays.
    dtype : str
        Of local values.
    compiled : bool
        Whether numba will compile it; otherwise it is for Python.
    ending : Ending
        As in `generated_code.write_microbatched_sum`.
    **numbers
        ``length`` of a microbatch, ``l2_clip_norm``, ``tally_weight``, ``nodes``, ``log_weights``,
        ``adaptive``, ``add_pairs``, ``num_shared``.
    """
    records = [f"d{k}" for k in range(len(num_axes))]
    rows = [f"r{k}" for k in range(len(num_axes))]
    shared = [f"s{k}" for k in range(numbers.pop("num_shared"))]
    arrays = [*(f"x{k}" for k in range(num_arrays)), "value"]
    derived = ["value", "slope", "curved"]
    calls = []
    scope: dict[str, Any] = {}
    for name, (function, own) in {"per_record": per_record, "derivatives": derivatives}.items():
        given = [*rows, "local", "begin", *own]
        if compiled:
            scope[name], text = inlined(function, given)
        else:
            scope[name], text = function, ", ".join(given)
        calls.append(f"{name}({text})")
    fetch = [
        f"{row} = {FETCH.get(axes, '{}[window]').format(name).replace('indices, first', 'window, 0')}"
        for row, name, axes in zip(rows, records, num_axes, strict=True)
    ]
    fetch += [f"local, begin = local.astype(np.{dtype}), begin.astype(np.{dtype})"]
    fetch += ["if n == 0:", *(f"    {row}.fill(0)" for row in rows)] if rows else []

    def ordered(names: Sequence[str]) -> list[str]:
        checks = f"if {' or '.join(f'{name}.shape[0] != length' for name in names)}:"
        return [checks, f"    raise ValueError({ROWS!r})", *(f"{n}_ = in_order({n})" for n in names)]

    search = [
        "    for evaluation in range(LONGEST_SEARCH):",
        "        places, whose = of_open(starts, left)",
        "        if places.size == 0 and (n > 0 or evaluation > 0):",
        "            break",
        "        values, slopes = np.zeros(left.size), np.zeros(at.shape)",
        "        curvatures = np.zeros(best_curvature.shape)",
        "        for first in range(0, max(places.size, 1), length):",
        "            window, local, begin = rows_of_search(rows, begins, places, whose, at, first, length)",
        *(f"            {line}" for line in fetch),
        f"            {', '.join(derived)}, = {calls[1]}",
        *(f"            {line}" for line in ordered(derived)),
        "            some = min(length, places.size - first)",
        "            add_derivatives(value_, slope_, curved_, whose, first, some, values, slopes, "
        "curvatures)",
        "        move(values, slopes, curvatures, at, best, step, best_value, left, best_curvature)",
    ]
    size = ending.size
    lines = [
        f"def local_sum({', '.join([*records, *shared])}, marked, count, {ending.argument}, number):",
        "    spacing, n = number.item(), count.item()",
        f"    bound, units, high, low, tally = start_of_sum({size}, l2_clip_norm, tally_weight, spacing)",
        "    rows, starts = marked >> 1, starts_of(marked, n)",
        "    begins = first_rows(starts)",
        "    at, best, step, best_value, left, best_curvature = begin_search(starts.size - 1, "
        "nodes.shape[1])",
        "    everybody, whose_all = of_open(starts, left)",
        *(search if numbers["adaptive"] else []),
        "    placed = place_nodes(best, best_curvature, nodes, adaptive)",
        "    logs, sums = np.zeros(log_weights.size), np.zeros(log_weights.size * high.size)",
        "    share = np.zeros(high.size)",
        "    total = n * log_weights.size",
        "    for first in range(0, max(total, 1), length):",
        "        window, local, begin = pairs_of(rows, begins, whose_all, placed, first, length)",
        *(f"        {line}" for line in fetch),
        f"        {', '.join(arrays)}, = {calls[0]}",
        *(f"        {line}" for line in ordered(arrays)),
        f"        add_pairs({', '.join(f'{a}_' for a in arrays)}, marked, first, min(length, total - first), "
        "logs, log_weights, sums, share, bound, units, high, low, tally)",
        f"    {ending.line}",
    ]
    add_pairs, start = numbers.pop("add_pairs"), clipping.start_of_sum
    scope |= {
        "in_order": in_order if compiled else np.ascontiguousarray,
        "take_entries": take_entries,
        "take_rows": take_rows,
        "add_on_lattice": lattice_sums.add_on_lattice,
        "add_pairs": numba.njit(fastmath=False)(add_pairs) if compiled else add_pairs,
        "start_of_sum": numba.njit(fastmath=False)(start) if compiled else start,
    }
    return defined("local_sum", lines, **vars(local_sums), **scope, **numbers), "\n".join(lines)
