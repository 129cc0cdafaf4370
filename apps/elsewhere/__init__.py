"""Where a replay of events goes: a Kafka topic, or the service of another store.

Upstream: `replay.elsewhere`, whose `Target` these are. Downstream: the broker, the other service.
Entry points: `apps.elsewhere.topic.TopicTarget`, `apps.elsewhere.store.StoreTarget`.
"""
