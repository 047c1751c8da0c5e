"""Privacy loss distributions: the default accountant.

`dominating_pairs` and `batch_pairs` say what a step can tell at worst; `gaussian_steps` and
`tilted_composition` compose the losses of many; the accountants put that behind dp-accounting's interface.
"""
