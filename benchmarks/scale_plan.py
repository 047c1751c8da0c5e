"""What a fit of 10⁸ to 10¹² rows would cost on a cluster, from constants that were measured.

``python benchmarks/scale_plan.py`` takes the time of a row and of a round from ``figures/scale.json``
(`scale.py`), assumes a network, and works out, for a logistic regression of 20 columns at ε = 1 and 2000
steps: rows and bytes of a step, seconds of a step and of the fit on some numbers of workers, what drawing the
batch takes, and the noise of the mean gradient in clip norms. No fit is run: the last wall is where the
proof ends, at `MAX_EXPECTED_BATCH` expected records in a batch.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from pymc_dpvi.accounting import default_sampling_prob, noise_multiplier
from pymc_dpvi.mechanism.limits import MAX_EXPECTED_BATCH
from pymc_dpvi.randomness.keystream import KeyStream
from pymc_dpvi.sampling import PoissonSampler

FIGURE = Path(__file__).parent / "figures" / "scale.json"
EPSILON, DELTA, STEPS, COLUMNS = 1.0, 1e-12, 2000, 20
#: Assumed: bytes a second between coordinator and workers, and seconds that one message to a worker takes.
BANDWIDTH, MESSAGE = 1.25e9, 1e-3
#: Bytes of a row's place in a batch.
PLACE = 4


def constants() -> tuple[float, float]:
    """Return the seconds of a row on one core, and of a round with two workers, as measured."""
    measured = json.loads(FIGURE.read_text(encoding="utf-8"))["cluster"]
    sizes = {float(name.rpartition(" ")[2].replace(",", "")): times for name, times in measured.items()}
    small, large = min(sizes), max(sizes)
    row = (sizes[large]["one thread"] - sizes[small]["one thread"]) / (large - small)
    return row, sizes[small]["two workers"]


def drawing() -> float:
    """Return the seconds that the fitting process takes to draw a place of a batch, measured now."""
    sampler, stream = PoissonSampler(0.01), KeyStream.from_os()
    start = time.perf_counter()
    indices, _ = sampler.draw(stream, 10**8, 3)
    return (time.perf_counter() - start) / len(indices)


def main() -> None:
    """Print the plan."""
    row, round_ = constants()
    draw = drawing()
    print(
        f"A row takes {1e9 * row:.0f} ns on a core, a round {1e3 * round_:.0f} ms with two workers, and a "
        f"place of the batch {1e9 * draw:.0f} ns to draw."
    )
    print(
        f"{'rows':>7} {'q':>9} {'batch':>11} {'workers':>8} {'each holds':>10} {'to send':>9} "
        f"{'a step':>9} {'a fit':>8} noise of the mean gradient, in clip norms"
    )
    default = default_sampling_prob(epsilon=EPSILON, delta=DELTA, n_steps=STEPS)
    for num_rows in (10**8, 10**9, 10**10, 10**12):
        q = min(default, MAX_EXPECTED_BATCH / num_rows)
        noise = noise_multiplier(epsilon=EPSILON, delta=DELTA, n_steps=STEPS, sampler=PoissonSampler(q))
        batch = q * num_rows
        for workers in (2, 16, 256):
            sent = PLACE * batch + 16 * COLUMNS * workers
            step = round_ + MESSAGE * workers + batch * (row / workers + draw) + sent / BANDWIDTH
            held = 8 * (COLUMNS + 1) * num_rows / workers
            print(
                f"{num_rows:7.0e} {q:9.2g} {batch:11,.0f} {workers:8} {held / 2**30:7,.0f} GB "
                f"{sent / 2**20:6.0f} MB {step:7.2f} s {step * STEPS / 3600:6.1f} h {noise / batch:.1e}"
            )


if __name__ == "__main__":
    main()
