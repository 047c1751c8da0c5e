"""Several fits on the same data: what each has been charged, and what they cost together.

`budget` is what a user holds, `ledger` the file that survives a crash. `composition` and `renyi_filter` are
the rules by which charges add up. In: a charge, before anything is released. Out: the charge, or a refusal. A
charge is never given back, and never depends on a record.
"""
