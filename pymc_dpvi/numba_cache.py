"""Kernels that numba keeps on the disk, and finds again only with the same sources of the whole package.

numba looks at the date of the file that a kernel stands in, and not at those of the kernels that it calls.
After a change there, as by ``git pull``, a kernel that was compiled before would go on with the old ones:
it would clip by another rule than the sources say. So the hash of all sources goes into the stamp that numba
compares.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

__all__ = ["kernel", "source_hash"]


def _hash_of_sources() -> str:
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()} ".encode() + path.read_bytes())
    # Without sources all versions would have one hash: there it is random, and nothing is found again.
    return digest.hexdigest() if Path(__file__).is_file() else secrets.token_hex()


#: Computed at the import: a process that runs must not store its code under the hash of changed sources.
_SOURCES = _hash_of_sources()


def source_hash() -> str:
    """Return the SHA-256 of this package's sources, so that changed sources find nothing older on disk."""
    return _SOURCES


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function for numba to compile and to keep on the disk; `options` are `numba.njit`'s."""

    def decorate(function: Callable[..., Any]) -> Any:
        made = numba.njit(**options)(function)
        if made is function:  # numba is switched off
            return made
        made.enable_caching()
        file: Any = getattr(made._cache, "_cache_file", None)
        if hasattr(file, "_source_stamp"):
            file._source_stamp = (file._source_stamp, _SOURCES)
        else:  # a version of numba that keeps it elsewhere: compiled in each process
            made = numba.njit(**options)(function)
        return made

    return decorate
