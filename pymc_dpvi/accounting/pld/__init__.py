"""Privacy loss distributions: the default accountant.

`dominating_pairs` says what a step can tell at worst; `gaussian_steps` and `tilted_composition` compose the
losses of many steps; `accountant` puts that behind dp-accounting's interface. In: the events of a run. Out: ε
or δ.

What it may never do: round down.
"""
