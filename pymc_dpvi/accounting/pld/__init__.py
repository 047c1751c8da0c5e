"""Privacy loss distributions: the default accountant.

`dominating_pairs` has the worst case of one step, `gaussian_steps` and `tilted_composition` compose the
losses of many steps, and `accountant` gives that dp-accounting's interface. In: the events of a run. Out: ε
or δ.

What it may never do: round down.
"""
