"""The list of PyMC's attributes that a private approximation has.

In: the name of an attribute. Out: PyMC's attribute if it is `OPEN`, a `PrivacyError` if it is not. Attributes
that this package or the user adds need no entry. A new attribute of PyMC is closed until somebody has
examined it; `tests/test_leaks.py` says of every open one what it is a function of.

Never on the list: a function of the records, such as ``logp`` and ``datalogp``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pymc.variational.approximations import SingleGroupApproximation

from pymc_dpvi.errors import PrivacyError

__all__ = ["OPEN", "SealedApproximation"]

#: Functions of the variational parameters, which are released, or public facts.
_OF_PARAMETERS = {
    *("L", "alias_names", "all_histograms", "any_histograms", "collect", "cov", "ddim", "has_logq"),
    *("initial_dist_map", "initial_dist_name", "input", "inputs", "logq", "logq_norm", "mean", "mean_data"),
    *("ndim", "num_tril_entries", "options", "ordering", "params", "params_dict", "rho", "rng", "rslice"),
    *("sample_dict_fn", "scale_cost_to_minibatch", "shared_params", "short_name", "state", "std", "std_data"),
    *("symbolic_initial", "symbolic_logq", "symbolic_logq_not_scaled", "symbolic_normalizing_constant"),
    *("symbolic_random", "symbolic_randoms", "tril_indices", "user_params", "var_to_data", "varlogp"),
    *("varlogp_norm", "include_transformed"),
}
#: Takes a graph, and refuses one that depends on records.
_CHECKED = {"make_size_and_deterministic_replacements"}
#: The user's own model, or a way to it: for the process that has the data anyway.
_THE_MODEL = {"group", "groups", "model", "replacements"}
#: Of PyMC's classes, not of one approximation.
_OF_THE_CLASS = {
    *("create_shared_params", "get_param_spec_for", "group_for_params", "group_for_short_name"),
    *("joint_histogram", "register"),
}
#: What PyMC's own code uses.
_INTERNAL = {
    *("_Group__name_registry", "_Group__param_registry", "_cache", "_check_user_params", "_finalize_init"),
    *("_initial_type", "_input_type", "_new_initial", "_new_initial_shape", "_prepare_start"),
    *("_scale_cost_to_minibatch", "_user_params", "_vfam"),
}
OPEN = frozenset(_OF_PARAMETERS | _CHECKED | _THE_MODEL | _OF_THE_CLASS | _INTERNAL)


class SealedApproximation(SingleGroupApproximation):  # type: ignore[misc]
    """PyMC's approximation with the attributes in `OPEN`, and those of this class's subclasses."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._closed = frozenset(vars(self)) - OPEN  # what PyMC has set

    def __getattribute__(self, name: str) -> Any:
        """Refuse the attributes of PyMC's classes that are not `OPEN`."""
        if name not in OPEN and _is_closed(super().__getattribute__, name):
            raise _refusal(name)
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        """Take an attribute from PyMC's group, as PyMC does, unless it is closed."""
        group = object.__getattribute__(self, "groups")[0]
        if name not in OPEN and not _is_pythons(name) and name in dir(group):
            raise _refusal(name)
        return getattr(group, name)

    def __dir__(self) -> list[str]:
        """List the attributes that are not refused: tools read every name that they find here."""
        read = super().__getattribute__
        own = {name for name in object.__dir__(self) if name in OPEN or not _is_closed(read, name)}
        return sorted(own | {name for name in dir(self.groups[0]) if name in OPEN or _is_pythons(name)})

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise TypeError(
            "A private approximation cannot be pickled or copied: it holds the model and with it the "
            "data. Save approx.sample(draws).to_netcdf('posterior.nc') instead."
        )


def _is_pythons(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_closed(read: Any, name: str) -> bool:
    """Whether `name` belongs to a class of PyMC, or was set by its constructor."""
    if _is_pythons(name):
        return False
    for cls in read("__class__").__mro__:
        if name in vars(cls):
            return not issubclass(cls, SealedApproximation)
    return name in read("__dict__").get("_closed", ())


def _refusal(name: str) -> PrivacyError:
    return PrivacyError(
        f"{name} is refused: it is a function of the records, and nobody accounts for it. "
        "logq and varlogp are there; the loss of a private fit is not."
    )
