"""How the posterior of the model's variables is represented.

==============  ============================================================================================
module          what it does
==============  ============================================================================================
`family`        what a family is, for this package's and for a user's own
`mean_field`    independent normals
`full_rank`     one multivariate normal
`low_rank`      a multivariate normal with few directions of correlation
`point`         a number
`dropout`       variational dropout
`amortized`     a value for each record, by an encoder of the record
`fixed`         public random numbers of a step, which encoders need
`joint`         all families of a guide together, as PyMC's group
`whole`         one family for all variables: PyMC's own groups
==============  ============================================================================================

Values of persons, which are integrated out and not released, have rules instead (`graph.local_rules`).
"""

from __future__ import annotations

from pymc_dpvi.guide.amortized import Amortized
from pymc_dpvi.guide.dropout import Dropout
from pymc_dpvi.guide.family import GuideFamily
from pymc_dpvi.guide.full_rank import FullRank
from pymc_dpvi.guide.low_rank import LowRank
from pymc_dpvi.guide.mean_field import MeanField
from pymc_dpvi.guide.point import Point

__all__ = ["Amortized", "Dropout", "FullRank", "GuideFamily", "LowRank", "MeanField", "Point"]
