"""The mechanism: batches, clip norm, noise, event and sensitivity, in one place.

In: settings. Out: `mechanism.Mechanism`, a frozen object that draws batches and noise, says how far one
record can move the sum (`Mechanism.sensitivity`), and what that costs. `adaptive_clipping` is the clip norm's
rule, `limits` are the bounds under which the proof of the noise holds.

What it may never do: run one thing and account for another.
"""
