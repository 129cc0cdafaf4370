"""Money moves between tables in transactions: the total is constant in every epoch, at any time.

Epochs take random parts of what is in Kafka, so that most of them end amid transactions.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise

import psycopg
import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from kernel.errors import NotFound
from kernel.positions import Epoch
from lake.layout import Lake
from pipeline.commit.manifest_rows import Committed
from pipeline.read.kafka_topics import KafkaTopics
from projections.serve.query import ask
from stack.control import kill_part
from tests.support.sources.mirroring import Mirror, mirrored

CHECKING, SAVINGS, BOOK = "public.checking", "public.savings", "public.book"
ACCOUNTS = 1_200
TOTAL = ACCOUNTS * 2 * 100
TABLES = f"""
CREATE TABLE checking (id int PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE savings (id int, branch text, balance bigint NOT NULL, PRIMARY KEY (id, branch));
CREATE TABLE book (id bigserial PRIMARY KEY, amount bigint NOT NULL, note text);
INSERT INTO checking SELECT g, 100 FROM generate_series(1, {ACCOUNTS}) g;
INSERT INTO savings SELECT g, 'branch ' || g % 3, 100 FROM generate_series(1, {ACCOUNTS}) g;
"""
KEYS = {CHECKING: ("id",), SAVINGS: ("id", "branch"), BOOK: ("id",)}
MOVES = 90
HUGE_EVERY = 30


class Teller(threading.Thread):
    """Moves money between two tables, in one of several ways each time."""

    def __init__(self, dsn: str, number: int) -> None:
        super().__init__(name=f"teller-{number}", daemon=True)
        self._dsn = dsn
        self._dice = random.Random(number)
        self._end = threading.Event()
        self.moves = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while not self._end.is_set() and self.moves < MOVES:
                    self._move(connection)
                    self.moves += 1
                    self._end.wait(0.05)
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self._end.set()
        self.join(60)
        assert self.error is None, self.error

    def _move(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        way = (
            "huge"
            if self.moves % HUGE_EVERY == HUGE_EVERY - 1
            else self._dice.choice(["plain", "savepoint", "rolled back", "book", "new row", "key"])
        )
        amount, one, other = (self._dice.randint(1, 9), *self._dice.sample(range(1, 1_200), 2))
        give = "UPDATE checking SET balance = balance - %s WHERE id = %s"
        take = "UPDATE savings SET balance = balance + %s WHERE id = %s"
        with connection.transaction() as transaction:
            match way:
                case "huge":
                    # Rows in one order everywhere: two of these must not wait for each other.
                    connection.execute("SELECT FROM checking ORDER BY id FOR UPDATE")
                    connection.execute("UPDATE checking SET balance = balance - 1")
                    connection.execute(
                        "INSERT INTO book (amount) SELECT 1 FROM generate_series(1, %s)",
                        (ACCOUNTS,),
                    )
                    return
                case "savepoint":
                    with connection.transaction() as inner:
                        connection.execute(give, (1_000, one))
                        raise psycopg.Rollback(inner)
                case "rolled back":
                    connection.execute(take, (1_000, other))
                    raise psycopg.Rollback(transaction)
            connection.execute(give, (amount, one))
            match way:
                case "book":
                    connection.execute(
                        "INSERT INTO book (amount, note) VALUES (%s, %s)", (amount, "n" * 3_000)
                    )
                case "new row":
                    connection.execute(
                        "INSERT INTO savings VALUES (%s, 'new', %s) ON CONFLICT (id, branch)"
                        " DO UPDATE SET balance = savings.balance + excluded.balance",
                        (10_000 + other, amount),
                    )
                case "key":
                    connection.execute(take, (amount, other))
                    connection.execute(
                        "UPDATE savings SET branch = branch || '.' WHERE id = %s", (other,)
                    )
                case _:
                    connection.execute(take, (amount, other))


@pytest.fixture
def bank(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, new_source: Callable[[str], str]
) -> Iterator[Mirror]:
    with mirrored(stack, spark, lake, prefix, new_source(TABLES), tuple(KEYS)) as mirror:
        mirror.catch_up()
        yield mirror


def some_of(mirror: Mirror, dice: random.Random) -> Committed:
    """Make an epoch of a random part of what is in Kafka now."""
    epochs = mirror.epochs
    topics = KafkaTopics(epochs.bootstrap)
    ends = topics.ends(topics.matching(epochs.router.pattern()))
    known = epochs.ingest.last.end if epochs.ingest.last else {}
    return epochs.run(
        up_to={
            topic: {
                part: dice.randint(min(known.get(topic, {}).get(part, 0), end), end)
                for part, end in places.items()
            }
            for topic, places in ends.items()
        }
    )


def total_sql(mirror: Mirror) -> str:
    names = [f'current."{mirror.name}.{table}"' for table in KEYS]
    parts = [
        f"SELECT sum(balance) AS n FROM {names[0]}",
        f"SELECT sum(balance) AS n FROM {names[1]}",
        f"SELECT sum(amount) AS n FROM {names[2]}",
    ]
    return f"SELECT sum(n)::BIGINT AS total FROM ({' UNION ALL '.join(parts)})"


def total(mirror: Mirror, *, epoch: Epoch | None = None, at: datetime | None = None) -> int:
    found = ask(mirror.lake, total_sql(mirror), epoch=epoch, at=at)
    return int(found.rows["total"][0].as_py())


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_p5_a_banks_total_is_constant_in_every_epoch_and_at_any_time(
    bank: Mirror, stack: Settings
) -> None:
    dice = random.Random(7)
    bank.execute("INSERT INTO book (amount) VALUES (0)")
    bank.catch_up()
    first = bank.epochs.ingest.last
    assert first is not None
    tellers = [Teller(bank.dsn, number) for number in range(3)]
    for teller in tellers:
        teller.start()
    made: list[Committed] = []
    killed = False
    deadline = time.monotonic() + 300
    try:
        while any(teller.is_alive() for teller in tellers) or len(made) < 15:
            assert time.monotonic() < deadline, bank.epochs.ingest.waiting_for()
            made.append(some_of(bank, dice))
            if not killed and min(teller.moves for teller in tellers) > MOVES // 3:
                kill_part(stack.workspace, "connect")
                killed = True
    finally:
        for teller in tellers:
            teller.finish()
    assert killed
    bank.catch_up()
    last = bank.epochs.ingest.last
    assert last is not None
    waiting = [done for done in made if done.pending_from[bank.name] <= done.epoch]
    assert waiting, "no epoch ended amid a transaction"
    assert len({done.cuts[bank.name] for done in made}) > 2
    epochs = bank.epochs.manifest.between(Epoch(first.epoch - 1), last.epoch)
    assert {done.epoch: total(bank, epoch=done.epoch) for done in epochs} == {
        done.epoch: TOTAL for done in epochs
    }
    for before, after in pairwise(epochs):
        moment = before.at + dice.random() * (after.at - before.at)
        assert total(bank, at=moment) == TOTAL
        found = ask(bank.lake, total_sql(bank), at=moment)
        assert found.epoch == before.epoch
    with pytest.raises(NotFound):
        total(bank, at=epochs[0].at - timedelta(days=1))
    with bank.following():
        reports = bank.compare()
    assert {table: report.equal for table, report in reports.items()} == dict.fromkeys(KEYS, True)
