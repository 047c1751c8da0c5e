r"""Where the charges of a privacy budget are kept: in memory, or in a SQLite file that processes share.

A ledger only grows, by :meth:`append` alone. With the ledger locked, `append` reads all charges, lets the
caller decide on the next one, and writes it; if the caller raises, it writes nothing. The caller draws no
noise before `append` has returned.

**The file.** A charge is one SQLite transaction. ``BEGIN IMMEDIATE`` takes the write lock before the charges
are read, so of two processes one waits until the other's charge is in. When `append` returns, the charge is
on the disk: the rollback journal with ``synchronous=EXTRA`` also syncs the directory after the journal is
removed. (With ``FULL``, a power cut right after the commit can bring the journal back, and with it the state
before the charge.) If a process is killed before it drew anything, its charge may be missing; afterwards it
is there.

Reading and charging verify the file first: SQLite's own integrity check, the application id and the format
version in its header, the journal mode, the schema to the letter, the charges' numbers, which have no gaps,
and a digest of all that was written,

.. math:: d_0 = \mathrm{SHA256}(\text{terms}), \quad
          d_n = \mathrm{SHA256}(d_{n-1} \,\Vert\, \text{charge}_n),

where a line break stands before each text. If anything is off, the file is refused. This finds accidents:
rows edited or removed by hand, a file cut short or mixed from two versions. It is no signature: whoever may
write the file can make a consistent one. An older copy that is put back is consistent too, and forgets later
charges. A budget that is open notices if its file lacks what was there before; a new process cannot. So a
budget file must not be restored from a backup, nor copied to be used twice.

A connection lives for one operation only. A fork waits until no connection is open in this process, because a
child must not inherit SQLite's locks and journals; the child opens its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol

from pymc_dpvi.accounting.budget.charge import Charge
from pymc_dpvi.errors import LedgerError, PrivacyError

__all__ = ["FileLedger", "Ledger", "MemoryLedger"]

APPLICATION_ID = 0x64707669  # "dpvi"
FORMAT_VERSION = 1
BUSY_SECONDS = 30.0

_SCHEMA = (
    "CREATE TABLE budget (one INTEGER PRIMARY KEY CHECK (one = 1), terms TEXT NOT NULL, "
    "num_charges INTEGER NOT NULL, digest TEXT NOT NULL)",
    "CREATE TABLE charges (number INTEGER PRIMARY KEY, charge TEXT NOT NULL)",
)


Decide = Callable[[tuple[Charge, ...]], Charge]


class Ledger(Protocol):
    """What a budget needs of the place where its charges are kept."""

    def read(self) -> tuple[Charge, ...]:
        """Return all charges, oldest first."""

    def append(self, decide: Decide) -> Charge:
        """Add ``decide(charges so far)``, or nothing if that raises; durable when this returns."""


class MemoryLedger:
    """Charges in the memory of one process; safe between threads, refused after a fork."""

    def __init__(self) -> None:
        self._charges: tuple[Charge, ...] = ()
        self._lock = threading.Lock()
        self._process = os.getpid()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise PrivacyError(
                "This privacy budget was made in another process; its copy here would be spent a second "
                "time. Share a file: PrivacyBudget.create(path, epsilon, delta), and "
                "PrivacyBudget.open(path) in each process."
            )

    def read(self) -> tuple[Charge, ...]:
        """Return all charges, oldest first."""
        self._check_process()
        return self._charges

    def append(self, decide: Decide) -> Charge:
        """Add ``decide(charges so far)``, or nothing if that raises."""
        self._check_process()
        with self._lock:
            charge = decide(self._charges)
            self._charges = (*self._charges, charge)
        return charge


# Held while a connection is open. A fork waits for it: the child would inherit SQLite's locks and journals.
_CONNECTED = threading.RLock()


def _after_fork_in_child() -> None:
    global _CONNECTED
    _CONNECTED = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(
        before=lambda: _CONNECTED.acquire(),
        after_in_parent=lambda: _CONNECTED.release(),
        after_in_child=_after_fork_in_child,
    )


class FileLedger:
    """Charges in a SQLite file on a local disk; safe between threads and processes of one machine.

    Locks on network file systems are not reliable. `path` is absolute, with links resolved.
    """

    def __init__(self, path: Path, terms: str | None = None) -> None:
        self.path = path
        self._terms = terms
        self._seen: str | None = None  # the digest that was there last

    # ---------------------------------------------------------------------------- made and opened

    @classmethod
    def create(cls, path: str | os.PathLike[str], terms: str) -> FileLedger:
        """Make a ledger file that holds `terms` and no charges; a LedgerError if something is at `path`."""
        ledger = cls(Path(path).resolve(), terms)
        leftovers = [Path(f"{ledger.path}{suffix}") for suffix in ("-journal", "-wal")]
        for found in (ledger.path, *leftovers):
            if found.exists():
                raise LedgerError(
                    f"{found} exists already, and a budget never replaces a file. Use "
                    "PrivacyBudget.open(path) to go on with a budget, or another path for a new one."
                )
        try:
            os.close(os.open(ledger.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
        except OSError as error:
            raise LedgerError(f"The budget file {ledger.path} cannot be made: {error.strerror}.") from None
        try:
            with ledger._connection() as connection, _transaction(connection, "BEGIN EXCLUSIVE"):
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute("INSERT INTO budget VALUES (1, ?, 0, ?)", (terms, _digest("", terms)))
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        except BaseException:
            if ledger.path.stat().st_size == 0:  # not committed: nothing can have been charged to it
                ledger.path.unlink()
            raise
        return ledger

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> FileLedger:
        """Open and verify an existing ledger file; a LedgerError if there is none, or it is not intact."""
        ledger = cls(Path(path).resolve())
        ledger._terms = ledger._read()[0]
        return ledger

    @property
    def terms(self) -> str:
        """The terms that the file was made with. The file is refused if they change."""
        assert self._terms is not None
        return self._terms

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one operation; SQLite's errors become `LedgerError`."""
        if not self.path.is_file():
            raise LedgerError(
                f"There is no budget file at {self.path}. If it was moved, give its new path. A new one is "
                "only made by PrivacyBudget.create(path, epsilon, delta), and knows of no earlier charges."
            )
        if self.path.stat().st_nlink > 1:
            raise LedgerError(
                f"{self.path} has a second name (a hard link), under which SQLite would not see its journal. "
                "Remove one of the names."
            )
        with _CONNECTED:
            try:
                connection = sqlite3.connect(
                    f"{self.path.as_uri()}?mode=rw",  # never makes a file
                    uri=True,
                    timeout=BUSY_SECONDS,
                    isolation_level=None,
                )
                with contextlib.closing(connection):
                    for pragma in ("synchronous = EXTRA", "fullfsync = ON", "trusted_schema = OFF"):
                        connection.execute(f"PRAGMA {pragma}")
                    yield connection
            except sqlite3.Error as error:
                self._refuse(error)
            except UnicodeDecodeError:  # SQLite's message quotes the file
                self._damaged("SQLite cannot read it")

    def _refuse(self, error: sqlite3.Error) -> NoReturn:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise LedgerError(
                f"The budget file {self.path} was in use by another process for {BUSY_SECONDS:g} seconds. "
                "Nothing was charged; try again."
            ) from None
        if name == "SQLITE_NOTADB" or name.startswith("SQLITE_CORRUPT"):
            self._damaged("SQLite cannot read it")
        raise LedgerError(
            f"The budget file {self.path} cannot be used: {error} ({name}). The fit was not started."
        ) from None

    def _damaged(self, what: str) -> NoReturn:
        raise LedgerError(
            f"{self.path} is not an intact budget file: {what}. It is left as it is, and nothing is "
            "charged to it. If it was a budget, what was spent must be found out from the reports of "
            "the releases, and declared to a new one with PrivacyBudget.charge."
        ) from None

    # ---------------------------------------------------------------------------- read and verified

    def _verify(self, connection: sqlite3.Connection) -> tuple[str, tuple[Charge, ...], str]:
        """Return terms, charges and digest, inside a transaction."""

        def one(query: str) -> Any:
            return connection.execute(query).fetchone()[0]

        if one("PRAGMA application_id") != APPLICATION_ID:
            empty = self.path.stat().st_size == 0
            self._damaged(
                "it is empty (was its making cut short?)" if empty else "it belongs to something else"
            )
        if one("PRAGMA user_version") != FORMAT_VERSION:
            self._damaged("it has another format version; use the version of pymc_dpvi that made it")
        if one("PRAGMA journal_mode") != "delete":
            self._damaged("its journal mode was changed")
        if one("PRAGMA integrity_check(1)") != "ok":
            self._damaged("SQLite's integrity check fails")
        schema = connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
        if tuple(row[0] for row in schema) != _SCHEMA:
            self._damaged("its tables are not those of a budget")
        rows = connection.execute("SELECT terms, num_charges, digest FROM budget").fetchall()
        if len(rows) != 1 or not all(isinstance(x, k) for x, k in zip(rows[0], (str, int, str), strict=True)):
            self._damaged("its terms are missing")
        terms, number, digest = rows[0]
        if terms != (self._terms or terms):
            self._damaged("it was replaced by another one while this budget was open")
        found = connection.execute("SELECT number, charge FROM charges ORDER BY number").fetchall()
        if [row[0] for row in found] != list(range(1, number + 1)):
            self._damaged("charges are missing or added")
        chain = [_digest("", terms)]
        try:
            for _, text in found:
                chain.append(_digest(chain[-1], text))
            if chain[-1] != digest:
                self._damaged("its contents were changed by something else than this package")
            if self._seen is not None and self._seen not in chain:
                self._damaged("it lacks charges that were there before (an older copy was put back)")
            charges = tuple(Charge.from_dict(json.loads(text)) for _, text in found)
        except (ValueError, TypeError, AttributeError):
            self._damaged("a charge cannot be read")
        self._seen = digest
        return terms, charges, digest

    def _read(self) -> tuple[str, tuple[Charge, ...], str]:
        with self._connection() as connection, _transaction(connection, "BEGIN"):
            return self._verify(connection)

    def read(self) -> tuple[Charge, ...]:
        """Return all charges, oldest first; a LedgerError if the file is not intact."""
        return self._read()[1]

    # ---------------------------------------------------------------------------- charged

    def append(self, decide: Decide) -> Charge:
        """Add ``decide(charges so far)``, or nothing if that raises; on the disk when this returns.

        Raises a LedgerError if the file is not intact, busy, or cannot be written.
        """
        with self._connection() as connection, _transaction(connection, "BEGIN IMMEDIATE"):
            _, charges, digest = self._verify(connection)
            charge = decide(charges)
            text = json.dumps(charge.to_dict(), allow_nan=False, ensure_ascii=True)
            number, after = len(charges) + 1, _digest(digest, text)
            connection.execute("INSERT INTO charges VALUES (?, ?)", (number, text))
            connection.execute("UPDATE budget SET num_charges = ?, digest = ?", (number, after))
        self._seen = after
        return charge


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Commit at the end, or roll back if anything raises."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _digest(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()
