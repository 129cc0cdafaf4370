"""Source database to change: connectors, their admission, decoding, comparison.

Upstream: tables of other people's PostgreSQL, and the event store's `es.events`, through Debezium.
Downstream: the log, by `schemas.records.Change`, `TransactionEnd` and `SnapshotEnd`.
Entry points: `capture.ensure`, `outbox.ensure`, `decode.ChangeDecoder`, `verify.source_rows_hash`.
"""
