"""PyMC's approximation, fitted privately.

In: the model, split by records, and what a fit leaves: variational parameters, moments of the noisy gradients
(`gradient_moments`), the report. Out: draws (:meth:`DPApproximation.sample`), diagnostics, and expressions.
`released_draws` lists all that `sample` releases, and why it may.

All other attributes of PyMC's class are closed unless `open_attributes` lists them. Functions of the
variational parameters are open: they are released. The density of the records is refused, and so is any
expression that depends on records (`expressions`). ``model``, ``groups`` and what depends on them are the
user's own model with the data in it, open to the process that has the data anyway.

What it may never do: let anything out that depends on records, other than through the noisy sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_dpvi.arguments import check_flag, check_integer
from pymc_dpvi.compat import PosteriorData, posterior_data, versions
from pymc_dpvi.engine.gradient_moments import GROUP, MOST_LATENTS, GradientTrace
from pymc_dpvi.engine.running_clip import RunningClip
from pymc_dpvi.errors import ArgumentError, PrivacyError, UnsupportedModelError
from pymc_dpvi.graph.gradients import Latents
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.guide.whole import Family, WholeFullRank, WholeMeanField
from pymc_dpvi.posterior.curvature_posterior import CurvatureScale
from pymc_dpvi.posterior.diagnostics import FitDiagnostics, diagnose
from pymc_dpvi.posterior.encoded_posterior import EncodedPosterior
from pymc_dpvi.posterior.expressions import CheckedExpressions, depends, variables
from pymc_dpvi.posterior.local_posterior import LocalPosterior
from pymc_dpvi.posterior.noise_aware import NoiseAwarePosterior
from pymc_dpvi.posterior.prior_density import Prior
from pymc_dpvi.posterior.released_draws import Source, draw_from, release
from pymc_dpvi.redaction import sealed
from pymc_dpvi.release.report import PrivacyReport

__all__ = ["DPApproximation", "DPFullRank", "DPMeanField"]

_TOO_FEW = (
    "The fit made too few steps to tell the noise from the gradients: at least ten more than there are "
    "latent values (64 at the most) are needed. Fit with more steps, or use sample(noise_aware=False)."
)
_TOO_LARGE = (
    f"The noise-aware posterior and the diagnostics are there for models of up to {MOST_LATENTS:,} latent "
    "values: for more, what they are inferred from would be many times the model. Use sample() or "
    "sample(noise_aware=False)."
)
#: Numbers that one call of `sample` makes at most: 16 GiB.
_MOST_NUMBERS = 2**31


class DPApproximation(CheckedExpressions):
    """A variational approximation that was fitted privately.

    It is PyMC's approximation of the same family: ``mean``, ``std``, ``cov``, ``params``, callbacks and
    trackers work as usual. What PyMC computes from the records is refused; see :meth:`sample`.

    Parameters
    ----------
    record : RecordModel
        The model, split by records.
    **kwargs
        For PyMC's group: ``start``, ``start_sigma``, ``random_seed``.

    Attributes
    ----------
    privacy : PrivacyReport
        What was spent, and on which assumptions.
    withheld : dict of str
        What `sample` leaves out, by name, and why: variables with a value for each person, and Deterministics
        that depend on records, on an array that nobody declared public, on more than 64 constants, or on no
        free variable.
    hist : ndarray
        Norms of the noisy gradients, one for each step; not the loss.
    """

    def __init__(self, record: RecordModel, **kwargs: Any) -> None:
        super().__init__(record, **kwargs)
        self._report: PrivacyReport | None = None
        self._trace: GradientTrace | None = None
        self._running_clip: RunningClip | None = None
        self._inferred: tuple[GradientTrace, int, NoiseAwarePosterior] | None = None
        self._rng = np.random.default_rng(kwargs.get("random_seed"))

    @property
    def hist(self) -> np.ndarray:
        """Norm of the noisy gradient around each step of the last `fit` and of each `refine` after it.

        In PyMC it is the loss, which no private fit computes. `plots.plot_gradients` and
        `plots.plot_iterates` show better than ``plt.plot(approx.hist)`` whether a fit has converged: they
        also show the level of noise alone, below which the norm does not fall.

        Returns
        -------
        ndarray, shape (n_steps,)
            Norms of the gradient of log-likelihood plus log-prior with respect to the latent values, averaged
            over a 64th of the run. Empty before `fit`, and for more than `gradient_moments.MOST_LATENTS`
            latent values.

        Notes
        -----
        Privacy: post-processing of the released sums; costs nothing.
        """
        return np.asarray(()) if self._trace is None else self._trace.gradient_norms

    @property
    def withheld(self) -> dict[str, str]:
        """Local variables and Deterministics of the model as it is now that `sample` leaves out, and why."""
        record = self._record
        local = () if record.local is None else record.local.names
        local += () if record.encoded is None else record.encoded.names
        _, others = record.released_and_withheld()
        return {**dict.fromkeys(local, "each person or row has a value of its own"), **others}

    @property
    def latents(self) -> Latents:
        """Place of each free variable in the flat latent vector."""
        by_name = {v.name: v for v in self._record.value_vars}
        ordering = list(self.groups[0].ordering.values())
        return Latents(
            tuple(by_name[name] for name, *_ in ordering),
            tuple(slice_ for _, slice_, _, _ in ordering),
            tuple(tuple(shape) for _, _, shape, _ in ordering),
            () if self._record.encoded is None else self._record.encoded.turns,
        )

    @property
    def start(self) -> np.ndarray:
        """Unconstrained mean, shape ``(D,)``."""
        return self._values("mu")[0]

    def _values(self, *names: str) -> list[np.ndarray]:
        shared = self.groups[0].params_dict
        return [shared[name].get_value() for name in names]

    @property
    def privacy(self) -> PrivacyReport:
        """What was spent so far, and on which assumptions."""
        if self._report is None:
            raise PrivacyError("Nothing was spent yet: call fit first.")
        return self._report

    def draw_latents(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw unconstrained latent vectors, shape ``(draws, D)``."""
        family: Family = self.groups[0]
        return family.draw(draws, rng)

    @sealed
    def sample(
        self,
        draws: int = 500,
        *,
        noise_aware: bool | None = None,
        random_seed: Any = None,
        return_inferencedata: bool = True,
        include_transformed: bool | None = None,
        **kwargs: Any,
    ) -> PosteriorData:
        """Draw from the released posterior; the result is safe to publish.

        Parameters
        ----------
        draws : int
            Number of draws.
        noise_aware : bool, optional
            Whether the intervals include the uncertainty from the privacy noise. If True, the optimum and
            that uncertainty are inferred from the noisy gradients (`posterior.noise_aware`), which takes ten
            more steps than there are latent values in a group (64 at the most). False gives the plain
            variational posterior, with the intervals of a fit without noise. The default is True if there are
            enough steps, and at most 64 latent values: then all correlations of the noise can be inferred.
        random_seed : int or numpy.random.Generator, optional
            For these draws only (public randomness).
        return_inferencedata : bool
            Must be True. PyMC's other format holds the model, and with it the data.
        include_transformed : bool, optional
            Add the unconstrained values as a group ``unconstrained_posterior``. By default as
            `fit` was told.

        Returns
        -------
        arviz.InferenceData (PyMC 5) or xarray.DataTree (PyMC 6)
            ``posterior`` with dims ``chain`` (1), ``draw`` and the variables' own. Its attributes hold
            the privacy report as ``privacy_report`` (JSON), ``privacy_epsilon`` and ``privacy_delta``,
            and ``noise_aware``, 0 or 1. If it is 1, ``bounded_by_prior`` is 1 if the posterior of some latent
            value is as wide as its prior (`diagnostics` names them), and 0 otherwise.

        Raises
        ------
        PrivacyError
            Before `fit`; with ``noise_aware=True`` also after too few steps, or with more than
            `gradient_moments.MOST_LATENTS` latent values; if there are no finite draws.
        ArgumentError
            For a bad number of draws, or anything that would put data into the result.

        Notes
        -----
        Privacy: post-processing of what `fit` released; it costs nothing, however often it is called.
        Deterministics in `withheld` are left out. Dims of free variables and public arrays keep their labels.

        All draws of the free variables are finite, and so are those of a Deterministic if half of its first
        draws are. Where the noise hides what the records say of a latent value, the noise-aware posterior is
        as wide as the prior, and no wider; `diagnostics` names these values.

        Neither posterior corrects for clipping. ``mean``, ``std`` and ``cov`` are those of the plain one.
        """
        _ = self.privacy  # raises before `fit`
        self._record.check_unchanged()
        draws = self.check_draws(draws)
        if noise_aware is not None:
            noise_aware = check_flag("noise_aware", noise_aware)
        if not return_inferencedata:
            raise ArgumentError(
                "return_inferencedata=False is refused: PyMC's MultiTrace holds the model and with it "
                "the data. Use the default and read .posterior."
            )
        if kwargs:
            raise ArgumentError(
                f"sample() does not take {sorted(kwargs)}: its draws are independent, in one chain, with "
                "no log-likelihood and no prediction of the records."
            )
        if include_transformed is None:
            include_transformed = bool(getattr(self.groups[0], "include_transformed", False))
        rng = self._rng if random_seed is None else _generator(random_seed)
        sources = self._sources(noise_aware, rng)
        return release(self._record, self.latents, self.privacy, sources, draws, include_transformed)

    @sealed
    def local_posterior(
        self,
        data: Mapping[str, Any],
        draws: int = 200,
        *,
        noise_aware: bool | None = None,
        random_seed: Any = None,
    ) -> PosteriorData:
        """Draw the local values of new persons, or the codes of new records, who were not in the fit.

        Parameters
        ----------
        data : dict
            Rows of the new persons: an array for each ``pm.Data`` and each observed variable of the
            model, by name, with one entry per row, and their ids by the name that ``unit=`` had. If the
            model has encoders (`Amortized`): new records, an array for each ``pm.Data`` that an encoder
            reads.
        draws : int
            Number of draws.
        noise_aware : bool, optional
            As in `sample`.
        random_seed : int or numpy.random.Generator, optional
            As in `sample`.

        Returns
        -------
        arviz.InferenceData (PyMC 5) or xarray.DataTree (PyMC 6)
            ``posterior`` with the local variables: dims ``chain`` (1), ``draw``, one for the new persons
            that is named as the ids are and labelled by them, and the variables' own. Or with the
            variables that have encoders: dims ``chain``, ``draw``, and the variable's own, where the first
            counts the new records.

        Raises
        ------
        PrivacyError
            Before `fit`, and as in `sample`.
        ArgumentError
            If `data` has other names, lengths or shapes than the model's.
        UnsupportedModelError
            If the model has neither local variables nor encoders, or data without a name.

        Notes
        -----
        Privacy: post-processing of what `fit` released; it costs nothing. The rows in `data` are protected
        by nobody: the result is for those who may see these rows. For persons in the fit there is nothing:
        their values were integrated out and never computed. Given their rows here, the result is as open
        as the rows are.
        """
        _ = self.privacy  # raises before `fit`
        draws = self.check_draws(draws)
        if noise_aware is not None:
            noise_aware = check_flag("noise_aware", noise_aware)
        kind = LocalPosterior if self._record.encoded is None else EncodedPosterior
        new = kind(self._record, self.latents, data)
        rng = self._rng if random_seed is None else _generator(random_seed)
        sources = self._sources(noise_aware, rng)
        _, latents, values = draw_from(self._record, self.latents, sources, new.variables, draws)
        made = [new.draw(z, [v[k] for v in values], rng) for k, z in enumerate(latents)]
        posterior = {name: np.stack([m[k] for m in made])[None] for k, name in enumerate(new.names)}
        attrs = {"inference_library": "pymc_dpvi", "inference_library_version": versions()["pymc-dpvi"]}
        return posterior_data(posterior, coords=new.coords, dims=new.dims, attrs=attrs, transformed=None)

    def _sources(self, noise_aware: bool | None, rng: np.random.Generator) -> list[Source]:
        """Return the posteriors that `sample` may draw from, in order of preference."""
        wanted = self.latents.size <= GROUP if noise_aware is None else noise_aware
        known = self._noise_aware() if wanted else None
        plain = Source(lambda n: self.draw_latents(n, rng), self.start.dtype)
        if known is None:
            if noise_aware:
                raise PrivacyError(self._too_few)
            return [plain]
        aware = Source(lambda n: known.draw(n, rng), np.dtype(float), self.diagnostics)
        return [aware] if noise_aware else [aware, plain]

    @cached_property
    def _prior(self) -> Prior:
        return Prior(self._record, self.latents)

    @property
    def _widths(self) -> np.ndarray | None:
        """Units of the optimiser's steps, ``(D,)``: the prior's widths, at most 1; None if D is large."""
        return np.minimum(self._prior.stddev, 1.0) if self.latents.size <= MOST_LATENTS else None

    def _noise_aware(self) -> NoiseAwarePosterior | None:
        """Return the posterior inferred from the trace as it is now; None after too few steps."""
        trace = self._trace
        if trace is None:
            return None
        if self._inferred is None or self._inferred[:2] != (trace, trace.num_rows):
            clip, report = self._running_clip, self.privacy
            scale = None
            if clip is not None:
                scale = CurvatureScale.of_running_clip(clip, report.noise_multiplier, report.sampling_prob)
            found = NoiseAwarePosterior(trace, np.random.default_rng(0), self._prior, scale)
            self._inferred = trace, trace.num_rows, found
        return self._inferred[2] if self._inferred[2].available else None

    @sealed
    def diagnostics(self) -> FitDiagnostics:
        """Measure, from what is released already, what limits the fit.

        Returns
        -------
        FitDiagnostics
            Print it to read it; ``.plot()`` shows the iterates.

        Raises
        ------
        PrivacyError
            Before `fit`, after too few steps to say anything, or with too many latent values.

        Notes
        -----
        Privacy: post-processing of what `fit` released; it costs nothing.
        """
        report = self.privacy
        known = self._noise_aware()
        if known is None:
            raise PrivacyError(self._too_few)
        assert self._trace is not None
        names = [
            f"{v.name}[{', '.join(map(str, at))}]" if shape else str(v.name)
            for v, shape in zip(self.latents.value_vars, self.latents.shapes, strict=True)
            for at in np.ndindex(*shape)
        ]
        return diagnose(
            known,
            self._trace,
            names=names,
            average=self._values("mu")[0],
            epsilon=float(report.epsilon),
            prior_stddev=self._prior.stddev,
            running_clip=self._running_clip,
            noise_multiplier=report.noise_multiplier,
        )

    @property
    def _too_few(self) -> str:
        """The error's message if nothing can be inferred from the trace."""
        return _TOO_FEW if self.latents.size <= MOST_LATENTS else _TOO_LARGE

    def check_draws(self, draws: Any) -> int:
        """Return the number of draws; an ArgumentError if it is no positive integer, or too large."""
        most = _MOST_NUMBERS // max(1, self.latents.size)
        return check_integer("draws", draws, high=max(1, most))

    @sealed
    def sample_node(
        self,
        node: Any,
        size: Any = None,
        deterministic: Any = False,
        more_replacements: Mapping[Variable, Variable] | None = None,
    ) -> Any:
        """As in PyMC, for expressions of the free variables; refused if they depend on records.

        Parameters
        ----------
        node : TensorVariable or list of TensorVariable
        size, deterministic
            As in PyMC.
        more_replacements : mapping of Variable to Variable, optional
            Replacements, made before the check.

        Returns
        -------
        TensorVariable or list of TensorVariable

        Raises
        ------
        UnsupportedModelError
            If `node`, `size` or `deterministic` depends on record data.
        ArgumentError
            If `node` is no expression.
        """
        self._record.check_unchanged()
        if more_replacements:
            node = graph_replace(node, dict(more_replacements), strict=False)
        for var in variables(node):
            if not self._record.may_be_released(var):
                raise UnsupportedModelError(depends(var))
        self._refuse_records_in_numbers(size, deterministic)
        return super().sample_node(node, size=size, deterministic=deterministic)

    def __repr__(self) -> str:
        """Return family and size; no numbers from the data."""
        return f"{type(self).__name__}({self.groups[0].ddim} latent values)"

    __str__ = __repr__


class DPMeanField(DPApproximation):
    """Independent normals in the unconstrained space, fitted privately (PyMC's ``MeanField``)."""

    _group_class = WholeMeanField


class DPFullRank(DPApproximation):
    """One multivariate normal in the unconstrained space, fitted privately (PyMC's ``FullRank``)."""

    _group_class = WholeFullRank


def _generator(random_seed: Any) -> np.random.Generator:
    failure = ""
    try:
        return np.random.default_rng(random_seed)
    except (TypeError, ValueError) as error:  # raised below: its text holds what was given
        failure = type(error).__name__
    raise ArgumentError(
        f"random_seed must be a seed of numpy.random.default_rng, such as 1, or a generator ({failure})."
    )
