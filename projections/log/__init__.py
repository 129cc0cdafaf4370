"""The append-only Delta log: what arrived, with its bytes, exactly once, by epoch.

Upstream: decoded Kafka records. Downstream: state, typed tables, replay.
Entry points: `layout.Lake`, `decode.decode_batches`, `writer.ArrowWriter`, `typed.TypedTables`.
"""
