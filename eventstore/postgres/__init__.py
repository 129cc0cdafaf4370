"""The event store in PostgreSQL.

Upstream: `eventstore.store`, `eventstore.appender`. Downstream: service, apps; Debezium, which
reads `es.events`. Tables are in `migrations/`, what they add up to is `schema.sql`.
Entry points: `store.PostgresEventStore`, `migrate.migrate`, `schema_cache.PostgresSchemaCache`.
"""
