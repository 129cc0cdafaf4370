"""What a replay tells another store's service, and what it refuses to tell it."""

from __future__ import annotations

import io
import json
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delivery.store_target import StoreTarget
from eventstore.recovery.events import COLUMNS
from eventstore.service_client import ServiceClient
from kernel.errors import Conflict, Incompatible, NotFound, PenstockError
from replay.elsewhere.pace import AtOnce
from replay.elsewhere.passage import Passage
from replay.elsewhere.selection import SelectedEvents, Selection
from replay.elsewhere.times import Shift
from schemas.json_codec import JsonCodec

T0 = datetime(2026, 1, 1, tzinfo=UTC)
ODD = json.dumps(
    {
        "type": "record",
        "name": "placed",
        "fields": [
            {"name": "a", "type": ["null", "double"], "default": None},
            {"name": "b", "type": ["string", "bytes"], "default": ""},
            {"name": "c", "type": "double", "default": 0.0},
        ],
    }
)


class Service:
    """A store's service by what it answers: events by id, schemas by subject."""

    url = "http://127.0.0.1:7170"

    def __init__(self, refuses: PenstockError | None = None) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self._refuses = refuses

    def get(self, path: str) -> Any:
        if (found := self.events.get(path.rpartition("/")[2])) is None:
            raise NotFound(path)
        return found

    def post(self, path: str, document: object) -> None:
        if self._refuses is not None:
            raise self._refuses

    def send_lines(self, path: str, lines: Iterator[bytes]) -> None:
        for line in map(json.loads, lines):
            assert self.events.setdefault(line["id"], line) == line


class Log:
    """Events of one stream, one for each body."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        self.rows = pa.Table.from_pylist([_row(n + 1, b) for n, b in enumerate(bodies)], COLUMNS)

    def parts(
        self,
        *,
        after: int = 0,
        up_to: int | None = None,
        where: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        part = self.rows.slice(after, (up_to or self.rows.num_rows) - after)
        yield part if where is None else part.filter(where)

    def into(self, service: Service, **chosen: Any) -> int:
        """Replay what is chosen, and return how many events were sent."""
        selection = Selection(**{"up_to": self.rows.num_rows} | chosen)
        events = SelectedEvents(self, selection)
        client = cast(ServiceClient, service)
        passage = Passage(
            events=events,
            whole=events.survey(),
            target=StoreTarget(client, events, {1: ODD}, shift=timedelta(0)),
            shift=Shift(),
            pace=AtOnce(),
            report=lambda _: None,
        )
        passage.run()
        return passage.sent


def _row(position: int, body: bytes) -> Mapping[str, object]:
    return {
        "position": position,
        "store_id": str(uuid.UUID(int=7)),
        "event_id": str(uuid.UUID(int=position)),
        "stream": f"order-{position % 3}",
        "version": position,
        "category": "order",
        "type": "placed",
        "schema_id": 1,
        "data_format": 0,
        "data": b"\0\0\0\0\1" + body,
        "metadata": "{}",
        "tags": [],
        "recorded_at": T0,
        "occurred_at": T0,
    }


PLAIN = JsonCodec(ODD).encode({"a": 1.5, "b": "text", "c": 2.5})


def _body(a: float, b: str | bytes, c: float) -> bytes:
    fields = {"a": a, "b": ("string" if isinstance(b, str) else "bytes", b), "c": c}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(ODD), fields)
    return out.getvalue()


@pytest.mark.parametrize(
    "first", [{"after": 50}, {"streams": ("order-1",)}, {"categories": ("order",)}]
)
def test_a_store_that_has_another_selection_is_not_taken_for_done(first: dict[str, Any]) -> None:
    service, log = Service(), Log([PLAIN] * 100)
    assert log.into(service, up_to=80, **first) > 0
    assert log.into(service, **first) > 0, "the end belongs to no selection"
    assert log.into(service, **first) == 0
    before = len(service.events)
    with pytest.raises(Conflict, match="with another selection, other times or effects") as caught:
        log.into(service)
    assert "Give the options that it began with" in caught.value.remedy
    assert len(service.events) == before


@pytest.mark.parametrize(
    "odd",
    [
        _body(math.nan, "", 1.0),
        _body(1.0, b"bytes", 1.0),
        _body(1.0, "", math.nan),
        _body(1.0, "", math.inf),
        PLAIN[:3],
        PLAIN + b"\0",
    ],
    ids=["null", "union", "nan", "infinite", "short", "long"],
)
def test_data_that_json_would_change_are_refused_with_their_position(odd: bytes) -> None:
    service = Service()
    with pytest.raises(Incompatible, match="position 2, order-2") as caught:
        Log([PLAIN, odd, PLAIN]).into(service)
    assert "--to topic:NAME" in caught.value.remedy
    assert not service.events
    assert Log([PLAIN, _body(-0.0, "é", 1e300)]).into(service) == 2


@pytest.mark.parametrize("kind", [Conflict, Incompatible])
def test_a_schema_that_is_refused_names_the_position(kind: type[PenstockError]) -> None:
    refused = kind("no such type here", remedy="Change it.", problem="x")
    with pytest.raises(kind, match=r"position 1, order-1: no such type here") as caught:
        Log([PLAIN]).into(Service(refused))
    assert (caught.value.remedy, caught.value.fields) == ("Change it.", {"problem": "x"})
