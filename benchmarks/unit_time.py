"""What a step by person costs, beside a step by row with as many rows in the batch.

- ``row``           `DPADVI` on a regression: rows are sampled and clipped;
- ``person``        the same model with ``unit=``: persons are sampled, their rows added up and then clipped;
- ``two tables``    every other row in a table of its own, with coefficients of its own: ``unit={...}``;
- ``intercept 7``   with a random intercept for each person, integrated out by seven nodes;
- ``intercept 15``  the same with fifteen, the default;
- ``taste 4``       of ratings alone: four values for each person, integrated out at 31 places, the default;
- ``taste 8``       eight values, by a normal distribution that is fitted to each person, the default;
- ``taste 16``      sixteen values.

20,000 persons have 1 to 50 rows each, most of them few. Two families have large matrices of weights, 2,000
persons, 600 rows in a batch, and the first two methods alone: a softmax regression, 784-10, and a network,
784-200-10. Ratings are answers of yes or no to one of 200 items, with a coefficient each. The expected number
of rows in a batch is the same for all methods. They take turns in one process; a step's time is processor
time, in blocks (`step_time.py`).

    python benchmarks/unit_time.py [--rounds 5] [--rows 200 1000 5000] [--families network] [--output F]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from journal import write
from rich.console import Console
from rich.table import Table
from step_time import BLOCKS, steps_in
from workers import one_thread_each

HERE = Path(__file__).resolve().parent
PERSONS, WIDTH = 20_000, 10
FAMILIES = ("normal", "logistic", "poisson", "softmax", "network", "ratings")
#: Those with large matrices of weights: persons, predictors, labels, and units of the hidden layer.
WIDE, FEWER, PIXELS, LABELS, HIDDEN = ("softmax", "network"), 2_000, 784, 10, 200
METHODS = ("row", "person", "two tables", "intercept 7", "intercept 15")
#: The family with several values of a person: items, and values.
RATINGS, ITEMS, TASTES = "ratings", 200, ("taste 4", "taste 8", "taste 16")


def data(
    rng: np.random.Generator, persons: int = PERSONS, width: int = WIDTH
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return predictors, persons, and linear predictors with a random intercept."""
    heavy = np.arange(1, 51) ** -1.7
    rows = rng.choice(50, persons, p=heavy / heavy.sum()) + 1
    person = np.repeat(np.arange(persons), rows)
    x = rng.standard_normal((len(person), width))
    return x, person, x @ (0.3 * rng.standard_normal(width)) + 0.7 * rng.standard_normal(persons)[person]


def wide(family: str, rng: np.random.Generator) -> np.ndarray:
    """Write a model with large matrices of weights into the model at hand; return whose the rows are."""
    import pymc as pm

    x, person, _ = data(rng, FEWER, PIXELS)
    hidden, width = pm.Data("x", x), PIXELS
    if family == "network":
        first = pm.Normal("first", 0, PIXELS**-0.5, shape=(PIXELS, HIDDEN))
        hidden, width = pm.math.maximum(hidden @ first + pm.Normal("bias", 0, 1, shape=HIDDEN), 0), HIDDEN
    weights = pm.Normal("weights", 0, width**-0.5, shape=(width, LABELS))
    pm.Categorical("y", logit_p=hidden @ weights, observed=rng.integers(0, LABELS, len(x)))
    return person


def ratings(values: int, rng: np.random.Generator) -> tuple[np.ndarray, str | None]:
    """Write a model of ratings into the model at hand; return whose the rows are, and the name of the ids."""
    import pymc as pm

    _, person, eta = data(rng, width=1)
    item = pm.Data("item", rng.integers(0, ITEMS, len(person)))
    mean, name = pm.Normal("easy", 0, 1, shape=ITEMS)[item], None
    if values:
        name = "who"
        taste = pm.Normal("taste", 0, 1, shape=(PERSONS, values))
        traits = pm.Normal("traits", 0, 0.5, shape=(ITEMS, values))
        mean = mean + (taste[pm.Data(name, person)] * traits[item]).sum(axis=1)
    observe("logistic", "y", mean, eta, rng)
    return person, name


def methods_of(family: str) -> tuple[str, ...]:
    """Return the methods that are compared."""
    return (*METHODS[:2], *TASTES) if family == RATINGS else METHODS[:2] if family in WIDE else METHODS


def observe(family: str, name: str, mean: Any, eta: np.ndarray, rng: np.random.Generator) -> None:
    """Write an outcome into the model."""
    import pymc as pm

    if family == "normal":
        seen = eta + rng.standard_normal(len(eta))
        pm.Normal(name, mean, pm.HalfNormal(f"sigma of {name}", 1), observed=seen)
    elif family == "logistic":
        pm.Bernoulli(name, logit_p=mean, observed=(rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(int))
    else:
        pm.Poisson(name, pm.math.exp(mean), observed=rng.poisson(np.exp(np.minimum(eta, 5))))


def prepare(family: str, method: str, batch_rows: int) -> Callable[[int], None]:
    """Compile a step, and return a function that makes so many of them."""
    import pymc as pm

    from pymc_dpvi import DPADVI, Quadrature
    from pymc_dpvi.engine.loop import iterate

    rng = np.random.default_rng(27)
    nodes = int(method.split()[1]) if method.startswith("intercept") else 0
    parts = [slice(0, None, 2), slice(1, None, 2)] if method == "two tables" else [slice(None)]
    unit: Any = {}
    with pm.Model(coords={"who": np.arange(PERSONS)}) as model:
        if family in WIDE:
            person = wide(family, rng)
            unit, parts = (None if method == "row" else person), []
        elif family == RATINGS:
            person, name = ratings(int(method.split()[1]) if method in TASTES else 0, rng)
            unit, parts = (None if method == "row" else name or person), []
        else:
            x, person, eta = data(rng)
        for k, part in enumerate(parts):
            mean = pm.Data(f"x{k}", x[part]) @ pm.Normal(f"beta{k}", 0, 1, shape=WIDTH)
            if method != "row":
                who = pm.Data(f"person{k}", person[part])
                unit[f"y{k}"] = f"person{k}"
            if nodes:
                mean = mean + pm.Normal("u", 0, pm.HalfNormal("tau", 1), dims="who")[who]
            observe(family, f"y{k}", mean, eta[part], rng)
    more: dict[str, Any] = {"unit": unit} if method != "row" else {}
    if nodes:
        more["guide"] = {"u": Quadrature(nodes)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method_ = DPADVI(
            noise_multiplier=4.0,
            delta=1e-6,
            sampling_prob=batch_rows / len(person),
            random_seed=1,
            model=model,
            **more,
        )
        method_.fit(1, progressbar=False, backend="numba", obj_optimizer=pm.adam(learning_rate=0.01))
    step, mechanism, streams = method_._runs.step, method_._runs.mechanism, method_._runs.streams
    assert step is not None and mechanism is not None and streams is not None
    record, own = method_._record, np.random.default_rng(1)

    def run(n: int) -> None:
        for _ in iterate(step, mechanism, streams, own, record.num_units, n, units=record.units):
            pass

    return run


def measure(family: str, batch_rows: int, rounds: int) -> dict[str, float]:
    """Return the median microseconds of a step by each method, and the ratios to the step by row."""
    methods = methods_of(family)
    runs = {method: prepare(family, method, batch_rows) for method in methods}
    sizes = {method: steps_in(run, time.process_time) for method, run in runs.items()}
    blocks: dict[str, list[float]] = {method: [] for method in methods}
    for _ in range(rounds):
        for method, run in runs.items():
            for _ in range(BLOCKS):
                start = time.process_time()
                run(sizes[method])
                blocks[method].append(1e6 * (time.process_time() - start) / sizes[method])
    found = {method: statistics.median(b) for method, b in blocks.items()}
    return found | {f"{method} / row": found[method] / found["row"] for method in methods[1:]}


def main() -> None:
    """Measure all, print a table, write JSON."""
    parser = argparse.ArgumentParser(description="Time of a step by person.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="+", default=[200, 1000, 5000], help="expected, of a batch")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--output", type=Path, default=HERE / "output" / "unit_time.json", help="a file")
    chosen = parser.parse_args()
    one_thread_each()
    table = Table(title="Microseconds of a step, and ratios to the step by row")
    every = (*METHODS, *TASTES)
    for heading in ("", "rows", *every, *(f"{method} / row" for method in every[1:])):
        table.add_column(heading)
    results = []
    for family in chosen.families:
        for rows in chosen.rows if family not in WIDE else [600]:
            found = measure(family, rows, chosen.rounds)
            results.append({"family": family, "rows": rows, **found})
            times = [f"{found[method]:.0f}" if method in found else "" for method in every]
            ratios = [f"{found[m]:.2f}" if (m := f"{method} / row") in found else "" for method in every[1:]]
            table.add_row(family, str(rows), *times, *ratios)
    Console().print(table)
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    command = f"python benchmarks/unit_time.py --rounds {chosen.rounds}"
    if chosen.rows != [200, 1000, 5000]:
        command += f" --rows {' '.join(map(str, chosen.rows))}"
    if chosen.families != list(FAMILIES):
        command += f" --families {' '.join(chosen.families)}"
    write(chosen.output, command, {"persons": PERSONS, "rounds": chosen.rounds}, results=results)


if __name__ == "__main__":
    main()
