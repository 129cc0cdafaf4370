"""The published language: what events, changes and their Avro bytes look like.

Upstream: kernel. Downstream: eventstore writes it, cdc decodes into it, projections read it.
Entry points: `schemas.records`, `schemas.wire`, `schemas.registry.SchemaRegistry`.
"""
