"""What is attacked: the models of the zoo, one for each operation, and some whose data can be made anew.

A `Subject` builds its model on a data set and on its neighbours. A model of the zoo holds data of its own, so
a record is changed in the memory of its arrays before anything has looked at them. Where data are an argument
(`COLUMNS`), what a user computes from them in Python changes too, such as a closure of ``pm.CustomDist``; and
a record may be taken away.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from zoo import ZOO, Entry

from attacks.operations import OPERATIONS, Data, operation_data, operation_model
from pymc_dpvi import Amortized, Point
from pymc_dpvi.graph.amortized import encode
from pymc_dpvi.graph.guide_checks import sorted_out
from pymc_dpvi.graph.record_model import RecordModel
from pymc_dpvi.graph.records import build_record_model
from pymc_dpvi.graph.traversal import array_value

__all__ = ["COLUMNS", "SUBJECTS", "Subject", "named"]

#: The record that is changed.
PLACE = 1


@dataclass(frozen=True)
class Subject:
    """A model that is attacked.

    Attributes
    ----------
    name : str
    make : callable
        Builds the model on given columns; on its own if they are None.
    columns : callable
        The columns that are changed; None if they are the record arrays of the model.
    record_dim, public_data, unit : optional
        As of `DPADVI`.
    guide : callable
        Returns it, given the model; None if there is none.
    float32 : bool
    """

    name: str
    make: Callable[[Data | None], pm.Model]
    columns: Callable[[], Data] | None = None
    record_dim: str | None = None
    public_data: tuple[str, ...] = ()
    float32: bool = False
    unit: str | None = None
    guide: Callable[[pm.Model], dict[Any, Any]] | None = None

    def flags(self) -> AbstractContextManager[None]:
        """Return the configuration under which all of it happens."""
        return pytensor.config.change_flags(floatX="float32" if self.float32 else "float64")

    def split(self, model: pm.Model) -> RecordModel:
        """Take the model apart."""
        given = {"record_dim": self.record_dim, "public_data": self.public_data, "unit": self.unit}
        _, encoders, _ = sorted_out(None if self.guide is None else self.guide(model))
        view, encoded = encode(model, encoders, 3)
        return replace(build_record_model(view, **given), encoded=encoded)

    def arrays(self) -> tuple[list[np.ndarray], list[str]]:
        """Return the ordinary columns, and what they are called."""
        if self.columns is not None:
            data = self.columns()
            return list(data.values()), list(data)
        found = self.split(self.make(None)).arrays
        return [array_value(a) for a in found], [a.name or f"array {k}" for k, a in enumerate(found)]

    def may_hold(self, rows: Sequence[np.ndarray]) -> bool:
        """Whether PyMC makes the same model of the record: a missing value in a column is another one."""
        return self.columns is None or not any(row.dtype.kind == "f" and np.isnan(row).any() for row in rows)

    def neighbour(self, rows: Sequence[np.ndarray] | None, place: int = PLACE) -> pm.Model:
        """Build the model on the data set in which the record at `place` is another one.

        Parameters
        ----------
        rows : sequence of ndarray, optional
            The record, a row for each of `arrays`; its own if None.
        place : int
        """
        if self.columns is not None:
            data = self.columns()
            for column, row in zip(data.values(), rows or (), strict=rows is not None):
                column[place] = row
            return self.make(data)
        model = self.make(None)
        if rows is not None:
            for array, row in zip(self.split(model).arrays, rows, strict=True):
                _writable(array)[place] = row
        return model

    def without(self, place: int = PLACE) -> pm.Model | None:
        """Build the model on the data set without that record; None where it cannot be built."""
        if self.columns is None:
            return None
        return self.make({name: np.delete(c, place, axis=0) for name, c in self.columns().items()})


def _writable(array: Any) -> np.ndarray:
    """Return the memory of a constant or shared array, forgetting what PyTensor remembers of its values."""
    for remembered in ("_sig", "_unique_value", "_signature"):
        if hasattr(array, remembered) and remembered in vars(array):
            delattr(array, remembered)
    value = array_value(array)
    if not value.flags.writeable:
        value = value.copy()
        if hasattr(array, "set_value"):
            array.set_value(value, borrow=True)
        else:
            array.data = value
    return value


# ------------------------------------------------------------------------------------------------
# Models whose data are an argument
# ------------------------------------------------------------------------------------------------

Columns = Callable[[], Data]
COLUMNS: dict[str, tuple[Callable[[Data], pm.Model], Columns]] = {}
GRID = 19
#: Those of them whose records are persons with several rows.
BY_PERSON = ("visits", "look_ups_at_visits", "effects_of_persons", "shapes_of_persons", "classes_of_persons")


def on_columns(columns: Columns) -> Callable[[Callable[[Data], pm.Model]], Callable[[Data], pm.Model]]:
    """Register a model by the name of the function that builds it."""

    def register(make: Callable[[Data], pm.Model]) -> Callable[[Data], pm.Model]:
        COLUMNS[make.__name__] = (make, columns)
        return make

    return register


def panel() -> Data:
    """An outcome, a time, a lag, a count and a group."""
    rng = np.random.default_rng(31)
    return {
        "y": rng.normal(size=GRID),
        "time": rng.uniform(0.5, 2.0, GRID),
        "rate": rng.uniform(0.0, 0.1, GRID),
        "lag": rng.integers(0, 6, GRID),
        "count": rng.integers(0, 5, GRID),
        "group": rng.integers(0, 3, GRID),
        "answer": rng.uniform(size=GRID) < 0.5,
    }


@on_columns(panel)
def decay_by_lag(data: Data) -> pm.Model:
    with pm.Model() as model:
        decay = pm.Beta("decay", 2, 2)
        pm.Normal("y", decay ** pm.Data("lag", data["lag"]), 1.0, observed=data["y"])
    return model


@on_columns(panel)
def discounting(data: Data) -> pm.Model:
    with pm.Model() as model:
        t = pm.Normal("t", 0, 1)
        present = t * (1 + pm.Data("rate", data["rate"])) ** (-pm.Data("years", data["lag"]))
        pm.Normal("y", present, 1.0, observed=data["y"])
    return model


@on_columns(panel)
def truncated_powers(data: Data) -> pm.Model:
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=3)
        tau = pm.Normal("tau", 1, 0.3)
        x = pm.Data("time", data["time"])
        basis = pt.maximum(x - tau, 0)[:, None] ** np.arange(3)
        pm.Normal("y", basis @ b, 1.0, observed=data["y"])
    return model


@on_columns(panel)
def integers_throughout(data: Data) -> pm.Model:
    """Counts, a group, an answer: what a C program or a Python call does with integers of any size."""
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=3)
        b = pm.Normal("b", 0, 0.1, shape=3)
        lag, answer = pm.Data("lag", data["lag"].astype("int16")), pm.Data("answer", data["answer"])
        eta = a[pm.Data("group", data["group"])] + b[0] * lag**2 + b[1] * pt.abs(lag) + b[2] * answer
        pm.Poisson("count", pt.exp(pt.clip(eta, -3, 3)), observed=data["count"])
        pm.Bernoulli("answered", logit_p=eta, observed=data["answer"])
    return model


def _whose(rows: int) -> np.ndarray:
    """Return whose the rows of a `panel` are, also if the one that is changed has been taken away."""
    who = np.arange(GRID) * 5 % 7
    return who if rows == GRID else np.delete(who, PLACE)


@on_columns(panel)
def visits(data: Data) -> pm.Model:
    """Several rows of a person, one of which is changed."""
    with pm.Model(coords={"who": [f"person {i}" for i in range(7)]}) as model:
        pm.Data("person", _whose(len(data["y"])))
        b, s = pm.Normal("b", 0, 1, shape=2), pm.HalfNormal("s")
        pm.Deterministic("total", b.sum() * model.dim_lengths["who"])
        mean = b[0] + b[1] * pm.Data("time", data["time"])
        pm.Normal("y", mean, s, observed=data["y"])
    return model


@on_columns(panel)
def look_ups_at_visits(data: Data) -> pm.Model:
    """Sparse gradients and counts, for persons."""
    with pm.Model() as model:
        pm.Data("person", _whose(len(data["y"])))
        a, lag = pm.Normal("a", 0, 1, shape=3), pm.Normal("lag_effect", 0, 1, shape=6)
        eta = a[pm.Data("group", data["group"])] + lag[pm.Data("lag", data["lag"])]
        pm.Poisson("count", pt.exp(pt.clip(eta, -3, 3)), observed=data["count"])
    return model


@on_columns(panel)
def effects_of_persons(data: Data) -> pm.Model:
    """Random intercepts, and what depends on them and on how many there are."""
    who = _whose(len(data["y"]))
    names = [f"person {i}" for i in range(len(np.unique(who)))]
    with pm.Model(coords={"who": names}) as model:
        tau, b = pm.HalfNormal("tau"), pm.Normal("b")
        u = pm.Normal("u", 0, tau, dims="who")
        pm.Deterministic("effect", b + u, dims="who")
        pm.Deterministic("share", b / model.dim_lengths["who"])
        pm.Deterministic("twice", 2 * tau)
        mean = u[pm.Data("person", who)] + b * pm.Data("time", data["time"])
        pm.Normal("y", mean, 1.0, observed=data["y"])
    return model


@on_columns(panel)
def shapes_of_persons(data: Data) -> pm.Model:
    """Gamma functions of a record, which are differentiated twice: a trigamma runs on below zero."""
    with pm.Model() as model:
        u = pm.Normal("u", 0, pm.HalfNormal("tau"), shape=7)
        shape = pt.exp(u[pm.Data("person", _whose(len(data["y"])))]) * pm.Data("time", data["time"])
        pm.Potential("terms", -pt.gammaln(1 + shape))
        pm.Normal("y", u[model["person"]], 1.0, observed=data["y"])
    return model


@on_columns(panel)
def classes_of_persons(data: Data) -> pm.Model:
    """Hidden classes of persons, with counts."""
    with pm.Model() as model:
        kind = pm.Bernoulli("kind", pm.Beta("w", 2, 2), shape=7)
        rate = pm.Gamma("rate", [1.0, 4.0], 1)
        own = rate[kind[pm.Data("person", _whose(len(data["y"])))]]
        pm.Poisson("count", own, observed=data["count"])
    return model


def seven() -> Data:
    """Return a group, a code that comes as a float, labels, counts, an exposure and columns of integers."""
    return {
        "group": np.arange(7) % 3,
        "code": np.arange(7) % 3.0,
        "label": np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0]),
        "kind": np.arange(7) % 3,
        "count": np.arange(7) % 4,
        "exposure": np.linspace(0.5, 2.0, 7),
        "columns": np.arange(14).reshape(7, 2) % 3,
        "x": np.linspace(-1, 1, 14).reshape(7, 2),
        "y": np.linspace(-1, 1, 7),
    }


@on_columns(seven)
def counts_by_group(data: Data) -> pm.Model:
    """An index, an exposure, integer columns."""
    with pm.Model() as model:
        a, w = pm.Normal("a", shape=3), pm.Normal("w", shape=2)
        eta = a[pm.Data("group", data["group"])] + pm.Data("columns", data["columns"]) @ w
        pm.Poisson("y", pm.Data("exposure", data["exposure"]) * pm.math.exp(eta), observed=data["count"])
    return model


@on_columns(seven)
def codes_as_floats(data: Data) -> pm.Model:
    """A label and a group that come as floats, as pandas gives them where a value is missing."""
    with pm.Model() as model:
        a = pm.Normal("a", shape=3)
        code, label = pm.Data("code", data["code"]), pm.Data("label", data["label"])
        pm.Bernoulli("y", logit_p=a[code.astype("int64")], observed=label)
    return model


@on_columns(seven)
def categories(data: Data) -> pm.Model:
    with pm.Model() as model:
        w = pm.Normal("w", shape=(2, 3))
        logits = pm.Data("x", data["x"]) @ w
        pm.Categorical("y", logit_p=logits, observed=pm.Data("kind", data["kind"]))
    return model


@on_columns(seven)
def scale_and_survival(data: Data) -> pm.Model:
    with pm.Model() as model:
        w, s = pm.Normal("w", shape=2), pm.HalfNormal("s")
        x = pm.Data("x", data["x"])
        pm.StudentT("y", 4, mu=x @ w, sigma=s, observed=data["y"])
        pm.Weibull("t", 1.5, pm.math.exp(w[0] * x[:, 0]), observed=pm.Data("time", data["exposure"]))
    return model


def _closure(y: np.ndarray, summary: Callable[[np.ndarray], np.ndarray], where: str) -> pm.Model:
    """Build a model whose logp has an array of its own, made of all outcomes."""
    held = summary(y)

    def logp(value: Any, mu: Any) -> Any:
        at = value if where == "prior" else mu
        return -0.5 * (value - mu) ** 2 - 0.5 * pt.sum((held - at) ** 2)

    with pm.Model() as model:
        if where == "prior":
            mu = pm.CustomDist("mu", 0.0, logp=logp)
            pm.Normal("y", mu, 1.0, observed=y)
        elif where == "Potential":
            mu = pm.Normal("mu", 0, 1)
            pm.Potential("pull", -pt.sum((pt.as_tensor(held) - mu) ** 2))
            pm.Normal("y", mu, 1.0, observed=y)
        else:
            mu = pm.Normal("mu", 0, 1)
            pm.CustomDist("y", mu, logp=logp, observed=y)
    return model


SUMMARIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "differences": np.diff,
    "sorted": lambda y: np.sort(y)[1:-1],
    "quantiles": lambda y: np.quantile(y, np.linspace(0.1, 0.9, 9) ** 1.1),
    "products": lambda y: np.outer(y[:4], y[:4]) + np.diag(y[4:8]),
}
for _how, _summary in SUMMARIES.items():
    for _where in ("likelihood", "prior", "Potential"):
        COLUMNS[f"{_how} in a closure of the {_where}"] = (
            lambda data, summary=_summary, where=_where: _closure(data["y"], summary, where),
            panel,
        )


@on_columns(panel)
def curve_on_a_grid(data: Data) -> pm.Model:
    """A Deterministic on as many points as there are records, with and without a dim of its own."""
    with pm.Model(coords={"point": np.arange(GRID)}) as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1, shape=2)
        pm.Deterministic("line", a * pt.ones(GRID))
        pm.Deterministic("curve", b[0] + b[1] * pt.arange(GRID), dims="point")
        pm.Normal("y", a + b[0] * pm.Data("time", data["time"]), 1.0, observed=data["y"])
    return model


@on_columns(seven)
def counts_in_a_deterministic(data: Data) -> pm.Model:
    """Counts of the records, of which those of the ordinary data are a shape of the model too."""
    low = int((data["label"] < 0.5).sum())
    counts = pt.constant(np.array([low, len(data["label"]) - low]))
    with pm.Model() as model:
        b = pm.Normal("b", shape=(4, 3))
        pm.Deterministic("d", b.sum() * counts[0] + counts[1])
        pm.Normal("y", b[0, 0] * pm.Data("x", data["x"])[:, 0], 1.0, observed=data["y"])
    return model


@on_columns(panel)
def chosen_by_a_mask(data: Data) -> pm.Model:
    """A mask that holds all of the ordinary records: refused, and in the same words without one of them."""
    keep = np.abs(data["time"]) < 1e3
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", (a + b * pt.as_tensor(data["rate"]))[keep], 1.0, observed=data["y"])
    return model


@on_columns(panel)
def bounds_behind_logp(data: Data) -> pm.Model:
    """Bounds that are infinite for all of the ordinary records: PyMC then derives another density."""
    lower = np.where(np.abs(data["rate"]) < 1e3, -np.inf, -20.0)
    with pm.Model() as model:
        mu = pm.Normal("mu") * data["time"]
        dist = pm.TruncatedNormal.dist(mu, 1.0, lower=lower, upper=np.full(len(lower), 3.0))
        pm.Potential("p", pm.logp(dist, pt.as_tensor(np.minimum(data["y"], 2.0))))
    return model


@on_columns(panel)
def rows_of_probabilities(data: Data) -> pm.Model:
    """Probabilities that nearly sum to one, for all of the ordinary records: PyMC then leaves them alone."""
    rows = np.tile([0.3, 0.700005], (len(data["y"]), 1))
    rows[np.abs(data["rate"]) > 1e3] = 0.2
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC quotes the sums
        experts = [pm.Categorical.dist(p=rows), pm.Categorical.dist(p=np.tile([0.7, 0.3], (len(rows), 1)))]
        w = pm.Dirichlet("w", np.ones(2))
        pm.Mixture("y", w=w, comp_dists=experts, observed=np.arange(len(rows)) % 2)
    return model


@on_columns(panel)
def as_many_coefficients_as_records(data: Data) -> pm.Model:
    with pm.Model() as model:
        knots = pm.Normal("knots", 0, 1, shape=GRID)
        pm.Deterministic("level", pt.cumsum(knots))
        basis = pt.exp(-((pm.Data("time", data["time"])[:, None] - np.linspace(0, 3, GRID)) ** 2))
        pm.Normal("y", basis @ knots, 1.0, observed=data["y"])
    return model


@on_columns(panel)
def codes(data: Data) -> pm.Model:
    """A code of each record, by an encoder, and what depends on it and on how many there are."""
    with pm.Model() as model:
        x = pm.Data("x", np.c_[data["y"], data["time"], data["rate"]])
        pm.Normal("m", shape=(3, 2))
        pm.Normal("s", shape=(3, 2))
        w = pm.Normal("w", shape=(2, 3))
        z = pm.Normal("z", 0, pm.HalfNormal("tau"), shape=(len(data["y"]), 2))
        pm.Deterministic("level", z.mean() + w.sum())
        pm.Deterministic("share", w.sum() / z.shape[0])
        pm.Deterministic("norm", (w**2).sum())
        pm.Normal("shown", z @ w, 1.0, observed=x)
    return model


def encoder_of_codes(model: pm.Model) -> dict[Any, Any]:
    """A standard deviation that no record can make zero, and one that many can make infinite."""
    x = model["x"]
    return {"z": Amortized(x @ model["m"], pt.exp(x @ model["s"])), ("m", "s"): Point()}


#: Those with a guide.
GUIDES = {"codes": encoder_of_codes}


# ------------------------------------------------------------------------------------------------
# All of them
# ------------------------------------------------------------------------------------------------


def _of_the_zoo(entry: Entry) -> Subject:
    return Subject(
        f"zoo: {entry.name}",
        lambda data: entry.build(),
        record_dim=entry.record_dim,
        public_data=entry.public_data,
        float32=entry.float32,
    )


def _all() -> Mapping[str, Subject]:
    subjects = [_of_the_zoo(entry) for entry in ZOO.values()]
    subjects += [
        Subject(
            f"columns: {n}", make, columns, unit="person" if n in BY_PERSON else None, guide=GUIDES.get(n)
        )
        for n, (make, columns) in COLUMNS.items()
    ]
    subjects += [Subject(f"operation: {n}", partial(operation_model, n), operation_data) for n in OPERATIONS]
    return {subject.name: subject for subject in subjects}


#: By name: ``zoo: ...``, ``columns: ...``, ``operation: ...``.
SUBJECTS = _all()


def named(patterns: Sequence[str]) -> list[str]:
    """Return the names of the subjects that contain one of the patterns, in their order."""
    return [name for name in SUBJECTS if any(p in name for p in patterns)]
