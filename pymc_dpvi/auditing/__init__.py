"""The mechanism's test suite, which the package's tests run, and users on their own models.

In: a model and a method. Out: a report of promises kept or broken. Each check measures a compiled step
(`Probe`) or the mechanism, and returns a `CheckResult`:

====  ==================================================  =====================================
 A    how far a record moves the release                  `sensitivity.check_sensitivity`
 B    the noise of a run on empty batches                 `transcript.check_noise`
 C    the batches, against the event that is accounted    `batches.check_batches`
 D    one step with and without a record                  `attack.check_attack`
====  ==================================================  =====================================

and four more: `sensitivity.check_one_way_out`, that records reach an update through the noisy sum alone;
`sensitivity.check_lattice`, that this sum is rounded to the lattice of the noise;
`gradients.check_gradients`, that a record adds its own clipped gradient; and `transcript.check_randomness`,
that noise is secret and new. :func:`audit` runs them all.

What it may never do: read a record. Its records are synthetic.
"""

from pymc_dpvi.auditing.report import AuditReport, CheckResult
from pymc_dpvi.auditing.run import audit

__all__ = ["AuditReport", "CheckResult", "audit"]
