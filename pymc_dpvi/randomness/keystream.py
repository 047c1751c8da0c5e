"""Cryptographic random numbers: an AES-256-CTR keystream, and uniform numbers made from it.

Differential privacy needs random numbers that nobody can predict. So privacy noise and batches come from a
cryptographic generator, never from a statistical one such as PCG64, whose state can be recovered from its
output.

**Generator.** The keystream is AES-256 in counter mode (NIST SP 800-38A, section 6.5): block *j* is
``AES_K(j)``. Every secure stream has a fresh 32-byte key ``K`` from `secrets`, so the counter may start at
zero. Every 8 bytes, read as a little-endian integer, are one *word* ``w``, uniform on ``{0, ..., 2^64 - 1}``.
*n* blocks are told from random bits with an advantage of at most ``n^2 / 2^129`` beyond breaking AES itself:
``2^-49`` after ``2^40`` blocks (16 TiB).

**Uniform deviates.** ``u = (w + 1/2) 2^-64``, rounded to float64 and held at or below ``1 - 2^-53``. Small
values keep their full relative precision: the tail of ``-log(u)`` is correct up to 45. Neither 0 nor 1
occurs.

**Integers.** ``w mod high`` for ``w`` below the largest multiple of ``high``. Other words are rejected, so
that the result is exactly uniform.

**Processes.** A secure stream must not give the same numbers to two processes. After a fork the child draws a
new key; pickling and copying raise. (No user-space generator can protect against snapshots of a virtual
machine.) From the same key, words are the same on every platform.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import weakref
from typing import NoReturn, SupportsIndex

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from pymc_dpvi.arguments import check_integer
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.numba_cache import kernel

__all__ = ["KEY_BYTES", "KeyStream", "Uncopied", "insecure_key", "words_to_uniforms"]

KEY_BYTES = 32
_BLOCK_BYTES = 16
_WORD_BYTES = 8
# Encrypting this string gives the keystream itself. 64 KiB stays in the second-level cache.
_ZEROS = bytes(1 << 16)
_BELOW_ONE = 1.0 - 2.0**-53
_SEED_DOMAIN = b"pymc_dpvi insecure seed v1"
_NO_COPY = (
    "A KeyStream cannot be pickled or copied: two owners of one key would draw the same noise, and "
    "noise that is used twice cancels. Create a new one with KeyStream.from_os() in each process."
)


class Uncopied:
    """What holds a key: pickling and copying raise, with the class's own reason."""

    __slots__ = ()
    _no_copy: str

    def __reduce__(self) -> NoReturn:
        raise TypeError(self._no_copy)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(self._no_copy)

    def __copy__(self) -> NoReturn:
        raise TypeError(self._no_copy)

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError(self._no_copy)


class KeyStream(Uncopied):
    """A stream of cryptographically strong random numbers.

    Create one with `KeyStream.from_os`, or, for tests and reproductions of papers only, with
    `KeyStream.from_insecure_seed`. Threads can share a stream; pickling and copying it raise. After a fork,
    the child's copy of a secure stream takes a new key from the operating system before it draws anything. An
    insecure stream goes on as it was, so that seeded runs stay reproducible.

    Privacy: whoever knows the key knows the noise and the batches, and can subtract the noise from every
    release. Nothing here shows the key; the object does not keep it as bytes.
    """

    __slots__ = ("__weakref__", "_encryptor", "_lock", "_pid", "_secure")
    _no_copy = _NO_COPY
    _encryptor: CipherContext
    _lock: threading.Lock
    _pid: int
    _secure: bool

    def __init__(self) -> None:
        raise TypeError(
            "Create a KeyStream with KeyStream.from_os(), or with "
            "KeyStream.from_insecure_seed(seed, label) in tests."
        )

    @classmethod
    def from_os(cls) -> KeyStream:
        """Create a secure stream, whose 32-byte key comes from the operating system."""
        stream = cls._blank(secure=True)
        stream._rekey()
        return stream

    @classmethod
    def from_insecure_seed(cls, seed: int, label: str) -> KeyStream:
        """Create a reproducible stream from a seed, 0 or more. It is no secret: never use it for a release.

        Different labels, such as ``"noise"``, give independent streams.
        """
        return cls._from_key(insecure_key(seed, label), bytes(_BLOCK_BYTES))

    @classmethod
    def _from_key(cls, key: bytes, counter: bytes) -> KeyStream:
        """Create an insecure stream with a known key and first counter block (test vectors)."""
        stream = cls._blank(secure=False)
        stream._set_key(key, counter)
        return stream

    @classmethod
    def _blank(cls, *, secure: bool) -> KeyStream:
        stream = cls.__new__(cls)
        stream._secure = secure
        stream._pid = -1
        stream._lock = threading.Lock()
        _STREAMS.add(stream)
        return stream

    def _set_key(self, key: bytes, counter: bytes) -> None:
        try:
            self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(counter)).encryptor()
            # Last: after a failure above, the stream is still marked as one that needs a key.
            self._pid = os.getpid()
        finally:
            del key  # an interrupt may come here too, and its traceback keeps what is local

    def _rekey(self) -> None:
        self._set_key(secrets.token_bytes(KEY_BYTES), bytes(_BLOCK_BYTES))

    def _after_fork_in_child(self) -> None:
        # Another thread may have held the lock at the fork; in the child nobody would release it.
        self._lock = threading.Lock()
        if self._secure:
            self._pid = -1
            self._rekey()

    @property
    def secure(self) -> bool:
        """Whether the key is a secret of the operating system's generator; False if made from a seed."""
        return self._secure

    def words(self, n: int) -> NDArray[np.uint64]:
        """Draw `n` independent uniform 64-bit words, the next ``8 n`` bytes of the keystream: (n,) uint64."""
        n = check_integer("n", n, low=0)
        # `update_into` is documented to want up to a block less one byte of room beyond the data.
        room = np.empty(n + _BLOCK_BYTES // _WORD_BYTES, dtype="<u8")
        view = room.data.cast("B")
        n_bytes = n * _WORD_BYTES
        with self._lock:
            # Only the process id shows forks that Python does not see, made in C.
            if self._secure and self._pid != os.getpid():
                self._rekey()
            for start in range(0, n_bytes, len(_ZEROS)):
                length = min(len(_ZEROS), n_bytes - start)
                zeros = _ZEROS if length == len(_ZEROS) else _ZEROS[:length]
                written = self._encryptor.update_into(zeros, view[start:])
                if written != length:  # never seen; unwritten memory must not become noise
                    raise RuntimeError("The cipher returned fewer bytes than asked for.")
        return room[:n].astype(np.uint64, copy=False)

    def integers(self, high: int, n: int) -> NDArray[np.int64]:
        """Draw `n` independent integers, exactly uniform on 0, ..., high - 1 (high <= 2^63): (n,) int64."""
        high = check_integer("high", high, low=1, high=2**63)
        words = self.words(n)
        excess = 2**64 % high
        if excess:
            largest = np.uint64(2**64 - excess - 1)
            rejected = np.flatnonzero(words > largest)
            while rejected.size:
                words[rejected] = self.words(rejected.size)
                rejected = rejected[words[rejected] > largest]
        # NumPy divides by a scalar faster than it takes remainders.
        quotient = words // np.uint64(high)
        quotient *= np.uint64(high)
        words -= quotient
        return words.view(np.int64)

    def __repr__(self) -> str:
        return f"KeyStream(secure={self._secure})"


_STREAMS: weakref.WeakSet[KeyStream] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The child has one thread here: nothing is drawn before the keys are new.
    for stream in list(_STREAMS):
        stream._after_fork_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork_in_child)


def insecure_key(seed: int, label: str) -> bytes:
    """Return the key that a seed, 0 or more, and a label have: no secret."""
    number = check_integer("seed", seed, low=0)
    if not isinstance(label, str):
        raise ArgumentError(f"label must be a string such as 'noise', found {type(label).__name__}.")
    # Each variable part after its length: no two (seed, label) have the same encoding.
    parts = (label.encode(), str(number).encode())
    message = _SEED_DOMAIN + b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hashlib.sha256(message).digest()


@kernel(fastmath=False)
def _fill_uniforms(words: np.ndarray, out: np.ndarray) -> None:  # pragma: no cover
    for i in range(words.size):
        # The 1024 largest words, which stand for (1 - 2^-54, 1), round to 1.0: take the float below.
        out[i] = min((np.float64(words[i]) + 0.5) * 2.0**-64, _BELOW_ONE)


def words_to_uniforms(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Map words to ``(w + 1/2) 2^-64``, rounded, inside ``[2^-65, 1 - 2^-53]``."""
    out = np.empty(words.size)
    _fill_uniforms(words, out)
    return out
