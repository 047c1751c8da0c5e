"""ε, δ and errors of an attacker as curves: the privacy profile and the trade-off function.

In: a run. Out: δ as a function of ε (`profiles`), both errors of an attacker (`tradeoff`), accountants side
by side (`comparison`).

What it may never do: lie below the true curve.
"""
