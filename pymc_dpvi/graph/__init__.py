"""A PyMC model, taken apart by records: one record's log-density, and its gradient.

In: a PyMC model. Out: the log-density of one record as a graph of its row and of the latent values
(`records`), and its gradient for a batch (`gradients`). Nothing here knows ε, noise or a batch's size.

What it may never do: let one record's term depend on another record. A model for which this cannot be shown
is refused.

==================  ==========================================================================================
what is checked     `records.build_record_model` is the list, in order. The checks: `public_data`,
                    `model_checks`, `selections`, `record_axis`, `precomputed`, `private_constants` (with
                    `opaque`, `scalar_constants`, `unrolled_loops`, `shape_constants`), `guards`, then
                    `start`; and `separability` against the model itself, on `synthetic_records`
persons             `units`, `tables`, `local_latents` (with `local_rules`, `local_checks`),
                    `person_covariates`, `within_persons` (with `made_up_rows`, `shifted_rows`)
the graphs          `densities`, with `rebuild`, `marginalised` and `traversal`
gradients           `gradients`, by a family's parameters (`guide`) too; factored where that is shorter
                    (`factoring`, `blocks`), without loops over a batch (`batched_ops`)
why it failed       `mismatch`
==================  ==========================================================================================
"""
