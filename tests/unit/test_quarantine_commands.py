"""`penstock quarantine`: what waits is listed, exported, tried again, given up."""

from __future__ import annotations

import base64
import getpass
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from apps.cli import build
from kernel.errors import EXIT_NEEDS_CONFIRMATION, NotFound
from kernel.positions import Epoch
from lake.layout import Lake
from lake.outcomes import COPIED
from lake.table_columns import OUTCOMES
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.quarantine import open_records
from projections.serve import quarantined_records
from projections.serve.quarantined_records import Place, place, waiting_records
from tests.support.lake.folding import Done
from tests.support.lake.poisoned import ENDS, GOODS, ITEMS, POISON, PoisonedShop, topic_of

TOPIC = topic_of(ITEMS)


@pytest.fixture
def shop(tmp_path: Path) -> PoisonedShop:
    """A workspace whose stack is stopped; a record of its captured table cannot be read."""
    (tmp_path / "penstock.toml").write_text("")
    shop = PoisonedShop(Lake.at(tmp_path / "lake"))
    shop.commit({ITEMS: [Done("c", 1)], GOODS: [Done("c", 1)]})
    shop.epoch()
    shop.commit({ITEMS: [Done("c", 2)], GOODS: [Done("c", 2)]}, spoil={(ITEMS, 0)})
    shop.plant(ENDS)
    for _ in range(3):
        shop.epoch()
    assert shop.held() == {ITEMS}
    return shop


def call(shop: PoisonedShop, *words: str, code: int = 0) -> Any:
    folder = str(Path(shop.lake.root).parent)
    result = CliRunner().invoke(build(), ["quarantine", *words, "--workspace", folder, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_what_waits_is_listed_and_exported_with_its_bytes(
    shop: PoisonedShop, tmp_path: Path
) -> None:
    listed = call(shop, "list")
    assert listed["count"] == 2
    places = {(row["topic"], row["source"], row["table"]) for row in listed["records"]}
    assert places == {(TOPIC, "shop", ITEMS), (ENDS, "shop", "_transactions")}
    file = tmp_path / "records.jsonl"
    assert call(shop, "export", str(file), "--topic", f"shop.{ITEMS}")["records"] == 1
    (line,) = file.read_text().splitlines()
    record = json.loads(line)
    assert (record["topic"], record["partition"], record["offset"]) == (TOPIC, 0, 1)
    assert base64.b64decode(record["value"]) == POISON
    assert record["reason"] == "not Avro"


def test_a_file_stays_as_it_is_until_its_export_is_whole(
    shop: PoisonedShop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(*_: Any) -> Iterator[str]:
        yield "{}"
        raise NotFound("the lake is gone")

    file = tmp_path / "records.jsonl"
    file.write_text("from before")
    monkeypatch.setattr(quarantined_records, "exported_lines", torn)
    with pytest.raises(NotFound):
        call(shop, "export", str(file))
    assert file.read_text() == "from before"
    assert [path.name for path in tmp_path.iterdir() if "records" in path.name] == [file.name]


def test_pages_and_pipeline_take_the_same_records_for_waiting(shop: PoisonedShop) -> None:
    def both() -> list[list[Place]]:
        ours = [place(row) for row in waiting_records(shop.lake)]
        told = open_records(shop.lake, Tables(), ["epoch"])
        rows = [] if told is None else told.to_pylist()
        return [ours, [(row["topic"], row["partition"], row["offset"]) for row in rows]]

    ours, theirs = both()
    assert ours == theirs
    assert {topic for topic, _, _ in ours} == {TOPIC, ENDS}
    call(shop, "waive", ENDS, "--reason", "given up", "--yes")
    shop.epoch()
    ours, theirs = both()
    assert ours == theirs
    assert {topic for topic, _, _ in ours} == {TOPIC}
    # A copy ends what came before it, and nothing of another table.
    for table, left in (("public.others", 1), (ITEMS, 0)):
        copied = {"epoch": 9, "source": "shop", "table": table, "outcome": COPIED}
        copied["decided_at"] = datetime.now(UTC)
        rows = pa.Table.from_pylist([copied], schema=OUTCOMES)
        ArrowWriter(Tables()).append(shop.lake.outcomes, rows, Guard(f"copy {table}", Epoch(9)))
        ours, theirs = both()
        assert ours == theirs
        assert len(ours) == left


def test_a_record_is_decoded_again_and_its_table_goes_on(shop: PoisonedShop) -> None:
    shop.mended = True
    said = call(shop, "retry", f"shop.{ITEMS}")
    assert (said["records"], said["waiting"]) == (1, 1)
    done = shop.epoch()
    assert shop.state(ITEMS, done) == shop.expected(ITEMS)
    assert [row["topic"] for row in call(shop, "list")["records"]] == [ENDS]
    (released,) = [r for r in call(shop, "list", "--all")["records"] if r["outcome"]]
    assert (released["outcome"], released["by"]) == ("released", getpass.getuser())
    with pytest.raises(NotFound, match="no record of"):
        call(shop, "retry", TOPIC)


def test_what_is_given_up_is_kept_with_reason_name_and_time(
    shop: PoisonedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 1")

    # As in a container that is given any number for its user.
    monkeypatch.setattr(getpass, "getuser", unknown)
    assert (
        call(shop, "waive", TOPIC, code=EXIT_NEEDS_CONFIRMATION)["needs"] == "--reason TEXT --yes"
    )
    reason = ("--reason", "the producer is mended")
    assert call(shop, "waive", TOPIC, *reason, code=EXIT_NEEDS_CONFIRMATION)["needs"] == "--yes"
    call(shop, "waive", TOPIC, "0", "1", *reason, "--yes")
    done = shop.epoch()
    assert shop.held() == set()
    assert shop.state(ITEMS, done) == shop.expected(ITEMS, without=[1])
    shown = call(shop, "show", TOPIC, "0", "1")
    (outcome,) = shown["outcomes"]
    assert (outcome["outcome"], outcome["reason"]) == ("waived", "the producer is mended")
    assert outcome["by"] == f"uid {os.getuid()}"
    assert outcome["decided_at"]
    assert shown["value"] == POISON.hex()
