"""Expressions under the approximation, as PyMC evaluates them; refused if they depend on a record.

In: a graph of the model's variables. Out: the same graph over draws of the approximation. All of PyMC's ways
to evaluate an expression (``sample_node``, ``symbolic_single_sample``, ``symbolic_sample_over_posterior``)
come through `to_flat_input` or `set_size_and_deterministic`, which look for records.

What it must never do: let an expression through that depends on a record, or on an array that nobody declared
public.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.densities import without_records
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.traversal import walk
from pymc_dpvi.graph.unrolled_loops import is_long
from pymc_dpvi.posterior.open_attributes import SealedApproximation

__all__ = ["CheckedExpressions", "depends", "variables"]


class CheckedExpressions(SealedApproximation):
    """PyMC's methods for expressions, with a check for records."""

    def __init__(self, record: RecordModel, **kwargs: Any) -> None:
        super().__init__(model=record.model, **kwargs)
        self._record = record
        self._densities: set[Variable] = set()

    def to_flat_input(self, node: Any, more_replacements: Mapping[Variable, Variable] | None = None) -> Any:
        """As in PyMC; an UnsupportedModelError if `node` depends on a record."""
        if more_replacements:
            node = graph_replace(node, dict(more_replacements), strict=False)
        self._refuse_records(node)
        flat = super().to_flat_input(node)
        return self._keep(flat)

    def symbolic_sample_over_posterior(
        self, node: Any, more_replacements: Mapping[Variable, Variable] | None = None
    ) -> Any:
        """As in PyMC; an UnsupportedModelError if `node` depends on a record."""
        return self._keep(super().symbolic_sample_over_posterior(node, more_replacements))

    def symbolic_single_sample(
        self, node: Any, more_replacements: Mapping[Variable, Variable] | None = None
    ) -> Any:
        """As in PyMC; an UnsupportedModelError if `node` depends on a record."""
        return self._keep(super().symbolic_single_sample(node, more_replacements))

    def _keep(self, checked: Any) -> Any:
        """Remember checked expressions, but no constants, which may stand in an unchecked one too."""
        self._densities.update(v for v in variables(checked) if v.owner is not None)
        return checked

    def set_size_and_deterministic(
        self, node: Any, s: Any, d: Any, more_replacements: Mapping[Variable, Variable] | None = None
    ) -> Any:
        """As in PyMC; an UnsupportedModelError if `node` or a replacement depends on a record."""
        self._refuse_records(node)
        self._refuse_records(list((more_replacements or {}).values()))
        self._refuse_records_in_numbers(s, d)
        return super().set_size_and_deterministic(node, s, d, more_replacements)

    def make_size_and_deterministic_replacements(
        self, s: Any, d: Any, more_replacements: Mapping[Variable, Variable] | None = None
    ) -> Any:
        """As in PyMC; an UnsupportedModelError if an argument depends on a record."""
        self._refuse_records(list((more_replacements or {}).values()))
        self._refuse_records_in_numbers(s, d)
        return super().make_size_and_deterministic_replacements(s, d, more_replacements)

    def get_optimization_replacements(self, s: Any, d: Any) -> dict[Variable, Variable]:
        """Return nothing: PyMC's are for the density of the records, which is refused here."""
        return {}

    def _refuse_records_in_numbers(self, *numbers: Any) -> None:
        """Raise if a number of draws, or whether to draw, is an expression that depends on a record."""
        listed = [part for n in numbers for part in (n if isinstance(n, list | tuple) else [n])]
        self._refuse_records([part for part in listed if isinstance(part, Variable)])

    def _refuse_records(self, node: Any) -> None:
        # The prior was checked when the method was made, with the numbers in it.
        record = self._record
        own = {*self.params, *record.public, *walk([record.prior_logp]), *self._densities}
        for var in variables(node):
            behind = walk([var], stop=self._densities, into_size=True, columns_of=record.all_arrays)
            plain = own | record.plain(behind)
            more = [v for v in behind if v not in own]
            if any(record.is_private(v) for v in behind if v not in plain) or is_long(more):
                raise UnsupportedModelError(depends(var))

    @property
    def sized_symbolic_varlogp(self) -> TensorVariable:
        """Log prior of draws, shape ``(draws,)``, without the density of the records."""
        return self.symbolic_sample_over_posterior(self._log_prior())

    @property
    def single_symbolic_varlogp(self) -> TensorVariable:
        """Log prior of one draw, a scalar."""
        return self.symbolic_single_sample(self._log_prior())

    def _log_prior(self) -> TensorVariable:
        """Return PyMC's graph of the log prior, which was checked when the method was made."""
        density = without_records(self.model, self._record.arrays).varlogp
        self._keep(density)
        return density


def variables(node: Any) -> list[Variable]:
    """Return the expressions in `node`, or raise if it holds something else."""
    found = list(node) if isinstance(node, list | tuple) else [node]
    for var in found:
        if not isinstance(var, Variable):
            raise ArgumentError(
                f"node must be an expression of the model's variables; found a {type(var).__name__}."
            )
    return found


def depends(var: Variable) -> str:
    """Say why an expression is refused."""
    return (
        f"'{var.name or 'The expression'}' depends on the records, or on an array that was not "
        "declared public, so a sample of it may not be private. Use expressions of the free "
        "variables, and name public pm.Data in public_data=[...]."
    )
