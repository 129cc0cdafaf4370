"""The way of one event is told place by place, whatever of them can be asked."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from apps.cli import build
from kernel.errors import NotFound, Unavailable
from lake.layout import Lake
from lake.table_columns import UTC_MICROS
from projections.run.catalog import LIVE, PROJECTION, Entry
from projections.serve.event_trace import Hop, trace
from tests.support.lake.handmade import HandMade, words

LOG = "log/events/0b0f7a0e-0000-4000-8000-000000000001"
TYPED = "typed/events.thing.told"
ID = str(uuid.UUID(int=7))
AT = datetime(2026, 1, 1, tzinfo=UTC)


def logged(epoch: int) -> pa.Table:
    row = {
        "event_id": ID,
        "position": 5,
        "stream": "thing-1",
        "version": 0,
        "category": "thing",
        "type": "told",
        "topic": "penstock.thing",
        "partition": 1,
        "offset": 42,
        "epoch": epoch,
    }
    times = pa.table(
        {
            "recorded_at": pa.array([AT], UTC_MICROS),
            "ingested_at": pa.array([AT + timedelta(seconds=1.5)], UTC_MICROS),
        }
    )
    table = pa.Table.from_pylist([row])
    return pa.table(
        {**{n: table[n] for n in table.schema.names}, **{n: times[n] for n in times.schema.names}}
    )


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    """Epoch 2 has the event; `report` took it in, `slow` did not, `other` reads something else."""
    handmade = HandMade(Lake.at(tmp_path / "lake"))
    for name in ("report", "slow"):
        handmade.deploy(name)
    other = "CREATE PROJECTION other WITH (key = 'id') AS SELECT id FROM STREAM events.others.b"
    above = "CREATE PROJECTION above WITH (key = 'id') AS SELECT id FROM report"
    handmade.deployed.put(
        [
            Entry(kind=PROJECTION, name=name, generation=1, status=LIVE, text=text)
            for name, text in (("other", other), ("above", above))
        ]
    )
    handmade.epoch()
    handmade.run("slow", words((1, "a")), 1)
    epoch = handmade.epoch(logs={LOG: logged(2)})
    typed = pa.table({"event_id": [ID], "position": [5], "_epoch": [epoch]})
    handmade.derive({TYPED: typed}, epoch)
    handmade.run("report", words((1, "a")), epoch)
    handmade.run("report", words((1, "b")), handmade.epoch())
    return handmade


def known(event_id: str) -> Mapping[str, Any]:
    return {
        "id": event_id,
        "stream": "thing-1",
        "category": "thing",
        "version": 0,
        "position": 5,
        "type": "told",
        "recorded_at": AT.isoformat(),
    }


def away(_event_id: str) -> Mapping[str, Any]:
    raise Unavailable("the service cannot be reached")


def absent(event_id: str) -> Mapping[str, Any]:
    raise NotFound(f"no event {event_id}")


def by_place(hops: list[Hop]) -> dict[str, Hop]:
    return {hop.place: hop for hop in hops}


def test_each_place_tells_when_it_had_the_event(made: HandMade) -> None:
    hops = trace(ID, made.lake, known)
    assert [hop.place for hop in hops] == [
        *("event store", "Kafka", "log", "epoch", "typed table"),
        *("projection above", "projection report", "projection slow"),
    ]
    found = by_place(hops)
    assert found["event store"].detail["position"] == 5
    assert found["Kafka"].detail == {"topic": "penstock.thing", "partition": 1, "offset": 42}
    assert (found["log"].after_s, found["log"].detail["epoch"]) == (1.5, 2)
    assert found["epoch"].detail == {"epoch": 2, "log_version": 1}
    assert found["typed table"].detail == {"table": TYPED, "epoch": 2}
    assert found["projection report"].detail == {"epoch": 2, "generation": 1}
    times = [hop.at for hop in hops if hop.at is not None]
    assert times == sorted(times)
    assert len(times) == 5
    for late in ("slow", "above"):
        assert found[f"projection {late}"].missing == "it has not taken in epoch 2"


def test_what_cannot_be_asked_is_told_and_the_rest_is_shown(made: HandMade) -> None:
    found = by_place(trace(ID, made.lake, away))
    assert found["event store"].missing == "the service cannot be reached"
    assert found["log"].detail["position"] == 5
    assert found["projection report"].detail["epoch"] == 2


def test_an_event_on_its_way_and_one_that_nobody_has_seen(tmp_path: Path, made: HandMade) -> None:
    on_its_way = str(uuid.UUID(int=8))
    stored, log = trace(on_its_way, made.lake, known)
    assert (stored.place, log.missing) == ("event store", "it is not in the log (yet)")
    assert len(trace(ID, Lake.named(tmp_path / "none"), known)) == 2
    with pytest.raises(NotFound) as refused:
        trace(on_its_way, made.lake, absent)
    assert refused.value.message == (
        f"no event {on_its_way}: event store: it has no such event; log: it is not in the log (yet)"
    )


def test_the_command_works_while_nothing_runs(
    made: HandMade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVICE_URL", "http://127.0.0.1:1")
    words_ = ["trace", ID, "-w", str(tmp_path)]
    ran = CliRunner().invoke(build(), [*words_, "--json"])
    assert ran.exit_code == 0, ran.output
    document = json.loads(ran.stdout)
    assert document["event_id"] == ID
    assert document["hops"][0]["missing"]
    assert document["hops"][2]["detail"]["epoch"] == 2
    shown = CliRunner().invoke(build(), words_).stdout
    assert "offset 42" in shown
    assert "not seen" in shown
