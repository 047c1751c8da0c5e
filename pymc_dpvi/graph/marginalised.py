"""Models from which `pymc_extras.marginalize` took a discrete variable, and advice to take others out.

In such a model an operation with an inner graph stands in place of an observed variable. The inner graph has
the discrete variable and all that depends on it, as they were written. The log-density sums over the values
of the discrete variable. For one record, the same operation is remade around the graph of one row.

A mistake here leaks no record: every record array is replaced by a placeholder of one row before the
log-density is derived, and `private_constants` and `guards` look at what comes of it. `separability` refuses
a wrong log-density.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import TensorType

__all__ = ["how_to_marginalise", "is_marginal", "marginalised_name", "per_record", "remake_marginal"]

#: What `pymc_extras` keeps of a marginalised variable beside its graph, in the versions for PyMC 5 and 6.
_KEPT = ("dims_connections", "dims", "marginalized_name", "marginalized_dims", "n_dependent_rvs")


def is_marginal(op: Any) -> bool:
    """Whether an operation is one of `pymc_extras`, which need not be there, with a variable summed out."""
    return any(
        kind.__name__ == "MarginalRV" and kind.__module__.partition(".")[0] == "pymc_extras"
        for kind in type(op).__mro__
    )


def marginalised_name(op: Any) -> str:
    """Name the variable that was summed out, for an error."""
    name = getattr(op, "marginalized_name", None) or op.inner_outputs[0].name
    return f"'{name}'" if name else "the marginalised variable"


def per_record(rv: Variable) -> bool:
    """Whether every entry along the leading axis of `rv` has a summed-out variable of its own.

    If not, one sum is over the terms of all records together, and one record enters another one's term.
    """
    node = rv.owner
    assert node is not None
    hidden = node.op.inner_outputs[0]
    connections = node.op.dims_connections[node.outputs.index(rv) - 1]  # output 0 is the hidden variable
    batch_ndim = hidden.type.ndim - hidden.owner.op.ndim_supp
    return bool(connections) and connections[0] is not None and connections[0] < batch_ndim


def remake_marginal(
    node: Apply,
    inputs: Sequence[Variable],
    replaced: Mapping[Variable, Variable],
    remake: Callable[[Sequence[Variable], Mapping[Variable, Variable]], list[Variable]],
) -> list[Variable]:
    """Remake the operation of `node` around its inner graph for other inputs; one variable per output.

    `replaced` is what has been replaced outside: constants in it may be captured inside. `remake` makes the
    outputs of the inner graph anew, given what to replace in it.
    """
    op: Any = node.op
    # Constants go inside: one may be the length of the summed-out variable, which has to follow the rows.
    inner = [i if isinstance(i, Constant) else i.type(name=i.name) for i in inputs]
    given = [(k, i) for k, i in zip(inner, inputs, strict=True) if not isinstance(i, Constant)]
    if hasattr(op.fgraph, "bind"):  # PyTensor 3, whose inner graphs are frozen
        swap: dict[Variable, Variable] = {}
        bound = list(op.fgraph.bind(inner))
    else:  # arrays get another length, so they are replaced where all is remade; generators only bound
        both = list(zip(op.inner_inputs, inner, strict=True))
        swap = {old: new for old, new in both if isinstance(new.type, TensorType) and new.type.ndim}
        bound = graph_replace(list(op.inner_outputs), {k: v for k, v in both if k not in swap}, strict=False)
    captured = [v for v in ancestors(bound) if isinstance(v, Constant) and v in replaced]
    given += [(replaced[v].type(name=v.name), replaced[v]) for v in captured]
    swap.update(zip(captured, (k for k, _ in given[len(given) - len(captured) :]), strict=True))
    outputs = remake(bound, swap)
    # A resized random variable draws from a new generator, which has to be an input as the old one was.
    behind = list(ancestors(outputs))
    given = [(k, i) for k, i in given if k in behind]
    given += [(v, v) for v in behind if isinstance(v, SharedVariable)]
    kept = {name: getattr(op, name) for name in _KEPT if hasattr(op, name)}
    new = type(op)(inputs=[k for k, _ in given], outputs=outputs, **kept)
    return list(new.make_node(*(i for _, i in given)).outputs)


#: Priors and outcomes whose mixture has a closed form, and what to write.
_CONJUGATE = {
    ("Beta", "Binomial"): "pm.BetaBinomial",
    ("Beta", "Bernoulli"): "pm.BetaBinomial with n=1",
    ("Gamma", "Poisson"): "pm.NegativeBinomial",
    ("Dirichlet", "Multinomial"): "pm.DirichletMultinomial",
    ("Normal", "Normal"): "pm.Normal with the sum of both variances",
}


def how_to_marginalise(model: pm.Model, latent: Variable) -> str:
    """Say how a latent value per record is taken out of the likelihood."""
    for rv in model.observed_RVs:
        op = rv.owner.op
        closed = _CONJUGATE.get((_kind(latent), _kind(rv)))
        if closed is not None and isinstance(op, RandomVariable) and latent in op.dist_params(rv.owner):
            return (
                f"Marginalise it out of the likelihood, by a distribution that has it integrated out: give "
                f"'{rv.name}' {closed}, with the hyperparameters of '{latent.name}', in place of "
                f"pm.{_kind(rv)}."
            )
    return (
        "Marginalise it out of the likelihood, by a distribution that has it integrated out: "
        "pm.BetaBinomial, "
        "pm.NegativeBinomial, pm.StudentT, pm.MvNormal with its variance in the covariance, pm.Mixture."
    )


def _kind(rv: Variable) -> str:
    """Name the distribution of a random variable as PyMC does."""
    op = rv.owner.op  # type: ignore[union-attr]
    name = getattr(op, "_print_name", ("",))[0]
    return name if isinstance(name, str) and name else type(op).__name__.removesuffix("RV")
