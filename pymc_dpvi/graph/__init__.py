"""A PyMC model, taken apart by records: one record's log-density, and its gradient.

In: a PyMC model. Out: the log-density of one record as a graph of its row and of the latent values
(`records`), and its gradient for a batch (`gradients`). Nothing here knows ε, noise or a batch's size.

What it may never do: let one record's term depend on another record. So it refuses what it cannot prove.
`records.build_record_model` reads as the list of what is refused, in order; `separability` then compares the
terms with the model itself, on synthetic records.
"""
