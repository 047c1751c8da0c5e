r"""Codes of *new* records, by the released encoder: post-processing of the release alone.

For each draw z of the released posterior, a new record x has the code

.. math:: u = m(x; z) + s(x; z)\, e, \qquad e \sim N(0, I) ,

with the mean and sigma that ``guide={"u": Amortized(mean, sigma)}`` has (Kingma and Welling 2014). They are
remade for the new rows (`graph.rebuild`), as the likelihood is for those of a batch.

What it must never do: read a record of the fit. The rows are the caller's, and nobody accounts for what
the result says of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.tensor.type import TensorType

from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.gradients import Latents
from pymc_dpvi.graph.model_checks import array_name
from pymc_dpvi.graph.rebuild import resize_records
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.synthetic_records import python_function
from pymc_dpvi.graph.traversal import array_shape, walk
from pymc_dpvi.posterior.new_rows import check_names, new_rows

__all__ = ["EncodedPosterior"]


class EncodedPosterior:
    """Draws of the codes of new records."""

    def __init__(self, record: RecordModel, latents: Latents, data: Mapping[str, Any]) -> None:
        encoded = record.encoded
        assert encoded is not None
        record.check_public()
        outputs = [part for encoder in encoded.encoders for part in (encoder.mean, encoder.sigma)]
        behind = list(walk(outputs))
        read = [a for a in record.arrays if a in behind]
        rows = _rows_of(record, read, encoded.names, data)
        size = len(rows[0])
        self.names = encoded.names
        self.coords: dict[str, Any] = {}  # those of the model are of the records in the fit
        named = encoded.user_model.named_vars_to_dims
        self.dims = {
            name: [d or f"{name}_dim_{k}" for k, d in enumerate(named[name])]
            for name in encoded.names
            if name in named
        }
        placeholders = [
            TensorType(a.type.dtype, shape=(size, *array_shape(a)[1:]))(name=f"{a.name}_new") for a in read
        ]
        #: The variables that an encoder reads, its weights among them.
        self.variables = [rv for rv in record.model.free_RVs if rv in behind]
        values = [rv.type(name=f"{rv.name}_value") for rv in self.variables]
        swap: dict[Variable, Variable] = dict(zip(read, placeholders, strict=True))
        swap.update(zip(self.variables, values, strict=True))
        made, _ = resize_records(outputs, swap, num_records=record.num_records, rows=size)
        held = {*record.arrays, *encoded.held}
        if any(v in held for v in walk(made)):
            raise UnsupportedModelError(
                f"The encoders of {list(encoded.names)} read records other than by arrays that pm.Data can "
                "hold. Write mean and sigma of Amortized with the model's pm.Data."
            )
        self._rows = rows
        self._shapes = [(size, *shape) for shape in encoded.shapes]
        self._evaluate = python_function([*placeholders, *values], made)

    def draw(self, z: np.ndarray, values: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
        """Draw the codes, (records, ...) for each variable, at one draw of `variables`."""
        with np.errstate(all="ignore"):
            found = [np.asarray(v) for v in self._evaluate(*self._rows, *values)]
        return [
            mean + np.broadcast_to(sigma, shape) * rng.standard_normal(shape)
            for mean, sigma, shape in zip(found[::2], found[1::2], self._shapes, strict=True)
        ]


def _rows_of(
    record: RecordModel, read: list[Any], variables: tuple[str, ...], data: Mapping[str, Any]
) -> list[np.ndarray]:
    """Return the arrays of new rows that the encoders read, in the model's types."""
    if not read:
        raise UnsupportedModelError(
            f"The encoders of {list(variables)} read no data of the records, so there is nothing to encode. "
            "The code of a new record is a draw from mean and sigma."
        )
    for array in read:
        if array.name is None:
            raise UnsupportedModelError(
                f"{array_name(record.model, array)} has no name, so data= cannot hold it. Put it into "
                "pm.Data."
            )
    names = [str(a.name) for a in read]
    check_names(data, names)
    lengths = [np.shape(data[name])[:1] for name in names]
    if not all(lengths) or len(set(lengths)) > 1 or not lengths[0][0]:
        raise ArgumentError(
            f"data must have an entry for each new record in each of {names}; found lengths "
            f"{[length[0] if length else 'none' for length in lengths]}."
        )
    return [
        new_rows(name, data[name], (*lengths[0], *array_shape(a)[1:]), a.type.dtype)
        for name, a in zip(names, read, strict=True)
    ]
