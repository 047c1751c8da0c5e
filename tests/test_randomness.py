from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import pymc_dpvi.randomness as randomness
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.randomness import KeyStream

# Seeds are fixed, so that these tests cannot fail by chance: right code must reach P_GOOD, and a
# planted bug must fall below P_BAD.
P_GOOD = 1e-3
P_BAD = 1e-9


def stream(label: str = "test", seed: int = 20250101) -> KeyStream:
    return KeyStream.from_insecure_seed(seed, label)


def p_uniform(u: np.ndarray) -> float:
    return float(stats.kstest(u, "uniform").pvalue)


def p_normal(z: np.ndarray) -> float:
    """Smaller (Bonferroni) of a KS test and a chi-squared test of the second moment."""
    z = z.ravel()
    n = z.size
    p_shape = stats.kstest(z, "norm").pvalue
    tail = stats.chi2(n).cdf(float(np.sum(z**2)))
    return float(min(1.0, 2 * min(p_shape, 2 * min(tail, 1 - tail))))


def p_counts(values: np.ndarray, cells: int) -> float:
    return float(stats.chisquare(np.bincount(values, minlength=cells)).pvalue)


# ---------------------------------------------------------------- the cipher


def test_keystream_is_nist_ctr_aes256() -> None:
    # NIST SP 800-38A (2001), F.5.5: CTR-AES256.Encrypt.
    key = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"
    plain = (
        "6bc1bee22e409f96e93d7e117393172a" + "ae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52ef" + "f69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = (
        "601ec313775789a5b7a7f504bbf3d228" + "f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988d" + "dfc9c58db67aada613c2dd08457941a6"
    )
    counter = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    tested = KeyStream._from_key(bytes.fromhex(key), bytes.fromhex(counter))
    keystream = tested.words(8).astype("<u8").tobytes()
    crypted = bytes(a ^ b for a, b in zip(keystream, bytes.fromhex(plain), strict=True))
    assert crypted.hex() == cipher
    assert not tested.secure


def test_words_do_not_depend_on_how_they_are_asked_for() -> None:
    whole = stream().words(30_000)
    assert whole.dtype == np.uint64
    for sizes in ([1] * 50, [3, 0, 8191, 8192, 8193], [20_000, 9_999, 1]):
        other = stream()
        parts = np.concatenate([other.words(size) for size in sizes])
        np.testing.assert_array_equal(parts, whole[: len(parts)])
    assert len(np.unique(whole)) == len(whole)


def test_words_returned_earlier_are_not_overwritten() -> None:
    tested = stream()
    first = tested.words(100)
    kept = first.copy()
    tested.words(100)
    np.testing.assert_array_equal(first, kept)


def test_every_bit_of_a_word_is_fair() -> None:
    words = stream("bits").words(100_000)
    ones = [int(np.sum((words >> np.uint64(bit)) & np.uint64(1))) for bit in range(64)]
    z = (np.array(ones) - 50_000) / np.sqrt(25_000)
    assert np.abs(z).max() < 4.0


# ---------------------------------------------------------------- keys


def test_os_streams_are_secure_and_all_different() -> None:
    streams = [KeyStream.from_os() for _ in range(20)]
    assert all(s.secure for s in streams)
    assert len({s.words(2).tobytes() for s in streams}) == 20


def test_os_key_is_32_bytes_from_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def token_bytes(n: int) -> bytes:
        asked.append(n)
        return bytes(range(n))

    monkeypatch.setattr(randomness.secrets, "token_bytes", token_bytes)
    drawn = KeyStream.from_os().words(4)
    assert asked == [32]
    known = KeyStream._from_key(bytes(range(32)), bytes(16))
    np.testing.assert_array_equal(drawn, known.words(4))


def test_insecure_seed_reproduces_and_separates() -> None:
    assert not stream().secure
    np.testing.assert_array_equal(stream("a", 7).words(5), stream("a", np.int64(7)).words(5))
    pairs = [("a", 7), ("b", 7), ("a", 8), ("a", -7), ("a7", 7), ("", 0), ("a", 77), ("a", 2**80)]
    assert len({stream(*pair).words(2).tobytes() for pair in pairs}) == len(pairs)


def test_insecure_streams_are_the_same_for_ever() -> None:
    # A change of these numbers would silently change every published, seeded run.
    words = KeyStream.from_insecure_seed(0, "noise").words(2)
    assert [hex(word) for word in words.tolist()] == GOLDEN_WORDS


GOLDEN_WORDS = ["0x6f8c5b682b4a927a", "0x1e61f510304613b9"]


@pytest.mark.parametrize("seed", [True, 1.0, "1", None, b"1", np.array([1, 2])])
def test_insecure_seed_refuses_other_types(seed: object) -> None:
    with pytest.raises(ArgumentError, match="seed must be an integer"):
        KeyStream.from_insecure_seed(seed, "noise")  # type: ignore[arg-type]


def test_insecure_seed_refuses_other_labels() -> None:
    with pytest.raises(ArgumentError, match="label must be a string"):
        KeyStream.from_insecure_seed(1, 2)  # type: ignore[arg-type]


def test_direct_construction_says_what_to_do() -> None:
    with pytest.raises(TypeError, match="from_os"):
        KeyStream()


# ---------------------------------------------------------------- copies, processes, threads


def test_repr_shows_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repr(KeyStream.from_os()) == "KeyStream(secure=True)"
    assert str(stream()) == "KeyStream(secure=False)"
    monkeypatch.setattr(randomness.secrets, "token_bytes", lambda n: b"K" * n)
    tested = KeyStream.from_os()
    assert not hasattr(tested, "__dict__")
    held = [repr(getattr(tested, name)) for name in KeyStream.__slots__ if name[0:2] != "__"]
    assert not any("KKK" in text or "4b4b" in text for text in held)


@pytest.mark.parametrize("make", [KeyStream.from_os, stream], ids=["secure", "insecure"])
def test_copies_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    tested = make()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied.*from_os"):
            pickle.dumps(tested, protocol)
    for duplicate in (copy.copy, copy.deepcopy, lambda s: copy.deepcopy({"in": [s]})):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            duplicate(tested)
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        tested.__reduce__()


FORK = """
import os, signal, threading
from pymc_dpvi.randomness import KeyStream

def in_child(draw):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a deadlock must not hang the tests
        os.write(w, draw().encode())
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as pipe:
        text = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"
    return text

# PRELUDE
secure = KeyStream.from_os()
seeded = KeyStream.from_insecure_seed(1, "fork")
secure.words(3); seeded.words(3)
hexes = lambda stream: stream.words(4).tobytes().hex()
child = in_child(lambda: hexes(secure))
other = in_child(lambda: hexes(secure))
grandchild = in_child(lambda: in_child(lambda: hexes(secure)))
assert len({child, other, grandchild, hexes(secure)}) == 4, "two processes drew the same words"
assert in_child(lambda: hexes(seeded)) == hexes(seeded), "a seeded stream did not go on"

# LOCKED
for stream in (secure, seeded):
    taken, done = threading.Event(), threading.Event()
    def hold():
        with stream._lock:
            taken.set(); done.wait()
    thread = threading.Thread(target=hold); thread.start(); taken.wait()
    assert len(in_child(lambda: hexes(stream))) == 64
    done.set(); thread.join()
print("passed")
"""


def run_fork_script(script: str) -> subprocess.CompletedProcess[str]:
    # In a process of its own: forking one that has threads (BLAS has) warns since Python 3.12.
    # The package's own __init__ would import PyMC, for seconds; a bare one stands in for it.
    preamble = f"""
    import sys, types, warnings
    warnings.simplefilter("ignore")
    package = sys.modules["pymc_dpvi"] = types.ModuleType("pymc_dpvi")
    package.__path__ = [{str(Path(randomness.__file__).parent)!r}]
    class Forgetful(list):
        def add(self, item): pass
    """
    env = dict(os.environ, OPENBLAS_NUM_THREADS="1")
    code = textwrap.dedent(preamble) + script
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_fork_rekeys_and_does_not_deadlock() -> None:
    done = run_fork_script(FORK)
    assert done.returncode == 0 and "passed" in done.stdout, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_process_id_alone_rekeys() -> None:
    # As after a fork made in C, of which Python's hooks do not hear.
    script = FORK.replace("# PRELUDE", "from pymc_dpvi import randomness; randomness._STREAMS = Forgetful()")
    done = run_fork_script(script[: script.index("# LOCKED")] + "print('passed')")
    assert done.returncode == 0 and "passed" in done.stdout, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_fork_test_has_power() -> None:
    prelude = """
    from pymc_dpvi import randomness
    randomness._STREAMS = Forgetful()
    randomness.os.getpid = lambda: 1
    """
    done = run_fork_script(FORK.replace("# PRELUDE", textwrap.dedent(prelude)))
    assert "two processes drew the same words" in done.stderr


def test_threads_share_a_stream_without_repetition() -> None:
    tested = stream("threads")
    results: list[np.ndarray] = []

    def work() -> None:
        for _ in range(50):
            results.append(tested.words(3_000))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drawn = np.sort(np.concatenate(results))
    np.testing.assert_array_equal(drawn, np.sort(stream("threads").words(600_000)))


# ---------------------------------------------------------------- uniforms


def test_uniforms_stay_inside_and_are_rounded_right() -> None:
    top = 2**64 - 1
    words = [
        0,
        1,
        2,
        1023,
        2**52 + 1,
        2**53 + 1,
        2**63,
        top - 4096,
        top - 1024,
        top - 1023,
        top - 1,
        top,
    ]
    u = randomness._to_uniform(np.array(words, dtype=np.uint64))
    assert u.dtype == np.float64
    assert u.min() == 2.0**-65 and u.max() == 1 - 2.0**-53
    # `(2 w + 1) / 2^65` is rounded once by Python.
    exact = np.array([(2 * word + 1) / 2**65 for word in words])
    np.testing.assert_allclose(u, exact, rtol=2.0**-52, atol=0)
    assert np.all(np.diff(u) >= 0)
    # The cap moves only the 1024 words that would have become 1; the next is there by itself.
    assert float(top - 1024) == (1 - 2.0**-53) * 2.0**64 and float(top - 1023) == 2.0**64
    assert np.sum(u == u.max()) == 4


def test_uniforms_are_uniform_with_power() -> None:
    u = stream("uniforms").uniforms(200_000)
    assert u.shape == (200_000,)
    assert p_uniform(u) > P_GOOD
    assert p_uniform(u**1.03) < P_BAD  # planted
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(u.size)


# ---------------------------------------------------------------- normals


@pytest.mark.parametrize(
    "shape", [0, 1, 7, (), (0, 4), (3,), (5, 3), (2, 3, 4), (8191,), (8193,), np.int64(4)]
)
def test_normal_shapes(shape: object) -> None:
    z = stream().standard_normal(shape)  # type: ignore[arg-type]
    assert isinstance(z, np.ndarray) and z.dtype == np.float64
    assert z.shape == np.zeros(shape).shape  # type: ignore[arg-type]
    assert np.all(np.isfinite(z)) and len(np.unique(z)) == z.size


def test_normals_are_normal_with_power() -> None:
    z = stream("normals").standard_normal(300_001)
    assert p_normal(z) > P_GOOD
    assert p_normal(1.015 * z) < P_BAD  # planted: 1.5 per cent too wide
    assert p_normal(z + 0.02) < P_BAD  # planted: shifted by two hundredths
    rng = np.random.default_rng(1)
    assert p_normal(rng.standard_t(60, 300_000)) < P_BAD  # planted: heavier tails


def test_normals_of_one_pair_and_of_neighbours_are_independent() -> None:
    piece = randomness._PIECE
    z = stream("pairs").standard_normal((60, piece))
    first, second = z[:, : piece // 2].ravel(), z[:, piece // 2 :].ravel()  # same radius

    def p_pair(a: np.ndarray, b: np.ndarray) -> float:
        cells = 16 * (16 * stats.norm.cdf(a)).astype(int) + (16 * stats.norm.cdf(b)).astype(int)
        return p_counts(cells, 256)

    assert p_pair(first, second) > P_GOOD
    assert p_pair(z.ravel()[:-1], z.ravel()[1:]) > P_GOOD
    assert p_pair(first, -first) < P_BAD
    sign = np.where(stream("signs").uniforms(first.size) < 0.5, -1.0, 1.0)
    assert p_pair(first, sign * first) < P_BAD  # planted: uncorrelated but dependent
    # Rows (steps) must not repeat each other.
    correlations = np.corrcoef(z)[np.triu_indices(60, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(piece)


def test_normal_tails() -> None:
    z = np.abs(stream("tails").standard_normal(4_000_000))
    for bound in (3.0, 4.0, 4.5):
        prob = 2 * stats.norm.sf(bound)
        assert stats.binomtest(int(np.sum(z > bound)), z.size, prob).pvalue > P_GOOD
    assert z.max() < 9.5


def test_normals_are_box_muller_of_the_uniforms() -> None:
    z = stream("oracle").standard_normal(10)
    u = stream("oracle").uniforms(10)
    radius, angle = np.sqrt(-2 * np.log(u[:5])), 2 * np.pi * (u[5:] - 0.5)
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    np.testing.assert_allclose(z, expected, rtol=1e-14)


def test_normals_survive_the_extreme_words(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = stream()
    for word in (0, 2**64 - 1):
        fixed = lambda self, n, word=word: np.full(n, word, dtype=np.uint64)  # noqa: E731
        monkeypatch.setattr(KeyStream, "words", fixed)
        z = tested.standard_normal(4)
        assert np.all(np.isfinite(z))
        assert np.hypot(z[0], z[2]) <= np.sqrt(130 * np.log(2)) * (1 + 1e-15)


@pytest.mark.parametrize("shape", [-1, 2.5, "3", None, True, (2, -1), (2, 1.0)])
def test_normals_refuse_bad_shapes(shape: object) -> None:
    with pytest.raises(ArgumentError, match="shape must"):
        stream().standard_normal(shape)  # type: ignore[arg-type]


# ---------------------------------------------------------------- integers


@pytest.mark.parametrize("high", [1, 2, 3, 7, 10, 64, 100])
def test_integers_are_uniform(high: int) -> None:
    k = stream(f"integers {high}").integers(high, 50_000)
    assert k.dtype == np.int64 and k.min() >= 0 and k.max() < high
    if high > 1:
        assert p_counts(k, high) > P_GOOD


def test_integers_reject_without_bias_with_power() -> None:
    # With high = 3 * 2^61 the plain remainder hits the lower two thirds three times in eight each.
    high = 3 * 2**61
    k = stream("rejection").integers(high, 30_000)
    assert k.max() < high
    assert p_counts(k // 2**61, 3) > P_GOOD
    biased = (stream("rejection").words(30_000) % np.uint64(high)).astype(np.int64)
    assert p_counts(biased // 2**61, 3) < P_BAD  # planted: no rejection


def test_integers_are_remainders_of_the_accepted_words() -> None:
    high = 2**63 - 1
    words = [int(word) for word in stream("r").words(8)]
    accepted = [word % high for word in words if word < 2**64 - 2**64 % high]
    np.testing.assert_array_equal(stream("r").integers(high, 8), accepted)
    np.testing.assert_array_equal(stream("r").integers(2**63, 8), [w % 2**63 for w in words])


def test_integers_reject_from_the_first_incomplete_word_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # 2^64 = 3 * (2^64 - 1) / 3 + 1: the very last word is one too many, and so is its first heir.
    supply = iter([[2**64 - 1, 2**64 - 2, 0], [2**64 - 1], [7]])
    monkeypatch.setattr(KeyStream, "words", lambda self, n: np.array(next(supply), dtype=np.uint64)[:n])
    assert stream().integers(3, 3).tolist() == [1, (2**64 - 2) % 3, 0]


@pytest.mark.parametrize("high", [0, -3, 2**63 + 1, 2.0, True, "9", None])
def test_integers_refuse_bad_limits(high: object) -> None:
    with pytest.raises(ArgumentError, match="high must"):
        stream().integers(high, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [-1, 1.0, True, "2", None])
def test_bad_counts_are_refused(n: object) -> None:
    for draw in (stream().words, stream().uniforms, lambda m: stream().integers(5, m)):
        with pytest.raises(ArgumentError, match="n must"):
            draw(n)  # type: ignore[operator]


def test_empty_draws() -> None:
    tested = stream()
    assert tested.words(0).shape == (0,) and tested.uniforms(0).shape == (0,)
    assert tested.integers(5, 0).shape == (0,)
