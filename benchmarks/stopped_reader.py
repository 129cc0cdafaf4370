"""Memory of a service one of whose readers of lines stops, in a store of large events.

The baseline is the service of another checkout: `--stopped-reader-before DIR`.
"""

from __future__ import annotations

import random
import socket
import time
from argparse import ArgumentParser
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from benchmarks.eventstore.cluster import running
from benchmarks.eventstore.penstock import service
from benchmarks.eventstore.products import ROOT
from benchmarks.harness import Context, Figures
from schemas.inference import widened
from schemas.json_codec import JsonCodec
from schemas.wire import frame

NAME = "stopped_reader"
CONDITIONS = (
    "1,500 events of 250 kB that do not compress; one client asks for all of them as lines and "
    "reads nothing; the greatest resident memory of the service, ten seconds later"
)
_QUESTION = b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\naccept: application/x-ndjson\r\n\r\n"
EVENTS, EVENT_BYTES, REST_S = 1_500, 250_000, 10.0


def add_options(parser: ArgumentParser) -> None:
    """Add the checkout to compare with."""
    group = parser.add_argument_group("stopped_reader")
    group.add_argument(
        "--stopped-reader-before", type=Path, default=ROOT, help="checkout of the baseline"
    )


def run(context: Context) -> Figures:
    """Measure this checkout."""
    return _measured(context, "now", ROOT)


def BASELINE(context: Context) -> Figures:
    """Measure the other checkout."""
    return _measured(context, "before", context.options.stopped_reader_before)


def _measured(context: Context, name: str, root: Path) -> Figures:
    cluster = context.once("postgres", lambda: running(context.folder))
    workspace = Path(context.folder, f"{name}-{context.repetition}")
    workspace.mkdir()
    dsn = cluster.create(f"stopped_{name}")
    with service(dsn, workspace, root=root) as (url, pid):
        _fill(dsn)
        idle = _peak_bytes(pid)
        parts = urlsplit(url)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect((str(parts.hostname), parts.port))
            client.sendall(_QUESTION)
            time.sleep(REST_S)
            peak = _peak_bytes(pid)
    return {"idle_mb": idle / 1e6, "peak_mb": peak / 1e6}


def _fill(dsn: str) -> None:
    """Insert the events; each has text of its own, half of which is random."""
    schema = widened("order.placed", None, {"text": ""})
    codec, bits = JsonCodec(schema), random.Random(7)
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO es.schemas (schema_id, schema) VALUES (1, %s)", (schema,))
        for version in range(EVENTS):
            text = bits.randbytes(EVENT_BYTES // 2).hex()
            connection.execute(
                "INSERT INTO es.events (position, store_id, id, stream, version, category, type,"
                " schema_id, data, occurred_at, recorded_at)"
                " SELECT %s, store_id, gen_random_uuid(), 'order-1', %s, 'order', 'placed', 1, %s,"
                " now(), now() FROM es.store",
                (version + 1, version, frame(1, codec.encode({"text": text}))),
            )


def _peak_bytes(pid: int) -> int:
    """Return the greatest resident memory that a process had, as Linux counts it."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    return 0
