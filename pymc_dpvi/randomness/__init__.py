"""Keys to integers to noise.

In: a key of the operating system. Out: a stream of words that nobody can predict (`keystream`), random
subsets (`subsets`), the rounded normal distribution (`rounded_normal`) and the noise on its lattice
(`lattice_noise`).

What it may never do: use a float where a tail matters, repeat words in a forked process, or leave a key where
Python shows it.
"""
