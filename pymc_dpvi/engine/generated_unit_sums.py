"""Code that is written at run time for rows that are added up by person (`unit_sums`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pymc_dpvi.engine.generated_code import defined
from pymc_dpvi.graph.blocks import Form

__all__ = ["write_add_units"]

#: For each form of a block: columns, and what adds row i to a sum over rows.
_ROWS = {
    "dense": ("{x}.shape[1]", "add_row({x}, i, {into}, at)"),
    "outer": ("{x}.shape[1] * {y}.shape[1]", "add_row_outer({x}, {y}, i, {into}, at)"),
    "products": ("{x}.shape[2] * {y}.shape[2]", "add_row_products({x}, {y}, i, {into}, at)"),
    "sparse": ("{size}", "add_row_sparse({x}, {y}, i, {into}, at, {size})"),
}
#: For each form that may stay factored: columns, numbers of a product, products of a row, and the factors of
#: the rows of a person, one product below the other.
_FACTORED = {
    "outer": (
        "{x}.shape[1] * {y}.shape[1]",
        "{x}.shape[1] + {y}.shape[1]",
        "1",
        "{x}[first:last], {y}[first:last]",
    ),
    "products": (
        "{x}.shape[2] * {y}.shape[2]",
        "{x}.shape[2] + {y}.shape[2]",
        "{x}.shape[1]",
        "flat({x}[first:last]), flat({y}[first:last])",
    ),
}
_ARGUMENTS = ("marked", "begin", "count", "bound", "units", "person", "high", "low", "tally")


def _lines_of_rows(layout: Sequence[Form], into: str) -> tuple[list[str], list[str], list[str]]:
    """Return the names of all arrays, columns, and lines that add row i to `into` (`unit_sums`)."""
    names: list[str] = []
    sizes, rows = [], []
    for form in layout:
        own = {"x": f"x{len(names)}", "y": f"x{len(names) + 1}", "size": form.size, "into": into}
        names += [f"x{len(names) + k}" for k in range(form.num_arrays)]
        size, row = (line.format(**own) for line in _ROWS[form.kind])
        sizes.append(size)
        rows += [f"at, to = to, to + {size}", row]
    return names, sizes, rows


def write_add_units(layout: Sequence[Form], factored: Sequence[bool] = ()) -> Callable[..., None]:
    """Write ``(*arrays, marked, begin, count, bound, units, person, high, low, tally) -> None``: `unit_sums`.

    For two blocks, the second outer::

        def add_units(x0, x1, x2, marked, begin, count, bound, units, person, high, low, tally):
            check(person.size == high.size == x0.shape[1] + x1.shape[1] * x2.shape[1])
            for i in range(count):
                at, to = 0, x0.shape[1]
                add_row(x0, i, person, at)
                at, to = to, to + x1.shape[1] * x2.shape[1]
                add_row_outer(x1, x2, i, person, at)
                if marked[begin + i] & 1:
                    add_unit(person, bound, units, high, low, tally)

    `factored` says which blocks, outer or products, are added up without being formed. Then a person whose
    rows are all there, and few, goes another way::

                ...
                add_row(x0, i, person, at)  # for all rows i of the person
                norm = add_squares(person, ...) + squared_norm_of_products(x1[first:last], x2[first:last])
                weights[first:last] = clip_factors(norm, bound)
                add_share(person, ..., weight, high, low)
            ...
            part = weighted_outer(x1, x2, weights)  # for all such persons
            add_block(part, high[at:to], low[at:to])
    """
    names, sizes, rows = _lines_of_rows(layout, "person")
    before, of_person, after = _together(layout, factored) if any(factored) else ([], [], [])
    formed = [
        "for i in range(first, last):",
        "    to = 0",
        *(f"    {line}" for line in rows),
        "if marked[begin + last - 1] & 1:",
        "    add_unit(person, bound, units, high, low, tally)",
    ]
    if of_person:
        formed = ["if cut or last - first > most:", *(f"    {line}" for line in formed), "else:"]
    return defined(
        "add_units",
        [
            f"def add_units({', '.join(names)}, {', '.join(_ARGUMENTS)}):",
            f"    if not person.size == high.size == {' + '.join(sizes)}:",
            "        raise ValueError('one noise entry per column is needed')",
            f"    if count < 0 or count > {' or count > '.join(f'{n}.shape[0]' for n in names)}:",
            "        raise ValueError('every block needs a row per record')",
            *(f"    {line}" for line in before),
            "    first = 0",
            "    while first < count:",
            "        last, cut = end_of_person(marked, begin, first, count)",
            *(f"        {line}" for line in formed),
            *(f"            {line}" for line in of_person),
            "        first = last",
            *(f"    {line}" for line in after),
        ],
    )


def _together(layout: Sequence[Form], factored: Sequence[bool]) -> tuple[list[str], list[str], list[str]]:
    """Return lines before the loop over persons, for one whose blocks stay factored, and after the loop."""
    entries, numbers, products = [], [], []
    rows, shares, sums = [], [], []
    place = 0
    for form, together in zip(layout, factored, strict=True):
        own = {"x": f"x{place}", "y": f"x{place + 1}", "size": form.size, "into": "person"}
        place += form.num_arrays
        if not together:
            size, row = (line.format(**own) for line in _ROWS[form.kind])
            step = f"at, to = to, to + {size}"
            rows += [step, "for i in range(first, last):", f"    {row}", "add_squares(person[at:to], norms)"]
            shares += [step, "add_share(person[at:to], weight, high[at:to], low[at:to])"]
            sums.append(step)
            continue
        size, length, terms, factors = (line.format(**own) for line in _FACTORED[form.kind])
        step = f"at, to = to, to + {size}"
        entries.append(size)
        numbers.append(length)
        products.append(terms)
        rows += [step, f"norms[0] += squared_norm_of_products({factors})"]
        shares.append(step)
        x, y = own["x"], own["y"]
        sums += [
            step,
            f"step = max(1, PLAIN_RECORDS // max(1, {terms}))",
            "for first in range(0, count, step):",
            "    last = min(first + step, count)",
            f"    part = weighted_{form.kind}({x}[first:last], {y}[first:last], weights[first:last])",
            "    add_block(part, high[at:to], low[at:to])",
        ]
    before = [
        f"most = most_rows({' + '.join(entries)}, {' + '.join(numbers)}, max({', '.join([*products, '1'])}))",
        "weights, norms, some = np.zeros(count), np.zeros(1), False",
    ]
    of_person = [
        "norms[0], to = 0.0, 0",
        *rows,
        "weight = clip_factors(norms, bound)[0]",
        "if tally.size:",
        "    add_tally(norms, bound, units, tally)",
        "to, some = 0, True",
        *shares,
        "for i in range(first, last):",
        "    weights[i] = weight",
    ]
    return before, of_person, ["if some:", "    to = 0", *(f"    {line}" for line in sums)]
