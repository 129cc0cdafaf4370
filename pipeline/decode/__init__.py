"""Kafka records to rows of the log, in Arrow batches, in Spark's Python workers or the driver.

Upstream: decoders of cdc and eventstore, handed in. Downstream: arrive, log.
Entry points: `records.decode_batches`, `topic_decoder`, `log_rows`.
"""
