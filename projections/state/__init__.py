"""Tables kept from changes: how far they may be folded, `current` and `history`.

Upstream: the log. Downstream: projections and readers.
Entry points: `cut.Cut`, `current.CurrentTables`, `history.HistoryTables`.
"""
