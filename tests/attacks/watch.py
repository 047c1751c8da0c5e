"""An attack in a process of its own, which is killed when a call does not end.

Compiled code cannot be interrupted from within, and a record that makes it run for years is a finding like
any other. The process says what it begins and how long that may take; who watches it kills it after that,
notes the finding, and has another one go on with the next record.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from attacks.attack import EVALUATING, Begun, Event, Finding, Refused

__all__ = ["KINDS", "Crew", "Result", "Task"]

KINDS = ("rows", "fits")
#: Seconds that a process may take for its imports.
_START = 300.0
_TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Task:
    """One attack: ``rows`` or ``fits``, of a subject, on a backend; ``plant`` names a bug of `plants`.

    ``most`` is the number of hostile records that are fitted.
    The backend ``"c without a compiler"`` is C where PyTensor finds no C++ compiler.
    """

    subject: str
    backend: str
    kind: str = "rows"
    plant: str = ""
    most: int = 6


@dataclass
class Result:
    """What came of a task: findings, the reason of a refusal, how many records were tried."""

    task: Task
    findings: list[Finding]
    refused: str = ""
    tried: int = 0


class Crew:
    """Does tasks one after the other, in processes that are replaced when they have to be killed.

    Parameters
    ----------
    evaluating : float, optional
        Seconds that a call may take which compiles nothing.
    restarts : int
        How often an attack goes on after it had to be killed.
    """

    def __init__(self, evaluating: float | None = None, restarts: int = 3) -> None:
        self._evaluating = evaluating
        self._restarts = restarts
        self._processes: dict[str, _Process] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *args: object) -> None:
        for process in self._processes.values():
            process.end()

    def do(self, task: Task) -> Result:
        """Do a task; return what came of it."""
        result = Result(task, [])
        # PyTensor asks for its compiler when it is imported, and JAX has threads.
        place = task.backend if task.backend in ("c without a compiler", "jax") else ""
        for _ in range(self._restarts + 1):
            if place not in self._processes:
                self._processes[place] = _Process(task.backend)
            failure, current = self._follow(self._processes[place], task, result)
            if not failure:
                break
            result.findings.append(Finding(task.subject, task.backend, current.record, failure))
            self._processes.pop(place).end()
            if current.record.startswith("nothing yet"):
                break
        return result

    def _follow(self, process: _Process, task: Task, result: Result) -> tuple[str, Begun]:
        """Note what a process says until the end of the task; return what went wrong, and where."""
        process.begin(task, result.tried)
        current = Begun("nothing yet: it starts", _START)
        while True:
            limit = current.limit
            if self._evaluating is not None and limit == EVALUATING:
                limit = self._evaluating
            event = process.next(limit)
            if isinstance(event, Begun):
                current = event
                result.tried += not event.record.startswith("nothing yet")
            elif isinstance(event, Finding):
                result.findings.append(event)
            elif isinstance(event, Refused):
                result.refused = event.reason
            else:
                return event, current


class _Process:
    """A Python process that does tasks (`serve`)."""

    def __init__(self, backend: str) -> None:
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = {**os.environ, **one_thread}
        path = [str(_TESTS), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        if backend == "c without a compiler":
            flags = [f for f in environment.get("PYTENSOR_FLAGS", "").split(",") if f]
            environment["PYTENSOR_FLAGS"] = ",".join([*flags, "cxx="])
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from attacks.watch import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, stream: BinaryIO) -> None:
        try:
            while True:
                self._events.put(pickle.load(stream))
        except Exception:  # the process is gone
            self._events.put("gone")

    def begin(self, task: Task, skip: int) -> None:
        assert self._process.stdin is not None
        pickle.dump((task, skip), self._process.stdin)
        self._process.stdin.flush()

    def next(self, limit: float) -> Event | str:
        """Return the next event, "" at the end of the task, or what went wrong."""
        try:
            event = self._events.get(timeout=limit)
        except queue.Empty:
            return f"it does not end within {limit:g} seconds"
        if isinstance(event, str) and event == "gone":
            self._process.wait()
            return f"the process dies with {self._process.returncode}"
        return event

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def serve() -> None:
    """Do the tasks that come in, and say on the way what happens. What is printed goes to standard error."""
    from contextlib import ExitStack
    from functools import partial

    from attacks.attack import attack_fits, attack_rows
    from attacks.plants import planted
    from attacks.subjects import SUBJECTS

    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def say(event: Event | str) -> None:
        pickle.dump(event, out)
        out.flush()

    while True:
        try:
            task, skip = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        backend = "c" if task.backend == "c without a compiler" else task.backend
        attack = attack_rows if task.kind == "rows" else partial(attack_fits, most=task.most)
        try:
            with ExitStack() as stack:
                subject = SUBJECTS[task.subject]
                if task.plant:
                    subject = stack.enter_context(planted(task.plant, subject))
                for event in attack(subject, backend, skip):
                    say(event)
            say("")
        except Exception as error:
            say(f"the attack itself raises {type(error).__name__}: {str(error)[:300]}")
