"""`Accept` with weights, patterns and parameters: what is sent."""

from __future__ import annotations

import pytest

from service.media_types import preferred

LINES = "application/x-ndjson"
JSON = "application/json"
BINARY = "application/json;cloudevents=binary"
OFFERS = (LINES, BINARY, JSON)


@pytest.mark.parametrize(
    ("accept", "sent"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        ("text/html, nonsense;;=", JSON),
        (LINES, LINES),
        ("APPLICATION/X-NDJSON", LINES),
        (f"{LINES}, */*", LINES),
        (f"{LINES}, {JSON}", LINES),
        (f"{LINES};q=0", JSON),
        (f"{LINES}; Q=0.0, */*;q=0", JSON),
        (f"{LINES};q=0.5, */*", JSON),
        (f"{LINES};q=0.5, application/*;q=0.4, */*", LINES),
        (f"{LINES};q=0.5, {JSON};q=0.9", JSON),
        (f"{LINES} ; q = 0.9 , {JSON};q=0.5", LINES),
        (f"{LINES};q=0.001, text/html", LINES),
        (f"{LINES};q=much, {JSON};q=0.5", LINES),
        ("application/json; cloudevents=binary", BINARY),
        ("Application/JSON;CloudEvents=Binary;q=0.3, application/json;q=0.2", BINARY),
        ("application/json; charset=utf-8", JSON),
        (f"{BINARY};q=0.3, {LINES};q=0.2", BINARY),
    ],
)
def test_what_weighs_most_is_sent(accept: str | None, sent: str) -> None:
    assert preferred(accept, *OFFERS) == sent
