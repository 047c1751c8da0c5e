"""Privacy noise: the one small interface behind which the noise of the mechanism is drawn.

The Gaussian mechanism (Dwork & Roth 2014, section 3.5.3 and appendix A) adds to a sum of
sensitivity ``C`` the noise

    Z ~ N(0, s^2 I),    s = noise_multiplier * C,

and the accountants speak of exactly this distribution. `GaussianNoise` holds the public fact, the
standard deviation ``s``, as a frozen field; the stream, which is secret, is an argument of `draw`.

**Limits.** `GaussianNoise` draws float64 numbers, and a float64 sum of a private value and float64
noise is not the ideal mechanism: the set of reachable results depends on the private value in its
last bits (Mironov 2012, "On significance of the least significant bits for differential privacy").
An integer lattice noise closes this gap behind the same interface.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dpvi.arguments import check_number
from pymc_dpvi.randomness import KeyStream

__all__ = ["GaussianNoise"]

# Far inside the range of float64: no deviate overflows, and none loses bits as a subnormal.
_SMALLEST_STDDEV = 1e-200
_LARGEST_STDDEV = 1e200


@dataclass(frozen=True)
class GaussianNoise:
    """Independent centred Gaussian noise.

    Parameters
    ----------
    stddev : float
        Standard deviation of every entry, in the units of the sum it is added to:
        ``noise_multiplier * l2_clip_norm``. Finite and positive (between 1e-200 and 1e200).

    Raises
    ------
    ArgumentError
        If `stddev` is not such a number.

    Notes
    -----
    Privacy: this class knows neither the sensitivity nor the budget. One draw protects one release
    of one sum; a draw must never be used twice.

    Examples
    --------
    >>> GaussianNoise(stddev=2.0).draw(KeyStream.from_os(), (3,)).shape
    (3,)
    """

    stddev: float

    def __post_init__(self) -> None:
        stddev = check_number(
            "stddev",
            self.stddev,
            low=_SMALLEST_STDDEV,
            high=_LARGEST_STDDEV,
            closed_low=True,
            closed_high=True,
        )
        object.__setattr__(self, "stddev", stddev)

    def draw(self, stream: KeyStream, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Draw fresh noise.

        Parameters
        ----------
        stream : KeyStream
            Where the randomness comes from.
        shape : int or tuple of int
            Shape of the result, such as ``(n_steps, num_params)``.

        Returns
        -------
        ndarray of float64
            Independent N(0, stddev^2) entries of that shape.
        """
        noise = stream.standard_normal(shape)
        noise *= self.stddev
        return noise
