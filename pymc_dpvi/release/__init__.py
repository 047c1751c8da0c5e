"""The report of what a release cost, and what that means.

In: settings and what follows from them. Out: the report (`report`), its meaning for a person
(`interpretation`), and what a reader can check without data or model (`check_release`).

What it may never do: hold a value that depends on a record.
"""
