"""Accountants from papers: Rényi, zero-concentrated, Gaussian, moments, advanced composition, Bayesian.

Each module has one paper's bound, to compare with, or for a policy that names it. In: the events of a run.
Out: ε or δ.

What it may never do: take a step for which the paper has no proof. (`bayesian` does, and is no bound.)
"""
