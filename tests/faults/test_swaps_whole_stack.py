"""Swaps on a running stack: one dies with the pipeline, one promotes a version that was compared.

Whoever reads sees old or new, and what goes out to others goes out once.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable

from kernel import failpoints
from pipeline.read.kafka_topics import KafkaTopics
from projections.serve.query import ask
from tests.support.lake.topic_sink import SinkWorld
from tests.support.services.receivers import http_receiver
from tests.support.services.waiting import until
from tests.support.services.whole_stack import WholeStack

NAME = "marked"
STATEMENT = """CREATE PROJECTION marked WITH (key = 'id', sink = 'topic:{topic}') AS
SELECT id, {word} AS word FROM STREAM events.{category}.made"""
OTHER = "CASE WHEN id % 2 = 0 THEN upper(word) ELSE word END"
WEBHOOK = """kind = "webhook"
url = "{url}"
secret = "file:{secret}"

[filter]
category = "{category}"
"""
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
        found = httpx.get(url, headers=self._headers, params={"limit": 1000}, timeout=60)
        assert found.status_code == 200, found.text
        return [(row["id"], row["word"]) for row in found.json()["rows"]]

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


class Marks:
    """Marks of a category of their own, the projection over them and the topic of its changes."""

    def __init__(self, stack: WholeStack, category: str) -> None:
        self.stack, self.category = stack, category
        self.sink = SinkWorld(stack.settings, stack.lake, f"{category}.")
        self._file = stack.workspace / f"{category}.sql"

    def tell(self, *ids: int) -> None:
        for id_ in ids:
            data = json.dumps({"id": id_, "word": f"w{id_}"})
            self.stack.command("append", f"{self.category}-{id_}", "made", data)
        self.stack.command("wait", "--caught-up", "--timeout", "240")

    def query(self, word: str) -> str:
        told = STATEMENT.format(topic=self.sink.topic, category=self.category, word=word)
        self._file.write_text(told)
        return str(self._file)

    def deploy(self, *ids: int) -> dict[int, str]:
        """Deploy the projection over what was told, and wait until the topic has its rows."""
        self.tell(*ids)
        self.stack.command("projection", "apply", self.query("word"))
        topics = KafkaTopics(self.sink.stack.required("kafka.bootstrap"))
        rows = {id_: f"w{id_}" for id_ in ids}
        until(
            lambda: bool(topics.ids([self.sink.topic])) and self.sink.folded() == rows,
            "the topic has the rows",
        )
        return rows

    def await_sent(self, rows: dict[int, str]) -> None:
        until(lambda: self.sink.folded() == rows, "the topic has the new rows", deadline_s=60)

    def drop(self) -> None:
        self.stack.command("projection", "drop", NAME, "--yes", code=None)
        self._file.unlink(missing_ok=True)


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
    marks = Marks(stack, "mark" + "".join(filter(str.isalpha, at)))
    readers = Readers(stack)
    try:
        before = marks.deploy(*range(1, ROWS + 1))
        readers.start()
        until(lambda: readers.folded == before, "the feed has all rows", deadline_s=60)
        stack.command("replay", "apply", NAME, "--sql", marks.query("upper(word)"))
        assert swapping(stack, f"{at}=kill") == -signal.SIGKILL
        stack.kill("pipeline")
        assert swapping(stack, "") == 0
        marks.tell(ROWS + 1)
        after = {id_: f"W{id_}" for id_ in (*before, ROWS + 1)}
        marks.await_sent(after)
        until(lambda: readers.folded == after, "the feed has the new rows", deadline_s=60)
        for look in readers.ways.values():
            assert dict(look()) == after
        readers.finish()
        assert readers.errors == []
        assert readers.seen == {way: {"old", "new"} for way in readers.ways}
        assert set(readers.told.values()) == {1}, "nothing is told twice"
        assert len(marks.sink.changes()) == 2 * len(before) + 1, "nothing is sent twice"
    finally:
        readers.finish()
        marks.drop()


@pytest.mark.timeout(600)
def test_p10_a_version_compared_on_the_live_stream_is_promoted_and_taken_back(
    whole_stack: Path,
) -> None:
    """A topic gets each change once and a webhook each event, over swap and rollback."""
    stack = WholeStack(whole_stack, "")
    marks = Marks(stack, "beside")
    secret, delivery = whole_stack / "beside.secret", whole_stack / "deliveries" / "beside.toml"
    secret.write_text("whsec_" + base64.b64encode(bytes(32)).decode())
    delivery.parent.mkdir(exist_ok=True)
    with http_receiver() as receiver:
        asked = WEBHOOK.format(url=receiver.url, secret=secret, category=marks.category)
        delivery.write_text(asked)
        try:
            until(lambda: known(stack, "beside"), "the webhook has its subscription")
            live = marks.deploy(1, 2)
            stack.command("replay", "apply", NAME, "--sql", marks.query(OTHER))
            for more in ((), (3, 4)):
                marks.tell(*more)
                live |= {id_: f"w{id_}" for id_ in more}
                drift = stack.command("replay", "compare", NAME)["drift"]
            assert [(each["live_rows"], each["differing"]) for each in drift] == [(2, 1), (4, 2)]
            marks.await_sent(live)
            assert len(marks.sink.changes()) == len(live), "nothing of the other version is sent"
            stack.command("replay", "verify", NAME, "--expect", "built.word = upper(live.word)")
            stack.command("replay", "swap", NAME)
            marks.tell(5, 6)
            marks.await_sent({1: "w1", 2: "W2", 3: "w3", 4: "W4", 5: "w5", 6: "W6"})
            assert len(marks.sink.changes()) == len(live) + 2 + 2, "what differs, and what came"
            stack.command("replay", "rollback", NAME)
            marks.tell(7, 8)
            marks.await_sent({id_: f"w{id_}" for id_ in range(1, 9)})
            until(lambda: len(receiver.received) >= 8, "the webhook has all events")
        finally:
            delivery.unlink()
            secret.unlink()
            marks.drop()
    posted = Counter(each.headers["webhook-id"] for each in receiver.received)
    assert (len(posted), set(posted.values())) == (8, {1}), "each event is posted once"
    words: dict[int, list[str | None]] = {}
    for _, id_, word in marks.sink.changes():
        words.setdefault(id_, []).append(word)
    assert all(one != other for sent in words.values() for one, other in pairwise(sent)), words


def known(stack: WholeStack, subscription: str) -> bool:
    """Say whether a delivery has its subscription: events that come later are posted."""
    listed = stack.command("subscription", "list")["subscriptions"]
    return any(each["name"] == subscription for each in listed)
