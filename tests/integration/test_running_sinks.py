"""Sinks of a workspace that runs as `penstock up` starts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.read.kafka_topics import KafkaTopics
from tests.architecture.tree import ROOT
from tests.docs.markdown import blocks
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


ALERTS = ROOT / "docs/how-to/raise-and-clear-alerts.md"


@pytest.mark.matrix
def test_the_page_on_alerts_raises_and_clears_them(whole_stack: Path) -> None:
    stack = WholeStack(whole_stack, "")
    pages = {block.mark[1]: block.text for block in blocks(ALERTS) if block.language == "sql"}
    query = whole_stack / "alerts.sql"

    def tell(parcel: str, hours: int) -> None:
        data = json.dumps({"parcel": parcel, "place": "Bonn", "hours": hours})
        stack.command("append", "parcel-9", "seen", data)
        stack.command("wait", "--caught-up", "--timeout", "120")

    def alerts() -> list[tuple[str, bool, int]]:
        stack.command("wait", "--caught-up", "--timeout", "120")
        rows = stack.command("query", "SELECT * FROM late_parcel_alerts ORDER BY parcel")["rows"]
        return [(row["parcel"], row["cleared_at"] is None, row["times"]) for row in rows]

    try:
        tell("p1", 1)
        query.write_text(pages["raised"])
        stack.command("projection", "apply", str(query))
        for hours in (50, 2, 60):
            tell("p1", hours)
        query.write_text(pages["listed"])
        stack.command("projection", "apply", str(query))
        until(lambda: alerts() == [("p1", True, 2)], "it is raised again", deadline_s=60)
        tell("p1", 3)
        until(lambda: alerts() == [("p1", False, 2)], "it is cleared", deadline_s=60)
        sink = stack.command("projection", "status", "late_parcels")["sink"]
        assert (sink["target"], sink["records"], sink["rows"]) == ("event:late_parcel", 4, 0)
    finally:
        for name in ("late_parcel_alerts", "late_parcels"):
            stack.command("projection", "drop", name, "--yes", code=None)
        query.unlink()
