"""What a model must not have, found before anything is spent.

Each error names the variable, says why the model cannot be private as written, and what to write instead.
The checks read types, shapes, dims and the graph, and no data value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pymc as pm
from pymc.distributions.continuous import InterpolatedRV
from pymc.distributions.simulator import SimulatorRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import discrete_dtypes
from pytensor.tensor.variable import TensorVariable

from pymc_dpvi.errors import NotSeparableError, UnsupportedModelError
from pymc_dpvi.graph.indexing import LOOKING_UP, numbers_rows, row_position
from pymc_dpvi.graph.marginalised import how_to_marginalise, is_marginal, marginalised_name, per_record
from pymc_dpvi.graph.traversal import array_shape, depends_on, is_array, walk

__all__ = [
    "array_name",
    "check_against_records",
    "check_before_records",
    "check_orientation",
    "draws",
    "global_dims",
    "hint_of_loops",
    "hint_of_orientation",
    "hint_of_own_rows",
    "is_updated",
    "record_potentials",
    "refuse_discrete",
    "refuse_draws",
    "refuse_shape_alone",
    "refuse_updates",
]


def global_dims(model: pm.Model) -> set[str]:
    """Names of the dims of the free variables."""
    return {dim for rv in model.free_RVs for dim in model.named_vars_to_dims.get(rv.name) or () if dim}


def record_potentials(model: pm.Model, arrays: Sequence[Variable]) -> list[TensorVariable]:
    """Return the Potentials that depend on records: they are likelihood terms."""
    held = [*arrays, *model.observed_RVs]
    return [p for p in model.potentials if depends_on([p], held, stop=model.free_RVs)]


def _axes_over_records(model: pm.Model, var: Variable, num_records: int) -> list[int]:
    """Return the axes of an array, but the first, of length `num_records` without a free variable's dim."""
    names = model.named_vars_to_dims.get(var.name) if var.name else None
    own = global_dims(model)
    lengths = enumerate(array_shape(var)[1:], start=1)
    return [k for k, n in lengths if n == num_records and not (names and names[k] in own)]


def check_before_records(model: pm.Model) -> None:
    """Refuse what can be seen before the record axis is known.

    Missing values, no free variables, numbers that functions update, Minibatch, total_size, sparse or xtensor
    data, distributions whose density is no formula.
    """
    if not model.free_RVs:
        raise UnsupportedModelError(
            "The model has no free variable, so there is nothing to infer. Add a prior."
        )
    written = [*model.rvs_to_initial_values.values(), *model.dim_lengths.values()]
    everything = [*model.basic_RVs, *model.potentials, *model.deterministics, *model.data_vars, *written]
    refuse_updates(walk([v for v in everything if isinstance(v, Variable)], into_size=True))
    observed = {rv.name for rv in model.observed_RVs}
    for rv in model.free_RVs:
        stem = rv.name.removesuffix("_unobserved")
        if stem != rv.name and f"{stem}_observed" in observed:
            raise UnsupportedModelError(
                f"The observed variable '{stem}' has missing values, which PyMC imputes with one latent "
                f"value per record ('{rv.name}'). Such latents cannot be released. Drop the records "
                "with missing values (a rule that looks at one record at a time is fine), or model "
                "missingness with an indicator column. If some of a record's outcomes are missing, put any "
                "number there and leave its term out: pm.Potential('y', pt.switch(seen, "
                "pm.logp(pm.Normal.dist(mu, 1), y), 0).sum(axis=1)), with seen and y as pm.Data."
            )
    roots = [*model.observed_RVs, *(model.rvs_to_values[rv] for rv in model.observed_RVs)]
    for var in walk([*roots, *model.potentials], into_size=True):
        if var.owner is not None and type(var.owner.op).__name__ == "MinibatchOp":
            name = next(
                rv.name
                for rv in [*model.observed_RVs, *model.potentials]
                if var in set(walk([rv, model.rvs_to_values.get(rv, rv)], into_size=True))
            )
            raise UnsupportedModelError(
                f"'{name}' is built on pm.Minibatch. DPADVI draws its own batches, and only those are "
                "accounted for: give the model the full data."
            )
        kind = type(var.type).__name__
        if "Sparse" in kind:
            raise UnsupportedModelError(
                f"'{var.name or 'An array'}' is a sparse matrix; use a dense array (X.toarray())."
            )
        if "XTensor" in kind:
            named = [v.name for v in (var, *model.basic_RVs) if "XTensor" in type(v.type).__name__ and v.name]
            raise UnsupportedModelError(
                f"{repr(named[0]) if named else 'The model'} comes from pm.dims, which is not supported yet; "
                "use the ordinary distributions with dims=..."
            )
    for rv in model.observed_RVs:
        if isinstance(rv.owner.op, SimulatorRV):
            raise UnsupportedModelError(
                f"The observed variable '{rv.name}' is a pm.Simulator, which compares summaries of all "
                "records and has no gradient. Use a distribution with a log-density."
            )
        if isinstance(rv.owner.op, InterpolatedRV):
            raise UnsupportedModelError(
                f"The observed variable '{rv.name}' is a pm.Interpolated. Its density is a spline that SciPy "
                "fits to points when the model is made; they would enter unprotected if they came from data, "
                "and nobody can see whether they did. Use a distribution with a formula, such as pm.Mixture "
                "with fixed components. As a prior, pm.Interpolated is fine."
            )
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise UnsupportedModelError(
                f"The observed variable '{rv.name}' has total_size. DPADVI draws its own batches, and "
                "only those are accounted for: give the model the full data and drop total_size."
            )


def is_updated(var: Variable) -> bool:
    """Whether each call of a function changes a shared variable, by its ``default_update``.

    No graph shows where it stands that it reads what its update reads. (A random generator does not count:
    what draws from it is refused.)
    """
    return getattr(var, "default_update", None) is not None and not isinstance(var.type, RandomType)


def refuse_updates(variables: Iterable[Variable]) -> None:
    """Raise for a variable that :func:`is_updated`."""
    for var in variables:
        if is_updated(var):
            raise UnsupportedModelError(
                f"{repr(var.name) if var.name else 'A shared variable'} has a default_update, so each step "
                "would change it, and nothing protects what the update reads. Set default_update = None, and "
                "write a fixed number or pm.Data in its place."
            )


def refuse_discrete(model: pm.Model) -> None:
    """Raise for a discrete free variable that is not local (`local_latents`)."""
    for rv in model.free_RVs:
        if rv.dtype in discrete_dtypes:
            raise UnsupportedModelError(
                f"The free variable '{rv.name}' is discrete ({rv.dtype}); variational inference needs "
                "continuous ones. If each row or person has a value of its own, as a class, give the class "
                "probabilities instead, with pm.Mixture. If all share it, as a switch point, make it "
                "continuous and the switch smooth: pm.math.sigmoid((time - switch) / width)."
            )


def _runs_over_records(
    model: pm.Model, rv: Variable, shape: Sequence[int], num_records: int, dims: frozenset[str]
) -> bool:
    """Whether a free variable has an axis over records: by its dim, or by its length if it has no dim."""
    names = model.named_vars_to_dims.get(rv.name) or (None,) * len(shape)
    return any(
        name in dims or (name is None and length == num_records)
        for name, length in zip(names, shape, strict=True)
    )


def _by_id(rv: Variable, by_person: bool) -> str:
    """Say how values of records are integrated out."""
    if by_person:
        return (
            f"Or let the values of a person's rows be integrated out together: give {rv.name} the shape "
            "(persons, most rows of a person), and of a person's values take the row's, (u[person] * "
            "pt.eq(number_of_row[:, None], np.arange(most))).sum(axis=1)."
        )
    return (
        f"Or let one or two values of each record be integrated out: look them up, {rv.name}[id] with id = "
        "pm.Data('id', np.arange(n)), and give DPADVI unit='id'."
    )


def _counted_through(
    model: pm.Model, num_records: int, arrays: Sequence[Variable], shapes: Mapping[str, Sequence[int]]
) -> list[str]:
    """Name the free variables of which the likelihood takes one entry for each record, by 0, 1, 2, ...

    Their index is then the number of the record, and no group's.
    """
    found: list[str] = []
    for var in walk([*model.observed_RVs, *model.potentials], stop=model.free_RVs):
        node = var.owner
        if node is None or type(node.op).__name__ not in LOOKING_UP:
            continue
        behind = set(walk([node.inputs[0]], stop=model.free_RVs))
        if behind.isdisjoint(arrays) and any(numbers_rows(index, num_records) for index in node.inputs[1:]):
            found += [rv.name for rv in model.free_RVs if rv in behind and num_records in shapes[rv.name]]
    return found


def hint_of_own_rows(model: pm.Model, node: Apply) -> str:
    """Say how to pick an entry of each record's own row, if an operation may do so by a ``pm.Data``."""
    at = row_position(node)
    if at is None or node.inputs[at] not in model.data_vars:
        return ""
    return (
        f" If '{node.inputs[at].name}' does no more than number the rows, to pick an entry of each record's "
        "own row, write np.arange(n) in its place."
    )


def _also_local(local: Sequence[Variable]) -> str:
    """Add free variables over records to the error on a second axis of records (a map's neighbours)."""
    if not local:
        return ""
    named = ", ".join(f"'{rv.name}'" for rv in local)
    return (
        f" As long as the records are {named}, too: if they hold one latent value per record (an effect of "
        "each area, say), marginalise them out of the likelihood, or make a row a person, who has the index "
        "of a group."
    )


def check_against_records(
    model: pm.Model,
    num_records: int,
    dims: frozenset[str],
    arrays: Sequence[Variable],
    by_person: bool = False,
) -> None:
    """Refuse what can be seen once the record arrays are known; `by_person` if ``unit=`` is given.

    Latent values per record, priors or initial values that look at records, Potentials that are one number
    for all of them, and observations that are one draw from a joint distribution over all records.
    """
    held = [*arrays, *model.observed_RVs]
    shapes = model.eval_rv_shapes()
    counted = _counted_through(model, num_records, arrays, shapes)
    local = [rv for rv in model.free_RVs if _runs_over_records(model, rv, shapes[rv.name], num_records, dims)]
    for var in arrays:
        if axes := _axes_over_records(model, var, num_records):
            raise UnsupportedModelError(
                f"{array_name(model, var)} has a second axis as long as the number of records (axis "
                f"{axes[0]}), so one row of it may hold other people's data. If that axis holds records, "
                "keep only what belongs to a row's own record. If the length is the same by chance, "
                "put the array into pm.Data(name, ..., dims=...) and give that axis and its "
                "coefficients a dim of their own." + _also_local(local)
            )
    for rv in model.free_RVs:
        if rv not in local and depends_on([rv], held, into_size=True):
            size = not depends_on([rv], held)
            raise UnsupportedModelError(
                f"The {'shape' if size else 'prior'} of '{rv.name}' depends on the records, or on an array "
                "as long as they are. What is fixed before the fit must not look at private data: use a "
                "number that is public or known beforehand. If only the length is the same, put it into "
                "pm.Data(name, ..., dims=...) with a dim of its own."
            )
        names = model.named_vars_to_dims.get(rv.name) or (None,) * rv.ndim
        for axis, (name, length) in enumerate(zip(names, shapes[rv.name], strict=True)):
            if name in dims or (name is None and length == num_records):
                raise UnsupportedModelError(
                    f"The free variable '{rv.name}' has an axis over records (axis {axis}, as long as the "
                    "observations): one latent value per record cannot be released. "
                    f"{how_to_marginalise(model, rv)} Or give it an encoder: guide={{'{rv.name}': "
                    f"Amortized(mean, sigma)}}, expressions of the record. "
                    f"{_by_id(rv, by_person)} If the length is the same by chance, and no entry belongs to a "
                    "record, give the variable dims=... of its own."
                    f"{hint_of_orientation(model)}"
                )
        if rv.name in counted:
            raise UnsupportedModelError(
                f"The free variable '{rv.name}' is looked up by 0, 1, 2, ..., one entry for each record: one "
                f"latent value per record cannot be released. {how_to_marginalise(model, rv)} "
                f"{_by_id(rv, by_person)}"
            )
        initval = model.rvs_to_initial_values.get(rv)
        if isinstance(initval, Variable) and depends_on([initval], held, into_size=True):
            raise UnsupportedModelError(
                f"The initial value of '{rv.name}' depends on the records, and nobody accounts for that. "
                "Use a fixed initval."
            )
    for rv in model.observed_RVs:
        if is_marginal(rv.owner.op):
            if not per_record(rv):
                raise NotSeparableError(
                    f"The observed variable '{rv.name}' was marginalised over "
                    f"{marginalised_name(rv.owner.op)}, "
                    "which all records share: one sum over its values is taken of all records' terms "
                    "together, so one record enters other records' terms. Marginalise a variable with one "
                    "entry per record, or replace it by a continuous one with a prior."
                )
        elif rv.type.ndim - rv.owner.op.ndim_supp == 0:
            kind = type(rv.owner.op).__name__.removesuffix("RV")
            raise NotSeparableError(
                f"The observed variable '{rv.name}' is one draw from {kind}, whose entries depend on each "
                f"other: one record enters other records' terms. {_joint_advice(kind)}"
            )
    for pot in record_potentials(model, arrays):
        if pot.type.ndim == 0 or pot.type.shape[0] not in (None, num_records):
            raise UnsupportedModelError(
                f"The Potential '{pot.name}' depends on the records but has no entry for each, so "
                "one record's share of it is unknown. Leave out the sum: a Potential with one entry per "
                "record is a likelihood term. For censored rows, use pm.Censored on all rows."
            )


def draws(term: Variable) -> bool:
    """Whether a log-density draws random numbers: it has a copy of a variable in place of its value."""
    return any(v.owner is not None and isinstance(v.owner.op, RNGConsumerOp) for v in walk([term]))


def refuse_draws(name: str) -> None:
    """Raise for a log-density that :func:`draws`."""
    raise UnsupportedModelError(
        f"The log-density of '{name}' has a random variable in it that is none of the model's, so it would "
        "be another one at each call. pm.logp makes a copy of the model's variables where it derives a "
        "density, such as that of pt.exp(pm.Normal.dist(...)): write an outcome with observed=, as in "
        "pm.LogNormal or pm.CustomDist(..., dist=...), and other densities out."
    )


def refuse_shape_alone(
    model: pm.Model, arrays: Sequence[Variable], rows: Sequence[Variable], graphs: Sequence[Variable]
) -> None:
    """Raise if an array of static length has fallen out of the likelihood, which read its shape alone.

    Nothing but its length then makes it a record array. (The length of a ``pm.Data`` is no constant: with
    any other number of records the array stays in the graph, and is refused as not indexed by records.)
    """
    initial = [v for v in model.rvs_to_initial_values.values() if isinstance(v, Variable)]
    # What is behind a prior or an initial value is refused for that.
    read = {*walk(graphs, into_size=True), *walk([*model.free_RVs, *initial])}
    for array, row in zip(arrays, rows, strict=True):
        static = array.type.shape[0] is not None  # type: ignore[attr-defined]
        if static and row not in read and array not in read:
            raise NotSeparableError(
                f"{array_name(model, array)} gives the likelihood its shape alone, and no entry: it is as "
                "long as the records, and it cannot be seen whether it holds them. Write that length as a "
                "number, or take it from an array of records whose entries are read."
            )


def hint_of_orientation(model: pm.Model) -> str:
    """Suggest a transpose if an outcome has more columns than rows; else return an empty string."""
    for rv in model.observed_RVs:
        value = model.rvs_to_values[rv]
        shape = array_shape(value) if is_array(value) else value.type.shape
        if len(shape) > 1 and None not in shape[:2] and shape[1] > shape[0]:
            return (
                f" Records run along the first axis: if those of '{rv.name}' are in its columns, transpose "
                "it, and the predictors with it (y.T)."
            )
    return ""


def hint_of_loops(outputs: Sequence[Variable], names: Iterable[str]) -> str:
    """Return a sentence for an error if `outputs`, the terms of `names`, depend on a loop."""
    for var in walk(outputs):
        op = var.owner.op if var.owner is not None else None
        if "Scan" in (type(op).__name__, type(getattr(op, "core_op", None)).__name__):
            return (
                f" The likelihood of {', '.join(map(repr, names))} holds a loop (a Scan, as of a "
                "differential equation), whose steps cannot be told apart by records. If it runs over a "
                "record's own series, write its result in closed form, with each record's own time, or as a "
                "fixed number of steps written out."
            )
    return ""


def check_orientation(
    model: pm.Model, num_records: int, arrays: Sequence[Variable], public: Iterable[Variable]
) -> None:
    """Refuse arrays whose records are in the columns: rebuilding the likelihood would leave them whole."""
    known = {*arrays, *public}
    roots = [*model.observed_RVs, *(model.rvs_to_values[rv] for rv in model.observed_RVs), *model.potentials]
    for var in walk(roots, stop=model.free_RVs, columns_of=None):
        if not is_array(var) or var in known:
            continue
        if axes := _axes_over_records(model, var, num_records):
            raise UnsupportedModelError(
                f"{array_name(model, var)} is as long as the observations along axis {axes[0]}, and not "
                "along its first axis. Records run along the first axis of every array: if its columns are "
                "records, transpose it before the model, in NumPy (X.T in pm.Data or beside the formula, as "
                "X.T @ beta for beta @ X). If the length is the same by chance, put the array into "
                "pm.Data(name, ..., dims=...) and give that axis the dim of a free variable, or name it in "
                "public_data=[...] if everybody may know it."
            )


def _joint_advice(kind: str) -> str:
    """Say what to write in place of one draw from a joint distribution over all records."""
    if kind in ("Multinomial", "DirichletMultinomial"):
        return (
            "Such counts (a histogram, a table of bins) are sums over records, in which nobody's share is "
            "seen. Give one entry per person: pm.Categorical(p=..., observed=the bin of each), or one row of "
            "counts per person."
        )
    if kind in ("MvNormal", "MvStudentT", "MatrixNormal", "KroneckerNormal"):
        return (
            "Use a likelihood with independent records given the parameters: for a Gaussian process over a "
            "predictor, pm.gp.HSGP with gp._X_center and gp.L set to pm.Data that are declared public (else "
            "PyMC takes them from the records); for several numbers per record, observed of shape "
            "(number of records, numbers per record)."
        )
    if kind == "Dirichlet":
        return "Give it one row of shares per record, observed of shape (number of records, shares)."
    return (
        "Use a likelihood with independent records given the parameters; for several time series, one "
        "record a series, with observed of shape (number of series, steps)."
    )


def array_name(model: pm.Model, var: Variable) -> str:
    """Name an array for an error, by its own name or by the likelihood that it is in."""
    if var.name:
        return f"The array '{var.name}'"
    for term in [*model.observed_RVs, *model.potentials, *model.free_RVs]:
        if var in set(walk([term])):
            return f"An unnamed array behind '{term.name}'"
    return "An unnamed array"
