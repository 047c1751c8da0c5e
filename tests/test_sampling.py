from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pymc_dpvi import sampling
from pymc_dpvi.accounting import evaluation
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.randomness import subsets
from pymc_dpvi.randomness.keystream import KeyStream, words_to_uniforms
from pymc_dpvi.sampling import (
    SAMPLER_NAMES,
    FixedSizeSampler,
    FullBatchSampler,
    PoissonSampler,
    Sampler,
    make_sampler,
)

# Seeds are fixed, so that these tests cannot fail by chance: right code must reach P_GOOD, and a
# planted bug must fall below P_BAD.
P_GOOD = 1e-3
P_BAD = 1e-9

NOISE = dp_accounting.GaussianDpEvent(1.5)
Batches = tuple[np.ndarray, np.ndarray]


def stream(label: str = "sampling", seed: int = 20250103) -> KeyStream:
    return KeyStream.from_insecure_seed(seed, label)


def check_layout(batches: Batches, num_records: int, n_steps: int) -> None:
    indices, offsets = batches
    assert indices.dtype == offsets.dtype == np.int64
    assert indices.ndim == 1 and offsets.shape == (n_steps + 1,)
    assert offsets[0] == 0 and offsets[-1] == len(indices) and np.all(np.diff(offsets) >= 0)
    if len(indices):
        assert indices.min() >= 0 and indices.max() < num_records
    for t in range(min(n_steps, 50)):
        batch = indices[offsets[t] : offsets[t + 1]]
        assert len(np.unique(batch)) == len(batch)


def coins(batches: Batches, num_records: int) -> np.ndarray:
    """Dense table of who takes part, of shape (n_steps, num_records)."""
    indices, offsets = batches
    n_steps = len(offsets) - 1
    table = np.zeros((n_steps, num_records), dtype=np.int64)
    table[np.repeat(np.arange(n_steps), np.diff(offsets)), indices] = 1
    return table


def p_chi2(observed: np.ndarray, expected: np.ndarray) -> float:
    """Chi-squared test with cells expected below 5 pooled."""
    small = expected < 5
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


# ---------------------------------------------------------------- Poisson: joint law


def table_law(prob: float, cells: int) -> np.ndarray:
    ones = np.array([bin(code).count("1") for code in range(2**cells)])
    return prob**ones * (1 - prob) ** (cells - ones)


def p_table(table: np.ndarray, prob: float) -> float:
    """Joint test of every cell, pair, ... of tables given as rows of 0 and 1."""
    codes = table @ (1 << np.arange(table.shape[1]))
    law = table_law(prob, table.shape[1])
    return p_chi2(np.bincount(codes, minlength=len(law)), len(table) * law)


@pytest.mark.parametrize("prob", [0.02, 0.3, 0.5, 0.9, 0.999])
def test_poisson_joint_law_of_two_steps_of_four_records(prob: float) -> None:
    # All dependence between records and between steps would show among the 2^8 outcomes.
    n = 100_000
    drawn = PoissonSampler(prob).draw(stream(f"joint {prob}"), 4, 2 * n)
    assert p_table(coins(drawn, 4).reshape(n, 8), prob) > P_GOOD


def test_poisson_joint_law_over_calls() -> None:
    source, sampler = stream("calls"), PoissonSampler(0.3)
    tables = [coins(sampler.draw(source, 3, 2), 3).ravel() for _ in range(8_000)]
    assert p_table(np.array(tables), 0.3) > P_GOOD


def planted_sampler(bug: str) -> Callable[[KeyStream, float, int, int], np.ndarray]:
    """Plausible wrong implementations, as tables."""

    def draw(source: KeyStream, prob: float, num_records: int, n_steps: int) -> np.ndarray:
        n = num_records * n_steps
        if bug == "fixed size":
            size = round(prob * num_records)
            order = np.argsort(words_to_uniforms(source.words(n)).reshape(n_steps, num_records), axis=1)
            return (order < size).astype(np.int64)
        log_fail = -prob if bug == "log(1 - q) taken as -q" else math.log1p(-prob)
        gap = np.log(words_to_uniforms(source.words(int(1.5 * n * prob) + 100))) / log_fail
        gap = np.round(gap) if bug == "rounded" else np.floor(gap)
        gap = gap.astype(np.int64) + (2 if bug == "never neighbours" else 1)
        at = np.cumsum(gap) - 1
        if bug == "starts at one":
            at += 1
        at = at[(at >= 0) & (at < n)]
        flat = np.zeros(n, dtype=np.int64)
        flat[at] = 1
        table = flat.reshape(n_steps, num_records)
        if bug == "steps repeat":
            table[1::2] = table[::2]
        return table

    return draw


@pytest.mark.parametrize(
    "bug",
    [
        "none",
        "fixed size",
        "rounded",
        "log(1 - q) taken as -q",
        "never neighbours",
        "steps repeat",
    ],
)
def test_joint_test_has_power(bug: str) -> None:
    n = 100_000
    table = planted_sampler(bug)(stream(bug), 0.25, 4, 2 * n).reshape(n, 8)
    if bug == "none":
        assert p_table(table, 0.25) > P_GOOD
    else:
        assert p_table(table, 0.25) < P_BAD


def test_first_trial_of_a_call_with_power() -> None:
    # Every call starts afresh at record 0: many short calls show what happens there.
    source = stream("first")
    table = np.array([coins(PoissonSampler(0.3).draw(source, 2, 1), 2)[0] for _ in range(6_000)])
    assert p_table(table, 0.3) > P_GOOD
    planted = planted_sampler("starts at one")
    table = np.array([planted(source, 0.3, 2, 1)[0] for _ in range(2_000)])
    assert p_table(table, 0.3) < P_BAD


# ---------------------------------------------------------------- Poisson: larger data


@pytest.fixture(scope="module")
def large() -> tuple[np.ndarray, int, int, float]:
    num_records, n_steps, prob = 400, 10_000, 0.02
    drawn = PoissonSampler(prob).draw(stream("large"), num_records, n_steps)
    check_layout(drawn, num_records, n_steps)
    assert all(np.all(np.diff(drawn[0][drawn[1][t] : drawn[1][t + 1]]) > 0) for t in range(0, n_steps, 97))
    return coins(drawn, num_records), num_records, n_steps, prob


def test_batch_sizes_are_binomial_with_power(large: tuple) -> None:
    table, num_records, n_steps, prob = large
    law = n_steps * stats.binom(num_records, prob).pmf(np.arange(num_records + 1))
    sizes = np.bincount(table.sum(axis=1), minlength=num_records + 1)
    assert p_chi2(sizes, law) > P_GOOD
    rng = np.random.default_rng(2)
    fixed = np.bincount(np.full(n_steps, 8), minlength=num_records + 1)
    rate = np.bincount(rng.binomial(num_records, 1.05 * prob, n_steps), minlength=num_records + 1)
    assert p_chi2(fixed, law) < P_BAD and p_chi2(rate, law) < P_BAD


def test_every_record_takes_part_equally_often_with_power(large: tuple) -> None:
    table, num_records, n_steps, prob = large

    def z_of(table: np.ndarray) -> np.ndarray:
        return (table.sum(axis=0) - n_steps * prob) / math.sqrt(n_steps * prob * (1 - prob))

    z = z_of(table)
    assert P_GOOD < stats.chi2(num_records).cdf(float(z @ z)) < 1 - P_GOOD
    assert np.abs(z).max() < 4.5
    assert abs(z.sum()) / math.sqrt(num_records) < 3.3
    missed = table.copy()
    missed[:, -1] = 0  # planted: the last record is never drawn
    assert np.abs(z_of(missed)).max() > 10
    thinned = table.copy()
    thinned[::20] = 0  # planted: a twentieth of the steps is empty
    assert abs(z_of(thinned).sum()) / math.sqrt(num_records) > 10


def test_pairs_of_coins_are_independent_with_power(large: tuple) -> None:
    table, num_records, n_steps, prob = large
    n_trials = num_records * n_steps
    flat = table.ravel()

    def z_of(count: int, n_pairs: int) -> float:
        return (count - n_pairs * prob**2) / math.sqrt(n_pairs * prob**2 * (1 - prob**2))

    # Within a step and over its end, and the same or the next record in the next steps.
    for lag in [1, 2, 3, 50, 399, 400, 401, 800, 4000]:
        assert abs(z_of(int(flat[lag:] @ flat[:-lag]), n_trials - lag)) < 4, lag
    # From the last record of a step to the first of the next.
    assert abs(z_of(int(table[:-1, -1] @ table[1:, 0]), n_steps - 1)) < 4
    # Planted: a record that took part rests in the next step.
    tired = table.copy()
    tired[1:] &= 1 - tired[:-1]
    assert z_of(int(np.sum(tired[1:] * tired[:-1])), n_trials - num_records) < -30


@pytest.mark.parametrize("prob", [0.005, 0.2])
def test_gaps_are_geometric_beyond_a_block_with_power(prob: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # Shorter blocks make the rare case, a gap longer than one block, common.
    monkeypatch.setattr(subsets, "_BLOCK_LOG", 0.7)
    block = max(1, int(0.7 / -math.log1p(-prob)))
    at = subsets.bernoulli_successes(stream(f"gaps {prob}"), prob, int(100_000 / prob))
    gaps = np.diff(at) - 1
    top = 6 * block
    law = len(gaps) * stats.geom(prob, loc=-1).pmf(np.arange(top))

    def p_gaps(values: np.ndarray) -> float:
        cells = np.bincount(np.minimum(values, top), minlength=top + 1)
        return p_chi2(cells, np.append(law, len(gaps) - law.sum()))

    assert p_gaps(gaps) > P_GOOD
    assert p_gaps(np.minimum(gaps, block)) < P_BAD  # planted: a block's end counts as a success
    assert p_gaps(gaps + (gaps >= block)) < P_BAD  # planted: a block is one trial too long


def test_real_blocks_end_now_and_then() -> None:
    # exp(-8) of the gaps pass a block of the length that is used.
    prob = 0.05
    at = subsets.bernoulli_successes(stream("blocks"), prob, 20_000_000)
    gaps = np.diff(at) - 1
    block = int(8.0 / -math.log1p(-prob))
    long = gaps[gaps >= block]
    tail = (1 - prob) ** block
    assert stats.binomtest(len(long), len(gaps), tail).pvalue > P_GOOD
    z = (np.mean(long - block) - (1 - prob) / prob) / math.sqrt((1 - prob) / prob**2 / len(long))
    assert abs(z) < 3.5


# ---------------------------------------------------------------- Poisson: no rounding


class Told:
    """A stream that gives the words it was told, and then 2^63."""

    def __init__(self, *words: int) -> None:
        self.left = [*words, 2**63]

    def words(self, n: int) -> np.ndarray:
        given, self.left = self.left[:n], self.left[n:]
        assert len(given) == n, "more words were drawn than are needed"
        return np.array(given, dtype=np.uint64)


PROBS = [2.0**-30, 1e-6, 0.005, 0.1, 0.5, 0.97, 0.9996, 1 - 2.0**-16]


def thresholds(prob: float) -> list[tuple[int, int]]:
    """Some numbers of failures k in a block, and the first 192 bits of (1 - prob)^k."""
    block = max(1, int(subsets._BLOCK_LOG / -math.log1p(-prob)))
    ks = {1, block, *np.random.default_rng(3).integers(1, block + 1, 12).tolist()}
    with localcontext() as context:
        context.prec = 120
        return [(k, int((1 - Decimal(prob)) ** k * 2**192)) for k in sorted(ks)]


def gap(prob: float, *words: int) -> int:
    """The gap that words make, all of which must be needed."""
    block = max(1, int(subsets._BLOCK_LOG / -math.log1p(-prob)))
    told = Told(*words)
    (found,) = subsets._gaps(told, prob, block, 1)
    assert len(told.left) <= 1, "the words were not all needed"
    return int(found)


@pytest.mark.parametrize("prob", PROBS)
def test_gaps_change_at_the_exact_threshold(prob: float) -> None:
    mask = 2**64 - 1
    for k, bits in thresholds(prob):
        first, second = bits >> 128, (bits >> 64) & mask
        assert gap(prob, first - 1) >= k > gap(prob, first + 1)
        # The word at which it changes says nothing before the next one, and so on.
        if second:
            assert gap(prob, first, second - 1) >= k > gap(prob, first, second + 1)
        if bits & mask:  # the power is not at its end
            assert gap(prob, first, second, 0) >= k > gap(prob, first, second, mask)


def test_float64_alone_would_miss_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subsets, "_UNDECIDED", 0.0)
    wrong = 0
    for prob in PROBS:
        for k, bits in thresholds(prob):
            first = bits >> 128
            wrong += not (gap(prob, first - 1) >= k > gap(prob, first + 1))
    assert wrong > 30


@pytest.mark.parametrize("prob", [1e-6, 0.005, 0.3, 0.97])
def test_decimal_and_float_agree(prob: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draw of some thousands decided the slow way is the one that float64 decides."""
    block = max(1, int(subsets._BLOCK_LOG / -math.log1p(-prob)))
    fast = subsets._gaps(stream("both ways"), prob, block, 3000)
    monkeypatch.setattr(subsets, "_UNDECIDED", math.inf)
    slow = subsets._gaps(stream("both ways"), prob, block, 3000)
    np.testing.assert_array_equal(np.minimum(fast, block), np.minimum(slow, block))


def test_the_largest_word_is_a_gap_of_none() -> None:
    assert all(gap(prob, 2**64 - 1) == 0 for prob in PROBS)


def test_inclusion_is_fine_enough_for_the_smallest_probability() -> None:
    at = subsets.bernoulli_successes(stream("smallest"), 2.0**-30, 2**45)
    assert abs(len(at) - 2**15) < 4 * 2**7.5
    assert stats.kstest(np.diff(at) * 2.0**-30, "expon").pvalue > P_GOOD


# ---------------------------------------------------------------- Poisson: form


@given(
    num_records=st.integers(1, 300),
    n_steps=st.integers(0, 40),
    prob=st.floats(1e-6, 1.0 - 1e-4) | st.just(1.0),
    seed=st.integers(0, 10_000),
)
def test_poisson_layout(num_records: int, n_steps: int, prob: float, seed: int) -> None:
    drawn = PoissonSampler(prob).draw(stream("layout", seed), num_records, n_steps)
    check_layout(drawn, num_records, n_steps)
    if prob == 1.0:
        assert np.array_equal(drawn[0], np.tile(np.arange(num_records), n_steps))


def test_empty_batches_are_normal() -> None:
    indices, offsets = PoissonSampler(0.01).draw(stream("empty"), 20, 2_000)
    share = np.mean(np.diff(offsets) == 0)
    assert abs(share - 0.99**20) < 0.04
    indices, offsets = PoissonSampler(1e-6).draw(stream("empty"), 20, 5)
    assert len(indices) == 0 and offsets.tolist() == [0] * 6


def test_poisson_cost_is_that_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = 0
    words = KeyStream.words

    def count(self: KeyStream, n: int) -> np.ndarray:
        nonlocal drawn
        drawn += n
        return words(self, n)

    monkeypatch.setattr(KeyStream, "words", count)
    indices, _ = PoissonSampler(1e-7).draw(stream("cost"), 10**9, 100)
    assert abs(len(indices) - 10_000) < 500 and drawn < 12_000


# ---------------------------------------------------------------- fixed size


def subset_codes(batches: Batches, num_records: int) -> np.ndarray:
    return coins(batches, num_records) @ (1 << np.arange(num_records))


@pytest.mark.parametrize(
    ("size", "num_records"), [(1, 2), (2, 5), (3, 5), (3, 6), (4, 6), (1, 7), (6, 7), (5, 11)]
)
def test_fixed_size_subsets_are_uniform(size: int, num_records: int) -> None:
    n = 20_000
    label = f"{size} of {num_records}"
    drawn = FixedSizeSampler(size, num_records).draw(stream(label), num_records, n)
    assert np.all(coins(drawn, num_records).sum(axis=1) == size) and len(drawn[0]) == n * size
    counts = np.bincount(subset_codes(drawn, num_records), minlength=2**num_records)
    hit = counts[counts > 0]
    assert len(hit) == math.comb(num_records, size)
    assert p_chi2(hit, np.full(len(hit), n / len(hit))) > P_GOOD


def test_fixed_size_steps_are_independent() -> None:
    n = 40_000
    codes = subset_codes(FixedSizeSampler(2, 5).draw(stream("steps"), 5, n), 5)
    cells = np.unique(codes, return_inverse=True)[1]
    pairs = np.bincount(10 * cells[:-1:2] + cells[1::2], minlength=100)
    assert p_chi2(pairs, np.full(100, n / 200)) > P_GOOD


@pytest.mark.parametrize("bug", ["none", "smallest", "with replacement", "next free"])
def test_subset_test_has_power(bug: str) -> None:
    source, n = stream(bug), 10_000
    draws = source.integers(6, 12 * n).reshape(n, 12)
    tables = np.zeros((n, 6), dtype=np.int64)
    for table, row in zip(tables, draws, strict=True):
        if bug == "none":
            batch = list(dict.fromkeys(row.tolist()))[:3]
        elif bug == "smallest":
            batch = np.unique(row[:5])[:3].tolist()  # np.unique sorts: low numbers are preferred
        elif bug == "with replacement":
            batch = row[:3].tolist()
        else:
            batch = []
            for k in row[:3].tolist():
                while k in batch:
                    k = (k + 1) % 6
                batch.append(k)
        table[batch] = 1
    counts = np.bincount(tables @ (1 << np.arange(6)), minlength=64)
    threes = np.array([bin(code).count("1") == 3 for code in range(64)])
    p = p_chi2(counts[threes], np.full(20, n / 20)) if not counts[~threes].any() else 0.0
    assert (p > P_GOOD) if bug == "none" else (p < P_BAD)


@pytest.mark.parametrize(
    "sampler", [PoissonSampler(2.0**-30), FixedSizeSampler(900, 2**40), FixedSizeSampler(100, 10**8)]
)
def test_batches_of_more_records_than_memory_holds(sampler: Sampler) -> None:
    num_records = 10**8 if sampler == FixedSizeSampler(100, 10**8) else 2**40
    indices, offsets = sampler.draw(stream("many records"), num_records, 50)
    assert indices.dtype == np.int64 and 0 <= indices.min() and indices.max() < num_records
    size = sampler.sampling_prob * num_records * 50
    assert abs(len(indices) - size) <= 5 * math.sqrt(size)
    assert all(len(set(indices[a:b])) == b - a for a, b in itertools.pairwise(offsets.tolist()))
    assert stats.kstest(indices / num_records, "uniform").pvalue > P_GOOD


def test_first_distinct_is_the_slow_way_even_when_draws_run_short(monkeypatch: pytest.MonkeyPatch) -> None:
    source = stream("short")
    monkeypatch.setattr(subsets, "_LARGEST_TABLE", 500)  # the last population has no table
    for population, size, n_draws in [(50, 20, 5), (50, 20, 20), (9, 4, 1), (1000, 30, 40)]:
        found = subsets._Subsets(source, population, size)
        for _ in range(30):
            draws = source.integers(population, n_draws)
            got = found.first_distinct(draws).tolist()
            assert len(got) == len(set(got)) == size
            slow = list(dict.fromkeys(draws.tolist()))[:size]
            assert got[: len(slow)] == slow


@given(data=st.data(), num_records=st.integers(1, 200), n_steps=st.integers(0, 20))
def test_fixed_size_layout(data: st.DataObject, num_records: int, n_steps: int) -> None:
    size = data.draw(st.integers(1, num_records))
    sampler = FixedSizeSampler(size, num_records)
    indices, offsets = sampler.draw(stream("layout"), num_records, n_steps)
    check_layout((indices, offsets), num_records, n_steps)
    assert np.all(np.diff(offsets) == size)
    assert sampler.sampling_prob == size / num_records


@pytest.mark.parametrize("size", [200, 4_900])
def test_fixed_size_inclusion_of_many_records(size: int) -> None:
    num_records, n_steps = 5_000, 300
    drawn = FixedSizeSampler(size, num_records).draw(stream("many"), num_records, n_steps)
    check_layout(drawn, num_records, n_steps)
    q = size / num_records
    z = coins(drawn, num_records).sum(axis=0) - n_steps * q
    z = z / math.sqrt(n_steps * q * (1 - q) * num_records / (num_records - 1))
    assert P_GOOD < stats.chi2(num_records - 1).cdf(float(z @ z)) < 1 - P_GOOD


def test_fixed_size_refuses_other_data() -> None:
    with pytest.raises(ArgumentError, match="num_records differs") as caught:
        FixedSizeSampler(3, 10).draw(stream(), 7919, 2)
    assert "7919" not in str(caught.value)


# ---------------------------------------------------------------- full batch, events, protocol


def test_full_batch() -> None:
    indices, offsets = FullBatchSampler().draw(stream(), 4, 3)
    assert indices.tolist() == [0, 1, 2, 3] * 3 and offsets.tolist() == [0, 4, 8, 12]
    check_layout((indices, offsets), 4, 3)
    check_layout(FullBatchSampler().draw(stream(), 4, 0), 4, 0)


def test_events() -> None:
    event = PoissonSampler(0.125).dp_event(NOISE)
    assert event == dp_accounting.PoissonSampledDpEvent(0.125, NOISE)
    event = FixedSizeSampler(5, 40).dp_event(NOISE)
    assert event == dp_accounting.SampledWithoutReplacementDpEvent(40, 5, NOISE)
    assert event.source_dataset_size == 40 and event.sample_size == 5
    for everything in (PoissonSampler(1), FixedSizeSampler(40, 40), FullBatchSampler()):
        assert everything.dp_event(NOISE) is NOISE
        assert everything.sampling_prob == 1.0


@pytest.mark.parametrize(
    ("sampler", "name", "prob"),
    [
        (PoissonSampler(0.25), "poisson", 0.25),
        (FixedSizeSampler(5, 20), "fixed_size", 0.25),
        (FullBatchSampler(), "full_batch", 1.0),
    ],
)
def test_samplers_are_frozen_values(sampler: Sampler, name: str, prob: float) -> None:
    assert isinstance(sampler, Sampler)
    assert (sampler.name, sampler.sampling_prob) == (name, prob)
    assert hash(sampler) == hash(dataclasses.replace(sampler))  # type: ignore[type-var]
    assert name in SAMPLER_NAMES
    for field in ("sampling_prob", "name", "batch_size"):
        with pytest.raises(AttributeError):
            setattr(sampler, field, 0.5)


# ---------------------------------------------------------------- make_sampler, errors


def test_make_sampler() -> None:
    assert make_sampler("poisson", sampling_prob=0.01) == PoissonSampler(0.01)
    assert make_sampler("poisson", batch_size=50, num_records=200) == PoissonSampler(0.25)
    assert make_sampler("poisson", batch_size=200, num_records=200) == PoissonSampler(1.0)
    assert make_sampler("poisson", sampling_prob=1, num_records=9).sampling_prob == 1.0
    assert make_sampler("poisson", sampling_prob=np.float32(0.5)) == PoissonSampler(0.5)
    assert make_sampler("fixed_size", batch_size=5, num_records=9) == FixedSizeSampler(5, 9)
    assert make_sampler("fixed_size", batch_size=np.int64(5), num_records=9).sampling_prob == 5 / 9
    assert make_sampler("fixed_size", sampling_prob=0.1, num_records=57) == FixedSizeSampler(6, 57)
    assert make_sampler("fixed_size", sampling_prob=1e-4, num_records=9) == FixedSizeSampler(1, 9)
    for extra in ({}, {"sampling_prob": 1}, {"batch_size": 9}):
        assert make_sampler("full_batch", num_records=9, **extra) == FullBatchSampler()
    assert make_sampler("full_batch") == FullBatchSampler()


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Poisson", {"sampling_prob": 0.1}, "'poisson', 'fixed_size', 'full_batch'.*'Poisson'"),
        (None, {"sampling_prob": 0.1}, "sampler must be one of.*NoneType"),
        (["poisson"], {"sampling_prob": 0.1}, "sampler must be one of.*list"),
        ("poisson", {}, "needs sampling_prob .* or batch_size"),
        ("fixed_size", {"num_records": 9}, "needs sampling_prob .* or batch_size"),
        ("poisson", {"sampling_prob": 0.1, "batch_size": 2, "num_records": 9}, "twice"),
        ("poisson", {"batch_size": 2}, "batch_size needs num_records"),
        ("fixed_size", {"batch_size": 2}, "batch_size needs num_records"),
        ("fixed_size", {"sampling_prob": 0.2}, "'fixed_size' needs num_records"),
        ("full_batch", {"sampling_prob": 0.2}, "takes all records"),
        ("full_batch", {"batch_size": 2, "num_records": 9}, "takes all records"),
        ("poisson", {"batch_size": 7920, "num_records": 7919}, "batch_size is larger"),
        ("fixed_size", {"batch_size": 7920, "num_records": 7919}, "batch_size is larger"),
        *[
            ("poisson", {"sampling_prob": q}, r"sampling_prob must be a finite number in \(0, 1\]")
            for q in (0, 0.0, -0.1, 1.0000001, 2, NAN, INF, -INF)
        ],
        *[
            ("poisson", {"sampling_prob": q}, "sampling_prob must be a finite number")
            for q in (True, np.True_, "0.1", b"1", 1j, [0.1], np.array([0.1]))
        ],
        ("poisson", {"sampling_prob": 1e-12}, "at least 9.3e-10"),
        ("poisson", {"sampling_prob": 1 - 1e-9}, "use sampling_prob=1"),
        *[
            ("fixed_size", {"batch_size": b, "num_records": 9}, "batch_size must be an integer")
            for b in (True, 2.0, "2", NAN, [2])
        ],
        *[
            ("fixed_size", {"batch_size": 2, "num_records": n}, "num_records must be an integer")
            for n in (True, 9.0, "9", NAN)
        ],
        (
            "poisson",
            {"batch_size": 0, "num_records": 9},
            "batch_size must be an integer of at least 1; found 0",
        ),
        ("poisson", {"batch_size": -2, "num_records": 9}, "batch_size must be an integer of at least 1"),
        ("poisson", {"batch_size": 1, "num_records": 0}, "num_records must be an integer of at least 1"),
    ],
)
def test_make_sampler_refuses(name: str, arguments: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        make_sampler(name, **arguments)
    assert "7919" not in str(caught.value)  # the number of records may be private


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoissonSampler(0.0),
        lambda: PoissonSampler(NAN),
        lambda: PoissonSampler(True),
        lambda: FixedSizeSampler(10, 9),
        lambda: FixedSizeSampler(0, 9),
        lambda: FixedSizeSampler(2.0, 9),  # type: ignore[arg-type]
    ],
)
def test_classes_check_their_fields_themselves(make: Callable[[], Sampler]) -> None:
    with pytest.raises(ArgumentError):
        make()


@pytest.mark.parametrize("sampler", [PoissonSampler(0.5), FixedSizeSampler(2, 9)])
@pytest.mark.parametrize(
    ("num_records", "n_steps"), [(0, 1), (9, -1), (9.0, 1), (9, True), (9, 2**60), (None, 1)]
)
def test_draw_checks_its_sizes(sampler: Sampler, num_records: int, n_steps: int) -> None:
    with pytest.raises(ArgumentError, match=r"num_records|n_steps"):
        sampler.draw(stream(), num_records, n_steps)


def test_a_name_without_a_branch_runs_as_no_other_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever adds a name and forgets a place gets an error, and no fixed-size fit under that name."""
    names = (*sampling.SAMPLER_NAMES, "shuffled")
    monkeypatch.setattr(sampling, "SAMPLER_NAMES", names)
    monkeypatch.setattr(evaluation, "SAMPLER_NAMES", names)
    with pytest.raises(NotImplementedError, match="shuffled"):
        sampling.make_sampler("shuffled", sampling_prob=0.1, batch_size=None, num_records=100)
    for by_rate in (False, True):
        with pytest.raises(NotImplementedError, match="shuffled"):
            evaluation.check_sampler("shuffled", 0.1, by_rate=by_rate)
