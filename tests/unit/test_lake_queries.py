"""Who asks the lake again and again pays for what came since, and sees all of that."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel.errors import InvalidRequest, NotFound, PenstockError
from kernel.positions import Epoch
from lake.handles import Handle
from lake.layers import marked
from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.writer import OP, UPSERT, Guard
from pipeline.commit.manifest_rows import Projected
from pipeline.commit.retention import forget_epochs
from projections.run.catalog import LIVE, DeployedCatalog
from projections.serve import pinned_epochs, versions
from projections.serve.lookups import Lookups
from projections.serve.query import LakeQueries, QueryAnswer, ask
from projections.serve.versions import EpochVersions
from replay.book import ReplayBook
from replay.generations import live_app
from replay.subject import entry_of
from tests.support.lake.handmade import HandMade, words
from tests.support.lake.swaps import rollback, swap

LOG = "log/events/0b0f7a0e-0000-4000-8000-000000000001"
TYPED = "typed/events.thing.told"
CURRENT = "current/shop.public.orders"
NAMES = ("report", "slow")
QUERIES = (
    "SELECT id, word FROM report ORDER BY ALL",
    "SELECT count(*) AS n, max(word) AS word FROM slow",
    "SELECT * FROM report JOIN slow USING (id) ORDER BY ALL",
    f'SELECT count(*) AS n, max(t.word) AS word FROM typed."events.thing.told" t, "{LOG}" l',
    "SELECT id, word FROM current.shop.public.orders ORDER BY ALL",
    "SELECT count(*) AS n FROM epochs",
)


def generation_of(made: HandMade, name: str) -> int:
    return entry_of(made.site, name).generation


def filled(lake: Lake) -> HandMade:
    made = HandMade(lake)
    for name in NAMES:
        made.deploy(name)
    for _ in range(3):
        come(made, *NAMES)
    return made


def come(made: HandMade, *names: str) -> Epoch:
    """Commit an epoch, and run some projections up to it."""
    number = made.next_epoch
    row = words((number, f"w{number}"), epoch=number)
    epoch = made.epoch(logs={LOG: row, CURRENT: row}, head=number)
    made.derive({TYPED: row}, epoch)
    for name in names:
        rows = words(*((i, f"{name}{i}@{epoch}") for i in range(1, 4)), epoch=epoch)
        made.run(name, rows, epoch, generation=generation_of(made, name))
    return epoch


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    return filled(Lake.at(tmp_path / "lake"))


@pytest.fixture
def queries(made: HandMade) -> Iterator[LakeQueries]:
    with LakeQueries(made.lake) as found:
        yield found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is read of manifest and catalog, and which tables are opened."""
    seen: Counter[str] = Counter()

    def counting(name: str, was: Callable[..., Any], many: Callable[..., int]) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            seen[name] += many(*given)
            return was(*given, **named)

        return counted

    def one(*_: object) -> int:
        return 1

    for of, name, many in (
        (versions, "dataset_of", one),
        (versions, "dataset_at", lambda _, paths: len(paths)),
        (pinned_epochs, "opened", one),
        (DeployedCatalog, "published", one),
    ):
        monkeypatch.setattr(of, name, counting(name, getattr(of, name), many))
    return seen


def test_a_query_reads_nothing_again_while_nothing_came(
    queries: LakeQueries, reads: Counter[str]
) -> None:
    for sql in QUERIES:
        queries.ask(sql)
    reads.clear()
    for sql in QUERIES[:-1]:
        assert queries.ask(sql).rows.num_rows
    assert not reads


def test_a_commit_is_all_that_is_read_of_manifest_and_catalog(
    made: HandMade, queries: LakeQueries, reads: Counter[str]
) -> None:
    sql = "SELECT max(word) AS word FROM report"
    queries.ask(sql)
    reads.clear()
    epoch = come(made, "report")
    assert queries.ask(sql).rows["word"].to_pylist() == [f"report3@{epoch}"]
    # The epoch as it was bound and committed, and the notes of two derived tables.
    assert reads == {"dataset_at": 4}
    made.build("report", words((1, "swapped"), epoch=epoch), epoch)
    reads.clear()
    swap(made.site, "report", lambda replay: replay)
    assert queries.ask(sql).rows["word"].to_pylist() == ["swapped"]
    assert reads == {"dataset_at": 1, "published": 1}


def test_whoever_asks_for_days_pays_no_more_than_at_first(
    made: HandMade, queries: LakeQueries, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle of deltalake goes through all commits that it has seen behind each further one."""
    sql = "SELECT max(word) AS word FROM report"
    queries.ask(sql)
    reads.clear()
    monkeypatch.setattr(pinned_epochs, "RENEWED_AFTER", 2)
    for _ in range(6):
        epoch = come(made, "report")
        assert queries.ask(sql).rows["word"].to_pylist() == [f"report3@{epoch}"]
    assert reads["opened"] == 2, "each is brought forward twice, and opened anew behind that"
    tables = Tables()
    places = EpochVersions(made.lake, tables)
    for path in (made.lake.epochs, made.lake.catalog):
        seen = tables.open(path)
        places.look()
        assert tables.open(path) is seen
        monkeypatch.setattr(Handle, "is_listed_soon", lambda _: True)
        places.look()
        assert tables.open(path) is not seen
        monkeypatch.undo()


def outcome(asked: Callable[[], QueryAnswer]) -> object:
    """Return what an answer says, or an error."""
    try:
        found = asked()
    except PenstockError as error:
        return type(error), error.message
    return found.epoch, dict(found.tables), found.rows.to_pylist()


class Steps:
    """What happens to a lake, and to what queries read of it."""

    def __init__(self, made: HandMade, dice: random.Random) -> None:
        self.made = made
        self._dice = dice

    def come(self) -> None:
        come(self.made, *(name for name in NAMES if self._dice.random() < 0.7))

    def noted_again(self) -> None:
        """As where a projection that this one reads was swapped."""
        name, epoch = self._dice.choice(NAMES), int(self.made.next_epoch) - 1
        number, path = generation_of(self.made, name), self.made.lake.path(f"projection/{name}")
        rows = words((9, f"again{self._dice.random()}"), epoch=epoch)
        at = Epoch(self.made.tables.version(path) + 1)
        version = self.made.writer.overwrite(path, rows, Guard("again", at))
        table = TableAt(version=version, as_of_epoch=Epoch(epoch))
        note = Projected(
            epoch=Epoch(epoch),
            name=live_app(name, number),
            tables={f"projection/{name}": table},
        )
        self.made.manifest.project(note, again=True)

    def swapped(self) -> None:
        name = self._dice.choice(NAMES)
        if generation_of(self.made, name) > 1:
            return  # What is built by hand takes the place of the first one.
        noted = self.made.manifest.projected()[live_app(name, 1)]
        book = ReplayBook(self.made.lake, self.made.tables)
        number = max([1, *(each.generation for each in book.of(name))]) + 1
        rows = words((1, f"{name} swapped {number}"), epoch=noted.epoch)
        self.made.build(name, rows, noted.epoch, generation=number)
        swap(self.made.site, name, lambda replay: replay, reason="a test")

    def rolled_back(self) -> None:
        for name in NAMES:
            if generation_of(self.made, name) > 1:
                rollback(self.made.site, name)
                return

    def paused(self) -> None:
        self.made.deployed.set_status(self._dice.choice(NAMES), self._dice.choice(["paused", LIVE]))

    def forgotten(self) -> None:
        forget_epochs(self.made.lake, retention=timedelta(seconds=1), now=datetime.now(UTC))

    def put_together(self) -> None:
        DeltaTable(self.made.lake.epochs).optimize.compact()

    def checkpointed(self) -> None:
        DeltaTable(self.made.lake.epochs).create_checkpoint()

    def vacuumed(self) -> None:
        table = DeltaTable(self.made.lake.path("projection/report"))
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def made_anew(self) -> None:
        shutil.rmtree(self.made.lake.root.removeprefix("file://"))
        self.made = filled(Lake.named(self.made.lake.root))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_p5_whoever_asks_again_is_told_what_whoever_asks_once_is(
    made: HandMade, queries: LakeQueries, seed: int
) -> None:
    dice = random.Random(seed)
    steps, lookups = Steps(made, dice), Lookups(made.lake, most_bytes=2**20)
    happen = [
        *(steps.come, steps.come, steps.swapped, steps.rolled_back, steps.paused),
        *(steps.forgotten, steps.put_together, steps.checkpointed, steps.vacuumed),
        *(steps.noted_again, steps.made_anew),
    ]
    dice.shuffle(happen)
    for step in happen if seed == 1 else (*happen, *dice.choices(happen, k=10)):
        step()
        newest = int(steps.made.next_epoch) - 1
        some = Epoch(dice.randint(1, newest))
        for sql in (QUERIES[0], *dice.sample(QUERIES[1:], 2)):
            for epoch in (None, dice.choice([Epoch(newest), some])):
                wanted = outcome(partial(ask, made.lake, sql, epoch=epoch))
                found = outcome(partial(queries.ask, sql, epoch=epoch))
                assert found == wanted, (step.__name__, sql, epoch)
        assert placed(lookups, some) == placed(Lookups(made.lake, most_bytes=0), some)


def placed(lookups: Lookups, epoch: Epoch) -> object:
    try:
        return lookups._place_of("projection/report", epoch)
    except NotFound as error:
        return error.message


def test_each_of_many_who_ask_at_once_sees_one_generation(
    made: HandMade, queries: LakeQueries
) -> None:
    ended = threading.Event()
    sql = "SELECT DISTINCT split_part(word, '@', 2) AS mark FROM report"

    def asks() -> list[int]:
        seen: list[int] = []
        while not ended.is_set():
            rows = queries.ask(sql).rows["mark"].to_pylist()
            assert len(rows) == 1, rows
            seen.append(int(rows[0]))
        return seen

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(asks) for _ in range(3)]
        try:
            for _ in range(5):
                epoch = come(made, "report")
                assert queries.ask(sql).rows["mark"].to_pylist() == [str(epoch)]
        finally:
            ended.set()
        for each in asking:
            assert each.result() == sorted(each.result()), "nobody steps back"


def test_a_query_leaves_nothing_behind_for_another(made: HandMade, queries: LakeQueries) -> None:
    tail = pa.table({"id": [1], "word": ["laid over"], OP: [UPSERT]})
    made.epoch(logs={f"current/_tail/{CURRENT.removeprefix('current/')}": marked(tail, ["id"], 4)})
    sql = "SELECT id, word FROM current.shop.public.orders WHERE id = 1"
    for _ in range(2):
        assert queries.ask(sql).rows.to_pylist() == [{"id": 1, "word": "laid over"}]
    left = "SELECT count(*) AS n FROM duckdb_views() WHERE NOT internal"
    assert queries.ask(left).rows.to_pylist() == [{"n": 0}]
    for of in ("logging", "profiling"):
        with pytest.raises(InvalidRequest, match="Cannot change configuration"):
            queries.ask(f"SELECT * FROM enable_{of}()")
    assert queries.ask("SELECT count(*) AS n FROM duckdb_logs()").rows.to_pylist() == [{"n": 0}]
    zone = "SELECT current_setting('TimeZone') AS zone"
    assert queries.ask(zone).rows.to_pylist() == [{"zone": "UTC"}]
    secret = pa.table({"a": [1]})
    for sql in ("SELECT * FROM secret", "SELECT * FROM __0", "SELECT * FROM '/etc/hostname'"):
        with pytest.raises((NotFound, InvalidRequest)):
            queries.ask(sql)
    assert secret.num_rows == 1


def test_an_error_is_told_each_time_and_no_query_behind_it_suffers(
    made: HandMade, queries: LakeQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "SELECT count(*) AS n FROM report"
    with pytest.raises(InvalidRequest, match="no column nothing"):
        queries.ask("SELECT nothing FROM report")
    with pytest.raises(NotFound, match="epoch 9 is not committed"):
        queries.ask(sql, epoch=Epoch(9))
    come(made, "report")
    read = EpochVersions._read_notes

    def fails(places: EpochVersions, table: DeltaTable) -> None:
        read(places, table)
        monkeypatch.undo()
        raise OSError("the disk was away")

    monkeypatch.setattr(EpochVersions, "_read_notes", fails)
    with pytest.raises(OSError, match="away"):
        queries.ask(sql)
    assert (queries.ask(sql).epoch, queries.ask(sql).rows.to_pylist()) == (4, [{"n": 3}])
