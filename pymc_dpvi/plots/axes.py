"""Axes and labels for every plot; no other module imports matplotlib, and this one only in functions."""

from __future__ import annotations

from typing import Any

from pymc_dpvi.errors import ArgumentError

__all__ = ["label", "new_axes"]


def new_axes(ax: Any) -> Any:
    """Return `ax`, or the axes of a new figure; an ArgumentError if it is something else."""
    if ax is not None:
        if not hasattr(ax, "plot"):
            raise ArgumentError(f"ax must be a matplotlib Axes; found a {type(ax).__name__}.")
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError(
            "plots need matplotlib, which is not installed with this package: pip install matplotlib."
        ) from None
    return plt.subplots(layout="constrained")[1]


def label(name: str) -> str:
    """Return a name that Matplotlib shows as it is: ``a$b^$c`` is no formula, a legend leaves out ``_x``."""
    from matplotlib.mathtext import MathTextParser

    if "$" in name:
        try:
            MathTextParser("path").parse(name)
        except ValueError:
            name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name
