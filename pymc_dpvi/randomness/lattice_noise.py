r"""Privacy noise on a lattice: the small interface through which the mechanism draws its noise.

The Gaussian mechanism (Dwork & Roth 2014, section 3.5.3 and appendix A) adds noise :math:`N(0, s^2 I)`,
:math:`s = \sigma C`, to a sum to which one record adds at most C; accountants speak of exactly this. Floating
point cannot do it: which results a float64 sum plus float64 noise can reach depends on the last bits of the
sum, and so betrays them (Mironov 2012, "On significance of the least significant bits for differential
privacy").

**The lattice.** Let :math:`u = 2^{-40} s` be its spacing. The sum is rounded to an integer multiple K of u
(`engine.clipping`). The noise X consists of independent :math:`\operatorname{round}(2^{40} Z)`,
:math:`Z \sim N(0, 1)` (`rounded_normal`). Released is :math:`K + X`, computed in 64-bit integers, times u.
Because K is an integer vector,

.. math:: K + \operatorname{round}(2^{40} Z) = \operatorname{round}(K + 2^{40} Z) ,

which is a function of the output :math:`K + N(0, 2^{80} I)` of the ideal Gaussian mechanism, that is,
post-processing: the ordinary accountants apply as they are. One record adds at most :math:`2^{40} / \sigma`
to K, because the clip bound leaves room for all roundings. ``docs/noise.md`` has the proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dpvi.arguments import check_integer, check_number
from pymc_dpvi.randomness.keystream import KeyStream
from pymc_dpvi.randomness.rounded_normal import LATTICE_BITS, rounded_normals

__all__ = ["LatticeNoise"]

# Far inside the range of float64: no multiple of the spacing overflows, and the spacing is no subnormal.
_SMALLEST_STDDEV = 1e-200
_LARGEST_STDDEV = 1e200


@dataclass(frozen=True)
class LatticeNoise:
    """Independent rounded Gaussian noise, in whole multiples of the lattice's spacing.

    `stddev` is the standard deviation of the Gaussian before rounding, from 1e-200 to 1e200, in the units of
    the sum that the noise is added to (`Mechanism.noise`).

    Privacy: this class knows neither the sensitivity nor the budget. A draw protects one release of one sum,
    which must be a multiple of `spacing`; a draw must never be used twice.

    >>> noise = LatticeNoise(stddev=2.0)
    >>> noise.draw(KeyStream.from_os(), (3,)).dtype
    dtype('int64')
    >>> noise.spacing == 2.0 * 2.0**-40
    True
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

    @property
    def spacing(self) -> float:
        """The lattice's spacing u, 2^-40 standard deviations (exact: the factor is a power of two)."""
        return math.ldexp(self.stddev, -LATTICE_BITS)

    def draw(self, stream: KeyStream, shape: int | tuple[int, ...]) -> NDArray[np.int64]:
        """Draw fresh int64 noise of a shape, in units of `spacing`; magnitudes are at most ``12 * 2^40``."""
        axes = shape if isinstance(shape, (tuple, list)) else (shape,)
        axes = tuple(check_integer("shape", axis, low=0) for axis in axes)
        return rounded_normals(stream, math.prod(axes)).reshape(axes)
