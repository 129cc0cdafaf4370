"""Whether a store kept its promises: judges the history of a run, whoever made it.

Upstream: what clients asked and were answered, what tailing readers saw, what is stored in the end.
Downstream: `tests.torture`, fault tests. Pure: no I/O, a bounded amount of memory per event.
Chain: `history.AppendOperation` -> `checker.HistoryChecker` -> `anomalies.HistoryReport`.
Entry points: `checker.HistoryChecker`, `anomalies`.
"""
