"""Random numbers by their place: those of the keystream of the same key."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from pymc_dpvi.randomness.keyed_words import KeyedWords
from pymc_dpvi.randomness.keystream import KeyStream


@pytest.mark.parametrize("count", [2, 6])
def test_words_are_those_of_counter_mode(count: int) -> None:
    whole = KeyStream.from_insecure_seed(3, "a").words(100 * count).reshape(100, count)
    places = np.array([99, 0, 7, 7, 64])
    np.testing.assert_array_equal(KeyedWords(3, "a").words(places, count), whole[places])


def test_places_beyond_four_billion() -> None:
    """Counters are 128 bits; the keystream itself cannot be asked for these."""
    words = KeyedWords(3, "a")
    far = words.words(np.array([2**40, 2**40 + 2**32]), 4)
    assert len(set(far.ravel())) == 8
    np.testing.assert_array_equal(far[1:], words.words(np.array([2**40 + 2**32]), 4))


def test_keys_are_secret_and_different() -> None:
    places = np.arange(5)
    first, second = (KeyedWords(None, "a").words(places, 2) for _ in range(2))
    assert not np.any(first == second)
    assert not np.any(KeyedWords(3, "a").words(places, 2) == KeyedWords(3, "b").words(places, 2))


def test_the_key_does_not_leave() -> None:
    words = KeyedWords(None, "a")
    assert repr(words) == "KeyedWords(...)"
    for out in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            out(words)
    assert not any(isinstance(getattr(words, name), bytes) for name in words.__slots__)


CHILD = """
import os
import numpy as np
from pymc_dpvi.randomness.keyed_words import KeyedWords
words = KeyedWords(None, "a")
mine = words.words(np.arange(3), 2).tobytes()
read, write = os.pipe()
if not os.fork():
    os.write(write, words.words(np.arange(3), 2).tobytes())
    os._exit(0)
os.wait()
assert os.read(read, 1000) == mine
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_has_the_same_numbers() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", CHILD], check=True, timeout=120)
