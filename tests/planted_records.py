"""A model whose records hold sentinels, the search for them, and errors that a fit on it can raise.

The sentinels are numbers and strings that stand in one record each: in the outcome, in constant and pm.Data
predictors, in group indices, and in the coordinates of the record axis. This module's name holds none of
them: an error may name the module of the function that it is about.
"""

from __future__ import annotations

import copy
import functools
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import python_mode  # noqa: F401  # the scripts that import this have no conftest
from pytensor.graph.op import Op

from pymc_dpvi import DPADVI

DATA_TREE = int(az.__version__.split(".")[0]) >= 1
#: Number of records: a number that nothing else here has, and that must not be found either.
N = 1013
OUTCOME, PREDICTOR, AGE, CODE = 7231.4159265, 8643.1213975, 6173.5214109, 95420876
FLOATS = (OUTCOME, PREDICTOR, AGE)
#: The record numbers in the coords of the second record dim, and the record names in those of the first.
NUMBER = 51739268
NAME = "SENTINEL-alice"
STRINGS = ("SENTINEL",)
#: Five leading digits (none is rounded up) without the point: found in 7231.4, 7.2314e+03, 7231.4159265.
DIGITS = (*(f"{x:.6f}".replace(".", "")[:5] for x in FLOATS), str(CODE), str(NUMBER))

METHOD: dict[str, Any] = {
    "noise_multiplier": 2.0,
    "delta": 1e-5,
    "sampling_prob": 0.5,
    "insecure_noise_seed": 1,
    "random_seed": 2,
}


def tables() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    tables = {
        "outcome": rng.normal(size=N),
        "predictor": rng.normal(size=(N, 2)),
        "age": rng.normal(size=N),
        "code": rng.integers(0, 3, size=N),
    }
    tables["outcome"][3] = OUTCOME
    tables["predictor"][4, 1] = PREDICTOR
    tables["age"][5] = AGE
    return tables


def planted_model(*, data: bool = True, code: bool = False) -> pm.Model:
    """Return a regression whose records hold the sentinels."""
    t = tables()
    if code:
        t["code"][6] = CODE
    names = [f"{NAME}-{i}" for i in range(N)]
    coords = {
        "person": names,
        "visit": NUMBER + np.arange(N),
        "feature": ["a", "b"],
        "group": ["u", "v", "w"],
    }
    with pm.Model(coords=coords) as model:
        age = pm.Data("age", t["age"], dims="visit") if data else t["age"]
        index = pm.Data("index", t["code"], dims="person") if data else t["code"]
        beta = pm.Normal("beta", dims="feature")
        effect = pm.Normal("effect", dims="group")
        sigma = pm.HalfNormal("sigma")
        mean = t["predictor"] @ beta + effect[index] + pt.as_tensor(age) * 0.1
        mean = pm.Deterministic("mean", mean, dims="person")
        pm.Deterministic("total", mean.sum())
        pm.Deterministic("largest", pt.max(t["predictor"]))
        pm.Deterministic("spread", sigma**2)
        pm.Normal("outcome", mean, sigma, observed=t["outcome"], dims="person")
    return model


# -------------------------------------------------------------------------------- the search


#: The random names that xarray gives to the parts of a page; their digits mean nothing.
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def in_text(text: str, where: str) -> list[str]:
    text = UUID.sub("", text)
    # Of each number from its first digit that is not 0: within a random one, digits mean nothing.
    numbers = [number.replace(".", "").lstrip("0") for number in re.findall(r"[\d.]+", text)]
    found = [f"{where}: {s}" for s in STRINGS if s.lower() in text.lower()]
    found += [f"{where}: {d}" for d in DIGITS if any(number.startswith(d) for number in numbers)]
    return found + [f"{where}: N" for _ in re.finditer(rf"(?<![\d.]){N}(?![\d.])", text)]


def in_array(values: Any, where: str) -> list[str]:
    values = np.asarray(values)
    found = [f"{where}: length N"] if N in values.shape else []
    if values.dtype.kind in "fiu":
        with np.errstate(all="ignore"):
            near = [s for s in (*FLOATS, CODE, NUMBER, N) if np.isclose(values, s, rtol=1e-5, atol=0).any()]
        return found + [f"{where}: {s}" for s in near]
    return found + [hit for item in values.ravel() for hit in in_text(str(item), where)]


def in_mapping(attrs: Any, where: str) -> list[str]:
    return [
        hit
        for key, value in dict(attrs).items()
        for hit in (*in_text(str(key), where), *in_array(value, f"{where}[{key}]"))
    ]


def datasets(idata: Any) -> Iterator[tuple[str, Any]]:
    if DATA_TREE:
        yield from ((node.path, node.dataset) for node in idata.subtree)
    else:
        yield from ((name, idata[name]) for name in idata.groups())


def in_idata(idata: Any) -> list[str]:
    """Search every group: variables, coords, dims, attributes and encodings."""
    found = in_mapping(idata.attrs, "attrs")
    for name, data in datasets(idata):
        found += in_mapping(data.attrs, f"{name}.attrs") + in_mapping(data.sizes, f"{name}.sizes")
        for key, array in data.variables.items():
            where = f"{name}.{key}"
            found += in_text(str(key), where) + in_array(array.values, where)
            found += in_mapping(array.attrs, f"{where}.attrs")
            found += in_text(str({k: v for k, v in array.encoding.items()}), f"{where}.encoding")
    return found


def in_bytes(raw: bytes, where: str) -> list[str]:
    found = []
    for dtype in ("<f8", ">f8", "<f4", ">f4"):
        found += [f"{where}: {x} as {dtype}" for x in FLOATS if np.array(x, dtype).tobytes() in raw]
    for dtype in ("<i8", ">i8", "<i4", ">i4"):
        found += [f"{where}: {x} as {dtype}" for x in (CODE, NUMBER) if np.array(x, dtype).tobytes() in raw]
    for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        texts = (*STRINGS, *map(str, (CODE, NUMBER)), *(f"{x:.3f}" for x in FLOATS))
        found += [f"{where}: {s} in {encoding}" for s in texts if s.encode(encoding) in raw]
    return found


def exceptions(error: BaseException) -> list[BaseException]:
    """Return the error and all that hangs on it, also where `from None` hides it from a traceback."""
    todo, seen = [error], []
    while todo:
        this = todo.pop()
        if this in seen:
            continue
        seen.append(this)
        todo += [e for e in (this.__cause__, this.__context__) if e is not None]
        todo += list(getattr(this, "exceptions", ()))
    return seen


def in_error(error: BaseException) -> list[str]:
    found = []
    for this in exceptions(error):
        texts = [str(this), repr(this), *map(str, this.args), *getattr(this, "__notes__", ())]
        found += [hit for text in texts for hit in in_text(text, type(this).__name__)]
    return found


def write_plain(idata: Any, path: Path) -> None:
    """Write netCDF without compression, so that its bytes can be searched."""
    if DATA_TREE:
        idata.to_netcdf(str(path))
    else:
        idata.to_netcdf(str(path), compress=False)


# -------------------------------------------------------------------------------- errors


def with_model(model: pm.Model, **kwargs: Any) -> DPADVI:
    return DPADVI(model=model, **{**METHOD, **kwargs})


def fit_with(**kwargs: Any) -> Callable[[], Any]:
    return lambda: unspent().fit(3, progressbar=False, **kwargs)


@functools.cache
def unspent() -> DPADVI:
    return with_model(planted_model())


def centred() -> Any:
    t = tables()
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        pm.Normal(
            "y", (t["predictor"] - pt.as_tensor(t["predictor"]).mean(0)) @ beta, 1, observed=t["outcome"]
        )
    return with_model(model)


def prior_on_data() -> Any:
    t = tables()
    with pm.Model() as model:
        data = pm.Data("data", t["outcome"])
        pm.Normal("y", pm.Normal("a", data.mean()), 1, observed=data)
    return with_model(model)


def second_axis() -> Any:
    t = tables()
    with pm.Model() as model:
        pm.Normal("y", np.outer(t["outcome"], t["age"]) @ pm.Normal("a", shape=N), 1, observed=t["outcome"])
    return with_model(model)


def scalar_potential() -> Any:
    t = tables()
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Normal("y", a, 1, observed=t["outcome"])
        pm.Potential("p", (a * t["age"]).sum())
    return with_model(model)


def local_latents() -> Any:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a", shape=N), 1, observed=tables()["outcome"])
    return with_model(model)


class Picky(Op):
    """Passes a vector on, unless there is a large number in it; then it says which."""

    __props__ = ()
    itypes: ClassVar = [pt.dvector]
    otypes: ClassVar = [pt.dvector]

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        if (inputs[0] > 1000.0).any():
            raise ValueError(f"{NAME}: {inputs[0].max()} is too large")
        outputs[0][0] = inputs[0].copy()


def picky_method() -> DPADVI:
    """Return a method whose model has an operation that writes the records into its error text."""
    t = tables()
    with pm.Model() as model:
        a, age = pm.Normal("a"), Picky()(pt.as_tensor(t["age"]))
        pm.Normal("y", a * age, 1, observed=t["outcome"])
    return with_model(model, sampling_prob=0.9)


def before_fit() -> Any:
    return unspent().approx.sample(3)


@functools.cache
def fitted() -> tuple[Any, pm.Model]:
    model = planted_model()
    return with_model(model).fit(2, progressbar=False), model


def fitted_then(action: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: action(fitted())


ERRORS: dict[str, Callable[[], Any]] = {
    "centred": centred,
    "prior on data": prior_on_data,
    "second axis": second_axis,
    "scalar potential": scalar_potential,
    "local latents": local_latents,
    "an operation that raises": picky_method,
    "before fit": before_fit,
    "score": fit_with(score=True),
    "backend": fit_with(backend="fortran"),
    "optimizer": fit_with(obj_optimizer=lambda grads, params: 3),
    "optimizer that raises": fit_with(obj_optimizer=lambda grads, params: grads[0].eval()),
    "divergence": lambda: with_model(planted_model()).fit(
        3, progressbar=False, obj_optimizer=pm.sgd(learning_rate=pytensor.shared(1e308))
    ),
    "n": lambda: unspent().fit(0),
    "batch size": lambda: with_model(planted_model(), sampling_prob=None, batch_size=10**6),
    "record_dim": lambda: with_model(planted_model(), record_dim="nobody"),
    "record_dim of others": lambda: with_model(planted_model(), record_dim="visit"),
    "record_dim is data": lambda: with_model(planted_model(), record_dim=tables()["outcome"][3:5]),
    "public_data name": lambda: with_model(planted_model(), public_data=["nobody"]),
    "public_data is data": lambda: with_model(planted_model(), public_data=[tables()["outcome"][3:5]]),
    "public_data is the data": lambda: with_model(planted_model(), public_data=tables()["outcome"][3:5]),
    "public_data is a constant": lambda: with_model(
        planted_model(), public_data=[pt.as_tensor(tables()["outcome"])[3:5]]
    ),
    "epsilon is data": lambda: with_model(planted_model(), noise_multiplier=tables()["outcome"][3:5]),
    "sampler is data": lambda: with_model(planted_model(), sampler=tables()["outcome"][3:5]),
    "q is data": lambda: with_model(planted_model(), sampling_prob=tables()["outcome"][3:5]).fit(3),
    "start": lambda: with_model(planted_model(), start={"effect": tables()["outcome"]}),
    "start on data": lambda: with_model(m := planted_model(), start={"effect": m["age"][:3]}),
    "sample": fitted_then(lambda a: a[0].sample(0)),
    "trace": fitted_then(lambda a: a[0].sample(3, return_inferencedata=False)),
    "log-likelihood": fitted_then(lambda a: a[0].sample(3, include_log_likelihood=True)),
    "node": fitted_then(lambda a: a[0].sample_node(a[1]["total"])),
    "pickle": fitted_then(lambda a: pickle.dumps(a[0])),
    "deepcopy": fitted_then(lambda a: copy.deepcopy(a[0])),
    "profiling": lambda: unspent().run_profiling(),
}
