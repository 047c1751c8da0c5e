"""What was public when the method was made: declared arrays, single numbers, labels of released dims.

``pm.set_data`` may exchange them later. What was declared were the values then: the checks have seen these,
and the report lists them. So a fit, or a release, with others is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pymc_dpvi.errors import UnsupportedModelError
from pymc_dpvi.graph.traversal import array_value, is_array, walk

__all__ = ["Declared"]

_OTHERS = (
    "now than when the method was made (pm.set_data). What it had then counts as public, and stands in the "
    "report. Put that back. If everybody may know the new {} too, compute from the draws, by "
    "pm.sample_posterior_predictive(idata, var_names=[...], predictions=True), or make a new DPADVI."
)


@dataclass(frozen=True)
class Declared:
    """Digests of shared variables, and labels of dims."""

    digests: dict[Variable, bytes] = field(repr=False)
    labels: dict[str, tuple[object, ...] | None] = field(repr=False)

    @classmethod
    def of(cls, model: pm.Model, public: Iterable[Variable], dims: Collection[str]) -> Declared:
        """Return what arrays in `public`, numbers behind the model's variables and `dims` have now."""
        values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
        roots = [*model.free_RVs, *model.observed_RVs, *model.potentials, *model.deterministics, *values]
        numbers = [v for v in walk([*roots, *model.data_vars]) if is_array(v) and not array_value(v).ndim]
        lengths = set(model.dim_lengths.values())
        found = [v for v in dict.fromkeys([*public, *numbers]) if v not in lengths]
        shared = [v for v in found if isinstance(v, SharedVariable)]
        return cls({v: _digest(v) for v in shared}, {dim: model.coords.get(dim) for dim in sorted(dims)})

    def check_unchanged(self, model: pm.Model) -> None:
        """Raise if one of them is another now."""
        for var, digest in self.digests.items():
            if _digest(var) != digest:
                what = "number" if array_value(var).ndim == 0 else "values"
                raise UnsupportedModelError(
                    f"The pm.Data '{var.name}' holds {'an' * (what == 'number')}other {what} "
                    + _OTHERS.format(what)
                )
        for dim, labels in self.labels.items():
            if model.coords.get(dim) != labels:
                raise UnsupportedModelError(f"The dim '{dim}' has other labels " + _OTHERS.format("labels"))


def _digest(var: Variable) -> bytes:
    value = np.ascontiguousarray(array_value(var))
    said = f"{value.dtype.str} {array_value(var).shape}".encode()
    return hashlib.blake2b(said + value.tobytes()).digest()
