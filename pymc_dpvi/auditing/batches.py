r"""(C) Whether batches are drawn as they are accounted.

The sampler's `DpEvent` is accounted; the law that is tested follows from the event, never from the sampler's
name. The batches are those that the package's loop hands to its steps.

* Poisson, probability q: a batch has Binomial(N, q) records; a record is in Binomial(T, q) batches; of a
  fixed half of the records, Binomial(N/2, q) are in a batch; of the records of one batch, Binomial(size, q)
  are in a later one; two given records are in a batch together with probability q².
* Without replacement, B of N: a batch has B records; the number of them in a fixed half, or in an earlier
  batch, is hypergeometric.
* No sampling: every batch has all records.

Given the earlier batches, a batch's counts are independent of them. So normal scores of these counts are
independent standard normal numbers, and sums of their squares are χ².
"""

from __future__ import annotations

from typing import Any

import dp_accounting
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pymc_dpvi.auditing import statistics as st
from pymc_dpvi.auditing.report import CheckResult
from pymc_dpvi.auditing.transcript import LoopStep, summarise
from pymc_dpvi.graph.units import Units
from pymc_dpvi.mechanism.mechanism import Mechanism, Streams
from pymc_dpvi.sampling import FixedSizeSampler

__all__ = ["check_batches"]

_EXPECTED = 40  # expected size of a Poisson batch on synthetic records
_LAGS = (1, 2, 3)

Batches = list[NDArray[np.int64]]


def check_batches(
    mechanism: Mechanism,
    streams: Streams,
    rng: np.random.Generator,
    n_steps: int,
    *,
    by_unit: bool = False,
    max_rows: int | None = None,
) -> CheckResult:
    """Check (C): batches have the law of the event that accounts for them; rng is public.

    If `by_unit`, records are persons with several rows, whose batches are read back from those of rows. The
    statistic is the smallest p-value, corrected for the number of tests.
    """
    event = mechanism.sampler.dp_event(dp_accounting.GaussianDpEvent(mechanism.noise_multiplier))
    num_records, law = _setting(mechanism, event)
    listener = LoopStep(None)
    units = _made_up(num_records, max_rows, rng) if by_unit else None
    listener.run(mechanism, streams, rng, num_records, n_steps, units)
    read = listener.batches if units is None else [_persons(b, units) for b in listener.batches]
    batches = [b for b in read if b is not None]
    found: dict[str, Any]
    if len(batches) < len(read):
        found = {"a person without some of their rows, or with a row of somebody else": 0.0}
    elif len(batches) != n_steps or not all(_is_batch(b, num_records) for b in batches):
        found = {"a record that is twice in a batch, or none of the data": 0.0}
    elif isinstance(event, dp_accounting.PoissonSampledDpEvent):
        found = _poisson(batches, num_records, event.sampling_probability, rng)
    elif isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
        found = _without_replacement(batches, num_records, event.sample_size, rng)
    elif isinstance(event, dp_accounting.GaussianDpEvent):
        found = {"a batch that is not everybody": float(all(b.size == num_records for b in batches))}
    else:
        found = {f"an event that this audit does not know ({type(event).__name__})": 0.0}
    pvalue, where = summarise(found)
    return CheckResult(
        "sampling",
        f"Batches are drawn as they are accounted: {law}.",
        pvalue >= st.FALSE_ALARM,
        pvalue,
        st.FALSE_ALARM,
        f"{len(batches)} batches, {sum(b.size for b in batches)} places; smallest p-value {pvalue:.2g} "
        f"({where}).",
    )


def _setting(mechanism: Mechanism, event: Any) -> tuple[int, str]:
    """Choose a number of synthetic records; return it and the law that is accounted, in words."""
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        q = event.sampling_probability
        law, fitting = f"each record by its own coin, with probability {q:.4g}", int(np.ceil(_EXPECTED / q))
    elif isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
        law, fitting = "a uniform subset of fixed size", int(event.source_dataset_size)
    else:
        law, fitting = "everybody, in every step", _EXPECTED
    if isinstance(mechanism.sampler, FixedSizeSampler):
        fitting = mechanism.sampler.num_records  # public, and the only one that it takes
    return fitting, law


def _made_up(num_records: int, max_rows: int | None, rng: np.random.Generator) -> Units:
    """Give each of the synthetic persons one to six rows, in no order."""
    codes = np.repeat(np.arange(num_records), rng.integers(1, 7, size=num_records))
    return Units.by_codes(rng.permutation(codes), "the same id", max_rows)


def _persons(marked: NDArray[np.int64], units: Units) -> NDArray[np.int64] | None:
    """Return whose the rows of a batch are; None unless each has all that are due, together and in order."""
    whose = np.empty(len(units.rows), dtype=np.int64)
    counts = units.starts[1:] - units.starts[:-1]
    whose[units.rows] = np.repeat(np.arange(len(units)), counts)
    rows, ends = marked >> 1, np.flatnonzero(marked & 1)
    persons = whose[rows[ends]]
    due = counts[persons] if units.max_rows is None else np.minimum(counts[persons], units.max_rows)
    starts = np.concatenate([[0], np.cumsum(due)])
    together = starts[-1] == rows.size and (starts[1:] == ends + 1).all()
    if not together or (whose[rows] != np.repeat(persons, due)).any():
        return None
    inside = np.ones(rows.size, dtype=bool)
    inside[starts[:-1]] = False
    return persons if (np.diff(rows, prepend=-1)[inside] > 0).all() else None


def _is_batch(batch: NDArray[np.int64], num_records: int) -> bool:
    inside = batch.size == 0 or (batch.min() >= 0 and batch.max() < num_records)
    return bool(inside and np.unique(batch).size == batch.size)


def _poisson(batches: Batches, num_records: int, q: float, rng: np.random.Generator) -> dict[str, Any]:
    n_steps = len(batches)
    sizes = np.array([b.size for b in batches])
    times = np.bincount(np.concatenate(batches), minlength=num_records)
    size_scores = st.normal_scores(sizes, stats.binom(num_records, q), rng)
    record_scores = st.normal_scores(times, stats.binom(n_steps, q), rng)
    even = n_steps - n_steps % 2
    couple_scores = (size_scores[0:even:2] + size_scores[1:even:2]) / np.sqrt(2)
    total = stats.binomtest(int(sizes.sum()), n_steps * num_records, q).pvalue
    couples = sum(np.count_nonzero((b[:-1] + 1 == b[1:]) & (b[:-1] % 2 == 0)) for b in map(np.sort, batches))
    found: dict[str, Any] = {
        "the mean size of a batch": total,
        "the distribution of sizes": (st.chi2_pvalues(size_scores), _ks(size_scores)),
        "one batch's size": st.normal_pvalues(size_scores),
        "sizes of consecutive batches": st.chi2_pvalues(couple_scores),
        "how often one record is drawn": st.normal_pvalues(record_scores),
        "how often records are drawn": (st.chi2_pvalues(record_scores), _ks(record_scores)),
        "two records in one batch": stats.binomtest(int(couples), n_steps * (num_records // 2), q * q).pvalue,
    }
    for name, members in _halves(num_records, rng).items():
        counts = np.array([np.count_nonzero(members[b]) for b in batches])
        scores = st.normal_scores(counts, stats.binom(int(members.sum()), q), rng)
        found[f"records of {name} in a batch"] = _both(scores)
    for lag, (counts, before) in _overlaps(batches, num_records).items():
        scores = st.normal_scores(counts, stats.binom(before, q), rng)
        found[f"records in batches {lag} apart"] = (
            stats.binomtest(int(counts.sum()), int(before.sum()), q).pvalue if before.sum() else 1.0,
            st.chi2_pvalues(scores),
        )
    return found


def _without_replacement(
    batches: Batches, num_records: int, size: int, rng: np.random.Generator
) -> dict[str, Any]:
    times = np.bincount(np.concatenate(batches), minlength=num_records)
    scores = st.normal_scores(times, stats.binom(len(batches), size / num_records), rng)
    found: dict[str, Any] = {
        "a batch of another size": float(all(b.size == size for b in batches)),
        "how often one record is drawn": st.normal_pvalues(scores),
    }
    for name, members in _halves(num_records, rng).items():
        counts = np.array([np.count_nonzero(members[b]) for b in batches])
        law = stats.hypergeom(num_records, int(members.sum()), size)
        found[f"records of {name} in a batch"] = _both(st.normal_scores(counts, law, rng))
    for lag, (counts, before) in _overlaps(batches, num_records).items():
        law = stats.hypergeom(num_records, before, size)
        found[f"records in batches {lag} apart"] = _both(st.normal_scores(counts, law, rng))
    return found


def _both(scores: NDArray[np.float64]) -> tuple[Any, ...]:
    """P-values for the mean and for the spread of normal scores."""
    return st.normal_pvalues(scores.sum() / np.sqrt(scores.size)), st.chi2_pvalues(scores)


def _ks(scores: NDArray[np.float64]) -> float:
    return float(stats.kstest(scores, "norm").pvalue)


def _halves(num_records: int, rng: np.random.Generator) -> dict[str, NDArray[np.bool_]]:
    """Return fixed halves of the records: by each bit of their numbers, and at random."""
    places = np.arange(num_records)
    halves = {
        "a random half": rng.permutation(num_records) < num_records / 2,
        "the first half": places < num_records / 2,
    }
    for bit in range(int(num_records).bit_length() - 1):
        halves[f"the half by bit {bit}"] = (places >> bit) % 2 == 0
    return {name: members for name, members in halves.items() if 0 < members.sum() < num_records}


def _overlaps(batches: Batches, num_records: int) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """For each lag, count the records of a batch that are in the one before it, and the latter's size."""
    found = {}
    mark = np.zeros(num_records, dtype=bool)
    for lag in _LAGS:
        counts, before = [], []
        for earlier, later in zip(batches, batches[lag:], strict=False):
            mark[earlier] = True
            counts.append(np.count_nonzero(mark[later]))
            before.append(earlier.size)
            mark[earlier] = False
        if counts:
            found[lag] = (np.array(counts), np.array(before))
    return found
