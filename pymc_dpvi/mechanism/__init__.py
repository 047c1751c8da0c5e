"""The mechanism: batches, clip norm, noise, event and sensitivity, in one place.

In: settings. Out: `mechanism.Mechanism`, a frozen object that draws batches and noise, states how far one
record can move the sum (`Mechanism.sensitivity`), and computes what steps cost. `adaptive_clipping` has the
settings of an adaptive clip norm, `limits` the bounds under which the proof of the noise holds.

What it may never do: run one thing and account for another.
"""
