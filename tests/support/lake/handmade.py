"""A lake with epochs, tables and generations written directly: for what needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa

from kernel.positions import Epoch, Offsets
from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed, Projected
from pipeline.ddl.held_tables import Hold
from pipeline.position.progress import Progress
from projections.run.catalog import LIVE, PROJECTION, DeployedCatalog, Entry
from replay.book import Replay, ReplayBook, State
from replay.generations import build_app, generation_name, live_app
from replay.subject import Site

SQL = """CREATE PROJECTION {name} WITH (key = '{key}') AS
SELECT {key}, word FROM STREAM events.thing.told"""


class _Settings(dict[str, str]):
    """Settings that a session takes and tells."""

    def set(self, name: str, value: str) -> None:
        self[name] = value


class NoSpark:
    """A session of which nothing may be asked but its settings."""

    conf = _Settings({"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"})

    def newSession(self) -> NoSpark:
        return self


@dataclass
class HandMade:
    """Writes whatever a test wants to find."""

    lake: Lake
    tables: Tables = field(default_factory=Tables)

    def __post_init__(self) -> None:
        self.manifest = Manifest(self.lake, self.tables)
        self.deployed = DeployedCatalog(self.lake, self.tables)
        self.writer = ArrowWriter(self.tables)

    @property
    def site(self) -> Site:
        return Site(lake=self.lake)

    @property
    def next_epoch(self) -> Epoch:
        last = self.manifest.last()
        return Epoch(last.epoch + 1 if last else 1)

    def epoch(
        self,
        *,
        logs: Mapping[str, pa.Table] | None = None,
        head: int = 0,
        store: str = "store",
        progress: Progress | None = None,
        end: Offsets | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> Epoch:
        """Commit an epoch; `logs` are appended, every table known so far belongs to it."""
        last, epoch = self.manifest.last(), self.next_epoch
        self.manifest.bind(Bound(epoch=epoch, run_id="t", batch_id=0, start={}, end={}))
        tables = dict(last.tables) if last else {}
        for name, rows in (logs or {}).items():
            version = self.writer.append(self.lake.path(name), rows, Guard(name, epoch))
            tables[name] = TableAt(version=version, as_of_epoch=epoch)
        self.manifest.commit(
            Committed(
                epoch=epoch,
                run_id="t",
                batch_id=0,
                end=end or {},
                progress=(progress or Progress()).to_json(),
                heads={store: head},
                cuts={"shop": 100 * epoch},
                pending_from={},
                tables=tables,
                counts=counts or {"events": 1},
                timings_ms={"append": 1.5},
                at=datetime.now(UTC),
            )
        )
        return epoch

    def deploy(self, name: str, *, generation: int = 1, key: str = "id") -> None:
        """Deploy a projection; its query is never run."""
        text = SQL.format(name=name, key=key)
        entry = Entry(kind=PROJECTION, name=name, generation=generation, status=LIVE, text=text)
        self.deployed.put([entry])

    def run(
        self, name: str, rows: pa.Table, epoch: int, *, generation: int = 1, meaning: str = ""
    ) -> int:
        """Replace a projection's table, as a run up to an epoch would."""
        app = live_app(name, generation)
        path = self.lake.path(f"projection/{name}")
        version = self.writer.overwrite(path, rows, Guard(app, Epoch(epoch)))
        self.note(app, {f"projection/{name}": version}, epoch, meaning=meaning)
        return version

    def derive(self, rows: Mapping[str, pa.Table], epoch: int) -> None:
        """Append to typed tables and note the epoch that all of them have reached."""
        versions = {
            name: self.writer.append(self.lake.path(name), added, Guard(name, Epoch(epoch)))
            for name, added in rows.items()
        }
        self.note("typed", versions, epoch)

    def note(
        self,
        app: str,
        versions: Mapping[str, int],
        epoch: int,
        *,
        held: Mapping[str, Hold] | None = None,
        meaning: str = "",
    ) -> None:
        tables = {n: TableAt(version=v, as_of_epoch=epoch) for n, v in versions.items()}
        self.manifest.project(
            Projected(epoch=Epoch(epoch), name=app, tables=tables, held=held or {}, meaning=meaning)
        )

    def build(
        self,
        name: str,
        rows: pa.Table,
        epoch: int,
        *,
        generation: int = 2,
        include_late: bool = False,
        key: str = "id",
        text: str | None = None,
        base_text: str | None = None,
    ) -> Replay:
        """Write a built generation, and its row in the book. `base_text`: the live one's query."""
        guard = Guard(build_app(name, generation), Epoch(epoch))
        self.writer.overwrite(self.lake.path(generation_name(name, generation)), rows, guard)
        text = text or SQL.format(name=name, key=key)
        return ReplayBook(self.lake, self.tables).record(
            Replay(
                name=name,
                generation=generation,
                base=1,
                state=State.BUILT,
                epoch=Epoch(epoch),
                include_late=include_late,
                text=text,
                base_text=base_text or text,
            )
        )


def words(*rows: tuple[int, str], epoch: int = 1, **more: list[object]) -> pa.Table:
    """Rows of id and word, with a hidden epoch."""
    table = pa.table({"id": [i for i, _ in rows], "word": [word for _, word in rows]})
    for column, values in more.items():
        table = table.append_column(column, pa.array(values))
    return table.append_column("_epoch", pa.array([epoch] * len(rows), pa.int64()))


def told(lake: Lake) -> HandMade:
    """Return a lake with one epoch, of one event."""
    handmade = HandMade(lake)
    handmade.epoch()
    handmade.derive({"typed/events.thing.told": words((1, "w"), epoch=1, _late=[False])}, 1)
    return handmade
