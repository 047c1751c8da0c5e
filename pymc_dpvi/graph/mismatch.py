"""Why a model could not be taken apart by records: arrays that do not fit each other, and latents per record.

Exceptions of PyTensor may quote data, so their texts are left out. The cause can mostly be seen from shapes,
dims and names: :func:`explained` looks there, and at no value. :func:`take_apart` is for the user, on made-up
data, and hides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import TensorType

from pymc_dpvi.compat import quiet_pytensor
from pymc_dpvi.errors import NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.gradients import Latents
from pymc_dpvi.graph.marginalised import how_to_marginalise
from pymc_dpvi.graph.model_checks import array_name, hint_of_orientation
from pymc_dpvi.graph.rebuild import resize_records
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.separability import CannotBeWrittenError, check_separable, write_for_several
from pymc_dpvi.graph.traversal import array_shape, depends_on, is_array, walk
from pymc_dpvi.redaction import shielded

__all__ = ["explained", "take_apart"]

T = TypeVar("T")

_UNKNOWN = (
    "The model could not be taken apart by records: {} was raised on the way. Often lengths or shapes do not "
    "fit: a predictor that is one shorter than the outcome, or an outcome of shape (N, 1), as df[['y']] has, "
    "beside a mean of shape (N,). The text of the error may quote data and is left out; to read it, build "
    "the model on made-up data and call pymc_dpvi.graph.mismatch.take_apart(model)."
)


def explained(action: Callable[[], T], model: pm.Model) -> T:
    """Run a part of the analysis of `model`; explain in words why another package raised an exception.

    That exception is replaced, without its text, by an `UnsupportedModelError`.
    """
    failure: UnsupportedModelError | NotSeparableError | None = None
    try:
        return shielded(action, _Failed, "{}")
    except _Failed as error:
        failure = UnsupportedModelError(_reason(model) or _UNKNOWN.format(error))
    except CannotBeWrittenError as error:
        reason = _reason(model, only=_outcome_and_mean)
        failure = NotSeparableError(str(error)) if reason is None else UnsupportedModelError(reason)
    raise failure  # outside the handler, so that nothing is chained


class _Failed(UnsupportedModelError):
    """An exception of another package, by the name of its type."""


def take_apart(model: pm.Model, **kwargs: Any) -> RecordModel:
    """Run the analysis of a model with nothing hidden: for models on made-up data.

    Its exceptions may quote the data, so on real data they must not leave the process. `kwargs` are
    ``record_dim`` and ``public_data``, as for `DPADVI`.
    """
    record = build_record_model(model, **kwargs)
    point: Mapping[str, np.ndarray] = model.initial_point()
    values = [np.asarray(point[v.name]) for v in record.value_vars]
    ends = np.cumsum([v.size for v in values])
    slices = tuple(slice(end - v.size, end) for v, end in zip(values, ends, strict=True))
    latents = Latents(record.value_vars, slices, tuple(v.shape for v in values))
    try:
        check_separable(record, latents, np.concatenate([v.ravel() for v in values]))
    except CannotBeWrittenError:
        write_for_several(record)  # raises what was hidden
        raise
    return record


def _reason(model: pm.Model, only: Callable[[pm.Model], str | None] | None = None) -> str | None:
    """Say what does not fit, as far as lengths, dims and names tell."""
    for look in (_outcome_and_mean, _latent_per_record, _other_length) if only is None else (only,):
        with suppress(Exception), quiet_pytensor():
            if found := look(model):
                return found
    return None


def _observed_shape(model: pm.Model, rv: Any) -> tuple[int, ...]:
    value = model.rvs_to_values[rv]
    return array_shape(value) if is_array(value) else tuple(value.type.shape)


def _outcome_and_mean(model: pm.Model) -> str | None:
    """Look for parameters that do not fit the outcome, entry by entry."""
    for rv in model.observed_RVs:
        op, found = rv.owner.op, _observed_shape(model, rv)
        if not isinstance(op, RandomVariable) or op.ndim_supp or any(op.ndims_params):
            continue
        made = _shapes_by_types(op.dist_params(rv.owner), model)
        if made is None:
            continue
        with suppress(ValueError):  # what cannot be brought to one shape
            if np.broadcast_shapes(found, *made) == found:
                continue
        column = f" '{rv.name}' is a matrix with one column: make it a vector, df['y'] for df[['y']]."
        return (
            f"The observed variable '{rv.name}' and its parameters have shapes that do not fit: compare the "
            "lengths of the predictors with its own (one that is one shorter, say), and their numbers of "
            "axes (an outcome of shape (N, 1) beside a mean of shape (N,))."
            + column * (found[1:] == (1,))
            + hint_of_orientation(model)
        )
    return None


def _shapes_by_types(graphs: Sequence[Variable], model: pm.Model) -> list[tuple[int, ...]] | None:
    """Return the shapes of graphs as they follow from the shapes of arrays alone; None if these do not tell.

    Otherwise values, such as a mask or counts, would decide what the error says.
    """
    shapes = model.eval_rv_shapes()
    stand_ins: dict[Variable, Variable] = {
        v: TensorType(v.type.dtype, shape=array_shape(v))()  # type: ignore[attr-defined]
        for v in walk(graphs, stop=model.free_RVs)
        if is_array(v) and len(array_shape(v))
    }
    stand_ins |= {rv: TensorType(rv.type.dtype, shape=shapes[rv.name])() for rv in model.free_RVs}
    made = resize_records(graphs, stand_ins, num_records=-1, rows=-1, everything=True)[0]
    found = [tuple(g.type.shape) for g in made]  # type: ignore[attr-defined]
    return None if any(None in shape for shape in found) else found


def _latent_per_record(model: pm.Model) -> str | None:
    """Look for a free variable that is as long as an outcome, and enters it."""
    shapes = model.eval_rv_shapes()
    for outcome in model.observed_RVs:
        (length, *_) = _observed_shape(model, outcome)
        for rv in model.free_RVs:
            if length in shapes[rv.name] and depends_on([outcome], [rv]):
                dims = [d for d in model.named_vars_to_dims.get(rv.name) or () if d]
                named = f" (dims {dims})" if dims else ""
                return (
                    f"The free variable '{rv.name}'{named} is as long as the observed '{outcome.name}' and "
                    "enters it entry by entry: one latent value per record cannot be released. "
                    f"{how_to_marginalise(model, rv)} If its entries are groups of records, index it by "
                    f"the group of each record: {rv.name}[group]."
                )
    return None


def _other_length(model: pm.Model) -> str | None:
    """Look for an array in the likelihood whose length is not the outcome's."""
    for outcome in model.observed_RVs:
        (length, *_) = _observed_shape(model, outcome)
        for var in walk([outcome], stop=model.free_RVs, columns_of=None):
            if is_array(var) and len(array_shape(var)) and array_shape(var)[0] not in (1, length):
                return (
                    f"{array_name(model, var)} has another length than the observed '{outcome.name}', so its "
                    "entries are not the records' own. Give the model one row per record in every array; "
                    "select records (by a mask, say) before the model, each by its own values."
                )
    return None
