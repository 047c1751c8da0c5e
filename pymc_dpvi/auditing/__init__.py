"""The mechanism's test suite, as part of the package: the tests run it, and so can users on their models.

In: a model and a method. Out: a report of promises kept or broken. Each check is a function of a compiled
step (`Probe`) and of the mechanism, and returns a `CheckResult`:

====  ==================================================  =====================================
 A    how far a record moves the release                  `sensitivity.check_sensitivity`
 B    the noise of a run in which nobody takes part       `transcript.check_noise`
 C    the batches, against what accounts for them         `batches.check_batches`
 D    one step with and without a record                  `attack.check_attack`
====  ==================================================  =====================================

and four that go with them: `sensitivity.check_one_way_out`, that records reach an update through the noisy
sum alone; `sensitivity.check_lattice`, that it is rounded to the lattice of the noise;
`gradients.check_gradients`, that what records add to it is their own clipped gradient; and
`transcript.check_randomness`, that noise is secret and new. :func:`audit` runs them all.

What it may never do: read a record. Its records are synthetic.
"""

from pymc_dpvi.auditing.report import AuditReport, CheckResult
from pymc_dpvi.auditing.run import audit

__all__ = ["AuditReport", "CheckResult", "audit"]
