"""Reading the lake at one epoch: names, versions, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from apps.cli import build
from kernel.errors import InvalidRequest, NotFound, TooLarge
from kernel.positions import Epoch
from lake.layout import Lake
from lake.table_columns import QUARANTINE, UTC_MICROS
from lake.tables import TableAt
from lake.writer import OP, UPSERT, Guard
from pipeline.commit.manifest import rows_of
from pipeline.commit.manifest_rows import Projected, projected_row
from pipeline.commit.retention import forget_epochs
from projections.serve.lake_tables import commits, list_tables, table_name, table_names
from projections.serve.query import ask
from replay.generations import live_app
from tests.support.lake.handmade import HandMade, words
from tests.support.lake.swaps import rollback, swap

TYPED = "typed/events.thing.told"
CURRENT = "current/shop.public.orders"
LOG = "log/events/0b0f7a0e-0000-4000-8000-000000000001"


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    """Three epochs; `report` has all of them, `slow` the first and the third."""
    handmade = HandMade(Lake.at(tmp_path / "a lake"))
    for name in ("report", "slow"):
        handmade.deploy(name)
    for n in (1, 2, 3):
        row = words((n, f"w{n}"), epoch=n)
        epoch = handmade.epoch(logs={LOG: row, CURRENT: row}, head=n)
        handmade.derive({TYPED: row}, epoch)
        rows = words(*((i, f"w{i}") for i in range(1, n + 1)), epoch=n)
        handmade.run("report", rows, epoch)
        if n != 2:
            handmade.run("slow", rows, epoch)
    return handmade


@pytest.mark.parametrize(
    ("written", "place"),
    [
        (["report"], "projection/report"),
        (["projection", "report"], "projection/report"),
        (["current", "shop", "public", "orders"], CURRENT),
        (["current", "shop.public.orders"], CURRENT),
        (["current/shop.public.orders"], CURRENT),
        (["typed", "events", "thing", "told"], TYPED),
        (["topics", "pings"], "typed/topics.pings"),
        (["log", "events/0b0f"], "log/events/0b0f"),
        (["quarantine", "records"], "quarantine/records"),
        (["epochs"], "epochs"),
        (["projection", "epochs"], "projection/epochs"),
    ],
)
def test_a_table_is_named_by_its_place(written: list[str], place: str) -> None:
    assert table_name(written) == place


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="shop is not one of log, typed"):
        table_name(["shop", "public", "orders"])


JOINED = "SELECT * FROM (SELECT 1 AS a, 2 AS b) x JOIN (SELECT 3 AS a, 4 AS a_1) y ON true"
FAR = (
    "SELECT TIMESTAMP 'infinity' AS at, DATE '-infinity' AS day, TIMESTAMPTZ '20000-01-01' AS z"
    " UNION ALL SELECT TIMESTAMP '2024-05-01 10:00:00', NULL, NULL ORDER BY at"
)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        (JOINED, [{"a": 1, "b": 2, "a_1": 3, "a_1_1": 4}]),
        (
            FAR,
            [
                {"at": "2024-05-01 10:00:00", "day": None, "z": None},
                {"at": "infinity", "day": "-infinity", "z": "20000-01-01 00:00:00+00"},
            ],
        ),
    ],
)
def test_every_column_and_every_time_is_shown(
    tmp_path: Path, sql: str, rows: list[dict[str, object]]
) -> None:
    (tmp_path / "lake").mkdir()
    words = ["query", sql, "-w", str(tmp_path)]
    shown = CliRunner().invoke(build(), words)
    told = CliRunner().invoke(build(), [*words, "--json"])
    assert (shown.exit_code, told.exit_code) == (0, 0), shown.exception
    assert shown.stdout.splitlines()[0].split() == [*rows[0]]
    assert json.loads(told.stdout)["columns"] == [*rows[0]]
    assert json.loads(told.stdout)["rows"] == rows


def test_all_tables_are_read_at_the_greatest_epoch_that_all_have(made: HandMade) -> None:
    answer = ask(made.lake, "SELECT count(*) AS n FROM report")
    assert (answer.epoch, answer.rows.to_pylist()) == (3, [{"n": 3}])
    made.epoch()
    made.run("report", words((9, "new")), 4)
    assert ask(made.lake, "SELECT * FROM report").epoch == 4
    both = ask(made.lake, "SELECT count(*) AS n FROM report JOIN slow USING (id)")
    assert (both.epoch, both.rows.to_pylist()) == (3, [{"n": 3}])


def test_an_epoch_whose_files_were_removed_is_refused_with_the_remedy(made: HandMade) -> None:
    table = DeltaTable(made.lake.path("projection/report"))
    sql = "SELECT count(*) AS n FROM report"
    assert ask(made.lake, sql, epoch=Epoch(1)).rows.to_pylist() == [{"n": 1}]
    assert table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(NotFound, match="of projection/report is not kept any more") as refused:
        ask(made.lake, sql, epoch=Epoch(1))
    assert "penstock epoch list" in refused.value.remedy
    assert ask(made.lake, sql, epoch=Epoch(3)).rows.to_pylist() == [{"n": 3}]
    with pytest.raises(InvalidRequest):
        ask(made.lake, "SELECT 1 / 'x' FROM report", epoch=Epoch(3))


def test_a_pinned_epoch_is_that_or_a_refusal_that_names_the_table(made: HandMade) -> None:
    sql = "SELECT id FROM report ORDER BY id"
    assert ask(made.lake, sql, epoch=Epoch(2)).rows["id"].to_pylist() == [1, 2]
    joined = "SELECT 1 FROM report JOIN slow USING (id)"
    with pytest.raises(NotFound, match=r"slow took in epoch 2 together with others.* 1 and 3"):
        ask(made.lake, joined, epoch=Epoch(2))
    made.epoch()
    with pytest.raises(NotFound, match="report is behind: it has taken in epoch 3, not 4") as error:
        ask(made.lake, sql, epoch=Epoch(4))
    assert error.value.fields["table"] == "projection/report"
    for epoch in (-1, 0, 9, 10**30):
        with pytest.raises(NotFound, match=f"epoch {epoch} is not committed: the newest is 4"):
            ask(made.lake, sql, epoch=Epoch(epoch))


def test_an_epoch_that_the_manifest_forgot_is_told_so(made: HandMade) -> None:
    later = datetime.now(UTC) + timedelta(days=9)
    assert forget_epochs(made.lake, retention=timedelta(0), now=later)
    with pytest.raises(NotFound, match=r"epoch 1 is not known any more: .* is lake.retention_days"):
        ask(made.lake, "SELECT 1 FROM report", epoch=Epoch(1))


def test_all_tables_without_an_epoch_are_told_at_once(made: HandMade) -> None:
    for name in ("later", "latest"):
        made.deploy(name)
    made.epoch()
    made.run("later", words((1, "x")), 4)
    made.run("latest", words((1, "x")), 4)
    told = (
        "projection/later has nothing as of epoch 2: the first that it has is 4; "
        "projection/latest has nothing as of epoch 2: the first that it has is 4"
    )
    asked: list[dict[str, Any]] = [{"epoch": Epoch(2)}, {"at": made.manifest.at(Epoch(2)).at}]
    for at in asked:
        with pytest.raises(NotFound) as refused:
            ask(made.lake, "SELECT 1 FROM later, latest, report", **at)
        assert refused.value.message == told
        assert "leave the table out" in refused.value.remedy


def test_tables_without_a_common_epoch_are_refused(made: HandMade) -> None:
    made.deploy("other")
    made.epoch()
    made.run("other", words((1, "x")), 4)
    with pytest.raises(NotFound, match="no epoch in common"):
        ask(made.lake, "SELECT * FROM report, other")


def test_logs_and_current_tables_have_every_epoch(made: HandMade) -> None:
    sql = f'SELECT count(*) AS n FROM "{LOG}" JOIN current.shop.public.orders USING (id)'
    for epoch in (1, 2, 3):
        assert ask(made.lake, sql, epoch=Epoch(epoch)).rows.to_pylist() == [{"n": epoch}]
    made.epoch(logs={"log/changes/late": words((1, "x"))})
    with pytest.raises(NotFound, match="log/changes/late has no rows at epoch 2"):
        ask(made.lake, 'SELECT * FROM log."changes/late"', epoch=Epoch(2))


def test_a_time_means_what_was_committed_by_then(made: HandMade) -> None:
    at = made.manifest.at(Epoch(2)).at
    assert ask(made.lake, "SELECT 1 FROM report", at=at).epoch == 2
    assert ask(made.lake, "SELECT 1 FROM slow", at=at).epoch == 1
    first = r"is before the first epoch that is known, 1, which was committed at "
    for sql in ("SELECT 1 FROM report", "SELECT 1 FROM epochs"):
        with pytest.raises(NotFound, match=first):
            ask(made.lake, sql, at=at - timedelta(days=1))
        with pytest.raises(NotFound, match=r"is to come: it is .* newest epoch, 3, was committed"):
            ask(made.lake, sql, at=datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(InvalidRequest, match="exclude each other"):
        ask(made.lake, "SELECT 1 FROM report", at=at, epoch=Epoch(1))


def test_a_swap_is_seen_at_its_epoch_and_not_before(made: HandMade) -> None:
    made.build("report", words((1, "built")), 3)
    swap(made.site, "report", lambda replay: replay)
    sql = "SELECT word FROM report"
    assert ask(made.lake, sql).rows["word"].to_pylist() == ["built"]
    assert ask(made.lake, sql, epoch=Epoch(3)).rows["word"].to_pylist() == ["built"]
    assert ask(made.lake, sql, epoch=Epoch(2)).rows.num_rows == 2
    rollback(made.site, "report")
    assert ask(made.lake, sql).rows.num_rows == 3
    assert ask(made.lake, sql, epoch=Epoch(3)).rows.num_rows == 3


def test_p5_an_epoch_that_was_noted_again_is_read_as_its_last_note_says(made: HandMade) -> None:
    """As where a projection that this one reads was swapped. The manifest has rows in no order."""
    path, app = made.lake.path("projection/report"), live_app("report", 1)
    before = DeltaTable(path).version()
    after = made.writer.overwrite(path, words((9, "again"), epoch=3), Guard("again", Epoch(1)))
    told = [
        Projected(
            epoch=Epoch(3),
            name=app,
            tables={"projection/report": TableAt(version=version, as_of_epoch=3)},
        )
        for version in (after, before)
    ]
    rows, now = rows_of(*map(projected_row, told)), datetime.now(UTC)
    moments = pa.array([now + timedelta(minutes=1), now], UTC_MICROS)
    rows = rows.set_column(rows.schema.get_field_index("at"), rows.schema.field("at"), moments)
    made.writer.append(made.lake.epochs, rows, Guard("again", Epoch(1)))
    answer = ask(made.lake, "SELECT word FROM report", epoch=Epoch(3))
    assert answer.rows["word"].to_pylist() == ["again"]


def test_hidden_columns_are_there(made: HandMade) -> None:
    assert ask(made.lake, "SELECT max(_epoch) AS e FROM report").rows.to_pylist() == [{"e": 3}]


def test_names_of_the_query_itself_are_not_tables(made: HandMade) -> None:
    sql = """
        WITH mine AS (SELECT id FROM report), more AS (SELECT id FROM mine)
        SELECT r.id, report.id AS again, n.i
        FROM more r JOIN report USING (id), range(1) n(i)
        WHERE EXISTS (SELECT 1 FROM slow s WHERE s.id = r.id) AND r.id = 2"""
    assert ask(made.lake, sql).rows.to_pylist() == [{"id": 2, "again": 2, "i": 0}]


def test_the_same_table_twice_keeps_its_aliases(made: HandMade) -> None:
    sql = "SELECT a.id, b.id AS other FROM report a, report b WHERE a.id < b.id ORDER BY ALL"
    assert [tuple(row.values()) for row in ask(made.lake, sql).rows.to_pylist()] == [
        (1, 2),
        (1, 3),
        (2, 3),
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE report",
        "DELETE FROM report",
        "COPY report TO '/tmp/x'",
        "ATTACH 'x.db'",
        "SELECT 1; SELECT 2",
        "",
        "SELECT FROM WHERE",
        "SELECT * FROM read_csv('/etc/hostname')",
        "SELECT * FROM read_parquet('/etc/hostname')",
        "SELECT nothing FROM report",
        "EXPLAIN SELECT 1",
    ],
)
def test_only_one_query_over_the_lake_is_taken(
    made: HandMade, sql: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidRequest):
        ask(made.lake, sql)
    assert not caplog.records, "whoever asks for JSON gets one document"


def test_a_query_that_needs_more_memory_than_there_is_says_so(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = duckdb.connect
    small = {"memory_limit": "2MB", "temp_directory": ""}
    monkeypatch.setattr(duckdb, "connect", lambda config: connect(config={**config, **small}))
    with pytest.raises(TooLarge, match="needs more memory") as caught:
        ask(made.lake, "SELECT list(i) FROM range(3000000) AS t(i), report")
    assert "penstock table path" in caught.value.remedy


def test_python_variables_cannot_be_read(made: HandMade) -> None:
    secret = pa.table({"a": [1]})
    with pytest.raises(NotFound, match="no table projection/secret"):
        ask(made.lake, "SELECT * FROM secret")
    assert secret.num_rows == 1


def test_an_unknown_table_names_the_nearest(made: HandMade) -> None:
    with pytest.raises(NotFound, match=r"did you mean projection/report\?"):
        ask(made.lake, "SELECT * FROM reports")
    with pytest.raises(NotFound, match=r"did you mean current/shop.public.orders\?"):
        ask(made.lake, "SELECT * FROM current.shop.public.order")


def test_a_lake_without_epochs_says_so(tmp_path: Path) -> None:
    empty = HandMade(Lake.at(tmp_path))
    empty.writer.append(empty.lake.path(TYPED), words((1, "x")), Guard(TYPED, Epoch(1)))
    with pytest.raises(NotFound, match="nothing was ingested"):
        ask(empty.lake, "SELECT * FROM typed.events.thing.told")


def test_tables_without_epochs_are_read_as_they_are(made: HandMade) -> None:
    answer = ask(made.lake, "SELECT count(*) AS n FROM epochs WHERE kind = 'committed'")
    assert (answer.epoch, answer.rows.to_pylist()) == (None, [{"n": 3}])
    rejected = pa.Table.from_pylist(
        [{"epoch": 1, "topic": "t", "ingested_at": datetime.now(UTC)}], schema=QUARANTINE
    )
    made.writer.append(made.lake.quarantine, rejected, Guard("q", Epoch(1)))
    joined = "SELECT topic FROM quarantine.records JOIN report ON id = epoch"
    assert ask(made.lake, joined, epoch=Epoch(2)).rows.to_pylist() == [{"topic": "t"}]


def test_every_table_is_listed_once_and_no_generation(made: HandMade) -> None:
    made.build("report", words((1, "built")), 3)
    names = ["catalog", CURRENT, "epochs", LOG, "projection/report", "projection/slow"]
    assert table_names(made.lake) == sorted([*names, TYPED, "replays"])
    report = next(t for t in list_tables(made.lake)[0] if t.name == "projection/report")
    assert (report.rows, report.files) == (3, 1)
    history = commits(made.lake, "projection/report", limit=2)
    assert [(c.version, c.operation, c.rows) for c in history] == [
        (report.version, "WRITE", 3),
        (report.version - 1, "WRITE", 2),
    ]


def test_texts_are_found_in_a_table_that_was_merged(made: HandMade) -> None:
    """deltalake writes them as views then, and nobody compares those with a bound."""
    app, path = live_app("report", 1), made.lake.path("projection/report")
    epoch = made.epoch()
    rows = words((2, "changed"), epoch=epoch).append_column(OP, pa.array([UPSERT]))
    version = made.writer.merge(path, rows, Guard(app, epoch), keys=["id"])
    made.note(app, {"projection/report": version}, epoch)
    sql = "SELECT a.id FROM report a JOIN report b USING (word) WHERE a.word = 'changed'"
    assert ask(made.lake, sql).rows["id"].to_pylist() == [2]


def test_a_version_that_a_log_at_rest_forgot_is_not_missed(made: HandMade) -> None:
    path = made.lake.path(LOG)
    made.epoch()
    table = DeltaTable(path)
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table.create_checkpoint()
    for entry in Path(path, "_delta_log").glob("*.json"):
        if int(entry.stem) < table.version():
            entry.unlink()
    sql = f'SELECT count(*) AS rows FROM "{LOG}"'
    assert ask(made.lake, sql).rows["rows"].to_pylist() == [3]
    assert ask(made.lake, sql, epoch=Epoch(3)).rows["rows"].to_pylist() == [3]
    with pytest.raises(NotFound, match="is not kept any more"):
        ask(made.lake, sql, epoch=Epoch(2))
