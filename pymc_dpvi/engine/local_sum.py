"""The operation of `microbatch` for persons with local values, which are integrated out (`local_sums`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor import config
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import (
    numba_funcify_and_cache_key,
    numba_njit,
    register_funcify_and_cache_key,
)

from pymc_dpvi.engine.generated_code import RELEASE, Ending
from pymc_dpvi.engine.generated_local_sums import write_local_sum
from pymc_dpvi.engine.generated_unit_sums import write_add_units
from pymc_dpvi.engine.private_sum import PrivateSum, sum_type
from pymc_dpvi.numba_cache import source_hash

__all__ = ["LocalSum"]


class LocalSum(Op):
    """Noisy sum of clipped gradients of persons whose local values are integrated out.

    Parameters
    ----------
    mark : PrivateSum
        With the places of the local values.
    functions : sequence of tuple of Function and list of str
        Gradients, log-densities and derivatives of rows, as of `generated_local_sums.write_local_sum`.
    num_record_arrays, num_shared : int
        Numbers of record arrays and of what all records share, the first inputs.
    length : int
        Number of rows in a microbatch.
    rows_key : str, optional
        Key of the graphs that the functions were made from.
    width : int
        Numbers of a row's gradient, in its own form.

    Notes
    -----
    Inputs: the record arrays; what all records share; marked places of rows (`unit_sums`), how many there
    are; noise; spacing. Output: that of `PrivateSum`.
    """

    def __init__(
        self,
        mark: PrivateSum,
        functions: Sequence[tuple[Any, list[str]]],
        num_record_arrays: int,
        num_shared: int,
        length: int,
        rows_key: str | None = None,
        width: int = 1,
    ) -> None:
        assert mark.places is not None
        self.mark = mark
        self.functions = list(functions)
        self.num_record_arrays, self.num_shared = num_record_arrays, num_shared
        self.length, self.width = length, width
        names = [own for _, own in functions]
        parts = (mark._props()[:3], mark.places.key, num_record_arrays, num_shared, length, names, rows_key)
        #: For `graph_keys`.
        self.graph_key = None if rows_key is None else hashlib.sha256(repr(parts).encode()).hexdigest()
        self._evaluate: Any = None

    def make_node(self, *inputs: Any) -> Apply:
        """Build the node; see the class for the inputs."""
        return Apply(self, list(inputs), [sum_type(inputs[-2])()])

    def forget(self) -> None:
        """Free what was compiled: PyTensor's rewrites keep every operation that they have met."""
        self.functions, self._evaluate = [], None

    def written(
        self, node: Apply, functions: Sequence[Any], *, compiled: bool, ending: Ending = RELEASE
    ) -> tuple[Any, str]:
        """Write the sum around the functions of rows; return it and its source."""
        mark = self.mark
        assert mark.places is not None
        records = node.inputs[: self.num_record_arrays]
        return write_local_sum(
            [(made, names) for made, (_, names) in zip(functions, self.functions, strict=True)],
            [v.type.ndim for v in records],
            mark.num_arrays,
            config.floatX,
            compiled=compiled,
            ending=ending,
            num_shared=self.num_shared,
            length=self.length,
            l2_clip_norm=mark.l2_clip_norm,
            tally_weight=mark.tally_weight,
            nodes=mark.places.at,
            log_weights=mark.places.log_weights,
            node_weights=mark.places.weights,
            values=mark.places.values,
            inner_steps=mark.places.steps,
            add_units=write_add_units(mark.layout),
        )

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        """Evaluate with the kernels that the numba backend compiles in."""
        if self._evaluate is None:

            def arrays(function: Any) -> Any:
                return lambda *rows: [np.asarray(a) for a in function(*rows)]

            own = [arrays(function) for function, _ in self.functions]
            self._evaluate = self.written(node, own, compiled=False)[0]
        output_storage[0][0] = self._evaluate(*inputs)

    def infer_shape(self, *args: Any) -> list[tuple[Variable, ...]]:
        """Return the shape of the noise."""
        return [tuple(args[-1][-2])]

    def for_numba(self, node: Apply, ending: Ending = RELEASE) -> tuple[Any, str | None]:
        """Return the Python function that numba compiles, and a key of it, None if it cannot be kept."""
        functions, keys = [], []
        for function, _ in self.functions:
            made, key_of_rows = numba_funcify_and_cache_key(function.maker.fgraph)
            functions.append(made)
            keys.append(key_of_rows)
        function, source = self.written(node, functions, compiled=True, ending=ending)
        key = None
        if None not in keys:  # the rows can be kept on disk
            assert self.mark.places is not None
            of_op = self.graph_key or keys, self.mark._props()[:3], self.mark.places.key, self.length
            parts = (source, *of_op, [names for _, names in self.functions], source_hash())
            key = hashlib.sha256(f"pymc_dpvi.LocalSum {parts}".encode()).hexdigest()
        return function, key


@register_funcify_and_cache_key(LocalSum)
def _numba_local_sum(op: LocalSum, node: Apply, **kwargs: Any) -> Any:
    function, key = op.for_numba(node)
    return numba_njit(function, fastmath=False), key
