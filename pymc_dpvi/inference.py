r"""``pm.fit(n, method=DPADVI(epsilon=..., delta=...))``: what a user calls; check, calibrate, run.

In: a PyMC model on the full data, and what its fit may spend. Out: a `DPApproximation`, which is released. A
fit takes these steps, and only the last spends anything:

1. The arguments are checked (`settings`, `keywords`); those of the method when it is made.
2. The model is split by records and checked (`graph.records`, `graph.separability`) when the method is made.
3. The noise is calibrated to ``(epsilon, delta)`` for the planned number of steps (`accounting`).
4. The step is compiled, its run is charged, and it runs (`runs`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NoReturn

import pymc as pm
from pymc.variational.inference import Inference
from pytensor.graph.basic import Variable

from pymc_dpvi.accounting import PrivacyBudget
from pymc_dpvi.accounting.evaluation import MAX_STEPS
from pymc_dpvi.arguments import check_integer, check_seed
from pymc_dpvi.cautions import (
    warn_of_lost_records,
    warn_of_rough_integrals,
    warn_of_single_precision,
)
from pymc_dpvi.compat import PosteriorData, untraced
from pymc_dpvi.engine.backends import backends, bounded, only_numba
from pymc_dpvi.engine.cluster import Cluster
from pymc_dpvi.engine.source_records import SourceRecords, source_records
from pymc_dpvi.engine.source_units import BY_NAME
from pymc_dpvi.errors import ArgumentError, UnsupportedModelError
from pymc_dpvi.graph.amortized import encode
from pymc_dpvi.graph.guide_checks import check_families, check_reads_no_record, sorted_out
from pymc_dpvi.graph.local_rules import LocalRule
from pymc_dpvi.graph.mismatch import explained
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.separability import check_separable
from pymc_dpvi.graph.start import check_finite_start, check_starting_values
from pymc_dpvi.guide import Amortized, GuideFamily
from pymc_dpvi.keywords import MEANT, NEEDED, check_fit_arguments, named
from pymc_dpvi.mechanism.adaptive_clipping import AdaptiveClip
from pymc_dpvi.one_at_a_time import Turn, one_at_a_time
from pymc_dpvi.optimizers import Optimizer
from pymc_dpvi.posterior.approximation import DPApproximation, DPFullRank, DPMeanField
from pymc_dpvi.posterior.guided import DPGuided
from pymc_dpvi.progress import check_bar
from pymc_dpvi.redaction import sealed, shielded
from pymc_dpvi.runs import Runs
from pymc_dpvi.settings import PrivacySettings

__all__ = ["DPADVI", "DPFullRankADVI", "fit_dpadvi"]

_STARTING = "The fit cannot start: {} was raised. Check start= and start_sigma=, and the variables' initval."

Callback = Callable[[DPApproximation, None, int], Any]


class DPADVI(Inference):  # type: ignore[misc]
    r"""Differentially private automatic differentiation variational inference, mean-field.

    Use it where PyMC's ``ADVI`` would stand, inside a model context, on the full data:

    ``pm.fit(2000, method=DPADVI(epsilon=1.0, delta=1e-6))``

    Parameters
    ----------
    epsilon : float, optional
        Privacy target ε. Give it, or `noise_multiplier`.
    delta : float
        Privacy target δ; should be well below one over the number of records.
    noise_multiplier : float, optional
        Noise standard deviation divided by `l2_clip_norm`, instead of `epsilon`. (With an adaptive clip norm,
        by the norm of all that a record adds: gradient and counts.)
    sampling_prob : float, optional
        Probability q with which a record takes part in a step. By default the smallest q above which noise/q
        hardly falls, for this ε, δ and number of steps (`accounting.default_sampling_prob`); see `plan`.
    batch_size : int, optional
        Expected batch size, instead of `sampling_prob`. The number of records is then public.
    l2_clip_norm : float, "adaptive" or AdaptiveClip
        C: bound on one record's gradient with respect to the unconstrained latent values. ``"adaptive"``
        follows the gradients' norms by noisy counts, which are part of the cost.
    sampler : {"poisson", "fixed_size", "full_batch"}
        How batches are drawn. ``"fixed_size"`` needs ``neighboring_relation="replace_one"``.
    neighboring_relation : {"add_or_remove_one", "replace_one"}
        Which data sets are neighbours.
    gradient : {"aligned", "vanilla"}
        What is clipped: gradients with respect to the latent values (Jälkö et al. 2023), or with
        respect to all variational parameters (Jälkö et al. 2017, where KL/N makes N public).
    accountant : str, dp_accounting.PrivacyAccountant or callable
        How ε is computed: one of `accounting.ACCOUNTANT_NAMES`, or your own accountant.
    allow_unproven : bool
        Admit an accountant that proves no upper bound: the heuristic and Bayesian ones, and your own. The
        report then says so in its first line.
    budget : PrivacyBudget, optional
        What all fits on these data may spend together. Each `fit` and `refine` is charged to it before
        noise is drawn, or refused. Without one, nothing limits the sum of several fits.
    unit : str, array of int or str, or dict of them, optional
        Whose the rows are, if a person may have several: the name of a ``pm.Data`` that holds one id per
        row, that of a dim whose labels are ids, or the ids. A record is then all rows with one id; neither
        ids nor anybody's number of rows are released. By default a record is a row. With several tables,
        observed variables of different lengths, a dict that has the ids of each: ``{"cost": "who_came",
        "smoker": "who_answered"}``; a record is then all rows with one id in all tables. With `records`, a
        ``pm.Data`` of made-up ids, for which `records` has a source of all ids.
    max_rows_per_unit : int, optional
        With `unit`: of a person with more rows, so many are drawn anew in every step. Without it, clipping
        alone bounds what a person with many rows does. The number is public.
    guide : dict, optional
        How the posterior of variables is represented, by name. A family for a variable, or for a tuple of
        names together: `Point`, `FullRank`, `LowRank`, `MeanField`, `Dropout`, or your own `GuideFamily`;
        `MeanField` by default. For a variable with a value for each record, an encoder: `Amortized`. For one
        with a value for each person, ``u[person]``, how it is integrated out: `Quadrature`, or `Variational`,
        which is the default for more than seven values; discrete ones by adding up all their values.
    record_dim : str, optional
        The dim that runs over rows; only needed if lengths are ambiguous.
    public_data : iterable of str
        Names of ``pm.Data`` that everybody may know, such as group-level tables. Any ``pm.Data`` that is not
        indexed by records must be named here, but for single numbers. What it holds now is what is public.
    records : dict, optional
        Where the records are, if they do not fit into memory: a source for each array of records, by the
        name of its ``pm.Data`` or of the observed variable. The model is then written on a few made-up rows.
        A source is a ``numpy.memmap``, a zarr array, a column of a memory-mapped Arrow table, an h5py data
        set, an ``xarray.DataArray``, a dask array, ``(ParquetFile, "column")``, or any object with ``shape``,
        ``dtype`` and ``source[indices]``. Rows of the batches are read as the steps need them, in a thread.
    client : distributed.Client, optional
        With `records` as dask arrays: its workers hold the records and add up clipped gradients; the calling
        process sees no record, and adds the noise. Workers and scheduler are trusted (docs/scale.md).
    random_seed : int, optional
        For the base draws, and for `sample` by default. Noise and batches never depend on it.
    insecure_noise_seed : int, optional
        Makes noise and batches reproducible, for tests and papers. Such a result must not be released.
    start : dict, optional
        Initial means by variable name, as in PyMC. It must not be computed from the records.
    start_sigma : dict, optional
        Initial standard deviations by variable name, in the unconstrained space; 0.1 by default.
    model : pymc.Model, optional
        Taken from the context by default.

    Raises
    ------
    ArgumentError
        An argument has a bad value; nothing is spent.
    UnsupportedModelError, NotSeparableError
        The model cannot be fitted privately as written; nothing is spent.

    Notes
    -----
    ``start``, ``random_seed`` and ``inf_kwargs`` of ``pm.fit`` are refused: with a method instance PyMC
    ignores them. Give them to the method. ``pm.fit`` takes an instance only, ``DPADVI(epsilon=...,
    delta=...)``; with ``method="dpadvi"`` or ``method=DPADVI`` it raises PyMC's own error ("... or Inference
    instance").

    Privacy: making the method releases nothing. `fit` and `refine` release the noisy sums and all that is
    computed from them, at the cost that ``approx.privacy`` states. The unit of privacy is one row along the
    leading axis of the observed variables, or with `unit` all rows of one person.

    References
    ----------
    .. [1] Jälkö, Dikmen, Honkela, "Differentially private variational inference for non-conjugate
       models", UAI 2017, arXiv:1610.08749.
    .. [2] Jälkö, Prediger, Honkela, Kaski, "DPVIm: Differentially Private Variational Inference
       Improved", 2023.

    Examples
    --------
    >>> with model:
    ...     approx = pm.fit(2000, method=DPADVI(epsilon=1.0, delta=1e-6))
    >>> idata = approx.sample(1000)
    """

    _family: type[DPApproximation] = DPMeanField

    @sealed
    @named("DPADVI", NEEDED, MEANT)
    @untraced()
    def __init__(
        self,
        *,
        delta: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        sampling_prob: float | None = None,
        batch_size: int | None = None,
        l2_clip_norm: float | Literal["adaptive"] | AdaptiveClip = "adaptive",
        sampler: Literal["poisson", "fixed_size", "full_batch"] = "poisson",
        neighboring_relation: Literal["add_or_remove_one", "replace_one"] = "add_or_remove_one",
        gradient: Literal["aligned", "vanilla"] = "aligned",
        accountant: Any = "pld",
        allow_unproven: bool = False,
        budget: PrivacyBudget | None = None,
        unit: Any = None,
        max_rows_per_unit: int | None = None,
        guide: Mapping[str | tuple[str, ...], GuideFamily | LocalRule | Amortized] | None = None,
        record_dim: str | None = None,
        public_data: Iterable[str] = (),
        records: Mapping[str, Any] | None = None,
        client: Any = None,
        random_seed: int | None = None,
        insecure_noise_seed: int | None = None,
        start: Mapping[str, Any] | None = None,
        start_sigma: Mapping[str, Any] | None = None,
        model: pm.Model | None = None,
    ) -> None:
        if insecure_noise_seed is not None:
            check_seed("insecure_noise_seed", insecure_noise_seed)
        if random_seed is not None:
            check_seed("random_seed", random_seed)
        self._settings = PrivacySettings(
            delta=delta,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            sampling_prob=sampling_prob,
            batch_size=batch_size,
            l2_clip_norm=l2_clip_norm,
            sampler=sampler,
            neighboring_relation=neighboring_relation,
            gradient=gradient,
            accountant=accountant,
            allow_unproven=allow_unproven,
        )
        budget = self._settings.check_budget(budget, insecure_noise_seed)
        model = pm.modelcontext(model)
        if not isinstance(model, pm.Model):
            raise ArgumentError(f"model must be a pymc.Model; found a {type(model).__name__}.")
        families, encoders, rules = sorted_out(guide)
        if families or encoders:
            self._settings.check_guide()
            if self._family is not DPMeanField:
                raise ArgumentError(
                    f"{type(self).__name__} is one family for all variables, and guide= names others. Use "
                    "DPADVI with guide={('a', 'b'): FullRank()}."
                )
        asked = {"unit": unit, "max_rows_per_unit": max_rows_per_unit, "guide": rules}
        if records is not None:
            self._settings.check_sources(unit, encoders, client)
            if not (unit is None or isinstance(unit, str | Variable)):  # ids are as long as the sources
                raise ArgumentError(BY_NAME)
        if encoders and isinstance(unit, Mapping):
            raise ArgumentError(
                "unit= with several tables and Amortized in guide= do not go together: an encoder is for "
                "values of rows. Leave one of them out."
            )
        seen, encoded = explained(lambda: encode(model, encoders, insecure_noise_seed, public_data), model)
        self._record = explained(
            lambda: build_record_model(seen, record_dim=record_dim, public_data=public_data, **asked), seen
        )
        if encoded is not None:
            self._record = replace(self._record, encoded=encoded)
        self._settings.check_unit(self._record.units is not None)
        self._sources: SourceRecords | Cluster | None = None
        if client is not None and records is None:
            raise ArgumentError(
                "client= adds up records that are on its workers: give records= as dask arrays."
            )
        if records is not None and self._record.within is not None:
            raise UnsupportedModelError(
                "A formula of the model takes other rows of the same person (a lag, a running sum, a mean). "
                "With records=, compute it before the model, and give it as a column of its own."
            )
        if records is not None and self._record.covariates is not None:
            raise UnsupportedModelError(
                "The model looks up covariates of persons by the ids, an array with an entry for each "
                "person. With records=, give the model one entry for each row, x_row = x[person]."
            )
        if records is not None:
            self._sources = source_records(self._record, records, client)
            units = self._sources.units if isinstance(self._sources, SourceRecords) else None
            self._record = replace(self._record, num_in_sources=self._sources.num_rows, units=units)
        parts = check_families(families, self._record)
        family = DPGuided if parts else self._family
        sigmas = {name: part.start_sigma for names, part in parts.items() for name in names}
        starting = check_starting_values(self._record, start, start_sigma, family._group_class, sigmas)
        if parts:
            starting["families"] = parts
        self._turn = Turn()
        self._approx = shielded(
            lambda: family(self._record, random_seed=random_seed, **starting), ArgumentError, _STARTING
        )
        if parts:
            check_reads_no_record(self._record, self._approx.groups[0])
        self._approx.groups[0].narrow()
        if not self._approx.latents.size:
            raise UnsupportedModelError(
                "The free variables of the model have no entries, so there is nothing to infer."
            )
        explained(lambda: check_finite_start(self._record, self._approx.latents, self._approx.start), model)
        if explained(lambda: check_separable(self._record, self._approx.latents, self._approx.start), model):
            warn_of_lost_records(self._record.factors)
        self._settings.check_sampler(self._record.num_units)
        warn_of_single_precision(self._approx.latents.value_vars)
        warn_of_rough_integrals(self._record, self._approx.latents, self._approx.start)
        self._runs = Runs(
            self._settings,
            budget,
            self._record,
            self._sources,
            self._approx,
            random_seed=random_seed,
            insecure_noise_seed=insecure_noise_seed,
            label=type(self).__name__,
        )
        self.state = None

    approx = property(lambda self: self._approx, doc="The approximation; fitted by `fit`.")
    hist = property(lambda self: self._approx.hist, doc="As that of the approximation: no loss.")

    @property
    def l2_clip_norm(self) -> float:
        """The bound on a record's gradient; if it is adaptive, as the noisy counts have moved it so far.

        It is released with the noisy counts, and costs nothing more.
        """
        step = self._runs.step
        if step is not None and step.running_clip is not None:
            return step.running_clip.l2_clip_norm
        return self._settings.first_clip_norm

    @sealed
    @one_at_a_time
    def fit(
        self,
        n: int = 10000,
        score: bool | None = None,
        callbacks: Sequence[Callback] | None = None,
        progressbar: bool = True,
        progressbar_theme: Any = None,
        *,
        backend: str | None = None,
        include_transformed: bool = False,
        obj_n_mc: int = 1,
        obj_optimizer: Optimizer | None = None,
        total_grad_norm_constraint: float | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
        cores: int | None = None,
        **kwargs: Any,
    ) -> DPApproximation:
        """Fit privately for `n` steps.

        Parameters
        ----------
        n : int
            Number of steps; the noise is calibrated to it.
        score : bool, optional
            Refused if True: the loss on the data is not private.
        callbacks : sequence of callable, optional
            Called as ``callback(approx, None, i)`` after each step; ``StopIteration`` ends the fit, at the
            planned cost. The iterates that a callback sees are released; through ``approx.model`` it can read
            the data, as the caller's own code can. If all callbacks have a whole number ``every``, as
            pm.callbacks.CheckParametersConvergence has, they are called after the first step, after each
            multiple of the greatest common divisor of these numbers, and after the last step: many steps then
            run in one compiled call.
        progressbar : bool
            Show steps, speed and ε.
        progressbar_theme : rich.theme.Theme, optional
        backend : {"numba", "c", "jax", "python"}, optional
            What compiles the step. By default numba; if it cannot compile the model, C, and then Python mode,
            with a line in the log and the reason in the report. Up to `backends.FEW_STEPS` steps the default
            is Python mode, which starts at once, unless the model is large or has an operation that loops;
            with local variables, up to fewer steps (`engine.backends`). With ``"jax"``, JAX computes the
            gradients of the records, one microbatch at a time, on its default device
            (``jax.default_device``); clipping, sums and noise are the same code as with ``"c"``.
        include_transformed : bool
            Let `sample` add the unconstrained values.
        obj_n_mc : int
            Latent draws a step. A record's gradients at all of them are clipped together, at no further cost.
        obj_optimizer : callable, optional
            Such as PyMC's ``pm.adam(learning_rate=...)``; it gets the noisy gradient. By default Adam with a
            learning rate that falls over the `n` steps (`optimizers.falling_adam`).
        total_grad_norm_constraint : float, optional
            Bound on the norm of the noisy gradient.
        compile_kwargs : dict, optional
            ``mode`` and ``name`` for PyTensor's ``function``.
        cores : int, optional
            Number of threads that add up the gradients of a batch, as in ``pm.sample``. The result is the
            same, bit by bit, for any number. It pays where a step takes a third of a millisecond, and needs
            numba. By default all cores are used for large networks, for records on the disk, and for large
            batches whose size is public; anything else runs on one.
        **kwargs
            Refused, each with its reason.

        Returns
        -------
        DPApproximation

        Raises
        ------
        ArgumentError, CalibrationError
            Before anything is spent.
        BudgetExceededError, LedgerError
            If the budget has too little left, or its file cannot be used; nothing is spent.
        ModelEvaluationError, RecordSourceError, WorkersError
            If the model's graph raises on the records, or a source of `records` as it is read, or if the
            cluster of `client` fails.
        FloatingPointError
            If the variational parameters become non-finite.

        Notes
        -----
        Privacy: costs the (ε, δ) given to the method, once per call. A keyboard interrupt returns the
        approximation so far, at the planned cost.
        """
        asked = check_fit_arguments(
            n,
            score,
            callbacks,
            progressbar,
            progressbar_theme,
            include_transformed,
            obj_n_mc,
            total_grad_norm_constraint,
            cores,
            kwargs,
            known=list(inspect.signature(self.fit).parameters),
            model=self._record.whole_model,
        )
        if self._record.local is not None and asked.n_mc > 1:
            raise ArgumentError(
                f"obj_n_mc={asked.n_mc} cannot be used with local variables "
                f"({', '.join(self._record.local.names)}), which are integrated out at one latent "
                "draw. Leave it out, and make more steps instead."
            )
        candidates = bounded(backends(backend, compile_kwargs), list(self._record.factors.values()))
        if isinstance(self._sources, Cluster):
            if asked.cores is not None:
                raise ArgumentError(
                    "cores= is of this process, and the workers of client= add up. Leave it out."
                )
            candidates = only_numba(candidates, "client=")
        elif asked.cores is not None:
            candidates = only_numba(candidates, f"cores={asked.cores}")
        mechanism = self._settings.mechanism(asked.n, self._record.num_units)
        if self._sources is not None:
            self._settings.check_sources(sampling_prob=mechanism.sampler.sampling_prob)
            self._sources.check_unchanged()
        self._runs.fit(asked, mechanism, candidates, obj_optimizer)
        return self._approx

    @sealed
    @one_at_a_time
    def refine(self, n: int, progressbar: bool = True, progressbar_theme: Any = None) -> None:
        """Continue the last fit for `n` more steps.

        Parameters
        ----------
        n : int
            Number of further steps.
        progressbar, progressbar_theme
            As in `fit`.

        Raises
        ------
        TypeError
            Before `fit`, as in PyMC.
        BudgetExceededError, LedgerError
            If the budget has too little left, or its file cannot be used; nothing is spent.

        Notes
        -----
        Privacy: costs `n` steps at the noise of the last fit, added to what was spent (basic composition, as
        the decision to go on may depend on the results so far).
        """
        if self._runs.step is None:
            raise TypeError("Need to call `.fit` first")
        n = check_integer("n", n, high=MAX_STEPS)
        bar = check_bar(progressbar, progressbar_theme)
        self._record.check_unchanged()
        if self._sources is not None:
            self._sources.check_unchanged()
        self._runs.refine(n, bar)

    def run_profiling(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: the profiled steps would read the records.

        Raises
        ------
        ArgumentError
        """
        raise ArgumentError(
            "run_profiling is refused: its steps would look at the records unaccounted. Profile a model of "
            "as many synthetic records with PyTensor alone."
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise TypeError(
            "A private method cannot be pickled or copied: it holds the data and the noise keys. Save "
            "approx.sample(draws).to_netcdf('posterior.nc') instead."
        )


class DPFullRankADVI(DPADVI):
    """Differentially private ADVI with a full-rank normal approximation.

    It costs the same as :class:`DPADVI`: with aligned gradients, the gradients of all entries of the Cholesky
    factor follow from the same noisy sum.

    Parameters
    ----------
    **kwargs
        As :class:`DPADVI`, without ``start_sigma``.
    """

    _family = DPFullRank


@sealed
def fit_dpadvi(
    n: int = 10000,
    *,
    draws: int = 1000,
    method: type[DPADVI] = DPADVI,
    fit_kwargs: Mapping[str, Any] | None = None,
    progressbar: bool = True,
    **kwargs: Any,
) -> PosteriorData:
    """Fit privately and return the posterior draws.

    Parameters
    ----------
    n : int
        Number of steps.
    draws : int
        Number of draws from the released posterior.
    method : type
        :class:`DPADVI` or :class:`DPFullRankADVI`.
    fit_kwargs : dict, optional
        For :meth:`DPADVI.fit`.
    progressbar : bool
        Show steps, speed and ε.
    **kwargs
        For the method: ``epsilon``, ``delta``, ...

    Returns
    -------
    arviz.InferenceData (PyMC 5) or xarray.DataTree (PyMC 6)
        Safe to publish; the privacy report is in its attributes.

    Raises
    ------
    ArgumentError, UnsupportedModelError, CalibrationError
        Before anything is spent.

    Notes
    -----
    Privacy: costs the (ε, δ) that is given; the draws cost nothing more.

    Examples
    --------
    >>> with model:
    ...     idata = fit_dpadvi(2000, epsilon=1.0, delta=1e-6)
    """
    if not (isinstance(method, type) and issubclass(method, DPADVI)):
        raise ArgumentError("method must be DPADVI or DPFullRankADVI (the class, not an instance).")
    if not isinstance(fit_kwargs, Mapping | None):
        raise ArgumentError(f"fit_kwargs must be a dict; found a {type(fit_kwargs).__name__}.")
    options: dict[str, Any] = {"n": n, "progressbar": progressbar}
    if twice := sorted({str(name) for name in fit_kwargs or ()} & options.keys()):
        raise ArgumentError(f"fit_kwargs has {twice}, which are arguments of fit_dpadvi: give them once.")
    inference = method(**kwargs)
    draws = inference.approx.check_draws(draws)  # before anything is spent
    return inference.fit(**options, **dict(fit_kwargs or {})).sample(draws)
