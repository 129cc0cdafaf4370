"""What commands make of answers: those of something else than a service, and feeds that end."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from apps.calls import service_client
from apps.cli import build
from apps.settings import load
from eventstore.service_client import ServiceClient
from kernel.errors import EXIT_UNHEALTHY, ContractViolation, NotFound, Unavailable, exit_code

HTML = b"<html><body>Welcome</body></html>"
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"


@contextmanager
def answering(
    monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, media: str = "text/html"
) -> Iterator[list[bytes]]:
    """Have something answer all that is asked of the service; yield the bodies that it got."""
    got: list[bytes] = []

    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-type", media)
            self.send_header("content-length", str(len(body)))
            self.send_header("location", "/login")
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            sent = b""
            while size := int(self.rfile.readline(), 16):
                sent += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            got.append(sent)
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("PENSTOCK_SERVICE_URL", url)
        try:
            yield got
        finally:
            server.shutdown()
            thread.join()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build(), list(arguments))


def read_it(client: ServiceClient) -> object:
    return client.get("/v1/events")


def follow_it(client: ServiceClient) -> object:
    with client.lines("/v1/streams/order-1", accept=NDJSON) as lines:
        return list(lines)


@pytest.mark.parametrize("ask", [read_it, follow_it])
@pytest.mark.parametrize(
    ("status", "body"),
    [(302, HTML), (200, HTML), (200, b""), (502, HTML), (404, HTML), (500, b'"text"')],
)
def test_what_is_no_answer_of_a_service_is_told_so(
    ask: Callable[[ServiceClient], object],
    status: int,
    body: bytes,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with (
        answering(monkeypatch, status, body),
        service_client(load(tmp_path)) as client,
        pytest.raises(Unavailable) as told,
    ):
        ask(client)
    assert f"status {status}" in told.value.message
    assert "the address of a Penstock service?" in told.value.remedy
    assert exit_code(told.value) == EXIT_UNHEALTHY


@pytest.mark.parametrize("status", [502, 504])
def test_what_stands_before_a_service_that_is_away_is_no_failure(
    status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = b'{"detail": "no upstream", "problem": "x"}'
    with (
        answering(monkeypatch, status, body),
        service_client(load(tmp_path)) as client,
        pytest.raises(Unavailable, match="no upstream"),
    ):
        client.get("/v1/events")


def event(position: int) -> bytes:
    document = {
        "position": position,
        "stream": "order-1",
        "version": position - 1,
        "type": "placed",
        "occurred_at": "2013-01-01T00:00:00Z",
        "data": {},
    }
    return b"id: %d\ndata: %b\n\n" % (position, json.dumps(document).encode())


def mark(name: str, position: int) -> bytes:
    return b'event: %b\nid: %d\ndata: {"position":%d}\n\n' % (name.encode(), position, position)


@pytest.mark.parametrize(
    ("feed", "options", "at"),
    [
        (b"", (), "end"),
        (event(7) + mark("caught-up", 7), (), "7"),
        (event(7) + event(8), ("--limit", "3"), "8"),
        (event(7) + mark("checkpoint", 1007), ("--until-caught-up",), "1007"),
        (event(7) + mark("evicted", 7) + b": late\n\n", ("--until-caught-up",), "7"),
    ],
)
def test_a_feed_that_ends_too_early_is_told_with_the_place_to_go_on(
    feed: bytes, options: tuple[str, ...], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(monkeypatch, 200, b": penstock\n\n" + feed, SSE):
        ended = run("tail", *options)
    assert isinstance(ended.exception, Unavailable)
    assert f"the feed ended at position {at}" in ended.exception.message
    assert f"penstock tail --after {at}" in ended.exception.remedy


@pytest.mark.parametrize("options", [("--limit", "2"), ("--until-caught-up",)])
def test_a_feed_that_was_followed_to_its_goal_has_ended_well(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(monkeypatch, 200, event(7) + event(8) + mark("caught-up", 8), SSE):
        assert (ended := run("tail", *options)).exit_code == 0, ended.output
    assert len(ended.output.splitlines()) == 2


def test_a_file_stays_as_it_is_until_its_export_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, link = tmp_path / "order-1.ndjson", tmp_path / "link"
    file.write_text("from before\n")
    file.chmod(0o600)
    link.symlink_to(file)
    export = ("stream", "export", "order-1", "--file", str(link))
    with answering(monkeypatch, 404, b'{"type": "not-found", "detail": "no such stream"}'):
        assert isinstance(run(*export).exception, NotFound)
    assert file.read_text() == "from before\n"
    with answering(monkeypatch, 200, b'{"id": 1}\n{"id": 2}\n', NDJSON):
        assert run(*export).output == f"order-1: 2 events in {link}\n"
    assert file.read_text() == '{"id": 1}\n{"id": 2}\n'
    assert file.stat().st_mode & 0o777 == 0o600
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    checksum = tmp_path / "link.sha256"
    assert checksum.read_text() == f"{digest}  link\n"
    assert {*tmp_path.iterdir()} == {file, link, checksum}


def test_a_damaged_export_is_refused_before_its_first_line_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "order-1.ndjson"
    lines = b'{"stream": "order-1", "id": "1"}\n{"stream": "order-1", "id": "2"}\n'
    with answering(monkeypatch, 200, lines, NDJSON):
        run("stream", "export", "order-1", "--file", str(file))
    counts = b'{"lines": 2, "appended": 2, "repeated": 0, "last_position": 9}'
    for damaged in (lines[:33], lines.replace(b'"2"', b'"3"'), b""):
        file.write_bytes(damaged)
        with answering(monkeypatch, 200, counts) as got:
            refused = run("stream", "import", str(file)).exception
        assert isinstance(refused, ContractViolation)
        assert "is not what order-1.ndjson.sha256 says" in refused.message
        assert "remove " in refused.remedy
        assert not got
    file.write_bytes(lines)
    with answering(monkeypatch, 200, counts):
        assert run("stream", "import", str(file)).output.startswith("2 events")


def test_an_import_leaves_out_what_a_store_gives_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Anything else is for the service to refuse, by the number that its line has in the file."""
    file = tmp_path / "order-1.ndjson"
    given = {"category": "order", "version": 0, "position": 7, "schema_id": 1, "recorded_at": "x"}
    kept = {"stream": "order-1", "id": "1", "type": "placed", "data": {}, "tgas": ["a"]}
    file.write_text(f"\n{json.dumps(kept | given)}\n \n{json.dumps(kept)}\n")
    counts = b'{"lines": 4, "appended": 1, "repeated": 1, "last_position": 9}'
    with answering(monkeypatch, 200, counts) as got:
        told = run("stream", "import", str(file)).output
        run("stream", "import", str(file), "--stream", "order-2")
    assert told == "2 events: 1 appended, 1 were there\n"
    for sent, stream in zip(got, ("order-1", "order-2"), strict=True):
        lines = sent.split(b"\n")
        assert [json.loads(line) if line else None for line in lines] == [
            None,
            kept | {"stream": stream},
            None,
            kept | {"stream": stream},
            None,
        ]
