"""Accountants from papers: Rényi, zero-concentrated, Gaussian, moments, advanced composition, Bayesian.

Each module has one paper's bound. They are there to compare with, and where somebody's policy names one. In:
the events of a run. Out: ε or δ.

What it may never do: take a step for which the paper has no proof.
"""
