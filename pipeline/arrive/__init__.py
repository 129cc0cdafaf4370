"""Which rows of a decoded batch are new, which are known already, and which are late.

Upstream: decode, position. Downstream: log, commit.
Entry points: `arrival`, `sorter.Sorter`.
"""
