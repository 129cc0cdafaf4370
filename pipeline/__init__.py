"""From Kafka to tables: what arrived is logged exactly once, by epoch, and state is kept from it.

The folders, in the order in which they may import each other: `lanes` (what has an order of its
own), `ddl` (what a source's DDL means), `position` (how far ingest has come), `decode` (records to
rows), `arrive` (new, known or late), `log` (the append-only log), `current`, `installs` (bulk
rows), `typed` and `history` (the tables kept from it), `commit` (the numbered protocol of an
epoch), `verification` (the lake's side of a comparison with a source), `read` (from Kafka: what an
epoch has), `process` (what runs all of it). `executor` says who does a step.

Upstream: lake, schemas; records decoded by cdc and eventstore are handed in by apps.
Downstream: projections, cdc, replay, apps.
Entry points: `commit.ingest.Ingest.run_epoch`, `commit.manifest.Manifest`.
"""
