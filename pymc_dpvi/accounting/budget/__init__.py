"""Several fits on the same data: what each has been charged, and what they cost together.

`budget` is what a user holds, `ledger` the file that survives a crash, `composition` and `renyi_filter` the
rules by which charges add up.
"""
