"""Which records wait: those that no outcome has ended, whatever was at their place before."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from apps.cli import build
from kernel.positions import Epoch
from lake.layout import Lake
from lake.outcomes import REFUSED, RELEASED, WAIVED
from lake.table_columns import OUTCOMES, QUARANTINE
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.quarantine import open_records
from projections.serve.quarantined_records import waiting_records

AT = datetime(2020, 2, 2, tzinfo=UTC)


def put(lake: Lake, path: str, schema: pa.Schema, epoch: int, **own: object) -> None:
    row = {"epoch": epoch, "topic": "shop.t", "partition": 0, "source": "shop", "table": "t", **own}
    rows = pa.Table.from_pylist([row], schema=schema)
    ArrowWriter(Tables()).append(path, rows, Guard(path, Epoch(epoch)))


def record(lake: Lake, epoch: int, offset: int, value: bytes = b"") -> None:
    own = {"offset": offset, "ingested_at": AT, "value": value}
    put(lake, lake.quarantine, QUARANTINE, epoch, **own)


def waiting(lake: Lake) -> list[tuple[int, int]]:
    found = open_records(lake, Tables(), [])
    rows = [] if found is None else found.to_pylist()
    places = [(row["epoch"], row["offset"]) for row in rows]
    assert [(row["epoch"], row["offset"]) for row in waiting_records(lake)] == places
    return places


@pytest.mark.parametrize("outcome", [RELEASED, WAIVED])
def test_a_record_of_a_topic_that_was_made_again_is_hidden_by_no_old_outcome(
    tmp_path: Path, outcome: str
) -> None:
    lake = Lake.at(tmp_path)
    record(lake, 3, 7)
    record(lake, 4, 8)
    assert waiting(lake) == [(3, 7), (4, 8)]
    put(lake, lake.outcomes, OUTCOMES, 5, offset=7, outcome=outcome, decided_at=AT)
    assert waiting(lake) == [(4, 8)]
    record(lake, 9, 7)
    assert waiting(lake) == [(9, 7), (4, 8)]
    put(lake, lake.outcomes, OUTCOMES, 10, offset=7, outcome=outcome, decided_at=AT)
    put(lake, lake.outcomes, OUTCOMES, 11, offset=8, outcome=REFUSED, decided_at=AT)
    assert waiting(lake) == [(4, 8)]


def test_two_records_of_one_place_are_shown_listed_and_exported_each_with_its_own_outcomes(
    tmp_path: Path,
) -> None:
    lake = Lake.at(tmp_path / "lake")
    (tmp_path / "penstock.toml").write_text("")

    def told(*words: str) -> str:
        ran = CliRunner().invoke(build(), ["quarantine", *words, "--workspace", str(tmp_path)])
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(told("show", "shop.t", "0", "7", "--json"))
        return found

    def ends(page: dict[str, Any]) -> list[tuple[int, str]]:
        return [(each["epoch"], each["outcome"]) for each in page["outcomes"]]

    record(lake, 3, 7, b"first")
    put(lake, lake.outcomes, OUTCOMES, 4, offset=7, outcome=REFUSED, decided_at=AT)
    assert shown()["earlier"] == []
    put(lake, lake.outcomes, OUTCOMES, 5, offset=7, outcome=WAIVED, decided_at=AT)
    record(lake, 9, 7, b"second")
    newest = shown()
    assert (newest["value"], ends(newest)) == ("second", [])
    (before,) = newest["earlier"]
    assert (before["value"], ends(before)) == ("first", [(4, REFUSED), (5, WAIVED)])
    page = told("show", "shop.t", "0", "7")
    assert page.index("second") < page.index("first") < page.index("waived")
    exported = [json.loads(line) for line in told("export", "-").splitlines()]
    assert [row["epoch"] for row in exported] == [9]
    put(lake, lake.outcomes, OUTCOMES, 10, offset=7, outcome=RELEASED, decided_at=AT)
    listed = json.loads(told("list", "--all", "--json"))["records"]
    assert {row["epoch"]: row["outcome"] for row in listed} == {3: WAIVED, 9: RELEASED}
    assert [ends(shown()), ends(shown()["earlier"][0])[-1]] == [[(10, RELEASED)], (5, WAIVED)]
