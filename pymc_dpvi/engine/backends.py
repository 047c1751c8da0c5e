"""The backend that compiles a private step, and the choice of another where one cannot compile the model.

Without ``backend=``, a fit takes the first of ``numba``, ``c`` and ``python`` that compiles the step and
makes one step on no records (`step.PrivateStep` rehearses). All compute the same; the time differs:

* ``numba``: fastest; compiles in seconds to half a minute;
* ``c``: needs a C++ compiler (``pytensor.config.cxx``);
* ``python``: needs no compiler; a step takes some hundred times as long. It knows every operation.

A fit of up to `FEW_STEPS` steps would spend most of its time on compilation. So it runs in Python mode,
unless the model is large or has an operation that loops (`few_steps`). With local variables a step takes
longer, by the number of places at which a person's density is evaluated, so fewer steps are few: 42 with the
15 nodes of one value. The choice depends on the number of steps and on the graph alone, so that the same call
gives the same numbers. `benchmarks/first_fit.py` measures what it saves.

The log and the report's ``backend`` say which backend was taken and why. The choice follows from the model's
graph and from types: no record has been read by then, and nothing has been charged.

Some operations loop as often as their arguments say, and in Python mode one record could hold up a fit for
minutes. A model with such an operation is not fitted in Python mode (`bounded`).

With ``backend=``, a fit takes that backend, or raises an error that says why it cannot.
"""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytensor
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Variable
from pytensor.link.numba.linker import NumbaLinker
from pytensor.scalar.basic import Composite
from pytensor.scalar.loop import ScalarLoop
from pytensor.scalar.math import BetaInc, GammaInc, GammaIncC, Hyp2F1
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import Elemwise

from pymc_dpvi.compat import compile_mode, rows_mode
from pymc_dpvi.engine.interrupts import noticed
from pymc_dpvi.errors import ArgumentError, PrivacyError
from pymc_dpvi.graph.traversal import walk
from pymc_dpvi.lowering import is_python

__all__ = [
    "FEW_STEPS",
    "Backend",
    "StepFailedError",
    "backends",
    "bounded",
    "few_steps",
    "first_that_works",
    "only_numba",
]

_logger = logging.getLogger(__name__)

T = TypeVar("T")

#: So many steps take less time in Python mode than compilation takes: 1 to 11 ms each, for ordinary models.
FEW_STEPS = 200
#: Most latent values for which that holds: a step of a network of 238,000 weights takes two seconds.
_SMALL = 4096
#: Operations that loop, or whose gradients do. Their arguments decide how often: up to 10⁵ or 10⁶ turns,
#: which take milliseconds compiled and seconds to minutes in Python.
_LOOPS = (BetaInc, GammaInc, GammaIncC, Hyp2F1, ScalarLoop)

_NO_BACKEND = (
    "A step on no records raised {}, and not on one backend alone: obj_optimizer returned updates that do "
    "not fit its parameters, or a public array has not the shape that the model was written for. What "
    "PyTensor says may quote data and is left out, so try it on made-up data. Nothing is spent."
)
_LOOPS_IN_PYTHON = (
    "A record's log-density has an incomplete gamma or beta function, or a hypergeometric one, such as a "
    "censored or truncated outcome has. In Python mode one record can make its gradient take seconds to "
    "minutes, which tells of that record; numba and C take milliseconds. {} Nothing is spent."
)
#: Beginnings of lines in numba's messages that only say where it was.
_WHERE = ("Failed in", "During", "File ", "<source", "[", "-", "^", "This error", "def ", "Enable")
_MOST_CHARACTERS = 160


@dataclass(frozen=True)
class Backend:
    """A way to compile a step.

    Attributes
    ----------
    name : str
        ``"numba"``, ``"c"``, ``"jax"`` or ``"python"``; ``"compile_kwargs"`` where the user gave a mode.
    step : dict
        Keyword arguments of PyTensor's ``function`` for the step.
    rows : dict
        Those that differ for the rows of a batch.
    needed_by : str
        The argument that needs this backend and no other, if one does.
    """

    name: str
    step: Mapping[str, Any] = field(repr=False)
    rows: Mapping[str, Any] = field(repr=False, default_factory=dict)
    needed_by: str = ""


class StepFailedError(Exception):
    """A step was compiled, and raised when it was made on no records."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def backends(backend: str | None, compile_kwargs: Mapping[str, Any] | None) -> list[Backend]:
    """Return the backends to try, in this order: one if the user named it, or gave ``mode``."""
    given = compile_mode(backend, compile_kwargs)  # checks both
    if backend is not None or "mode" in (compile_kwargs or {}):
        name = "compile_kwargs" if backend is None else {"cvm": "c"}.get(backend, backend)
        return [Backend(name, given, rows_mode(backend))]
    names = ["numba", *(["c"] if pytensor.config.cxx else []), "python"]
    return [Backend(name, compile_mode(name, compile_kwargs), rows_mode(name)) for name in names]


def few_steps(
    candidates: Sequence[Backend], n: int, num_latents: int, graphs: Iterable[Variable], places: int = 0
) -> list[Backend]:
    """Return the backends to try for `n` planned steps: Python mode alone if it is there and steps are few.

    `graphs` are those that a step evaluates, before they are differentiated. `places` are those of a person's
    local values: a density at one is taken for a quarter of a gradient.
    """
    python = [c for c in candidates if c.name == "python"]
    if not python or n * (1 + places / 4) > FEW_STEPS or num_latents > _SMALL:
        return list(candidates)
    return list(candidates) if any(_has(v, (Scan, *_LOOPS)) for v in walk(graphs)) else python


def bounded(candidates: Sequence[Backend], graphs: Iterable[Variable]) -> list[Backend]:
    """Leave Python mode out where one record could hold up a step there for minutes.

    `graphs` are a record's log-densities, before they are differentiated. An ArgumentError if none is left.
    """
    found = [c for c in candidates if not is_python(c.step["mode"])]
    if len(found) == len(candidates) or not any(_has(v, _LOOPS) for v in walk(graphs)):
        return list(candidates)
    if not found:
        raise ArgumentError(_LOOPS_IN_PYTHON.format("Leave backend= and compile_kwargs= out."))
    return found


def only_numba(candidates: Sequence[Backend], wanted: str) -> list[Backend]:
    """Leave numba alone, for what is `wanted`. An ArgumentError if it is not among them."""
    found = [c for c in candidates if isinstance(get_mode(c.step["mode"]).linker, NumbaLinker)]
    if not found:
        raise ArgumentError(
            f"{wanted} needs backend='numba', which adds up without Python's lock. Leave "
            f"{wanted.partition('=')[0]}= out, or backend= and compile_kwargs=."
        )
    return [replace(c, needed_by=wanted.partition("=")[0]) for c in found]


def _has(variable: Variable, ops: tuple[type, ...]) -> bool:
    """Whether one of the operations makes it, by itself or as a part of a fused one."""
    op = None if variable.owner is None else variable.owner.op
    if isinstance(op, Elemwise):
        op = op.scalar_op
    if isinstance(op, Composite):
        return any(isinstance(node.op, ops) for node in op.fgraph.apply_nodes)
    return isinstance(op, ops)


def first_that_works(candidates: Sequence[Backend], make: Callable[[Backend], T]) -> tuple[T, str]:
    """Return what `make` returns for the first backend with which it does not fail, and the backend's name.

    `make` compiles and rehearses. If the first backend fails, Python mode, which knows every operation, is
    tried next: if it fails too, the fault is not the backend's, and no other is tried. If an earlier backend
    failed, the name has the reason in brackets. A PrivacyError of `make` passes; an ArgumentError if no
    backend works, or the one that was named does not.
    """
    first, *others = candidates
    made, reason = _attempt(make, first)
    if made is not None:
        return made, first.name
    python = Backend("python", {**first.step, **compile_mode("python", None)})
    in_python, failure = (None, reason) if first.name == "python" else _attempt(make, python)
    if in_python is None:
        raise ArgumentError(_NO_BACKEND.format(failure))
    if not others:
        given = "compile_kwargs=" if first.name == "compile_kwargs" else f"backend={first.name!r}"
        left = first.needed_by or given.partition("=")[0]
        raise ArgumentError(
            f"{given} cannot compile this model: {reason}. Leave {left}= out, and the first backend that can "
            "is taken. Nothing is spent."
        )
    reasons = [f"{first.name}: {reason}"]
    made, taken = None, ""
    for candidate in others:
        found, why = (in_python, "") if candidate.name == "python" else _attempt(make, candidate)
        if found is not None:
            made, taken = found, candidate.name
            break
        reasons.append(f"{candidate.name}: {why}")
    said = "; ".join(reasons)
    if made is None:
        raise ArgumentError(_LOOPS_IN_PYTHON.format(f"But they cannot compile it ({said})."))
    _logger.warning("The fit runs with backend=%r, as others cannot compile this model (%s).", taken, said)
    return made, f"{taken} ({said})"


def reason_of(error: BaseException) -> str:
    """Return the type of a compiler's error, with the first reason that numba gives.

    A compiler sees graphs, types and the model's public constants, and no record. Numbers are left out all
    the same.
    """
    kind = type(error).__name__
    if type(error).__module__.partition(".")[0] != "numba":
        return kind
    for line in re.sub("\x1b\\[[0-9;]*m", "", str(error)).splitlines():
        line = line.strip()
        if line and not line.startswith(_WHERE):
            plain = re.sub(r"0x[0-9a-fA-F]+|[-+]?\d[\w.+-]*", "#", line).rstrip(".: ")
            return f"{kind}: {plain[:_MOST_CHARACTERS]}"
    return kind


def _attempt(make: Callable[[Backend], T], candidate: Backend) -> tuple[T | None, str]:
    made: T | None = None
    reason = ""
    interrupts: list[type[BaseException]] = []
    try:
        with _garbage_left_alone(), noticed(interrupts):
            made = make(candidate)
    except (PrivacyError, MemoryError):
        raise
    except StepFailedError as error:
        reason = error.reason
    except Exception as error:  # its text may quote arrays of the model
        reason = reason_of(error)
    if interrupts:  # one that a compiler has swallowed
        raise KeyboardInterrupt
    return made, reason


@contextmanager
def _garbage_left_alone() -> Iterator[None]:
    """Pause garbage collection, which would go through a compiler's many objects again and again.

    A first fit takes a sixth less time (`benchmarks/first_fit.py`).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
