"""Everything that leaves a fit, as a dictionary: two of them, of neighbouring data sets, are compared.

The noise is seeded, so that what may not depend on a record is the same to the letter. Only the numbers of
the posterior may differ, and what is computed from them (their names, types and shapes are compared):

=============  =============================================================================================
`refused`      the type and the text of the error, if the model is not accepted
`start`        the variational parameters before the first step
`prior`        gradients of what counts as the prior, at two points
`fit`          the error of the fit, of a second run, of a fit with a budget; the steps that were made
`said`         warnings, log records, standard output and standard error, throughout
`withheld`     names; the arrays that are public, as the report lists them
`report`       as text, JSON and HTML; the same of the approximation
`released`     groups, variables, dims, coords, types, shapes, attributes of what `sample` returns
               and its numbers at parameters that are given
`file`         names, types, shapes and filters in the netCDF file of it
`files`        what was written besides
`ledger`       the rows of the budget
`errors`       what is raised where somebody asks for more
=============  =============================================================================================
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pickle
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import python_mode  # noqa: F401  # registers the mode "PYTHON"

from attacks.subjects import Subject
from pymc_dpvi import DPADVI, PrivacyBudget
from pymc_dpvi.errors import PrivacyError
from pymc_dpvi.graph.gradients import prior_gradients

__all__ = ["difference", "listening", "outlets_of"]

with warnings.catch_warnings():
    # PyTensor from PyPI says once in a process that it found no BLAS: here, and not in the first of two fits.
    warnings.simplefilter("ignore", UserWarning)
    _ = pytensor.config.blas__ldflags

#: What differs between two runs on the same data.
_CHANGING = {
    r"[\d,.]+ steps/s": "",
    r"\d+:\d\d:\d\d|-:--:--": "",
    r"[━╸╺ ]{4,}": "",
    r"0x[0-9a-f]+": "",
    r"\d+\.\d+ seconds": "",
    r"/tmp/\S+": "/tmp/",
}
#: Attributes whose numbers are functions of the noisy gradients, or of the time.
_OF_THE_POSTERIOR = ("bounded_by_prior", "created_at")
_SETTINGS: dict[str, Any] = {
    "noise_multiplier": 2.0,
    "delta": 1e-6,
    "sampling_prob": 0.5,
    "accountant": "rdp",
    "random_seed": 1,
}


class _Heard(list[str]):
    """Texts of warnings and log records."""


@contextlib.contextmanager
def listening() -> Iterator[_Heard]:
    """Collect what is said: warnings, log records, standard output and error of this process's Python."""
    heard = _Heard()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name.startswith(("pymc", "pytensor", "jax", "root")):
                heard.append(f"log {record.name} {record.levelname}: {_settled(record.getMessage())}")

    handler, root = Handler(logging.INFO), logging.getLogger()
    out, err = io.StringIO(), io.StringIO()
    before = root.level
    root.addHandler(handler)
    try:
        with (
            warnings.catch_warnings(record=True) as warned,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            warnings.simplefilter("always")
            yield heard
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    heard += [f"{w.category.__name__}: {_settled(str(w.message))}" for w in warned]
    for name, stream in (("stdout", out), ("stderr", err)):
        if stream.getvalue():
            heard.append(f"{name}: {_settled(stream.getvalue())}")


def outlets_of(subject: Subject, model: pm.Model, backend: str) -> dict[str, Any]:
    """Fit a model, ask for everything, and return what leaves.

    Parameters
    ----------
    subject : Subject
        For the arguments of the method.
    model : pymc.Model
        On one of the neighbouring data sets.
    backend : str
        As of `fit`, or the mode "PYTHON".
    """
    how: dict[str, Any] = (
        {"compile_kwargs": {"mode": "PYTHON"}} if backend == "PYTHON" else {"backend": backend}
    )
    given = {
        **_SETTINGS,
        "record_dim": subject.record_dim,
        "public_data": subject.public_data,
        "unit": subject.unit,
        "guide": None if subject.guide is None else subject.guide(model),
        "model": model,
    }
    left: dict[str, Any] = {}
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, listening() as heard:
        os.chdir(folder)
        try:
            try:
                method = DPADVI(**given, insecure_noise_seed=3)
            except PrivacyError as error:
                left["refused"] = _told(error)
            else:
                _use(method, model, how, left)
                _use_a_budget(given, how, left)
        finally:
            os.chdir(here)
        left["files"] = sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*"))
    left["said"] = list(heard)
    return left


def _use(method: DPADVI, model: pm.Model, how: dict[str, Any], left: dict[str, Any]) -> None:
    approx = method.approx
    left["start"] = [p.get_value().tobytes() for p in approx.params]
    left["prior"] = _prior(method)
    # Enough for the noise-aware posterior, which takes ten steps more than there are latent values.
    steps = min(approx.latents.size, 64) + 11
    seen: list[Any] = []

    def callback(approx: Any, losses: Any, i: int) -> None:
        seen.append((losses, i))

    left["fit"] = _attempt(lambda: method.fit(steps, progressbar=True, callbacks=[callback], **how) and None)
    left["called back"] = seen
    left["refine"] = _attempt(lambda: method.refine(2, progressbar=False))
    left["withheld"] = approx.withheld
    left["hist"] = [np.shape(approx.hist), np.shape(method.hist)]
    left["repr"] = [repr(approx), str(approx)]
    report = _attempt(lambda: approx.privacy)
    left["report"] = [str(report), repr(report), *_rich(report)]
    left["diagnostics"] = _names_in(_attempt(approx.diagnostics))
    for name, arguments in {"released": {}, "unconstrained": {"include_transformed": True}}.items():
        data = _attempt(lambda arguments=arguments: approx.sample(3, random_seed=1, **arguments))
        left[name] = data if isinstance(data, str) else _released(data)
        if not isinstance(data, str):
            data.to_netcdf(f"{name}.nc")
            left[f"file of {name}"] = _structure(Path(f"{name}.nc"))
    # At parameters that were chosen beforehand, the released numbers themselves are public.
    for param in approx.params:
        param.set_value(np.full_like(param.get_value(), 0.25))
    left["released at given parameters"] = _attempt(
        lambda: _numbers(approx.sample(2, noise_aware=False, random_seed=1))
    )
    errors: dict[str, Callable[[], Any]] = {
        "score": lambda: method.fit(2, score=True),
        "profile": method.run_profiling,
        "density": lambda: approx.datalogp,
        "pickle": lambda: pickle.dumps(approx),
        "format": lambda: approx.sample(2, return_inferencedata=False),
        "steps": lambda: method.fit(0),
        "start": lambda: DPADVI(model=model, start={"nobody": 0.0}, **_SETTINGS),
        "dim": lambda: DPADVI(model=model, record_dim="nobody", **_SETTINGS),
    }
    left["errors"] = {name: _attempt(action, anything=False) for name, action in errors.items()}
    # What is withheld is refused here, too; if it is not, its shape may tell how many records there are.
    left["errors"] |= {
        f"node {name}": _attempt(lambda name=name: approx.sample_node(model[name]).eval().shape)
        for name in approx.withheld
    }


def _prior(method: DPADVI) -> Any:
    """Return the gradients of the prior at two points, which know no record."""
    latents = method.approx.latents
    z = pt.matrix("z", dtype=pytensor.config.floatX, shape=(2, latents.size))
    gradient = pytensor.function([z], prior_gradients(method._record, latents, z, 2), mode="PYTHON")
    points = np.random.default_rng(0).normal(size=(2, latents.size)).astype(pytensor.config.floatX)
    with np.errstate(all="ignore"):
        return gradient(method.approx.start + points).tobytes()


def _use_a_budget(given: dict[str, Any], how: dict[str, Any], left: dict[str, Any]) -> None:
    """Fit on real noise, with a ledger: what is charged is the same."""
    budget = PrivacyBudget(epsilon=1e3, delta=1e-2)
    method = DPADVI(**given, budget=budget)
    left["fit with a budget"] = _attempt(lambda: method.fit(2, progressbar=False, **how) and None)
    public = ("epsilon", "delta", "label", "n_steps", "noise_multiplier", "sampler", "accountant")
    left["ledger"] = [{name: getattr(row, name, None) for name in public} for row in budget.ledger]


def difference(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """Say in which outlets two dictionaries differ; nothing of what they hold is told."""
    if one.get("refused") != two.get("refused"):
        return ["another refusal" if "refused" in one and "refused" in two else "it decides on a refusal"]
    found = ["it moves the prior"] if one.get("prior") != two.get("prior") else []
    for name in dict.fromkeys([*one, *two]):
        if name == "prior":
            continue
        a, b = one.get(name), two.get(name)
        if a != b:
            parts = [k for k in dict.fromkeys([*a, *b]) if a.get(k) != b.get(k)] if _both(a, b) else []
            found.append(f"another {name}" + (f": {', '.join(map(str, parts))}" if parts else ""))
    return found


def _both(a: Any, b: Any) -> bool:
    return isinstance(a, dict) and isinstance(b, dict)


def _settled(text: str) -> str:
    for pattern, new in _CHANGING.items():
        text = re.sub(pattern, new, text)
    return text


def _told(error: BaseException | None) -> str:
    """Return all that an error says, its causes included."""
    said = []
    while error is not None:
        said += [type(error).__name__, str(error), *map(str, getattr(error, "__notes__", ()))]
        error = error.__cause__ or error.__context__
    return _settled(" ".join(said))


def _attempt(action: Callable[[], Any], anything: bool = True) -> Any:
    """Return what an action returns (None if that is no matter), or what its error says."""
    try:
        made = action()
    except Exception as error:
        return _told(error)
    return made if anything else "no error"


def _rich(report: Any) -> list[str]:
    """Return a report as JSON and HTML."""
    if isinstance(report, str):
        return []
    return [report.to_json(), str(getattr(report, "_repr_html_", str)())]


def _names_in(value: Any) -> Any:
    """Return the names of what has numbers of the posterior (whether one is known is a function of these)."""
    return value if isinstance(value, str) else [type(value).__name__, sorted(vars(value))]


def _released(data: Any) -> dict[str, Any]:
    """Describe what `sample` returns, without its numbers."""
    if hasattr(data, "children"):
        groups = {name: child.to_dataset() for name, child in data.children.items()}
    else:
        groups = {name: data[name] for name in data.groups()}
    described: dict[str, Any] = {"attributes": _attributes(data.attrs), "groups": list(groups)}
    for group, found in groups.items():
        described[f"{group}: attributes"] = _attributes(found.attrs)
        described[f"{group}: dims"] = dict(found.sizes)
        for name, variable in found.variables.items():
            values = [] if name in found.data_vars else [str(v) for v in variable.values.ravel()]
            described[f"{group}: {name}"] = [
                variable.dims,
                str(variable.dtype),
                _attributes(variable.attrs),
                values,
            ]
    return described


def _numbers(data: Any) -> dict[str, bytes]:
    """Return the draws of the posterior, bit by bit."""
    return {str(name): values.values.tobytes() for name, values in data["posterior"].data_vars.items()}


def _attributes(attrs: Any) -> dict[str, str]:
    return {k: type(v).__name__ if k in _OF_THE_POSTERIOR else str(v) for k, v in attrs.items()}


def _structure(path: Path) -> list[Any]:
    """Describe a netCDF file: what is in it, in which order, how it is stored."""
    found: list[Any] = []

    def visit(name: str, item: Any) -> None:
        stored = (
            (item.shape, str(item.dtype), item.chunks, item.compression) if hasattr(item, "shape") else ()
        )
        found.append((name, stored, sorted(item.attrs)))

    with h5py.File(path) as file:
        visit("", file)
        file.visititems(visit)
    return json.loads(json.dumps(found))
