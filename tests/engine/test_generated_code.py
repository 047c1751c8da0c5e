"""Functions with any number of arguments are inlined, and compute what they did."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key

from pymc_dpvi import DPADVI
from pymc_dpvi.engine import generated_code
from pymc_dpvi.engine.generated_code import MOST_ARGUMENTS, inlined


def compiled(number: int) -> Any:
    """Numba's function of a graph with so many inputs, whose order shows in the result."""
    inputs = [pt.vector(f"x{k}") for k in range(number)]
    graph = sum(((k + 1) * x for k, x in enumerate(inputs)), start=pt.zeros(2))
    function = pytensor.function(inputs, [graph], mode="NUMBA")
    return numba_funcify_and_cache_key(function.maker.fgraph)[0]


@pytest.mark.turns
@pytest.mark.parametrize("number", [2, MOST_ARGUMENTS, MOST_ARGUMENTS + 1, 2 * MOST_ARGUMENTS + 3])
def test_any_number_of_arguments(number: int) -> None:
    names = [f"a{k}" for k in range(number)]
    function, given = inlined(compiled(number), names)
    assert function.targetoptions["inline"] == "always"
    scope = {"function": function}
    exec(f"def caller({', '.join(names)}):\n    (out,) = function({given})\n    return out", scope)
    values = [np.array([1.0, 10.0]) * 2.0**-k for k in range(number)]
    expected = sum((k + 1) * v for k, v in enumerate(values))
    np.testing.assert_allclose(numba.njit(scope["caller"])(*values), expected, rtol=1e-15)


def test_without_groups_numba_does_not_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the groups are for: if a newer numba can do without them, they can go."""
    monkeypatch.setattr(generated_code, "MOST_ARGUMENTS", 1000)
    names = [f"a{k}" for k in range(40)]
    function, given = inlined(compiled(40), names)
    scope = {"function": function}
    exec(f"def caller({', '.join(names)}):\n    (out,) = function({given})\n    return out", scope)
    with pytest.raises(numba.core.errors.UnsupportedError, match=r"\*args"):
        numba.njit(scope["caller"])(*[np.ones(2)] * 40)


def test_a_function_of_unknown_source_is_called_as_it_is() -> None:
    names = [f"a{k}" for k in range(40)]

    @numba.njit
    def plain(*arguments: Any) -> Any:
        return (arguments[0] + arguments[39],)

    function, given = inlined(plain, names)
    assert "inline" not in function.targetoptions and given == ", ".join(names)


@pytest.mark.turns
@pytest.mark.compiled
def test_the_smallest_model_that_numba_refused() -> None:
    """Its rows read 38 results that all records share."""
    counts = np.random.default_rng(1).poisson(3.0, 40)
    with pm.Model():
        mu, alpha = pm.Gamma("mu", 2, 1), pm.Exponential("alpha", 0.5)
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=counts)
        method = DPADVI(noise_multiplier=2.0, delta=1e-5, sampling_prob=0.5, accountant="rdp")
        approx = method.fit(3, backend="numba", progressbar=False)
    assert approx.privacy.runs[-1].backend == "numba"
