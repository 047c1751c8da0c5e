"""The methods of `step_time.py`: each prepares a model and returns a function that makes so many steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from d3p_step import Remote, python_of
from step_models import MODELS, Case

__all__ = ["METHODS", "Unavailable"]

Run = Callable[[int], None]
LEARNING_RATE = 0.01


class Unavailable(Exception):
    """A method cannot run here; the text says what is missing."""


def private(case: Case, data: dict[str, np.ndarray], backend: str = "numba") -> Run:
    """Prepare `DPADVI`."""
    import pymc as pm

    from pymc_dpvi import DPADVI, DPFullRankADVI
    from pymc_dpvi.engine.loop import iterate
    from pymc_dpvi.errors import ArgumentError

    with pm.Model() as model:
        case.model(data, None)
    inference = (DPFullRankADVI if case.full_rank else DPADVI)(
        noise_multiplier=4.0,
        delta=1e-6,
        sampling_prob=case.batch_size / case.num_records,
        random_seed=1,
        model=model,
    )
    optimizer = pm.adam(learning_rate=LEARNING_RATE)
    try:
        inference.fit(1, progressbar=False, backend=backend, obj_optimizer=optimizer)
    except ArgumentError as error:
        raise Unavailable(str(error)) from None
    step, mechanism, streams = inference._runs.step, inference._runs.mechanism, inference._runs.streams
    assert step is not None and mechanism is not None and streams is not None
    parts, rng = (step, mechanism, streams), np.random.default_rng(1)

    def run(n: int) -> None:
        # The loop of `fit`, without the accounting before it.
        for _ in iterate(*parts, rng, case.num_records, n):
            pass

    return run


def own(case: Case, data: dict[str, np.ndarray]) -> Run:
    """Prepare the same loop without privacy."""
    import pymc as pm
    import pytensor
    import pytensor.tensor as pt
    from pytensor.graph.replace import graph_replace

    from pymc_dpvi.compat import compile_mode, quiet_pytensor
    from pymc_dpvi.engine.multistep import Chunk
    from pymc_dpvi.graph.records import build_record_model
    from pymc_dpvi.posterior.approximation import DPFullRank, DPMeanField

    with pm.Model() as whole:
        case.model(data, None)
    family = DPFullRank if case.full_rank else DPMeanField
    approx = family(build_record_model(whole), random_seed=1)
    latents, group = approx.latents, approx.groups[0]
    params = list(group.params)
    indices, noise = pt.lvector("indices"), pt.lvector("noise")
    count = pt.lscalar("count")
    epsilon = pt.matrix("epsilon", dtype="float64", shape=(1, latents.size))
    weight = pt.dscalar("weight")
    shapes = {k: (case.batch_size, *v.shape[1:]) for k, v in data.items()}
    batch = {k: pt.tensor(k, dtype=v.dtype, shape=shapes[k]) for k, v in data.items()}
    with pm.Model() as model:
        case.model(batch, case.num_records)
    z, logq = graph_replace(
        [group.symbolic_random, group.symbolic_logq_not_scaled],
        {group.symbolic_initial: epsilon},
        strict=False,
    )
    held = {k: pytensor.shared(v, borrow=True) for k, v in data.items()}
    swap = {batch[k]: pt.specify_shape(held[k][indices], shapes[k]) for k in data}
    values = [model.rvs_to_values[model[rv.name]] for rv in whole.free_RVs]
    swap |= dict(zip(values, latents.split(z[0]), strict=True))
    (logp,) = graph_replace([model.logp()], swap, strict=False)
    grads = pytensor.grad(logq.mean() - logp, params)
    updates = dict(pm.adam(learning_rate=LEARNING_RATE)(grads, params))
    for p in params:
        average = pytensor.shared(p.get_value(), name=f"{p.name}_average")
        updates[average] = average + weight * (updates[p] - average)
    chunk = Chunk([indices, count, noise, epsilon, weight], [], updates, compile_mode(None, None))
    rng = np.random.default_rng(1)
    longest = int(np.clip(500_000 / latents.size, 1, 200))

    def run(n: int) -> None:
        for first in range(0, n, longest):
            k = min(longest, n - first)
            batches = rng.integers(case.num_records, size=k * case.batch_size)
            offsets = np.arange(k + 1) * case.batch_size
            draws = rng.standard_normal((k, 1, latents.size))
            chunk(batches, offsets, np.zeros((k, 0), dtype=np.int64), draws, np.full(k, 0.01))

    with quiet_pytensor():
        run(1)
    return run


def advi(case: Case, data: dict[str, np.ndarray]) -> Run:
    """Prepare PyMC's own ADVI."""
    import pymc as pm

    with pm.Model():
        arrays = pm.Minibatch(*data.values(), batch_size=case.batch_size)
        arrays = arrays if len(data) > 1 else [arrays]
        case.model(dict(zip(data, arrays, strict=True)), case.num_records)
        inference = (pm.FullRankADVI if case.full_rank else pm.ADVI)(random_seed=1)
        inference.fit(1, progressbar=False, score=False, obj_optimizer=pm.adam(learning_rate=LEARNING_RATE))

    def run(n: int) -> None:
        inference.refine(n, progressbar=False)

    return run


def bare(case: Case, data: dict[str, np.ndarray]) -> Run:
    """Prepare nothing but the batch's rows and the gradient, in NumPy: no prior, no optimiser, no noise."""
    if case.gradient is None:
        raise Unavailable("the gradient of this model is not written out in NumPy here")
    rng, values, gradient = np.random.default_rng(1), np.zeros(case.num_params), case.gradient
    batches = rng.integers(case.num_records, size=(200, case.batch_size))

    def run(n: int) -> None:
        for i in range(n):
            gradient(data, batches[i % len(batches)], values)

    return run


def numpyro(case: Case, data: dict[str, np.ndarray]) -> Run:
    """Prepare NumPyro's SVI in one fused loop.

    Its own ``subsample_size`` would permute all records in every step, which is most of the time then. Here
    batches are drawn with replacement, which costs nearly nothing.
    """
    try:
        jax, infer, optim = map(import_module, ("jax", "numpyro.infer", "numpyro.optim"))
        autoguide, handlers = map(import_module, ("numpyro.infer.autoguide", "numpyro.handlers"))
    except ImportError:
        raise Unavailable("not installed; pip install numpyro 'jax[cpu]'") from None
    if case.numpyro is None:
        raise Unavailable("this model is not written in NumPyro here")
    arrays = {k: jax.numpy.asarray(v) for k, v in data.items()}
    model = case.numpyro

    def records(indices: Any) -> None:
        with handlers.substitute(data={"records": indices}):
            model(arrays, case.num_records, case.batch_size)

    guide = autoguide.AutoNormal(records, init_loc_fn=infer.init_to_median(num_samples=1))
    svi = infer.SVI(records, guide, optim.Adam(LEARNING_RATE), infer.Trace_ELBO())

    def draw(key: Any) -> Any:
        return jax.random.randint(key, (case.batch_size,), 0, case.num_records)

    def step(_: int, carry: Any) -> Any:
        state, key = carry
        key, now = jax.random.split(key)
        return svi.update(state, draw(now))[0], key

    key = jax.random.PRNGKey(1)
    state = [(svi.init(key, draw(key)), key)]
    loop = jax.jit(lambda n, carry: jax.lax.fori_loop(0, n, step, carry))

    def run(n: int) -> None:
        state[0] = jax.block_until_ready(loop(n, state[0]))

    run(1)
    return run


def d3p(case: Case, data: dict[str, np.ndarray]) -> Run:
    """Prepare d3p's private steps, in a process of another Python."""
    python = python_of()
    if python is None:
        raise Unavailable("not installed; python benchmarks/d3p_step.py make")
    name = next((name for name, known in MODELS.items() if known is case), None)
    if name is None or case.numpyro is None:
        raise Unavailable("this model is not written in NumPyro here")
    return Remote(python, name)


METHODS: dict[str, Callable[[Case, dict[str, np.ndarray]], Run]] = {
    "private": private,
    "c": partial(private, backend="c"),
    "jax": partial(private, backend="jax"),
    "own": own,
    "advi": advi,
    "bare": bare,
    "numpyro": numpyro,
    "d3p": d3p,
}
