r"""(B) What a run releases of empty batches: noise of the accounted size, and nothing else.

The package's own loop runs the compiled step, but every batch is emptied on the way. Divided by the standard
deviation that is accounted, every released number must be N(0, 1), independent of all others: of every other
coordinate, of every block of parameters, and of every other step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pymc_dpvi.auditing import statistics as st
from pymc_dpvi.auditing.probe import Probe, Vector
from pymc_dpvi.auditing.report import CheckResult
from pymc_dpvi.engine.loop import iterate
from pymc_dpvi.engine.step import PrivateStep
from pymc_dpvi.graph.units import Units
from pymc_dpvi.mechanism.mechanism import Mechanism, Streams
from pymc_dpvi.sampling import FixedSizeSampler

__all__ = ["LoopStep", "check_noise", "check_randomness", "noise_pvalues", "summarise"]

_COLUMNS = 256  # most coordinates whose correlations are tested
_LAGS = (1, 2, 3)
_KS_NUMBERS = 200_000


class LoopStep:
    """Takes the step's place in the loop, and keeps the `batches` that it is given.

    With a probe it makes the steps on empty batches, and keeps what they `released` instead.
    """

    def __init__(self, probe: Probe | None) -> None:
        self._probe = probe
        self.num_noise = 1 if probe is None else probe.num_noise
        self.draw_shape = (1, 1) if probe is None else probe.draw_shape
        self.dtype = np.dtype("float64") if probe is None else probe.step.dtype
        self.params: tuple[Any, ...] = ()
        self.calls = 0
        self.batches: list[NDArray[np.int64]] = []
        self.released: list[Vector] = []
        if probe is not None:
            probe.load([])

    def __call__(self, indices: Any, offsets: Any, noise: Any, epsilon: Any, weights: Any) -> None:
        """Make some steps without their records; `epsilon` are the base draws."""
        for t in range(len(weights)):
            self.calls += 1
            if self._probe is None:
                self.batches.append(np.array(indices[offsets[t] : offsets[t + 1]]))
            else:
                self.released.append(self._probe.release(noise[t], epsilon[t]))

    def share_out(self, own: Callable[[], object], others: Sequence[Callable[[], object]]) -> None:
        """Do all this, on the threads that a step has."""
        if self._probe is not None:
            self._probe.step.share_out(own, others)
        else:
            for do in (own, *others):
                do()

    def run(
        self,
        mechanism: Mechanism,
        streams: Streams,
        rng: np.random.Generator,
        num_records: int,
        n_steps: int,
        units: Units | None = None,
    ) -> None:
        """Run the package's own loop."""
        step = cast(PrivateStep, self)
        for _ in iterate(step, mechanism, streams, rng, num_records, n_steps, units=units):
            pass


def summarise(pvalues: Mapping[str, Any]) -> tuple[float, str]:
    """Return the smallest of p-values by name, corrected for the number of all, and its name."""
    each = {
        what: st.corrected(*p) if isinstance(p, tuple) else st.corrected(p) for what, p in pvalues.items()
    }
    smallest = min(each, key=lambda what: each[what])
    return min(1.0, each[smallest] * len(each)), smallest


def noise_pvalues(z: Vector, blocks: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
    """Test that z (n_steps, num_noise) holds independent standard normal deviates; p-values by name."""
    n, width = z.shape
    found: dict[str, Any] = {
        "the variance of a coordinate": st.chi2_pvalues(z, axis=0),
        "the mean of all": st.normal_pvalues(z.sum() / np.sqrt(z.size)),
        "the mean of a coordinate": st.normal_pvalues(z.sum(axis=0) / np.sqrt(n)),
        "a deviate that occurs twice": st.repetition_pvalue(z),
        "the size of a step": st.chi2_pvalues(z, axis=1),
        "the sum over a step": st.chi2_pvalues(z.sum(axis=1) / np.sqrt(width)),
    }
    for name, columns in blocks.items():
        part = z[:, columns]
        found[f"the variance of block '{name}'"] = st.chi2_pvalues(part)
        found[f"the mean of block '{name}'"] = st.normal_pvalues(part.sum() / np.sqrt(part.size))
        found[f"the sum over block '{name}'"] = st.chi2_pvalues(part.sum(axis=1) / np.sqrt(part.shape[1]))
        shown = part.ravel()[:: max(1, part.size // _KS_NUMBERS)]
        found[f"the distribution of block '{name}'"] = stats.kstest(shown, "norm").pvalue
    chosen = z[:, np.unique(np.linspace(0, width - 1, min(width, _COLUMNS)).astype(int))]
    if chosen.shape[1] > 1:
        with np.errstate(invalid="ignore", divide="ignore"):
            products = (chosen.T @ chosen) / np.linalg.norm(chosen, axis=0)[:, None]
        pairs = np.triu_indices(chosen.shape[1], 1)
        found["the correlation of two coordinates"] = st.normal_pvalues(products[pairs])
    for lag in _LAGS:
        # Pairs (t, t + lag) without a step in common, so that first and second members are independent. Two
        # families of such pairs contain all pairs.
        for shift in (0, lag):
            first = [t for k in range(shift, n - lag, 2 * lag) for t in range(k, min(k + lag, n - lag))]
            if first:
                a, b = z[first], z[np.asarray(first) + lag]
                found[f"the correlation of steps {lag} apart ({'odd' if shift else 'even'})"] = (
                    st.product_pvalues(a, b),
                    st.product_pvalues(a, b, axis=0),
                )
    return found


def check_noise(
    probe: Probe, mechanism: Mechanism, streams: Streams, rng: np.random.Generator, n_steps: int
) -> CheckResult:
    """Check (B): the release of empty batches is independent noise of the accounted size; rng is public.

    The statistic is the smallest p-value, corrected for the number of tests.
    """
    listener = LoopStep(probe)
    sampler = mechanism.sampler
    few = sampler.num_records if isinstance(sampler, FixedSizeSampler) else 8
    listener.run(mechanism, streams, rng, few, n_steps)
    z = np.array(listener.released) / mechanism.noise.stddev
    pvalue, where = summarise(noise_pvalues(z, probe.blocks))
    spread = float(np.sqrt(np.mean(np.square(z))))
    return CheckResult(
        "noise",
        "Every released number has fresh, independent Gaussian noise of standard deviation "
        "noise_multiplier × the largest norm of what a record adds.",
        pvalue >= st.FALSE_ALARM,
        pvalue,
        st.FALSE_ALARM,
        f"{len(z)} steps on empty batches, {z.size} deviates in {len(probe.blocks)} blocks; their standard "
        f"deviation is {spread:.4f} of the claim; smallest p-value {pvalue:.2g} ({where}).",
    )


def check_randomness(
    mechanism: Mechanism, insecure_seed: int | None, n: int = 2000, fits: int = 3
) -> CheckResult:
    """Check that each fit has new noise, from the operating system's randomness, independent of its batches.

    `insecure_seed` is the method's; for each of the fits, 4 steps of n deviates are drawn.
    """
    sampler = mechanism.sampler
    few = sampler.num_records if isinstance(sampler, FixedSizeSampler) else 1000

    def draw(streams: Streams) -> tuple[Vector, bytes]:
        draws = mechanism.draw(streams, few, 4, n)
        return np.asarray(draws.noise, dtype=float), draws.indices.tobytes() + draws.offsets.tobytes()

    made = [Streams.make(None) for _ in range(fits)]
    noise = np.array([draw(s)[0].ravel() for s in made])
    noise /= np.sqrt(np.mean(np.square(noise[0])))
    pairs = [(a, b) for a in range(fits) for b in range(a)]
    pvalue, _ = summarise(
        {
            "repeated": st.repetition_pvalue(noise),
            "alike": [st.product_pvalues(noise[a], noise[b]) for a, b in pairs],
        }
    )
    one, two = Streams.make(1), Streams.make(2)
    crossed = draw(Streams(one.sampling, two.noise))
    straight, other = draw(Streams.make(1)), draw(Streams.make(2))
    apart = np.array_equal(crossed[0], other[0]) and crossed[1] == straight[1]
    told = ""
    if not all(s.secure for s in made):
        told = "Streams for a release do not come from the operating system's randomness."
    elif pvalue < st.FALSE_ALARM:
        told = "Different fits share noise."
    elif not apart:
        told = "The noise depends on the stream that draws batches, or the batches on that of the noise."
    elif insecure_seed is not None:
        told = (
            "insecure_noise_seed= was given: whoever knows the seed can take the noise off. Leave it out "
            "for a release."
        )
    return CheckResult(
        "randomness",
        "Noise and batches come from cryptographic streams of their own, new in each fit.",
        not told,
        pvalue,
        st.FALSE_ALARM,
        told or f"{fits} fits, {noise.size} deviates: none shared; smallest p-value {pvalue:.2g}.",
    )
