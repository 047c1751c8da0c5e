"""ε, δ and errors of an attacker as curves: the privacy profile and the trade-off function.

In: a run. Out: δ as a function of ε (`profiles`), the two errors of an attacker (`tradeoff`), the epsilon of
each accountant (`comparison`).

What it may never do: state less than the true δ, or larger errors than an attacker's least.
"""
