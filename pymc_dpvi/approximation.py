r"""The variational family, and what is released of it.

:meth:`DPApproximation.sample` returns draws of the global variables and of those deterministics that no
record stands behind, with the privacy report in the attributes. Nothing else that depends on records
leaves: no ``observed_data``, no ``constant_data``, no log-likelihood, no coordinates of the record axis.
The draws are a function of the variational parameters, which are a function of the noisy sums alone; so
the release is post-processing and costs nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import compile as pm_compile
from pymc.variational.approximations import FullRankGroup, MeanFieldGroup, SingleGroupApproximation
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph

from pymc_dpvi.compat import PosteriorData, posterior_data, versions
from pymc_dpvi.errors import ArgumentError, PrivacyError, UnsupportedModelError
from pymc_dpvi.gradients import Latents
from pymc_dpvi.records import RecordModel
from pymc_dpvi.report import PrivacyReport

__all__ = ["DPApproximation", "DPFullRank", "DPMeanField"]


class DPApproximation(SingleGroupApproximation):  # type: ignore[misc]
    """A variational approximation that was fitted privately.

    It is PyMC's approximation of the same family (``mean``, ``std``, ``cov``, ``params``, callbacks and
    trackers work as usual), apart from what it releases: see :meth:`sample`.

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
    withheld : tuple of str
        Deterministics that `sample` leaves out because they depend on records.
    """

    def __init__(self, record: RecordModel, **kwargs: Any) -> None:
        super().__init__(model=record.model, **kwargs)
        self._record = record
        self._report: PrivacyReport | None = None
        self._rng = np.random.default_rng(kwargs.get("random_seed"))
        self.hist: np.ndarray = np.asarray(())
        self.withheld = tuple(d.name for d in record.model.deterministics if not record.may_be_released(d))

    @property
    def latents(self) -> Latents:
        """Where each free variable sits in the flat latent vector."""
        by_name = {v.name: v for v in self._record.value_vars}
        ordering = list(self.groups[0].ordering.values())
        return Latents(
            tuple(by_name[name] for name, *_ in ordering),
            tuple(slice_ for _, slice_, _, _ in ordering),
            tuple(tuple(shape) for _, _, shape, _ in ordering),
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
        raise NotImplementedError

    def sample(
        self,
        draws: int = 500,
        *,
        random_seed: Any = None,
        return_inferencedata: bool = True,
        include_transformed: bool | None = None,
        **kwargs: Any,
    ) -> PosteriorData:
        """Draw from the private posterior; the result is safe to publish.

        Parameters
        ----------
        draws : int
            Number of draws.
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
            the privacy report as ``privacy_report`` (JSON), ``privacy_epsilon`` and ``privacy_delta``.

        Raises
        ------
        PrivacyError
            Before `fit`.
        ArgumentError
            For a bad number of draws, or anything that would put data into the result.

        Notes
        -----
        Privacy: post-processing of what `fit` released; it costs nothing, however often it is called.
        Deterministics that depend on records are left out and listed in `withheld`.
        """
        report = self.privacy
        if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
            raise ArgumentError(f"draws must be a positive whole number; found {draws!r}.")
        if not return_inferencedata:
            raise ArgumentError(
                "return_inferencedata=False is refused: PyMC's MultiTrace holds the model and with it "
                "the data. Use the default and read .posterior."
            )
        if kwargs:
            raise ArgumentError(
                f"sample() does not take {sorted(kwargs)}: a private posterior has no log-likelihood and "
                "no predictions of the records."
            )
        if include_transformed is None:
            include_transformed = bool(getattr(self.groups[0], "include_transformed", False))
        model, latents = self._record.model, self.latents
        rng = self._rng if random_seed is None else np.random.default_rng(random_seed)
        flat = self.draw_latents(int(draws), rng)
        released = [*model.free_RVs, *(d for d in model.deterministics if d.name not in self.withheld)]
        values = _evaluate(model, latents, released, flat)
        posterior = {v.name: x[None] for v, x in zip(released, values, strict=True)}
        dims = {
            v.name: [d or f"{v.name}_dim_{k}" for k, d in enumerate(model.named_vars_to_dims[v.name])]
            for v in released
            if v.name in model.named_vars_to_dims
        }
        used = {d for names in dims.values() for d in names}
        coords = {d: list(c) for d, c in model.coords.items() if d in used and c is not None}
        transformed = None
        if include_transformed:
            transformed = {
                v.name: flat[:, s].reshape((1, draws, *shape))
                for v, s, shape in zip(latents.value_vars, latents.slices, latents.shapes, strict=True)
                if v.name not in posterior
            }
        attrs = {
            "inference_library": "pymc_dpvi",
            "inference_library_version": versions()["pymc-dpvi"],
            "privacy_epsilon": float(report.epsilon),
            "privacy_delta": float(report.delta),
            "privacy_report": report.to_json(),
        }
        return posterior_data(posterior, coords=coords, dims=dims, attrs=attrs, transformed=transformed)

    def sample_node(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        """As in PyMC, for expressions of the free variables; refused if a record stands behind it.

        Raises
        ------
        UnsupportedModelError
            If `node` depends on record data.
        """
        for var in node if isinstance(node, list | tuple) else [node]:
            if not self._record.may_be_released(var):
                raise UnsupportedModelError(
                    f"'{var.name or 'The expression'}' depends on the records, or on an array that was not "
                    "declared public, so a sample of it may not be private. Use expressions of the free "
                    "variables, and name public pm.Data in public_data=[...]."
                )
        return super().sample_node(node, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise TypeError(
            "A private approximation cannot be pickled or copied: it holds the model and with it the "
            "data. Save approx.sample(draws).to_netcdf('posterior.nc') instead."
        )

    def __repr__(self) -> str:
        """Family and size; no numbers from the data."""
        return f"{type(self).__name__}({self.groups[0].ddim} latent values)"

    __str__ = __repr__


class DPMeanField(DPApproximation):
    """Independent normals in the unconstrained space, fitted privately (PyMC's ``MeanField``)."""

    _group_class = MeanFieldGroup

    def draw_latents(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw unconstrained latent vectors, shape ``(draws, D)``."""
        mu, rho = self._values("mu", "rho")
        return mu + np.logaddexp(0, rho) * rng.standard_normal((draws, mu.size)).astype(mu.dtype)


class DPFullRank(DPApproximation):
    """One multivariate normal in the unconstrained space, fitted privately (PyMC's ``FullRank``)."""

    _group_class = FullRankGroup

    def draw_latents(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw unconstrained latent vectors, shape ``(draws, D)``."""
        mu, tril = self._values("mu", "L_tril")
        chol = np.zeros((mu.size, mu.size), dtype=mu.dtype)
        chol[np.tril_indices(mu.size)] = tril
        diagonal = np.diag_indices(mu.size)
        chol[diagonal] = np.logaddexp(0, chol[diagonal])
        return mu + rng.standard_normal((draws, mu.size)).astype(mu.dtype) @ chol.T


def _evaluate(
    model: pm.Model, latents: Latents, variables: Sequence[Variable], flat: np.ndarray
) -> list[np.ndarray]:
    """Evaluate model variables at unconstrained draws; each result has a leading draw axis."""
    z = pt.matrix("z", dtype=str(flat.dtype), shape=(None, latents.size))
    graphs = model.replace_rvs_by_values(list(variables))
    swap: dict[Variable, Variable] = dict(zip(latents.value_vars, latents.split(z), strict=True))
    many = [
        new if new.type.ndim > old.type.ndim else pt.broadcast_to(new, (z.shape[0], *new.shape))
        for old, new in zip(graphs, vectorize_graph(graphs, swap), strict=True)
    ]
    fn = pm_compile([z], many, mode="FAST_COMPILE", on_unused_input="ignore")
    return [np.asarray(v) for v in fn(flat)]
