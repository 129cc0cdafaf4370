"""A topic sink of a workspace that runs as `penstock up` starts it."""

from __future__ import annotations

from pathlib import Path

from apps.topics import KafkaTopics
from tests.support.lake.topic_sink import SinkWorld
from tests.support.services.waiting import until
from tests.support.services.whole_stack import WholeStack

STATEMENT = """
CREATE PROJECTION sent WITH (key = 'id', sink = 'topic:{topic}') AS
SELECT id, word FROM STREAM events.parcel.sent;
"""


def test_p10_a_running_pipeline_sends_what_events_change(whole_stack: Path) -> None:
    stack = WholeStack(whole_stack, "")
    reader = SinkWorld(stack.settings, stack.lake, "parcels.")
    topics = KafkaTopics(reader.stack.required("kafka.bootstrap"))
    query = whole_stack / "sent.sql"
    query.write_text(STATEMENT.format(topic=reader.topic))

    def tell(id_: int, word: str) -> None:
        stack.command("append", "parcel-1", "sent", f'{{"id": {id_}, "word": "{word}"}}')

    def folded() -> dict[int, str]:
        return reader.folded() if topics.ids([reader.topic]) else {}

    try:
        tell(1, "a")
        tell(2, "b")
        stack.command("projection", "apply", str(query))
        until(lambda: folded() == {1: "a", 2: "b"}, "the topic has the table", deadline_s=120)
        tell(2, "B")
        until(lambda: folded() == {1: "a", 2: "B"}, "the topic has the change", deadline_s=60)
        assert reader.changes()[-1] == ("update", 2, "B")
        sink = stack.health()["sinks"]["sent"]
        assert (sink["target"], sink["records"], sink["error"]) == (
            f"topic:{reader.topic}",
            3,
            None,
        )
    finally:
        stack.command("projection", "drop", "sent", "--yes", code=None)
        query.unlink()
