"""From Kafka: which records make an epoch, where reading goes on, and what Kafka has lost.

Upstream: topics of event stores, captured databases and other systems; who decodes them is handed
in. Downstream: `pipeline.commit.ingest`, one epoch at a time.
Entry points: `stream.IngestRun` (one run), `lane_runs.LaneRuns` (runs of lanes read apart),
`gaps.look`, `kafka_topics.KafkaTopics`.
"""
