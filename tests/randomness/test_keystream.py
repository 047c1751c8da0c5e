from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading
import traceback
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

import pymc_dpvi.randomness.keystream as randomness
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.randomness.keystream import KeyStream, words_to_uniforms

# Seeds are fixed, so that these tests cannot fail by chance: right code must reach P_GOOD, and a
# planted bug must fall below P_BAD.
P_GOOD = 1e-3
P_BAD = 1e-9


def stream(label: str = "test", seed: int = 20250101) -> KeyStream:
    return KeyStream.from_insecure_seed(seed, label)


def p_uniform(u: np.ndarray) -> float:
    return float(stats.kstest(u, "uniform").pvalue)


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


def independent_keystream(key: bytes, n_bytes: int) -> bytes:
    """Counter mode written out: block j is the encryption of the number j (NIST SP 800-38A, section 6.5)."""
    encryptor = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    return b"".join(encryptor.update(j.to_bytes(16, "big")) for j in range(n_bytes // 16))


def test_keystream_is_counter_mode_over_many_pieces() -> None:
    key = bytes(range(7, 39))
    tested = KeyStream._from_key(key, bytes(16))
    n_words = 3 * 8192 + 10  # pieces of 64 KiB, and a rest
    assert tested.words(n_words).astype("<u8").tobytes() == independent_keystream(key, 8 * n_words)
    assert tested.words(2).tobytes() not in independent_keystream(key, 8 * n_words)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")
def test_keystream_is_that_of_the_openssl_command() -> None:
    key, counter = (
        bytes(range(32)),
        bytes.fromhex("00112233445566778899aabbffffffff"),
    )  # carries after one block
    command = ["openssl", "enc", "-aes-256-ctr", "-K", key.hex(), "-iv", counter.hex()]
    done = subprocess.run(command, input=bytes(1 << 17), capture_output=True, check=True)
    assert KeyStream._from_key(key, counter).words(1 << 14).astype("<u8").tobytes() == done.stdout


def test_streams_are_independent_with_power() -> None:
    words = [stream(label, seed).words(4000) for label in ("noise", "sampling") for seed in (1, 2, 3)]
    words += [KeyStream.from_os().words(4000) for _ in range(3)]
    bits = np.array([np.unpackbits(w.view(np.uint8)) for w in words]).astype(float) - 0.5
    bits = np.concatenate(
        [bits, bits[:1] * np.where(np.random.default_rng(0).random(bits.shape[1]) < 0.49, -1, 1)]
    )
    agreement = np.abs(4 * bits @ bits.T / bits.shape[1] - np.eye(len(bits))) * np.sqrt(bits.shape[1])
    assert agreement[:-1, :-1].max() < 5
    assert agreement[0, -1] > 5  # planted: two per cent of the bits shared
    assert len(np.unique(np.concatenate(words))) == 9 * 4000


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
    pairs = [("a", 7), ("b", 7), ("a", 8), ("a7", 7), ("", 0), ("a", 77), ("a", 2**80)]
    assert len({stream(*pair).words(2).tobytes() for pair in pairs}) == len(pairs)


def test_insecure_streams_are_the_same_for_ever() -> None:
    # A change of these numbers would silently change every published, seeded run.
    words = KeyStream.from_insecure_seed(0, "noise").words(2)
    assert [hex(word) for word in words.tolist()] == GOLDEN_WORDS


GOLDEN_WORDS = ["0x6f8c5b682b4a927a", "0x1e61f510304613b9"]


@pytest.mark.parametrize("seed", [True, 1.0, "1", None, b"1", -1, np.array([1, 2])])
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


def shows_key(item: object, key: bytes) -> bool:
    if isinstance(item, bytes | bytearray | memoryview) and key in bytes(item):
        return True
    text = item if isinstance(item, str) else repr(item)
    return key.hex() in text or repr(key)[2:-1] in text


def leads_to_key(start: object, key: bytes) -> bool:
    """Whether any object that `start` leads to shows the key; classes, modules and functions aside."""
    seen: set[int] = set()
    todo = [start]
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(item))
        if shows_key(item, key):
            return True
        todo.extend(gc.get_referents(item))
    return False


def test_no_key_is_reachable_or_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    key = bytes(range(100, 132))
    monkeypatch.setattr(randomness.secrets, "token_bytes", lambda n: key)
    with caplog.at_level(logging.DEBUG):
        tested = KeyStream.from_os()
        tested.words(1000)
        tested.integers(10, 5)
        with pytest.raises(ArgumentError) as raised:
            tested.words(-1)
    shown = caplog.text + "".join(capfd.readouterr()) + repr(raised.value)
    assert not shows_key(shown, key)
    assert not leads_to_key(tested, key)
    tested._secure = key  # type: ignore[assignment]  # planted: the stream keeps its key
    assert leads_to_key(tested, key)
    tested._secure = True
    tested._lock = {"deep": [bytearray(b"x" + key)]}  # type: ignore[assignment]
    assert leads_to_key(tested, key)


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
from pymc_dpvi.randomness.keystream import KeyStream

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
    package.__path__ = [{str(Path(randomness.__file__).parents[1])!r}]
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
    prelude = "from pymc_dpvi.randomness import keystream; keystream._STREAMS = Forgetful()"
    script = FORK.replace("# PRELUDE", prelude)
    done = run_fork_script(script[: script.index("# LOCKED")] + "print('passed')")
    assert done.returncode == 0 and "passed" in done.stdout, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_fork_test_has_power() -> None:
    prelude = """
    from pymc_dpvi.randomness import keystream

    keystream._STREAMS = Forgetful()
    keystream.os.getpid = lambda: 1
    """
    done = run_fork_script(FORK.replace("# PRELUDE", textwrap.dedent(prelude)))
    assert "two processes drew the same words" in done.stderr


WORKERS = """
def draw(_, path):
    import sys, types
    if "pymc_dpvi" not in sys.modules:
        package = sys.modules["pymc_dpvi"] = types.ModuleType("pymc_dpvi")
        package.__path__ = [path]
    from pymc_dpvi.randomness.keystream import KeyStream
    return KeyStream.from_os().words(4).tobytes().hex()

import joblib
from pymc_dpvi.randomness.keystream import KeyStream
shared = KeyStream.from_os()
shared.words(5)

def inherited(_):
    return shared.words(4).tobytes().hex()

path = package.__path__[0]
found = [shared.words(4).tobytes().hex()]
found += joblib.Parallel(n_jobs=2)(joblib.delayed(draw)(i, path) for i in range(6))
found += joblib.Parallel(n_jobs=2, backend="threading")(joblib.delayed(inherited)(i) for i in range(6))
if "fork" in joblib.parallel.mp.get_all_start_methods():
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found += pool.map(inherited, range(6), chunksize=3)
assert len(set(found)) == len(found), "two workers drew the same words"
try:
    joblib.Parallel(n_jobs=2)(joblib.delayed(lambda s: s.words(4))(shared) for _ in range(2))
except Exception as error:
    assert "pickle" in str(error).lower(), error
else:
    raise AssertionError("a stream was sent to another process")
print("passed")
"""


def test_joblib_and_multiprocessing_never_share_noise() -> None:
    pytest.importorskip("joblib")
    done = run_fork_script(WORKERS)
    assert done.returncode == 0 and "passed" in done.stdout, done.stderr


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
    u = randomness.words_to_uniforms(np.array(words, dtype=np.uint64))
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
    u = words_to_uniforms(stream("uniforms").words(200_000))
    assert u.shape == (200_000,)
    assert p_uniform(u) > P_GOOD
    assert p_uniform(u**1.03) < P_BAD  # planted
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(u.size)


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
    for draw in (stream().words, lambda m: stream().integers(5, m)):
        with pytest.raises(ArgumentError, match="n must"):
            draw(n)  # type: ignore[operator]


def test_empty_draws() -> None:
    tested = stream()
    assert tested.words(0).shape == (0,) and words_to_uniforms(tested.words(0)).shape == (0,)
    assert tested.integers(5, 0).shape == (0,)


def test_no_key_on_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may come when the key is in use already, and a traceback keeps local variables."""

    class Interrupted:
        algorithm: Any = None

        def __init__(self, algorithm: Any, mode: Any) -> None:
            pass

        def encryptor(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("pymc_dpvi.randomness.keystream.Cipher", Interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        KeyStream.from_os()
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert "_set_key" in [f.f_code.co_name for f in frames]
    for frame in frames:
        assert not any(isinstance(v, bytes) and len(v) == 32 for v in frame.f_locals.values())
