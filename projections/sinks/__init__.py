"""What is sent of projections: their changes as records of topics and as events, by transactions.

Upstream: projections.serve (changes of tables), the catalog (which sinks are declared); whoever
appends events is handed in. Downstream: Kafka's topics, the event store.
Entry points: `sinks.Sinks`, `projection_sink.ProjectionSink`, `sink_columns.check_sink_columns`.
"""
