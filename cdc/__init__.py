"""Source database to change: connectors, their admission, decoding, comparison, and their life.

Upstream: tables of other people's PostgreSQL, and the event store's `es.events`, through Debezium.
Downstream: the log, by `schemas.records.Change`, `TransactionEnd` and `SnapshotEnd`. What reads a
source knows no tables; `copies`, `verification` and `upkeep`, which keep it, do.
Entry points: `capture.ensure`, `outbox.ensure`, `decode.ChangeDecoder`, `upkeep.lifecycle.add`.
"""
