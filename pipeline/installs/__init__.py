"""Bulk rows that the stream does not bring: staged beside a table, then installed by one commit.

Upstream: current. Downstream: typed, commit.
Entry points: `install_book` (the book of copies), `staging`, `installation`.
"""
