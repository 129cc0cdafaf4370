"""Streams as Avro object containers: what goes out comes in, and what is damaged is refused."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from apps.cli import build
from eventstore.recovery.event_containers import FORMAT, read_events, write_events
from kernel.errors import ContractViolation, InvalidRequest
from tests.unit.test_service_answers import NDJSON, answering

COUNTS = b'{"lines": 2, "appended": 2, "repeated": 0, "last_position": 9}'
TAKEN = ("stream", "id", "type", "data", "metadata", "tags")
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3),
    max_leaves=8,
)


def event(n: int = 0, **given: Any) -> dict[str, Any]:
    """Return an event as the service gives it."""
    return {
        "id": f"0190a2c4-7d6e-7b3a-9f00-{n:012}",
        "stream": "order-1",
        "category": "order",
        "version": n,
        "position": n + 1,
        "type": "placed",
        "schema_id": 1,
        "data": {"n": n},
        "metadata": {},
        "tags": [f"n:{n}"],
        "occurred_at": "1899-12-31T23:59:59.000001Z",
        "recorded_at": "2026-01-01T00:00:00.5Z",
        **given,
    }


def container(*events: dict[str, Any]) -> bytes:
    target = io.BytesIO()
    assert write_events(target, "order-1", events) == len(events)
    return target.getvalue()


def taken(content: bytes) -> list[dict[str, Any]]:
    return [*read_events(io.BytesIO(content), "order-1.avro")]


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(build(), [*arguments], **options)


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.dictionaries(TEXTS, VALUES, max_size=2))
def test_what_goes_out_comes_in(data: dict[str, Any], metadata: dict[str, Any]) -> None:
    sent = [event(0, data=data, metadata=metadata), event(1, tags=[])]
    got = taken(container(*sent))
    assert [[each[name] for name in TAKEN] for each in got] == [
        [each[name] for name in TAKEN] for each in sent
    ]
    assert {each["occurred_at"] for each in got} == {"1899-12-31T23:59:59.000001+00:00"}


def test_a_number_keeps_all_of_its_digits() -> None:
    exact = {"n": Decimal("0.1000000000000000000000000001"), "m": Decimal(10**30)}
    assert taken(container(event(data=exact)))[0]["data"] == exact


def test_other_programs_read_it() -> None:
    reader = fastavro.reader(io.BytesIO(container(event(3))))
    rows = [*reader]
    assert reader.metadata["penstock.format"] == FORMAT
    assert reader.metadata["penstock.stream"] == "order-1"
    assert reader.metadata["avro.codec"] == "deflate"
    assert [(r["version"], r["position"], r["data"]) for r in rows] == [(3, 4, '{"n":3}')]
    assert str(rows[0]["recorded_at"]) == "2026-01-01 00:00:00.500000+00:00"


def test_what_other_programs_write_is_read() -> None:
    needed = [{"name": name, "type": "string"} for name in ("id", "type", "stream", "data", "more")]
    schema = {"type": "record", "name": "StreamEvent", "fields": needed}
    target = io.BytesIO()
    row = {"id": "1", "type": "t", "stream": "a-1", "data": ' {"n":\n 1}', "more": "x"}
    fastavro.writer(target, schema, [row])
    assert taken(target.getvalue()) == [
        {"id": "1", "type": "t", "stream": "a-1", "data": {"n": 1}, "metadata": {}, "tags": []}
    ]


@pytest.mark.parametrize(
    ("fields", "row", "told"),
    [
        (["stream", "id", "type"], {}, "records that are no events: .*data"),
        (["stream", "id", "type", "data"], {"data": "{"}, "record 1: its data is not JSON"),
        (["stream", "id", "type", "data"], {"data": '{"a":1,"a":2}'}, "data: the key 'a' occurs"),
    ],
)
def test_records_that_are_no_events_are_refused(
    fields: list[str], row: dict[str, str], told: str
) -> None:
    schema = {"type": "record", "name": "StreamEvent", "fields": []}
    schema["fields"] = [{"name": name, "type": "string"} for name in fields]
    target = io.BytesIO()
    fastavro.writer(target, schema, [dict.fromkeys(fields, "{}") | row])
    with pytest.raises(InvalidRequest, match=told):
        taken(target.getvalue())


def test_whatever_became_of_a_container_it_is_refused_in_words() -> None:
    """Cut anywhere, or with any byte changed: some whole events and then an error, or only these.

    What ends between two blocks is whole to whoever has no checksum of it.
    """
    whole = container(*(event(n, data={"n": "x" * 9_000}) for n in range(4)))
    events = taken(whole)
    for cut in range(len(whole)):
        assert _prefix(whole[:cut], events) <= len(events)
    for at in range(0, len(whole), 3):
        _prefix(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :], None)


def _prefix(content: bytes, events: list[dict[str, Any]] | None) -> int:
    """Return how many events a container gives before it ends or is refused."""
    count, told = 0, "order-1.avro"
    try:
        for count, found in enumerate(read_events(io.BytesIO(content), told), start=1):
            assert events is None or found == events[count - 1]
    except (ContractViolation, InvalidRequest) as error:
        told = error.message
    assert told.startswith("order-1.avro")
    return count


def test_an_event_that_cannot_be_shown_is_not_exported() -> None:
    lost = event(2, data=None, unreadable="schema 9 is not known here")
    with pytest.raises(ContractViolation, match="order-1, version 2, cannot be exported: schema 9"):
        container(lost)


def test_memory_is_bounded_whatever_the_size() -> None:
    class Sunk(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, part: Any) -> int:
            return len(part)

    def large(count: int) -> Iterator[dict[str, Any]]:
        return (event(n, data={"t": f"{n}" * 400}) for n in range(count))

    content = container(*large(3_000))
    tracemalloc.start()
    try:
        write_events(io.BufferedWriter(Sunk()), "order-1", large(3_000))
        assert sum(1 for _ in read_events(io.BytesIO(content), "f")) == 3_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_500_000, "the data alone has 4 MB"


@pytest.mark.parametrize(
    ("arguments", "is_avro"),
    [
        (("--file", "o.avro"), True),
        (("--file", "o.ndjson"), False),
        (("--file", "o.avro", "--format", "ndjson"), False),
        (("--file", "o.bin", "--format", "avro"), True),
    ],
)
def test_the_format_is_that_of_the_option_or_of_the_suffix(
    arguments: tuple[str, ...],
    is_avro: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = b"".join(json.dumps(event(n)).encode() + b"\n" for n in range(2))
    with answering(monkeypatch, 200, lines, NDJSON):
        exported = run("stream", "export", "order-1", *arguments, "--json")
    told = json.loads(exported.output)
    assert (told["events"], told["format"]) == (2, "avro" if is_avro else "ndjson")
    content = Path(arguments[1]).read_bytes()
    assert content.startswith(b"Obj\x01") is is_avro
    with answering(monkeypatch, 200, COUNTS) as got:
        assert run("stream", "import", arguments[1]).output.startswith("2 events")
        assert run("stream", "import", "-", input=content).output.startswith("2 events")
        run("stream", "import", arguments[1], "--stream", "order-2")
    sent = [[json.loads(line) for line in each.splitlines()] for each in got]
    assert [[each["stream"] for each in lines] for lines in sent] == [
        *[["order-1"] * 2] * 2,
        ["order-2"] * 2,
    ]
    assert {tuple(sorted(each)) for lines in sent for each in lines} == {
        tuple(sorted((*TAKEN, "occurred_at")))
    }


def test_a_damaged_container_is_refused_before_its_first_event_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "order-1.avro"
    lines = b"".join(json.dumps(event(n)).encode() + b"\n" for n in range(2))
    with answering(monkeypatch, 200, lines, NDJSON):
        run("stream", "export", "order-1", "--file", str(file))
    whole = file.read_bytes()
    for damaged in (whole[:-40], whole.replace(b"order-1", b"order-2"), b""):
        file.write_bytes(damaged)
        with answering(monkeypatch, 200, COUNTS) as got:
            refused = run("stream", "import", str(file)).exception
        assert isinstance(refused, ContractViolation)
        assert "is not what order-1.avro.sha256 says" in refused.message
        assert not got
    (tmp_path / "order-1.avro.sha256").unlink()
    file.write_bytes(whole[:-20])
    with answering(monkeypatch, 200, COUNTS):
        refused = run("stream", "import", str(file)).exception
    assert isinstance(refused, ContractViolation)
    assert "record 1 cannot be read" in refused.message
