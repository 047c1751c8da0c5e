"""What an entry of the gallery is, and the words that a refusal may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm

__all__ = ["GALLERY", "GP", "INTEGRATE", "MIXES", "OUTSIDE", "Entry", "accepted", "refused", "table"]


@dataclass(frozen=True)
class Entry:
    """One published model and what the library must say of it."""

    name: str
    build: Callable[[], pm.Model]
    source: str
    accepted: bool
    num_records: int = 0
    withheld: tuple[str, ...] = ()
    public_data: tuple[str, ...] = ()
    record_dim: str | None = None
    #: A whole fit without compilation takes more than some seconds.
    slow: bool = False
    #: Of a refusal: the class, the variable at fault, and of each tuple one phrase.
    error: str = ""
    guilty: str = ""
    contains: tuple[tuple[str, ...], ...] = ()


GALLERY: dict[str, Entry] = {}

Builder = Callable[[], pm.Model]

# What a message may call records that enter each other's terms, and the ways out that it may offer.
MIXES = ("other record", "another record", "between records", "across records", "mixes", "couples")
OUTSIDE = ("numpy", "before the model", "outside the model", "beforehand", "public")
INTEGRATE = ("marginal", "integrat")
GP = ("HSGP", "inducing", "basis", "spline")


def _add(entry: Entry) -> None:
    assert entry.name not in GALLERY, entry.name
    GALLERY[entry.name] = entry


def accepted(
    source: str,
    n: int,
    *,
    withheld: str = "",
    public_data: tuple[str, ...] = (),
    record_dim: str | None = None,
    slow: bool = False,
) -> Callable[[Builder], Builder]:
    """Register a model of `n` records that goes through unchanged; `withheld` is blank-separated."""

    def register(build: Builder) -> Builder:
        _add(
            Entry(
                build.__name__,
                build,
                source,
                True,
                num_records=n,
                withheld=tuple(withheld.split()),
                public_data=public_data,
                record_dim=record_dim,
                slow=slow,
            )
        )
        return build

    return register


def refused(
    source: str,
    error: str,
    guilty: str,
    *contains: tuple[str, ...],
    record_dim: str | None = None,
    public_data: tuple[str, ...] = (),
) -> Callable[[Builder], Builder]:
    """Register a model that must be refused, by an error that names `guilty` and the way out."""

    def register(build: Builder) -> Builder:
        _add(
            Entry(
                build.__name__,
                build,
                source,
                False,
                error=error,
                guilty=guilty,
                contains=contains,
                record_dim=record_dim,
                public_data=public_data,
            )
        )
        return build

    return register


def table(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Predictors of shape (n, d), their linear predictor for fixed coefficients, and the generator."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, x @ np.linspace(-0.7, 0.7, d), rng
