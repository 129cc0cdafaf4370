"""Words of SQL: tokens and their places, types by name, lengths of time, options.

Upstream: a text. Downstream: everything else that reads or writes SQL.
Entry points: `tokens.tokenized`, `places.Script`, `catalog.Catalog`.
"""
