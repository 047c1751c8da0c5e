"""The released posterior.

In: variational parameters and noisy gradients, which are released, and the prior. Out: draws
(`approximation`, `released_draws`), with the uncertainty that the noise leaves (`noise_aware`), and
measurements of the fit (`diagnostics`).

What it may never do: read a record. It costs nothing.
"""
