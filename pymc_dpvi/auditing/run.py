"""``pymc_dpvi.audit(model, method)``: the mechanism's test suite on the user's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from pymc_dpvi.accounting.evaluation import MAX_STEPS
from pymc_dpvi.arguments import check_integer, check_seed
from pymc_dpvi.auditing.attack import DELTAS, check_attack, claims, lower_bound, run_attack
from pymc_dpvi.auditing.batches import check_batches
from pymc_dpvi.auditing.gradients import check_gradients
from pymc_dpvi.auditing.probe import Probe
from pymc_dpvi.auditing.report import AuditReport
from pymc_dpvi.auditing.sensitivity import check_lattice, check_one_way_out, check_sensitivity
from pymc_dpvi.auditing.transcript import check_noise, check_randomness
from pymc_dpvi.compat import versions
from pymc_dpvi.engine.backends import Backend, backends, bounded, first_that_works, only_numba
from pymc_dpvi.errors import ArgumentError
from pymc_dpvi.graph.fine_integrals import can_integrate
from pymc_dpvi.inference import DPADVI
from pymc_dpvi.lowering import is_python
from pymc_dpvi.mechanism.mechanism import Streams
from pymc_dpvi.redaction import sealed

__all__ = ["audit"]

_CONFIDENCE = 0.95
_MOST_NUMBERS = 20_000_000  # deviates that the noise check keeps


@sealed
def audit(
    model: pm.Model | None = None,
    method: DPADVI | type[DPADVI] = DPADVI,
    *,
    n: int = 10000,
    runs: int = 4000,
    obj_n_mc: int = 1,
    backend: str | None = None,
    compile_kwargs: Mapping[str, Any] | None = None,
    cores: int | None = None,
    random_seed: int | None = None,
    **kwargs: Any,
) -> AuditReport:
    """Check that the private step of your model keeps the promises that its guarantee rests on.

    The step is compiled, with synthetic records of the model's types and shapes in place of the data. Its
    release is measured: how far ordinary and hostile records move it, the noise of a run on empty batches,
    the batches, the streams of random numbers, and whether steps with and without a record can be told apart
    better than the accountant says. The package's tests run the same checks, and show that each of them finds
    the mistakes that it is meant to find.

    Parameters
    ----------
    model : pymc.Model, optional
        Taken from `method`, or from the context.
    method : DPADVI or DPFullRankADVI, or either class
        What `pm.fit` would get. Of a class, a method is made with `kwargs`.
    n : int
        Number of steps that the noise is calibrated for, as in `fit`.
    runs : int
        Steps that each measurement makes. More steps find smaller mistakes: 4000 find noise that is 10 % too
        small in one of the numbers released.
    obj_n_mc : int
        As in `fit`.
    backend : {"numba", "c", "jax", "python"}, optional
        As in `fit`.
    compile_kwargs : dict, optional
        As in `fit`.
    cores : int, optional
        As in `fit`: the sums by threads are audited then.
    random_seed : int, optional
        For synthetic records and base draws. Noise and batches come from the operating system.
    **kwargs
        For the method, if a class is given: ``epsilon``, ``delta``, ...

    Returns
    -------
    AuditReport
        Printable, with a table in a notebook, ``to_json()``, and ``passed``.

    Raises
    ------
    ArgumentError
        If an argument is bad, or `model` is not the method's.
    UnsupportedModelError, NotSeparableError
        As when the method is made.

    Notes
    -----
    Privacy: costs nothing, because no record is read. Synthetic arrays replace the model's before anything is
    compiled; only types and row shapes, which are part of the model, are used. The variational parameters are
    those of the method: the start, or what a fit released. The budget is not charged.

    The probability that a check fails although nothing is wrong is at most 1e-9 (exact tests, Bonferroni).
    A passed audit is no proof; the empirical lower bound on ε is weak evidence, and the report says so.

    Examples
    --------
    >>> with model:
    ...     report = pymc_dpvi.audit(method=DPADVI(epsilon=1.0, delta=1e-6), n=2000)
    >>> report.passed
    True
    """
    n = check_integer("n", n, high=MAX_STEPS)
    runs = check_integer("runs", runs, low=100, high=10_000_000)
    n_mc = check_integer("obj_n_mc", obj_n_mc)
    if random_seed is not None:
        check_seed("random_seed", random_seed)
    candidates = backends(backend, compile_kwargs)
    if cores is not None:
        candidates = only_numba(candidates, f"cores={check_integer('cores', cores)}")
    audited = _method(model, method, kwargs)
    rng = np.random.default_rng(random_seed)
    record, approx, settings = audited._record, audited._approx, audited._settings
    if not all(np.isfinite(p.get_value(borrow=True)).all() for p in approx.params):
        raise ArgumentError("the method's variational parameters are not finite; make a new method to audit.")
    mechanism = settings.mechanism(n, record.num_units)

    def compiled(candidate: Backend) -> Probe:
        kwargs: dict[str, Any] = {"compile_kwargs": dict(candidate.step), "rows_kwargs": dict(candidate.rows)}
        if not is_python(candidate.step["mode"]):  # as a fit's step is made
            kwargs |= {"cores": cores, "public_batch": audited._runs.public_batch(mechanism)}
        return Probe(record, approx, mechanism, n_mc=n_mc, rng=rng, **kwargs)

    probe, taken = first_that_works(bounded(candidates, record.factors.values()), compiled)
    streams = Streams.make(None)
    kept = int(np.clip(_MOST_NUMBERS // probe.num_noise, 100, runs))
    attack = run_attack(probe, mechanism, streams, rng, runs)
    claimed = claims(mechanism, settings.accountant, {*DELTAS, 1e-5, settings.delta})
    can_compare = mechanism.gradient == "aligned" and n_mc == 1 and can_integrate(record)
    oracle = [check_gradients(probe, record, approx, rng)] if can_compare else []
    results = (
        check_one_way_out(probe),
        check_sensitivity(probe, mechanism, streams, rng),
        *oracle,
        check_lattice(probe, mechanism, streams, rng),
        check_noise(probe, mechanism, streams, rng, kept),
        check_batches(
            mechanism,
            streams,
            rng,
            runs,
            by_unit=record.units is not None,
            max_rows=None if record.units is None else record.units.max_rows,
        ),
        check_randomness(mechanism, audited._runs.insecure_noise_seed),
        check_attack(attack, claimed),
    )
    sampler = mechanism.sampler
    facts = {
        "method": type(audited).__name__,
        "gradients": mechanism.gradient,
        **({} if record.units is None else {"record": record.unit}),
        "backend": taken,
        "latent values": str(approx.latents.size),
        "numbers released a step": str(probe.num_noise),
        "sampler": sampler.name,
        "sampling_prob": f"{sampler.sampling_prob:.6g}",
        "l2_clip_norm": f"{mechanism.l2_clip_norm:.6g}{' at the start' if mechanism.adaptive else ''}",
        "noise_multiplier": f"{mechanism.noise_multiplier:.6g} (for {n} steps)",
        "protects against": mechanism.neighboring_relation,
        "accountant": settings.accountant_info.name,
        "steps a measurement": str(runs),
    }
    return AuditReport(
        results=results,
        epsilon_lower_bound=lower_bound(attack, settings.delta, _CONFIDENCE),
        confidence=_CONFIDENCE,
        epsilon_claimed=claimed.get(settings.delta, float("nan")),
        delta=settings.delta,
        settings=tuple(facts.items()),
        versions=tuple(versions().items()),
    )


def _method(model: Any, method: Any, kwargs: Mapping[str, Any]) -> DPADVI:
    """Return the method to audit, made if a class was given."""
    if model is not None and not isinstance(model, pm.Model):
        raise ArgumentError(
            f"model must be a pymc.Model; found a {type(model).__name__}. Type audit(model, method), or "
            "audit(method=method)."
        )
    if isinstance(method, type) and issubclass(method, DPADVI):
        if model is not None and "model" in kwargs:
            raise ArgumentError("model is given twice; leave out model= among the method's arguments.")
        arguments: dict[str, Any] = {"model": model, **kwargs}
        return method(**arguments)
    if not isinstance(method, DPADVI):
        raise ArgumentError(
            "method must be DPADVI(...) or DPFullRankADVI(...), or one of these classes with its arguments; "
            f"found a {type(method).__name__}."
        )
    if kwargs:
        raise ArgumentError(
            f"audit() does not take {sorted(kwargs)} with a method that has been made; give them to "
            f"{type(method).__name__}(...)."
        )
    if model is not None and method._record.whole_model is not model:
        raise ArgumentError("method was made for another model; make it with model=, or inside its context.")
    return method
