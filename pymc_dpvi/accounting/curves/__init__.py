"""ε, δ and errors of an attacker as curves: the privacy profile and the trade-off function."""
