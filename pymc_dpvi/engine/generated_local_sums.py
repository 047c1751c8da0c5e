"""The sum of a batch of persons with local values (`local_sums`), written at run time as in `generated_code`.

It has their modes, the places, the weights there, and the rows. It is written once for numba and for Python,
so that both compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np

from pymc_dpvi.engine import clipping, lattice_sums, local_modes, local_sums
from pymc_dpvi.engine.fetching import in_order, take_entries, take_rows
from pymc_dpvi.engine.generated_code import (
    FETCH,
    RELEASE,
    ROWS,
    Ending,
    defined,
    inlined,
)

__all__ = ["write_local_sum"]


#: What is made for each row of a microbatch.
_MADE = ("local", "first", "placed", "weights")


def write_local_sum(
    functions: Sequence[tuple[Any, Sequence[str]]],
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
    functions : sequence of tuple
        ``(*rows, *inputs) -> arrays``, ``-> values`` (or slopes, for a fit) and ``-> value, slope,
        curvature``, each with the names of its inputs: some of ``local``, ``first``, ``placed`` and
        ``weights``, which are made for each row, and some of what all records share, ``s0``, ``s1``, ...
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
        ``node_weights``, ``values``, ``inner_steps``, ``add_units``, ``num_shared``.
    """
    records = [f"d{k}" for k in range(len(num_axes))]
    rows = [f"r{k}" for k in range(len(num_axes))]
    shared = [f"s{k}" for k in range(numbers.pop("num_shared"))]
    arrays = [f"x{k}" for k in range(num_arrays)]
    derived = ["value", "slope", "curved"]
    d, combinations = numbers["nodes"].shape[1], len(numbers["values"])
    places = combinations * len(numbers["nodes"])
    numbers["log_weights"] = np.tile(numbers["log_weights"], combinations)
    shape = f"{places}, {d}" if numbers["inner_steps"] else str(places)
    scope: dict[str, Any] = {}
    calls = []
    for name, (function, own) in zip(("per_record", "at_places", "derivatives"), functions, strict=True):
        given = [*rows, *(f"{v}_rows" if v in _MADE else v for v in own)]
        if compiled:
            scope[name], text = inlined(function, given)
        else:
            scope[name], text = function, ", ".join(given)
        calls.append(f"{name}({text})")
    fetch = [
        f"{row} = {FETCH.get(axes, '{}[window]').format(name).replace('indices, first', 'window, 0')}"
        for row, name, axes in zip(rows, records, num_axes, strict=True)
    ]
    fetch += ["if n == 0:", *(f"    {row}.fill(0)" for row in rows)] if rows else []

    def made(*names: str) -> list[str]:
        return [*(f"{name}_rows = {name}_rows.astype(np.{dtype})" for name in names), *fetch]

    def ordered(names: Sequence[str], **axes: str) -> list[str]:
        shapes = [f"{name}.shape[0] != length" for name in names]
        shapes += [f"{name}.shape[1:] != ({shape},)" for name, shape in axes.items()]
        checks = [f"if {' or '.join(shapes)}:", f"    raise ValueError({ROWS!r})"]
        return [*checks, *(f"{n}_ = in_order({n})" for n in names)]

    search = [
        "    for evaluation in range(LONGEST_SEARCH):",
        f"        places, whose = of_open(starts, left, {combinations})",
        "        if places.size == 0 and (n > 0 or evaluation > 0):",
        "            break",
        "        density, slopes = np.zeros(left.size), np.zeros(at.shape)",
        "        curvatures = np.zeros(best_curvature.shape)",
        "        for first in range(0, max(places.size, 1), length):",
        "            window, local_rows, first_rows = "
        "rows_of_search(rows, begins, places, whose, at, values, first, length)",
        *(f"            {line}" for line in made("local", "first")),
        f"            {', '.join(derived)}, = {calls[2]}",
        *(f"            {line}" for line in ordered(derived, slope=str(d), curved=f"{d}, {d}")),
        "            some = min(length, places.size - first)",
        "            add_derivatives(value_, slope_, curved_, whose, first, some, density, slopes, "
        "curvatures)",
        "        move(density, slopes, curvatures, at, best, step, best_value, left, best_curvature)",
    ]
    pass_over_rows = [
        "    for first in range(0, max(n, 1), length):",
        "        window, first_rows, placed_rows, weights_rows = "
        "rows_at_places(rows, begins, persons, placed, weights, first, length)",
        *(f"        {line}" for line in made("first", "placed", "weights")),
        "        taken = min(length, n - first)",
    ]
    values_of_rows = [
        *pass_over_rows,
        f"        found, = {calls[1]}",
        *(f"        {line}" for line in ordered(["found"], found=shape)),
    ]
    weigh = [
        f"    logs = begin_logs(best_curvature, {combinations}, nodes.shape[0])",
        *values_of_rows,
        "        add_log_densities(found_, persons, first, taken, logs)",
        "    weights = weigh(logs, log_weights, placed)",
    ]
    fit = [
        "    for inner in range(inner_steps):",
        "        slopes_at = np.zeros(placed.shape)",
        *(f"    {line}" for line in values_of_rows),
        "            add_slopes(found_, persons, first, taken, slopes_at)",
        "        move_normals(slopes_at, nodes, node_weights, best, best_curvature)",
        "        placed = place_nodes(best, best_curvature, nodes, values, False)",
    ]
    added = ", ".join(f"{a}_" for a in arrays)
    size = ending.size
    lines = [
        f"def local_sum({', '.join([*records, *shared])}, marked, count, {ending.argument}, number):",
        "    spacing, n = number.item(), count.item()",
        f"    bound, units, high, low, tally = start_of_sum({size}, l2_clip_norm, tally_weight, spacing)",
        "    rows, starts = marked >> 1, starts_of(marked, n)",
        "    if starts[-1] != n:",
        "        raise ValueError('the last row must be the last one of a person')",
        "    persons, begins = persons_of(starts)",
        "    at, best, step, best_value, left, best_curvature = begin_search("
        f"(starts.size - 1) * {combinations}, nodes.shape[1])",
        *(search if d else []),
        f"    placed = place_nodes(best, best_curvature, nodes, values, {not numbers['inner_steps']})",
        f"    weights = np.zeros(placed.shape[:2]) + {'node_weights' if numbers['inner_steps'] else 0.0}",
        *(fit if numbers["inner_steps"] else weigh),
        "    person = np.zeros(high.size)",
        *pass_over_rows,
        f"        {', '.join(arrays)}, = {calls[0]}",
        *(f"        {line}" for line in ordered(arrays)),
        f"        add_units({added}, marked, first, taken, bound, units, person, high, low, tally)",
        f"    {ending.line}",
    ]
    add_units, start = numbers.pop("add_units"), clipping.start_of_sum
    scope |= {
        "in_order": in_order if compiled else np.ascontiguousarray,
        "take_entries": take_entries,
        "take_rows": take_rows,
        "add_on_lattice": lattice_sums.add_on_lattice,
        "add_units": numba.njit(fastmath=False)(add_units) if compiled else add_units,
        "start_of_sum": numba.njit(fastmath=False)(start) if compiled else start,
    }
    kernels = vars(local_modes) | vars(local_sums)
    return defined("local_sum", lines, **kernels | scope | numbers), "\n".join(lines)
