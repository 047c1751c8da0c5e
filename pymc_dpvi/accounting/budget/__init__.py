"""Several fits on the same data: what each was charged, and what they cost together.

`budget` is what a user holds; `ledger` keeps the charges, in a file if they must survive a crash.
`composition` and `renyi_filter` are the rules by which charges add up. In: a charge, before anything is
released. Out: the charge, or a refusal.

What it may never do: give a charge back, or make one that depends on a record.
"""
