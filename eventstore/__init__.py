"""Facts, in the order in which they were committed: the write side.

Upstream: kernel, schemas. Downstream: service, delivery, apps; Debezium reads `es.events`.
A request is an `AppendRequest`; `Appender` commits whatever is queued as one group, `decide_group`
says what becomes of each request, a `GroupCommit` makes it durable, `Feed` tells the readers.
`service_client` is how others talk to the service of a store.
Entry points: `eventstore.store.EventStore`, `PostgresEventStore`, `MemoryEventStore`, `Intake`,
`decode.decode_event`.
"""
