"""What code made a figure: written beside it, and looked at before an unfinished run goes on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pymc_dpvi

__all__ = ["source_digest"]


def source_digest() -> str:
    """Return the first 12 digits of the SHA-256 of the package's sources, in the order of their names."""
    digest = hashlib.sha256()
    root = Path(pymc_dpvi.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
