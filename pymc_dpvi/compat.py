"""Differences between PyMC 5 (ArviZ 0.23, InferenceData) and PyMC 6 (ArviZ 1.x, DataTree).

All code that depends on their versions is here.
"""

from __future__ import annotations

import logging
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import metadata, util
from inspect import signature
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.lowering import without_raising
from pymc_dpvi.process_wide import ProcessWide

with warnings.catch_warnings():  # ArviZ 0.23 announces its next version on import
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as az

__all__ = [
    "PosteriorData",
    "compile_mode",
    "default_numba_mode",
    "posterior_data",
    "quiet_pytensor",
    "rows_mode",
    "untraced",
    "versions",
]

#: ``arviz.InferenceData`` (PyMC 5) or ``xarray.DataTree`` (PyMC 6).
PosteriorData = Any

#: No compiler: NumPy and SciPy compute each operation. Fused operations would be Python calls on scalars.
_PYTHON = Mode("py", RewriteDatabaseQuery(include=["fast_run"], exclude=["fusion"]))
#: The mode of a step, and that of the rows of its batch if that differs.
_BACKENDS: dict[str, tuple[Any, str | None]] = {
    "numba": ("NUMBA", None),
    "c": ("CVM", None),
    "cvm": ("CVM", None),
    "jax": ("CVM", "JAX"),
    "python": (_PYTHON, None),
}


def posterior_data(
    posterior: Mapping[str, np.ndarray],
    *,
    coords: Mapping[str, Sequence[Any]],
    dims: Mapping[str, Sequence[str]],
    attrs: Mapping[str, Any],
    transformed: Mapping[str, np.ndarray] | None = None,
) -> PosteriorData:
    """Make the ArviZ object of the installed version from arrays of shape (chain, draw, ...).

    `coords` and `dims` are those of the variables' own axes. `attrs` go on the whole and on its posterior
    group (both survive netCDF), `transformed` into the group ``unconstrained_posterior``.
    """
    groups = {"posterior": dict(posterior)}
    coords, dims = dict(coords), {k: list(v) for k, v in dims.items()}
    if int(az.__version__.split(".")[0]) < 1:
        data = az.from_dict(**groups, coords=coords, dims=dims)
        if transformed:  # from_dict knows no such group
            unconstrained = az.convert_to_dataset(dict(transformed))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                data.add_groups({"unconstrained_posterior": unconstrained})
    else:
        if transformed:
            groups["unconstrained_posterior"] = dict(transformed)
        data = az.from_dict(groups, coords=coords, dims=dims)
    data.attrs.update(attrs)
    data["posterior"].attrs.update(attrs)
    return data


def compile_mode(backend: str | None, compile_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of ``function`` with the ``mode`` of `backend`; numba by default.

    `rows_mode` has those that differ for the rows of a batch. An ArgumentError if the backend is unknown or
    not installed, or if `compile_kwargs` has a mode, too.
    """
    if compile_kwargs is not None and not isinstance(compile_kwargs, Mapping):
        raise ArgumentError("compile_kwargs must be a dict, such as {'mode': 'CVM'}.")
    kwargs = dict(compile_kwargs or {})
    if others := kwargs.keys() - {"mode", "name"}:
        known = map(repr, sorted(others & signature(pytensor.function).parameters.keys()))
        raise ArgumentError(
            f"compile_kwargs takes 'mode' and 'name', found {', '.join(known) or 'something else'}. "
            "Other arguments of PyTensor's function would change what the private step computes, bring in "
            "data that nobody accounts for, or count the records that a step reads ('profile')."
        )
    if backend is not None and "mode" in kwargs:
        raise ArgumentError("Give backend= or compile_kwargs={'mode': ...}, not both.")
    if backend is not None and (not isinstance(backend, str) or backend not in _BACKENDS):
        found = repr(backend) if type(backend) is str else f"a {type(backend).__name__}"
        raise ArgumentError(
            f"backend={found} is not available: choose backend='numba' (default), backend='c', "
            "backend='jax', or backend='python'."
        )
    if backend == "jax" and util.find_spec("jax") is None:
        raise ArgumentError("backend='jax' needs JAX, which is not installed: pip install 'jax>=0.6'.")
    if backend in ("c", "cvm") and not pytensor.config.cxx:
        raise ArgumentError(
            f"backend={backend!r} needs a C++ compiler, and PyTensor has found none (pytensor.config.cxx is "
            "empty). Install one, such as g++, or leave backend= out."
        )
    mode: Any = None
    with suppress(Exception):
        mode = get_mode(kwargs.get("mode", _BACKENDS[backend or "numba"][0]))
    if type(mode) is not Mode or type(mode.linker).__name__ in {
        "JAXLinker",
        "PytorchLinker",
        "MLXLinker",
    }:
        raise ArgumentError(
            "compile_kwargs['mode'] is not available: a private step needs the noise kernel, which exists "
            "for the modes 'NUMBA' (default) and 'CVM'. For JAX, give backend='jax'."
        )
    if mode is get_mode("NUMBA"):
        kwargs["mode"] = default_numba_mode()
    else:
        kwargs["mode"] = without_raising(mode)
        # A profile that PyTensor's flags ask for prints the shapes of batches when the process ends.
        kwargs["profile"] = False
    return kwargs


@cache
def default_numba_mode() -> Mode:
    """Return the mode of ``backend="numba"``, always the same object, by which `compile_cache` knows it."""
    return without_raising(get_mode("NUMBA"))


def rows_mode(backend: str | None) -> dict[str, Any]:
    """Return the ``mode`` of the rows of a batch, if it is not that of the step.

    JAX computes the records' gradients only: there is no JAX kernel that clips them and adds them up on a
    lattice.
    """
    mode = _BACKENDS[backend or "numba"][1]
    return {} if mode is None else {"mode": without_raising(get_mode(mode))}


class _Quiet(ProcessWide):
    """PyTensor's loggers and Python's warnings are silent."""

    def __init__(self) -> None:
        super().__init__()
        self._undo = ExitStack()

    def _make(self) -> None:
        self._undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for name, logger in list(logging.Logger.manager.loggerDict.items()):
            if name.split(".")[0] == "pytensor" and isinstance(logger, logging.Logger):
                self._undo.callback(setattr, logger, "disabled", logger.disabled)
                logger.disabled = True

    def _put_back(self) -> None:
        self._undo.close()


_QUIET = _Quiet()


@contextmanager
def quiet_pytensor() -> Iterator[None]:
    """Silence PyTensor while a graph with data in it is examined or compiled.

    A rewrite that fails logs the values of arrays, and a warning may quote them.
    """
    with _QUIET:
        yield


class _Untraced(ProcessWide):
    """PyTensor notes no lines of source beside each node of a graph."""

    def _make(self) -> None:
        self._undo = pytensor.config.change_flags(traceback__limit=0)
        self._undo.__enter__()

    def _put_back(self) -> None:
        self._undo.__exit__(None, None, None)


_UNTRACED = _Untraced()


@contextmanager
def untraced() -> Iterator[None]:
    """Build graphs without a note of where each node was written, which takes a tenth of the time and more.

    The notes would name lines of this package.
    """
    with _UNTRACED:
        yield


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    names = (
        "pymc-dpvi",
        "pymc",
        "pytensor",
        "numba",
        "arviz",
        "numpy",
        "scipy",
        "dp-accounting",
        "cryptography",
    )
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
