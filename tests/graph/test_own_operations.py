"""Operations that are given by a graph, and compute or differentiate by the user's own code.

All graphs are searched for data before they are differentiated, and a graph says nothing of a method that a
user's class has in its place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from guide_families import HeavyTails
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.transforms import Transform
from pymc.logprob.abstract import _logprob
from pymc.pytensorf import normalize_rng_param
from pytensor.compile.builders import OpFromGraph
from pytensor.link.c.op import COp
from pytensor.tensor.random.utils import normalize_size_param
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi import DPADVI, ArgumentError, PrivacyError, UnsupportedModelError
from pymc_dpvi.graph.opaque import opaque_part

METHOD: dict[str, Any] = dict(noise_multiplier=2.0, delta=1e-5, sampling_prob=0.3, accountant="rdp")
X = np.random.default_rng(3).normal(size=(41, 2))
OPAQUE = "computes from its inputs alone"

pytestmark = pytest.mark.usefixtures("without_compiling")


def fitted(b: Any) -> None:
    pm.Normal("y", pt.as_tensor(X) @ b, 1.0, observed=X[:, 0])


class OwnGradient(OpFromGraph):
    """Adds numbers to its gradient."""

    def L_op(self, inputs: Any, outputs: Any, gradients: Any) -> Any:
        return [gradients[0] + X[7]]

    pullback = L_op


def with_gradient(gradient: Any) -> Callable[[Any], Any]:
    b = pt.vector("b", shape=(2,))
    name = "pullback" if "pullback" in signature(OpFromGraph).parameters else "lop_overrides"
    return OpFromGraph([b], [1.0 * b], **{name: gradient})


def as_graph() -> OpFromGraph:
    b, out, grad = (pt.vector(shape=(2,)) for _ in range(3))
    return OpFromGraph([b, out, grad], [grad + X[7]], on_unused_input="ignore")


def nested(b: Any) -> Any:
    inside = pt.vector("inside", shape=(2,))
    op = with_gradient(lambda i, o, g: [g[0] + X[7]])
    return OpFromGraph([inside], [op(inside)])(b)


class Called:
    """Is made where a function is called."""

    def __new__(cls, inputs: Any, outputs: Any, gradients: Any) -> Any:
        return gradients[0] + X[7]


def changed(*names: str) -> Callable[[Any], Any]:
    """Return an operation by a graph that was given another derivative after it was made."""
    inside = pt.vector(shape=(2,))
    op = OpFromGraph([inside], [1.0 * inside])

    def gradient(*arguments: Any) -> Any:
        return [arguments[-1][0] + X[7]]

    for name in names:
        setattr(op, name, gradient)
    if not names:
        op._lop_op_cache[(False,)] = lambda *arguments, **_: [arguments[-1] + X[7]]
    return op


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "class in a list": lambda b: with_gradient([Called])(b),
    "changed method": lambda b: changed("L_op", "pullback")(b),
    "changed cache": lambda b: changed()(b),
    "function": lambda b: with_gradient(lambda i, o, g: [g[0] + X[7]])(b),
    "graph": lambda b: with_gradient(as_graph())(b),
    "class": lambda b: OwnGradient([inside := pt.vector(shape=(2,))], [1.0 * inside])(b),
    "nested": nested,
}


@pytest.mark.parametrize("how", GRADIENTS)
def test_a_gradient_of_the_users_in_a_potential_is_refused(how: str) -> None:
    with pm.Model(), pytest.raises(UnsupportedModelError, match=OPAQUE):
        b = pm.Normal("b", shape=2)
        pm.Potential("p", GRADIENTS[how](b).sum())
        fitted(b)
        DPADVI(**METHOD)


class NotItsGraph(OpFromGraph):
    """Computes something else than its graph."""

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = 0.0 * inputs[0] + X[7]


def performs(*, name: str) -> OpFromGraph:
    inside = pt.vector(shape=(2,))
    op = OpFromGraph([inside], [1.0 * inside])

    def perform(node: Any, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = X[7]

    setattr(op, name, perform if name == "perform" else lambda *_: [X[7]])
    return op


def with_settings() -> OpFromGraph:
    inside = pt.vector(shape=(2,))
    op = OpFromGraph([inside], [1.0 * inside])
    op.kwargs["givens"] = {op.fgraph.outputs[0]: pt.as_tensor(X[7])}
    return op


NOT_THEIR_GRAPHS: dict[str, Callable[[], OpFromGraph]] = {
    "class": lambda: NotItsGraph([inside := pt.vector(shape=(2,))], [1.0 * inside]),
    "perform": lambda: performs(name="perform"),
    "compiled": lambda: performs(name="_fn"),
    "settings": with_settings,
}


@pytest.mark.parametrize("how", NOT_THEIR_GRAPHS)
def test_an_operation_that_is_not_its_graph_is_not_released(how: str) -> None:
    with pm.Model():
        b = pm.Normal("b", shape=2)
        fitted(b)
        approx = DPADVI(**METHOD).fit(2, progressbar=False, backend="python")
        node = pm.Deterministic("d", NOT_THEIR_GRAPHS[how]()(b))
        with pytest.raises(PrivacyError):
            approx.sample_node(node)
        assert list(approx.sample(2)["posterior"].data_vars) == ["b"] and tuple(approx.withheld) == ("d",)


def test_an_operation_that_was_used_before_passes() -> None:
    """PyTensor keeps its compiled graph and its derivative with it."""
    inside = pt.vector(shape=(2,))
    op = OpFromGraph([inside], [1.0 * inside])
    op.perform(None, [np.ones(2)], [[None]])
    pytensor.grad(op(inside).sum(), inside)
    with pm.Model():
        b = pm.Normal("b", shape=2)
        pm.Deterministic("d", op(b))
        pm.Potential("p", -(op(b).sum() ** 2))
        fitted(b)
        approx = DPADVI(**METHOD).fit(2, progressbar=False, backend="python")
        assert sorted(approx.sample(2)["posterior"].data_vars) == ["b", "d"]


@pytest.mark.parametrize("how", GRADIENTS)
def test_a_gradient_of_the_users_in_the_likelihood_is_not_used(how: str) -> None:
    """There the operation is written out, and its graph is differentiated."""
    with pm.Model():
        b = pm.Normal("b", shape=2)
        fitted(GRADIENTS[how](b))
        record = DPADVI(**METHOD)._record
    (value,) = record.value_vars
    nothing = {row: np.zeros(row.type.shape) for row in record.rows}
    found = pytensor.grad(record.row_logp, value).eval({value: np.ones(2), **nothing}, mode="FAST_COMPILE")
    assert not found.any()


class OwnDraws(SymbolicRandomVariable):
    """A normal variable that is drawn otherwise than its graph says."""

    extended_signature = "[rng],[size],(),()->[rng],()"
    _print_name = ("OwnDraws", "OwnDraws")

    @classmethod
    def rv_op(cls, mu: Any, sigma: Any, *, size: Any = None, rng: Any = None) -> Any:
        rng, size = normalize_rng_param(rng), normalize_size_param(size)
        mu, sigma = pt.as_tensor(mu), pt.as_tensor(sigma)
        with warnings.catch_warnings():  # PyTensor 3 has another way to get both
            warnings.simplefilter("ignore", DeprecationWarning)
            next_rng, draws = pt.random.normal(mu, sigma, size=size, rng=rng).owner.outputs
        return cls(inputs=[rng, size, mu, sigma], outputs=[next_rng, draws])(rng, size, mu, sigma)

    def make_py_thunk(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("the user's draws were asked for")


@_logprob.register(OwnDraws)
def _(op: Any, values: Any, *inputs: Any, **_: Any) -> Any:
    return pm.logp(pm.Normal.dist(*inputs[-2:]), values[0])


class Named(SymbolicRandomVariable):
    """Is its graph, has properties by which PyTensor compares, and says how its generator goes on."""

    extended_signature = OwnDraws.extended_signature
    _print_name = ("Named", "Named")
    __props__ = ("label",)

    def __init__(self, *arguments: Any, label: str = "a", **options: Any) -> None:
        self.label = label
        super().__init__(*arguments, **options)

    def update(self, node: Any) -> dict[Any, Any]:
        return {node.inputs[0]: node.outputs[0]}

    rv_op = classmethod(OwnDraws.rv_op.__func__)  # type: ignore[attr-defined]


class ByC(COp, Named):
    """Has another base that computes."""


def made(kind: Any) -> Any:
    return kind.rv_op(0.0, 1.0, size=(2,)).owner.op


def test_random_variables_of_the_users() -> None:
    assert opaque_part(made(Named)) is None
    assert opaque_part(made(OwnDraws)) == "OwnDraws" and opaque_part(made(ByC)) == "ByC"


class ByOwnDraws(pm.Distribution):
    """The distribution of `OwnDraws`."""

    rv_type, rv_op = OwnDraws, OwnDraws.rv_op

    @classmethod
    def dist(cls, mu: float = 0.0, sigma: float = 1.0, **options: Any) -> Any:
        return super().dist([mu, sigma], **options)


class Shifted(Transform):
    """Has a Jacobian with a gradient of the user's."""

    name = "shifted"

    def forward(self, value: Any, *inputs: Any) -> Any:
        return value

    def backward(self, value: Any, *inputs: Any) -> Any:
        return value

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        return GRADIENTS["function"](value)


class Reads(HeavyTails):
    """Has an entropy with a gradient of the user's."""

    def entropy(self, params: Mapping[str, TensorVariable], mean: TensorVariable) -> TensorVariable:
        return super().entropy(params, mean) + GRADIENTS["function"](mean).sum()


PRIORS: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "transform": (lambda: pm.Normal("b", shape=2, transform=Shifted()), {}, OPAQUE),
    "logp": (
        lambda: pm.CustomDist("b", logp=lambda v: -GRADIENTS["function"](v**2), shape=2),
        {},
        OPAQUE,
    ),
    "family": (lambda: pm.Normal("b", shape=2), {"guide": {"b": Reads()}}, "family Reads"),
    # A prior is evaluated by its density, and drawn from at the start alone.
    "class": (lambda: ByOwnDraws("b", shape=2, initval="prior"), {}, OPAQUE),
    "random": (
        lambda: pm.CustomDist(
            "b", logp=lambda v: -(v**2), random=lambda rng=None, size=None: X[7], shape=2, initval="prior"
        ),
        {},
        OPAQUE,
    ),
}


@pytest.mark.parametrize("where", PRIORS)
def test_what_enters_beside_the_records_is_refused(where: str) -> None:
    prior, more, text = PRIORS[where]
    with pm.Model(), pytest.raises(UnsupportedModelError, match=text):
        fitted(prior())
        DPADVI(**METHOD, **more)


def test_an_optimizer_that_computes_by_the_users_code_is_refused() -> None:
    def updates(loss_or_grads: Any, params: Any) -> Any:
        inside = params[0].type()
        add = NotItsGraph([inside], [1.0 * inside])
        found = pm.sgd(loss_or_grads, params, learning_rate=0.1)
        return {**found, params[0]: found[params[0]] + add(params[0])}

    with pm.Model():
        fitted(pm.Normal("b", shape=2))
        private = DPADVI(**METHOD)
        with pytest.raises(ArgumentError, match=r"none of PyTensor's"):
            private.fit(2, progressbar=False, obj_optimizer=updates)
        with pytest.raises(PrivacyError, match="Nothing was spent"):
            _ = private.approx.privacy
