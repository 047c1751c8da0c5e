"""Abalone and Adult, prepared as in the papers on private variational inference.

Both become binary classification by logistic regression without an intercept [1]_:

- the label is rings >= 10 (Abalone) or income > 50K (Adult);
- Abalone's sex is coded I = 0, F = 1, M = 2, Adult's categories by their alphabetical rank, a
  missing value (``?``) being a category like any other;
- Adult is the 32561 rows of the original ``adult.data`` (``split`` = train);
- every feature is standardised with its mean and standard deviation (ddof 0) over all rows;
- the first 80 % of the rows, in file order, are for fitting, the rest for testing.

The standardisation reads the data and costs no budget here, because the papers do so; no privacy
guarantee covers it. With data of your own, standardise with figures that are public.

References
----------
.. [1] Jälkö, J., Dikmen, O., Honkela, A. Differentially Private Variational Inference for
   Non-conjugate Models. UAI 2017. arXiv 1610.08749.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["DATA", "LOADERS", "Dataset", "load_abalone", "load_adult", "read_table"]

DATA = Path(__file__).resolve().parent / "data"


@dataclass(frozen=True)
class Dataset:
    """One binary classification task.

    Attributes
    ----------
    name : str
        The dataset's name, for titles and file names.
    features : tuple of str
        Column names, of length ``num_features``.
    x_train, x_test : ndarray of float64, shape (num_records, num_features)
        Standardised features.
    y_train, y_test : ndarray of int64, shape (num_records,)
        Labels, 0 or 1.
    """

    name: str
    features: tuple[str, ...]
    x_train: NDArray[np.float64]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float64]
    y_test: NDArray[np.int64]

    def accuracy(self, coefficients: NDArray[np.float64]) -> float:
        """Return the share of test rows whose more probable label is the true one.

        Parameters
        ----------
        coefficients : ndarray of float64, shape (num_features,)
            The posterior mean. For a Gaussian posterior, its plug-in decision is also the one of
            the posterior predictive: both change sides where ``x @ coefficients`` is 0.
        """
        return float(np.mean((self.x_test @ coefficients > 0) == (self.y_test == 1)))


def read_table(name: str) -> dict[str, list[str]]:
    """Read ``data/<name>`` as columns of strings, after checking the file against ``SHA256SUMS``.

    Parameters
    ----------
    name : str
        A file name, such as ``"adult.csv.gz"``.

    Returns
    -------
    dict of str to list of str
        The columns, in file order.

    Raises
    ------
    ValueError
        If the file is not listed, or is not the one that was published.
    """
    lines = (DATA / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {file: digest for digest, file in (line.split() for line in lines)}
    if name not in listed:
        raise ValueError(f"{name} is not in {DATA / 'SHA256SUMS'}; known: {', '.join(listed)}")
    content = (DATA / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != listed[name]:
        raise ValueError(f"{DATA / name} is not the published file (SHA-256 differs): restore it from git")
    header, *rows = csv.reader(io.StringIO(gzip.decompress(content).decode("utf-8")))
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def load_abalone() -> Dataset:
    """Load Abalone: 3341 rows for fitting, 836 for testing, 8 features, label rings >= 10."""
    table = read_table("abalone.csv.gz")
    labels = np.array(table.pop("rings"), dtype=np.int64) >= 10
    columns = {name: np.array(values) for name, values in table.items()}
    columns["sex"] = _codes(columns["sex"], order=("I", "F", "M"))
    return _prepare("abalone", columns, labels)


def load_adult() -> Dataset:
    """Load Adult: 26048 rows for fitting, 6513 for testing, 14 features, label income > 50K."""
    table = read_table("adult.csv.gz")
    published_as_train = np.array(table.pop("split")) == "train"
    columns = {name: np.array(values)[published_as_train] for name, values in table.items()}
    labels = columns.pop("income") == ">50K"
    numeric = (
        "age",
        "fnlwgt",
        "education_num",
        "capital_gain",
        "capital_loss",
        "hours_per_week",
    )
    for name in columns.keys() - set(numeric):
        columns[name] = _codes(columns[name], order=tuple(np.unique(columns[name])))
    return _prepare("adult", columns, labels)


LOADERS = {"abalone": load_abalone, "adult": load_adult}


def _codes(values: NDArray[np.str_], order: tuple[str, ...]) -> NDArray[np.int64]:
    """Replace each category by its position in `order`."""
    rank = {category: code for code, category in enumerate(order)}
    return np.array([rank[value] for value in values], dtype=np.int64)


def _prepare(name: str, columns: dict[str, NDArray[np.generic]], labels: NDArray[np.bool_]) -> Dataset:
    """Standardise over all rows and cut after the first 80 %."""
    x = np.column_stack([column.astype(np.float64) for column in columns.values()])
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = labels.astype(np.int64)
    cut = int(0.8 * len(y))
    return Dataset(name, tuple(columns), x[:cut], y[:cut], x[cut:], y[cut:])
