"""Advanced indices beside slices: the same numbers as NumPy's, in a form that is vectorised over records."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from oracle import compare

from pymc_dpvi.graph.leading_indices import with_leading_indices
from pymc_dpvi.graph.records import build_record_model

X = np.arange(5 * 3 * 4.0).reshape(5, 3, 4)
H, G = np.array([2, 0, 1, 1, 2, 0, 1]), np.array([3, 1, 0, 2, 2, 3, 0])

CASES = {
    "last": lambda x, h, g: x[..., g],
    "middle": lambda x, h, g: x[:, h],
    "two": lambda x, h, g: x[:, h, g],
    "apart": lambda x, h, g: x[h + 1, :, g],
    "apart_sliced": lambda x, h, g: x[h + 1, 1:3, g],
    "step": lambda x, h, g: x[::-2, h, 1:],
    "new_axis": lambda x, h, g: x[None, h],
    "new_axis_behind": lambda x, h, g: x[:, h, None],
    "matrix": lambda x, h, g: x[:, h[:, None], g[None, :]],
    "broadcast": lambda x, h, g: x[h[:, None], :, g[None, :]],
}


@pytest.mark.parametrize("case", CASES)
def test_same_as_numpy(case: str):
    h, g = pt.lvector("h"), pt.lvector("g")
    x = pt.as_tensor(X)
    node = CASES[case](x, h, g).owner
    # PyTensor 3 keeps slices in the operation, and vectorises them itself.
    with_slices = [i for i in node.inputs[1:] if not hasattr(i.type, "ndim")]
    if not with_slices:
        assert with_leading_indices(node.inputs) is None
        return
    out = with_leading_indices(node.inputs)
    assert out is not None
    assert all(hasattr(i.type, "ndim") for i in out.owner.inputs)
    found = pytensor.function([h, g], out, mode="FAST_COMPILE", on_unused_input="ignore")(H, G)
    np.testing.assert_array_equal(found, CASES[case](X, H, G))


@pytest.mark.parametrize("case", ["last", "middle", "two", "apart", "apart_sliced", "new_axis"])
def test_a_model_that_looks_up_beside_slices(case: str):
    rng = np.random.default_rng(3)
    h, g = rng.integers(0, 3, 26), rng.integers(0, 4, 26)
    with pm.Model() as model:
        table = pm.Normal("table", 0, 1, shape=(5, 3, 4))
        looked_up = CASES[case](table, h, g)
        axis = next(k for k, length in enumerate(looked_up.type.shape) if length == 26)
        mu = looked_up.sum(axis=tuple(k for k in range(looked_up.type.ndim) if k != axis))
        pm.Normal("y", mu, 1.0, observed=rng.normal(size=26))
    worst = compare(build_record_model(model), "PYTHON")
    assert worst["rows"] <= 1e-8 and worst["gradient"] <= 1e-8, worst
