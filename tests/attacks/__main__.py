"""Attack from a terminal: ``cd tests && python -m attacks PATTERN ... [--kind fits] [--backend numba ...]``.

Patterns are parts of the names of subjects (``zoo:`` for the whole zoo, ``columns:``, ``operation:``). The
exit status is 1 if something was found.
"""

from __future__ import annotations

import argparse
import time

from attacks.subjects import named
from attacks.watch import KINDS, Crew, Task


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks", description=__doc__)
    parser.add_argument("patterns", nargs="+", metavar="PATTERN")
    parser.add_argument("--backend", nargs="+", default=["numba"])
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=["rows"])
    given = parser.parse_args()
    tasks = [
        Task(name, backend, kind)
        for kind in given.kind
        for backend in given.backend
        for name in named(given.patterns)
    ]
    found, started = 0, time.monotonic()
    with Crew() as crew:
        for task in tasks:
            result, now = crew.do(task), time.monotonic()
            said = f"refused: {result.refused}" if result.refused else f"{result.tried} records"
            print(f"{task.subject} [{task.backend}, {task.kind}] {said}, {now - started:.0f} s", flush=True)
            started = now
            for finding in result.findings:
                print(f"    {finding.record}: {finding.what}", flush=True)
            found += len(result.findings)
    print(f"{len(tasks)} attacks, {found} findings")
    return int(found > 0)


if __name__ == "__main__":
    raise SystemExit(main())
