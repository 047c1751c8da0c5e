"""Random numbers by their place: what AES-256 in counter mode has at block *j*, for any *j*, in any order.

A record's own numbers, such as the noise of its code (`graph.amortized`), are the same whenever they are
asked for, and there is no array of them. Words are those of the keystream of the same key (`keystream`).

**Processes.** These numbers belong to records, as data do, and are released to nobody; a child after a fork
has the same. So there is nothing that a second owner could cancel. Pickling and copying raise all the same:
the key stays in the process.
"""

from __future__ import annotations

import secrets
import threading

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from pymc_dpvi.randomness.keystream import KEY_BYTES, Uncopied, insecure_key

__all__ = ["KeyedWords"]

_WORDS_OF_BLOCK = 2


class KeyedWords(Uncopied):
    """Uniform 64-bit words, each a function of a secret key and of its place."""

    __slots__ = ("_encryptor", "_lock")
    _no_copy = "KeyedWords cannot be pickled or copied: its key is a secret of this process."

    def __init__(self, insecure_seed: int | None, label: str) -> None:
        key = secrets.token_bytes(KEY_BYTES) if insecure_seed is None else insecure_key(insecure_seed, label)
        try:
            # Blocks are encrypted one by one: block j, the number j, is block j of counter mode.
            self._encryptor = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
        finally:
            del key  # a traceback keeps what is local
        self._lock = threading.Lock()

    def words(self, places: NDArray[np.int64], count: int) -> NDArray[np.uint64]:
        """Return `count` words, an even number, of each place: (places, count).

        Place k has the words of the keystream from number ``k * count`` on.
        """
        blocks = count // _WORDS_OF_BLOCK
        counters = np.zeros((len(places), blocks, _WORDS_OF_BLOCK), dtype=">u8")
        counters[:, :, 1] = places[:, None] * blocks + np.arange(blocks)
        with self._lock:
            found = self._encryptor.update(counters.tobytes())
        return np.frombuffer(found, dtype="<u8").reshape(len(places), count).astype(np.uint64, copy=False)

    def __repr__(self) -> str:
        return "KeyedWords(...)"
