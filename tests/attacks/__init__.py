"""A standing attacker: one record is made hostile, in a few hundred ways, and all that leaves is compared.

Whoever may choose their own record must not be able to show in a fit otherwise than through the clipped and
noisy sum. So for two data sets that differ in one record, everything else is the same: whether there is an
exception, its text, the other records' gradients bit by bit, what is refused, withheld, reported, logged and
written, the names and shapes of what is released, and that it ends.

=============  =============================================================================================
`records`      the hostile records, by the types of a model's arrays
`operations`   a small model around each scalar operation that PyTensor has, and around other operations
`subjects`     what is attacked: these models, those of `zoo`, and some whose data can be built anew
`shares`       the rows of a compiled step, at many hostile records: exceptions, isolation, the bound, time
`outlets`      whole fits at a few hostile records: everything that leaves
`attack`       the two attacks, as streams of findings
`watch`        runs them in a process that is killed when a call does not end
`plants`       bugs that the attacker is shown to find
=============  =============================================================================================

A new model of the zoo and a new operation of PyTensor are attacked without another line here; an operation
that is no scalar one, or a model that fits nowhere else, gets a line in `operations` or `subjects`.

``python -m attacks`` (in ``tests/``) attacks what it is asked to and prints what it finds: see `__main__`.
"""
