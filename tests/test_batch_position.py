"""How far a record's gradient depends, in its last bits, on the batch that it stands in.

docs/noise.md, section 4, assumes that it does so by little: by η of its norm, where η times the batch size is
at most 2^-15. Compiled loops and matrix products treat the rows at the end of a batch differently from the
others, so that it is not zero.
"""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from zoo import ZOO

from pymc_dpvi.approximation import DPMeanField
from pymc_dpvi.blocks import as_matrix
from pymc_dpvi.clipping import MAX_RECORDS
from pymc_dpvi.gradients import aligned_gradients
from pymc_dpvi.records import build_record_model

NAMES = (
    "linear",
    "logistic_logit",
    "poisson_exposure",
    "weibull_censored",
    "radon_centered",
    "bnn_one_layer",
)


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES[1:])])
def test_a_gradient_hardly_depends_on_the_rest_of_the_batch(name: str) -> None:
    record = build_record_model(ZOO[name].build(), record_dim=ZOO[name].record_dim)
    latents = DPMeanField(record, random_seed=1).latents
    indices, z = pt.lvector("indices"), pt.matrix("z", dtype="float64", shape=(1, latents.size))
    batch = [
        pt.specify_shape(data[indices], (None, *row.type.shape[1:]))
        for data, row in zip(record.data(), record.rows, strict=True)
    ]
    gradients = as_matrix(aligned_gradients(record, batch, latents, z, 1))
    rows = pytensor.function([indices, z], gradients, mode="NUMBA", on_unused_input="ignore")
    rng = np.random.default_rng(0)
    n = record.num_records
    worst = 0.0
    for scale in (0.1, 1.0):
        at = rng.normal(size=(1, latents.size)) * scale
        alone = np.concatenate([rows(np.array([i]), at) for i in range(n)])
        for size in (2, 3, 5, 8, 13, n - 1, n):
            chosen = rng.choice(n, size=size, replace=False)
            moved = np.linalg.norm(rows(chosen, at) - alone[chosen], axis=1)
            worst = max(worst, float(np.max(moved / np.linalg.norm(alone[chosen], axis=1))))
    # As the proof wants it, for the largest batch.
    assert worst * MAX_RECORDS <= 2.0**-22
