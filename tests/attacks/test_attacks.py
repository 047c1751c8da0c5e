"""One record is made hostile, and all else that leaves is the same: a sample in every run, all in depth.

The short form takes models that change with every change of the package (`turn`), so that in time all are
attacked; ``pytest -m slow tests/attacks`` takes all of them on all backends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest

from attacks.attack import Finding, attack_fits, attack_rows
from attacks.plants import PLANTS, planted
from attacks.records import FLOATS, few, hostile_records, values
from attacks.shares import Shares
from attacks.subjects import PLACE, SUBJECTS, Subject
from attacks.watch import Crew, Task
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.numba_cache import source_hash
from pymc_dpvi.runs import Runs

BACKENDS = ("python", "numba", "c", "c without a compiler", "jax")
FIT = [name for name in SUBJECTS if not name.startswith("operation")]
OPERATIONS = [name for name in SUBJECTS if name.startswith("operation")]
#: In every run.
OFTEN = {"python": 8, "numba": 1}
FITS = 1
#: What is known to be wrong and not mended yet, by backend and subject.
KNOWN: dict[tuple[str, str], str] = {}
KNOWN_IN_FITS: dict[tuple[str, str], str] = {}


def turn(names: list[str], many: int, salt: str) -> list[str]:
    """Pick names, others for each version of the package."""
    return sorted(names, key=lambda n: hashlib.sha256(f"{salt} {n} {source_hash()}".encode()).digest())[:many]


def tasks(kind: str, backends: tuple[str, ...], names: list[str], often: set[tuple[str, str]]) -> list:
    made = []
    for backend in backends:
        for name in names:
            marks = [] if (backend, name) in often else [pytest.mark.slow]
            if why := (KNOWN if kind == "rows" else KNOWN_IN_FITS).get((backend, name)):
                marks.append(pytest.mark.xfail(strict=True, reason=why))
            task = Task(name, backend, kind, most=6 if marks else 3)
            made.append(pytest.param(task, marks=marks, id=f"{name}-{backend}"))
    return made


def chosen() -> set[tuple[str, str]]:
    """Return the short form of the attack on rows: some models and operations, in Python and with numba."""
    found = {(b, n) for b, many in OFTEN.items() for n in turn(FIT, many, b)}
    found |= {(b, n) for b, many in OFTEN.items() for n in turn(OPERATIONS, 2 * many, b)}
    # What found that second derivatives run on, and records with noise of their own.
    return found | {("python", "columns: shapes_of_persons"), ("python", "columns: codes")}


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew() as crew:
        yield crew


@pytest.mark.turns
@pytest.mark.parametrize("task", tasks("rows", BACKENDS, [*FIT, *OPERATIONS], chosen()))
def test_no_record_shows_in_the_rows_of_a_step(task: Task, crew: Crew) -> None:
    result = crew.do(task)
    assert not result.findings, "\n".join(map(str, result.findings))
    assert result.refused or result.tried > 10  # fewer, the longer an ordinary piece takes


@pytest.mark.turns
@pytest.mark.parametrize(
    "task", tasks("fits", ("PYTHON", "numba"), FIT, {("PYTHON", n) for n in turn(FIT, FITS, "fits")})
)
def test_no_record_shows_in_what_leaves_a_fit(task: Task, crew: Crew) -> None:
    result = crew.do(task)
    assert not result.findings, "\n".join(map(str, result.findings))
    assert result.refused or result.tried > 3


# -------------------------------------------------------------------------------- it would find them


@pytest.mark.parametrize("name", PLANTS)
def test_what_a_plant_replaces_is_there(name: str) -> None:
    """Whether or not it is this bug's turn today: names move."""
    for owner, attribute, _ in PLANTS[name].changes:
        assert hasattr(owner, attribute)


@pytest.mark.turns
@pytest.mark.parametrize("name", [n for n, plant in PLANTS.items() if plant.ends])
def test_a_planted_bug_is_found(name: str) -> None:
    found: list[Finding] = []
    with planted(name) as subject:
        attack = attack_rows if PLANTS[name].kind == "rows" else attack_fits
        for event in attack(subject, "PYTHON"):
            if isinstance(event, Finding):
                found.append(event)
                if PLANTS[name].found in event.what:
                    return
    pytest.fail(f"not found: {[str(f) for f in found]}")


@pytest.mark.turns
@pytest.mark.parametrize("name", [n for n, plant in PLANTS.items() if not plant.ends])
def test_what_cannot_be_survived_is_found(name: str) -> None:
    with Crew(evaluating=2.0, restarts=1) as crew:
        result = crew.do(Task("columns: decay_by_lag", "PYTHON", plant=name))
    assert len(result.findings) == 2  # it went on behind the first
    assert all(PLANTS[name].found in f.what for f in result.findings)
    first, second = (f.record for f in result.findings)
    assert first != second


def breaks(self: object, *args: object) -> bool:
    raise AttributeError("no such name")


@pytest.mark.turns
@pytest.mark.parametrize(("owner", "name"), [(RecordModel, "why_withheld"), (Runs, "_warn")])
def test_a_mistake_is_no_refusal(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, breaks)
    with pytest.raises((AssertionError, AttributeError), match=r"AttributeError|no such name"):
        list(attack_fits(SUBJECTS["columns: curve_on_a_grid"], "PYTHON", most=1))


@pytest.mark.turns
def test_nothing_is_found_where_nothing_is_planted() -> None:
    subject = SUBJECTS["columns: decay_by_lag"]
    assert [e for e in attack_rows(subject, "PYTHON") if isinstance(e, Finding)] == []
    assert [e for e in attack_fits(subject, "PYTHON", most=1) if isinstance(e, Finding)] == []


# -------------------------------------------------------------------------------- shares


def test_a_float_that_is_no_integer_counts_nothing() -> None:
    """It was an error of the whole fit in Python, and anything in C."""
    subject = SUBJECTS["columns: codes_as_floats"]
    record = subject.split(subject.neighbour(None))
    shares = Shares(record, "PYTHON")
    names = [a.name for a in record.arrays]
    rows = [np.resize(a.get_value(), (shares.piece, *a.get_value().shape[1:])) for a in record.data()]
    for name in ("code", "label"):
        column = rows[names.index(name)]
        own = column[PLACE]
        for value in (own, np.nan, np.inf, -np.inf, 1e300, 2.0**63, -1e19):
            column[PLACE] = value
            share = shares.release([g[PLACE : PLACE + 1] for g in shares.gradients(rows, 0)])
            assert np.any(share) == (value == own)
        column[PLACE] = own


# -------------------------------------------------------------------------------- hostile records


def test_hostile_records_are_of_their_types_and_all_different() -> None:
    rng = np.random.default_rng(0)
    arrays = [
        rng.normal(size=(9, 3)),
        rng.normal(size=9).astype("float32"),
        rng.integers(0, 4, 9),
        rng.integers(0, 4, 9).astype("uint8"),
        rng.integers(0, 2, 9).astype("int8"),
        rng.uniform(size=9) < 0.5,
    ]
    before = [a.copy() for a in arrays]
    made = hostile_records(arrays, list("abcdef"), PLACE)
    assert len(made) > 300 and len({h.name for h in made}) == len(made)
    for one in made:
        for row, array in zip(one.rows, arrays, strict=True):
            assert row.dtype == array.dtype and row.shape == array.shape[1:]
    for now, then in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(now, then)  # an attack changes copies
    own = [a[PLACE] for a in arrays]
    assert all(any(not np.array_equal(r, o) for r, o in zip(h.rows, own, strict=True)) for h in made)
    # Each entry alone, the others as they were.
    alone = [h for h in made if h.name.startswith("a[1] = ")]
    assert len(alone) >= len(FLOATS) - 2
    assert all(np.array_equal(h.rows[0][[0, 2]], own[0][[0, 2]]) for h in alone)
    assert {-5000, 4, -5, 2**63 - 1, -(2**63)} <= set(map(int, values(arrays[2])))
    assert {255, 0, 4, 170} <= set(map(int, values(arrays[3]))) and -1 not in values(arrays[3])
    chosen = few(made, 6)
    assert len(chosen) == 6 and len({h.name for h in chosen}) == 6


@pytest.mark.parametrize("name", ["zoo: integer_covariates", "zoo: linear", "columns: discounting"])
def test_a_neighbour_differs_in_one_record(name: str) -> None:
    subject: Subject = SUBJECTS[name]
    arrays, names = subject.arrays()
    hostile = next(h for h in hostile_records(arrays, names, PLACE) if subject.may_hold(h.rows))
    found = [subject.split(subject.neighbour(rows)).data() for rows in (None, hostile.rows)]
    changed = 0
    for one, two in zip(*[[a.get_value() for a in data] for data in found], strict=True):
        np.testing.assert_array_equal(np.delete(one, PLACE, axis=0), np.delete(two, PLACE, axis=0))
        changed += not np.array_equal(one[PLACE], two[PLACE])
    assert changed == 1
