"""The clipped sum, compiled, and the loop around it.

In: one record's gradient (`graph`), a mechanism, batches and noise. Out: the noisy sum, and the variational
parameters that it moves. `private_sum` marks in a graph what is released. `microbatch` replaces the mark by
the only operation in which records are added up, one microbatch at a time. `clipping` and `kernels` are its
arithmetic, `generated_code` joins them for numba. `step_graph` is one update, `step` compiles it, `multistep`
makes many in one compiled call, `loop` runs them. With threads, `assisted_chunk` or `split_step` takes the
place of `multistep`. `gradient_moments` keeps moments of the noisy gradients.

What it may never do: let anything but the noisy sum leave, or let what a record adds depend on its place in
the batch.
"""
