"""A small model around each operation: what a step computes is then that operation and its gradient.

``SCALAR`` is every elementwise operation that PyTensor has, found in its modules: a new one is attacked by
being there. Each stands in two models, in which its arguments are

* ``float``: functions of a float column and of a latent number;
* ``integer``: the last one an integer column (exponents, lags, orders, numbers of trials), the others as
  before; of an operation of one argument, that column alone.

``OTHER`` are operations on rows: sums, products, indices, sorting, matrices. A model that the package refuses
is as good as one that withstands; `attack` says which were refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.tensor import math as tensor_math
from pytensor.tensor import xlogx as tensor_xlogx
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.xlogx import xlogx, xlogy0

__all__ = ["OPERATIONS", "operation_data"]

N = 13
Data = dict[str, np.ndarray]
#: (t, x, w, k) -> a number for each record: latent number; float column, matrix (3 columns), integer column.
Expression = Callable[[Any, Any, Any, Any], Any]

#: Arguments of operations that take any number of them.
_MANY = 2


def _elementwise() -> dict[str, Elemwise]:
    """Return an operation of each kind, by the name that PyTensor gives it."""
    found: dict[tuple[str, int], tuple[str, Elemwise]] = {}
    for module in (pt, tensor_math, tensor_xlogx):
        for name in sorted(dir(module)):
            op = getattr(module, name)
            if isinstance(op, Elemwise):
                scalar = op.scalar_op
                found.setdefault((type(scalar).__name__, scalar.nin), (name, op))
    return dict(found.values())


SCALAR = _elementwise()


def _of_floats(op: Elemwise) -> Expression:
    count = op.scalar_op.nin if op.scalar_op.nin > 0 else _MANY

    def expression(t: Any, x: Any, w: Any, k: Any) -> Any:
        return op(*[x + t, w[:, 0] * t, w[:, 1] - t, w[:, 2] + t][:count])

    return expression


def _of_integers(op: Elemwise) -> Expression:
    count = op.scalar_op.nin if op.scalar_op.nin > 0 else _MANY

    def expression(t: Any, x: Any, w: Any, k: Any) -> Any:
        return op(*[x + t, w[:, 0] * t, w[:, 1] - t][: count - 1], k)

    return expression


def _turns(t: Any) -> Any:
    """Return what a loop makes of the latent number alone, turn by turn."""
    return pytensor.scan(lambda s, t: s * 0.9 + t, [], [pt.as_tensor(0.1)], [t], 5, return_updates=False)


OTHER: dict[str, Expression] = {
    "power of a latent number": lambda t, x, w, k: t**k,
    "negative power": lambda t, x, w, k: x * (1.0 + x) ** (-k) * t,
    "powers by a row": lambda t, x, w, k: (pt.maximum(x - t, 0)[:, None] ** np.arange(3)).sum(axis=1),
    "small negative powers": lambda t, x, w, k: (t * x) ** -1 + (t + x) ** -2,
    "power of integers": lambda t, x, w, k: t * k**2,
    "division of integers": lambda t, x, w, k: t * (k // 3 + k % 3),
    "polygamma of the record": lambda t, x, w, k: pt.gammaln(t + k) - pt.gammaln(t + x),
    "index": lambda t, x, w, k: (t * pt.arange(5.0))[k],
    "index made of a float": lambda t, x, w, k: (t * pt.arange(5.0))[pt.floor(x).astype("int64")],
    "index by argmax": lambda t, x, w, k: (t * pt.arange(3.0))[pt.argmax(w * t, axis=1)],
    "set entries": lambda t, x, w, k: (pt.set_subtensor(w[:, 1], x * t) ** 2).sum(axis=1),
    "sort": lambda t, x, w, k: (pt.sort(w * t, axis=1) * np.arange(3.0)).sum(axis=1),
    "maximum of a row": lambda t, x, w, k: (w * t).max(axis=1) - (w * t).min(axis=1),
    "product of a row": lambda t, x, w, k: (w * t).prod(axis=1),
    "running sum and product": lambda t, x, w, k: (pt.cumsum(w * t, axis=1) * pt.cumprod(w + t, axis=1)).sum(
        axis=1
    ),
    "softmax": lambda t, x, w, k: pt.special.softmax(w * t, axis=1)[:, 0],
    "log-softmax": lambda t, x, w, k: pt.special.log_softmax(w * t, axis=1)[:, 1],
    "logsumexp": lambda t, x, w, k: pt.logsumexp(w * t, axis=1) + pt.logaddexp(x, t),
    "any and all": lambda t, x, w, k: t * (pt.any(w > 0, axis=1) + 2.0 * pt.all(w > 0, axis=1)),
    "dot": lambda t, x, w, k: pt.dot(w, t * np.array([1.0, 2.0, 3.0])),
    "dot of integers": lambda t, x, w, k: pt.dot(pt.stack([k, k * k], axis=1), t * np.array([1.0, 2.0])),
    "Cholesky": lambda t, x, w, k: pt.linalg.cholesky(
        (w[:, :, None] * w[:, None, :]) + (1.0 + t**2) * np.eye(3)
    )[:, 2, 0],
    "triangular system": lambda t, x, w, k: pt.linalg.solve_triangular(
        w[:, :, None] * w[:, None, :] + t * np.eye(3), w, lower=True, b_ndim=1
    ).sum(axis=1),
    "diagonal": lambda t, x, w, k: (
        pt.diagonal(w[:, :, None] * w[:, None, :], axis1=1, axis2=2).sum(axis=1) * t
    ),
    "x log y": lambda t, x, w, k: xlogx(x * t) + xlogy0(x, t + w[:, 0]),
    "integer of a float": lambda t, x, w, k: t * (x * 1e3).astype("int32"),
    "small integer of a float": lambda t, x, w, k: t * pt.floor(x).astype("int8"),
    "small integer of an integer": lambda t, x, w, k: t * (1000 * k).astype("int8"),
    "looked up in a loop's turns": lambda t, x, w, k: _turns(t)[k],
    "unsigned of a float": lambda t, x, w, k: t * x.astype("uint16"),
    "narrower float": lambda t, x, w, k: t * x.astype("float32"),
    "bits": lambda t, x, w, k: t * ((k & 5) + (k | 3) + (k ^ 1)),
    "shift": lambda t, x, w, k: t * pt.abs(k),
    "where": lambda t, x, w, k: pt.where(x > t, 1.0 / (x - t), k * t),
    "truncated normal": lambda t, x, w, k: pm.logp(pm.TruncatedNormal.dist(t, 1.0, lower=0.0), x),
    "binomial of the record's trials": lambda t, x, w, k: pm.logp(
        pm.Binomial.dist(k, pt.sigmoid(t)), pt.abs(k) // 2
    ),
    "negative binomial": lambda t, x, w, k: pm.logp(
        pm.NegativeBinomial.dist(mu=pt.exp(t), alpha=pt.exp(t)), k
    ),
    "gamma of the record's shape": lambda t, x, w, k: pm.logp(pm.Gamma.dist(x, pt.exp(t)), 1.0 + x**2),
    "gamma, distribution function": lambda t, x, w, k: pm.logcdf(pm.Gamma.dist(pt.exp(t), 1.0), x),
    "gamma, function of the shape": lambda t, x, w, k: pm.logcdf(pm.Gamma.dist(t + x, 1.0), w[:, 0]),
    "beta, distribution function": lambda t, x, w, k: pm.logcdf(pm.Beta.dist(pt.exp(t), 2.0), x),
    "Student, distribution function": lambda t, x, w, k: pm.logcdf(pm.StudentT.dist(pt.exp(t), 0.0, 1.0), x),
    "Poisson, distribution function": lambda t, x, w, k: pm.logcdf(pm.Poisson.dist(pt.exp(t)), k),
    "von Mises": lambda t, x, w, k: pm.logp(pm.VonMises.dist(t, pt.exp(x)), w[:, 0]),
    "Wald": lambda t, x, w, k: pm.logp(pm.Wald.dist(pt.exp(t), 1.0), x),
    "discrete Weibull": lambda t, x, w, k: pm.logp(pm.DiscreteWeibull.dist(pt.sigmoid(t), 1.5), k),
    "hypergeometric": lambda t, x, w, k: t * pm.logp(pm.HyperGeometric.dist(20, 7, 5), k),
}

OPERATIONS: dict[str, Expression] = {
    **{f"{name}, float": _of_floats(op) for name, op in SCALAR.items()},
    **{f"{name}, integer": _of_integers(op) for name, op in SCALAR.items()},
    **OTHER,
}


def operation_data() -> Data:
    """Return ordinary records: a float column, three more, and an integer one."""
    rng = np.random.default_rng(23)
    return {
        "x": rng.uniform(0.1, 0.9, N),
        "w": rng.uniform(0.1, 0.9, (N, 3)),
        "k": rng.integers(0, 4, N),
    }


def operation_model(name: str, data: Data) -> pm.Model:
    """Build the model of one operation."""
    with pm.Model() as model:
        t = pm.Normal("t", 0.4, 0.1, initval=0.4)
        x, w, k = (pm.Data(c, data[c]) for c in ("x", "w", "k"))
        term = OPERATIONS[name](t, x, w, k)
        # So that a result without a gradient by t has one, and the row stands for all three columns.
        pm.Potential("term", term * (1.0 + t) + 1e-3 * t * (x + w.sum(axis=1) + k))
    return model
