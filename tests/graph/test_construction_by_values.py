"""What PyMC makes of an array by its numbers while a model is written: no more than `precomputed` knows.

Each argument of each distribution gets two arrays that differ in one entry, as two data sets differ in one
record. The graphs must be the same operations on the same types, and on the same other numbers.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytest
from pytensor.graph.basic import Constant

from pymc_dpvi.graph.traversal import walk

ROWS, ONE = 6, 2
#: Arrays that all records may have, and an entry that one of them may have instead.
USUAL = {
    "halves": np.full(ROWS, 0.5),
    "zeros": np.zeros(ROWS),
    "ones": np.ones(ROWS),
    "infinite": np.full(ROWS, np.inf),
    "minus infinite": np.full(ROWS, -np.inf),
    "not numbers": np.full(ROWS, np.nan),
}
OTHERS = (0.37, -1.0, 50.0)
#: What goes by numbers, and is refused (`test_precomputed`): probabilities, bounds of censored counts.
KNOWN = {("Categorical", "p"), ("Multinomial", "p"), ("Censored", "lower"), ("Censored", "upper")}

DISTRIBUTIONS = {
    name: found
    for name in dir(pm)
    if inspect.isclass(found := getattr(pm, name)) and issubclass(found, pm.Distribution)
}


def made(make: Callable[[np.ndarray], Any], array: np.ndarray) -> list[Any] | str:
    """Return the operations, types and other records' numbers of a graph, or the error's type."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            rv = make(array)
    except Exception as error:
        return type(error).__name__
    found: list[Any] = []
    for var in walk([rv], into_size=True):
        kind = getattr(var.type, "dtype", None), getattr(var.type, "shape", None)
        if var.owner is not None:
            found.append((type(var.owner.op).__name__, *kind))
        elif isinstance(var, Constant) and np.shape(var.data)[:1] == (ROWS,):
            found.append((*kind, np.delete(np.asarray(var.data, dtype=float), ONE, axis=0).tobytes()))
        else:
            found.append(kind)
    return sorted(set(map(repr, found)))  # inner graphs have no order, and equal constants may be one


def by_values(make: Callable[[np.ndarray], Any], rows: tuple[int, ...] = ()) -> Iterator[str]:
    """Yield the arrays for which one record's entry changes what is made."""
    for name, usual in USUAL.items():
        array = np.broadcast_to(usual.reshape(ROWS, *(1 for _ in rows)), (ROWS, *rows)).copy()
        first = made(make, array)
        for other in OTHERS:
            changed = array.copy()
            changed[ONE] = other
            if made(make, changed) != first:
                yield name


def _with(kind: Any, needed: list[str], argument: str, array: np.ndarray) -> Any:
    return kind.dist(**{**dict.fromkeys(needed, 0.5), argument: array})


def _bounded(outer: Any, base: Any, bound: str, array: np.ndarray) -> Any:
    return outer.dist(base(), **{"lower": None, "upper": None, bound: array})


BASES = {
    "Normal": lambda: pm.Normal.dist(0.0, 1.0),
    "Gamma": lambda: pm.Gamma.dist(2.0, 1.0),
    "Poisson": lambda: pm.Poisson.dist(3.0),
    "Binomial": lambda: pm.Binomial.dist(5, 0.5),
    "ZeroInflatedPoisson": lambda: pm.ZeroInflatedPoisson.dist(0.5, 3.0),
}


def arguments() -> Iterator[tuple[str, str, Callable[[np.ndarray], Any]]]:
    """Yield the name of each distribution, of each argument, and what makes one with an array for it."""
    for name, kind in DISTRIBUTIONS.items():
        given = inspect.signature(kind.dist).parameters
        needed = [q for q, p in given.items() if p.default is p.empty and q not in ("args", "kwargs")]
        for argument in given.keys() - {"args", "kwargs", "size", "rng", "cls", "self"}:
            yield name, argument, partial(_with, kind, needed, argument)
    for base in BASES.values():
        for outer in (pm.Censored, pm.Truncated):
            for bound in ("lower", "upper"):
                yield outer.__name__, bound, partial(_bounded, outer, base, bound)


@pytest.mark.turns
@pytest.mark.parametrize("rows", [(), (3,)])
def test_no_more_is_made_by_numbers_than_is_known(rows: tuple[int, ...]) -> None:
    found = {(name, argument) for name, argument, make in arguments() if any(by_values(make, rows))}
    assert found <= KNOWN, found - KNOWN


def test_what_is_known_is_found() -> None:
    """So that the test above can fail."""

    def p(array: np.ndarray) -> Any:
        return pm.Categorical.dist(p=array)

    assert "halves" in set(by_values(p, (3,)))
