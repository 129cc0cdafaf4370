"""A swap dies on a running stack, and the pipeline with it: whoever reads sees old or new."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable

from kernel import failpoints
from pipeline.read.kafka_topics import KafkaTopics
from projections.serve.query import ask
from tests.support.lake.topic_sink import SinkWorld
from tests.support.services.waiting import until
from tests.support.services.whole_stack import WholeStack

NAME = "marked"
STATEMENT = """CREATE PROJECTION marked WITH (key = 'id', sink = 'topic:{topic}') AS
SELECT id, {word} AS word FROM STREAM events.mark.made"""
MAIN = "from apps.cli import main; main()"
ROWS = 4


class Readers(threading.Thread):
    """Read the projection by path, by name and over HTTP, without rest, and fold its changes."""

    def __init__(self, stack: WholeStack) -> None:
        super().__init__(name="readers", daemon=True)
        self._stack, self._end = stack, threading.Event()
        self.ways = {"path": self.path, "name": self.by_name, "http": self.rows}
        self.seen: dict[str, set[str]] = {way: set() for way in self.ways}
        self.errors: list[str] = []
        self.folded: dict[int, str] = {}
        self.told: Counter[tuple[int, str]] = Counter()
        self._feed = threading.Thread(target=self._follow, daemon=True)

    def run(self) -> None:
        self._feed.start()
        try:
            while not self._end.wait(0.1):
                for way, look in self.ways.items():
                    rows = look()
                    assert len(rows) == len({id_ for id_, _ in rows}), "each row once"
                    self.seen[way].add(made_by(word for _, word in rows))
        except Exception as error:
            self.errors.append(repr(error))

    def finish(self) -> None:
        self._end.set()
        if self.is_alive():
            self.join(60)

    def path(self) -> list[tuple[int, str]]:
        rows = DeltaTable(self._stack.lake.path(f"projection/{NAME}")).to_pyarrow_table()
        return [(row["id"], row["word"]) for row in rows.to_pylist()]

    def by_name(self) -> list[tuple[int, str]]:
        rows = ask(self._stack.lake, f"SELECT id, word FROM {NAME}").rows
        return [(row["id"], row["word"]) for row in rows.to_pylist()]

    def rows(self) -> list[tuple[int, str]]:
        url = f"{self._url}/rows"
        found = httpx.get(url, headers=self._headers, params={"limit": 1000}, timeout=60).json()
        return [(row["id"], row["word"]) for row in found["rows"]]

    @property
    def _url(self) -> str:
        return f"{self._stack.settings.required('service.url')}/v1/projections/{NAME}"

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._stack.settings.text('service.token')}"}

    def _follow(self) -> None:
        url = f"{self._url}/changes"
        with httpx.stream("GET", url, headers=self._headers, timeout=None) as answer:
            for line in answer.iter_lines():
                change = json.loads(line[6:]) if line.startswith("data: ") else {}
                if "key" in change:
                    word = change["new"]["word"]
                    self.folded[change["key"]["id"]] = word
                    self.told[change["key"]["id"], word] += 1


def made_by(words: Iterable[str]) -> str:
    """Say which query gave words: one, or both."""
    return " and ".join(sorted({"new" if word.isupper() else "old" for word in words}))


def swapping(stack: WholeStack, armed: str) -> int:
    words = ["replay", "swap", NAME, "--yes", "--reason", "x", "-w", str(stack.workspace)]
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        env={**os.environ, "PENSTOCK_FAILPOINTS": armed},
        check=False,
        capture_output=True,
        timeout=600,
    ).returncode


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "at",
    [
        pytest.param(failpoints.REPLAY_AFTER_CLAIM, marks=pytest.mark.matrix),
        failpoints.REPLAY_AFTER_SWAP,
        pytest.param(failpoints.REPLAY_AFTER_LIVE, marks=pytest.mark.matrix),
    ],
)
def test_p10_a_swap_that_dies_with_the_pipeline_is_seen_whole_and_finished(
    whole_stack: Path, at: str
) -> None:
    stack = WholeStack(whole_stack, "")
    sink = SinkWorld(stack.settings, stack.lake, f"marks-{at.replace('.', '-')}.")
    query = whole_stack / "marked.sql"

    def tell(*ids: int) -> None:
        for id_ in ids:
            data = json.dumps({"id": id_, "word": f"w{id_}"})
            stack.command("append", f"mark-{at.replace('.', '')}-{id_}", "made", data)
        stack.command("wait", "--caught-up", "--timeout", "240")

    def build(word: str) -> str:
        query.write_text(STATEMENT.format(topic=sink.topic, word=word))
        return str(query)

    readers = Readers(stack)
    try:
        tell(*range(1, ROWS + 1))
        stack.command("projection", "apply", build("word"))
        topics = KafkaTopics(sink.stack.required("kafka.bootstrap"))
        until(lambda: bool(topics.ids([sink.topic])) and len(sink.folded()) >= ROWS, "it is sent")
        before = sink.folded()
        readers.start()
        until(lambda: readers.folded == before, "the feed has all rows", deadline_s=60)
        stack.command("replay", "apply", NAME, "--sql", build("upper(word)"))
        assert swapping(stack, f"{at}=kill") == -signal.SIGKILL
        stack.kill("pipeline")
        assert swapping(stack, "") == 0
        tell(ROWS + 1 + len(before))
        after = {id_: word.upper() for id_, word in sink.folded().items()}
        until(lambda: sink.folded() == after, "the topic has the new rows", deadline_s=60)
        until(lambda: readers.folded == after, "the feed has the new rows", deadline_s=60)
        for look in readers.ways.values():
            assert dict(look()) == after
        readers.finish()
        assert readers.errors == []
        assert readers.seen == {way: {"old", "new"} for way in readers.ways}
        assert set(readers.told.values()) == {1}, "nothing is told twice"
        assert len(sink.changes()) == 2 * len(before) + 1, "nothing is sent twice"
    finally:
        readers.finish()
        stack.command("projection", "drop", NAME, "--yes", code=None)
        query.unlink()
