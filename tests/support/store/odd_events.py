"""Events of any JSON that the contract allows, and whether store, log and tables have them."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from lake.layout import Lake
from lake.tables import Tables
from tests.support.oracles.json_rows import meant, same, shown

CATEGORY = "odd"
TYPES = ("a", "Grown", "x1", "null", "l" * 100)
STREAMS = ("1", "ü", "😀", "a.b", "a%2Fb", "it's", 'q"uote', "a?b#c", "-", "x" * 200, "\\", "é")
NAMES = (
    *("a", "b", "c", "stream", "version_", "_epoch", "type", "position", "__op", "__row", "_n"),
    *("x" * 80, "window_start"),
)
UNFIT = ("größe", "a b", "A", "😀")
"""Names that are refused: they cannot become a column, or differ from another in case only."""
TEXTS = ("", "null", "NaN", "é😀", "\n\t\r", "\\", '"', "\u2028", "a" * 70_000, "\U0010ffff")
NUMBERS = (0, -1, 2**53 + 1, 2**63 - 1, -(2**63), 0.1, -0.0, 1e308, 5e-324, 1.5, 10**17 + 0.0)
PATIENCE_S = 300.0


@dataclass(slots=True)
class OddEvents:
    """Appends random events over HTTP and keeps what was accepted, by id."""

    url: str
    headers: dict[str, str]
    seed: int
    category: str = CATEGORY
    unanswered: Callable[[], None] = lambda: None
    """Called when nobody listens: a part that was killed too often is to be started."""
    accepted: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    refused: int = 0
    _kinds: dict[str, str] = field(default_factory=dict)
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def append(self, requests: int) -> None:
        """Append some events with each request, again and again until it is answered."""
        with self._client() as http:
            for _ in range(requests):
                stream = f"{self.category}-{self._rng.choice(STREAMS)}"
                events = [self._event() for _ in range(self._rng.randrange(1, 4))]
                if self._appended(http, stream, events):
                    self.accepted |= {event["id"]: (stream, event) for event in events}
                else:
                    self.refused += 1

    def differing(self, lake: Lake) -> list[str]:
        """Return what differs between what was accepted and the store and the tables."""
        headers = {"accept": "application/x-ndjson"}
        with self._client() as http:
            asked = http.get("/v1/events", params={"category": self.category}, headers=headers)
        assert asked.status_code == 200, asked.text
        return [*self.differing_in_store(asked.content), *self.differing_in_lake(lake)]

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=60, trust_env=False)

    def differing_in_store(self, read: bytes) -> list[str]:
        """Return what differs between what was accepted and what the service reads, as NDJSON."""
        found: dict[str, tuple[str, dict[str, Any]]] = {}
        positions: list[int] = []
        for line in read.splitlines():
            event = orjson.loads(line)
            positions.append(event["position"])
            found[event["id"]] = (event["stream"], event)
        wrong = [f"event {id} is not in the store" for id in self.accepted.keys() - found.keys()]
        wrong += [f"event {id} was never accepted" for id in found.keys() - self.accepted.keys()]
        if len(found) != len(positions):
            wrong.append(f"{len(positions)} events are read, of {len(found)} ids")
        if positions != sorted(set(positions)):
            wrong.append("positions do not ascend")
        for id in self.accepted.keys() & found.keys():
            stream, told = self.accepted[id]
            read_from, shown_as = found[id]
            alike = stream == read_from and told["type"] == shown_as["type"]
            if not (alike and _comes_back(shown_as["data"], told["data"])):
                wrong.append(f"event {id} is read as {str(shown_as)[:300]}, told {str(told)[:300]}")
            if not _comes_back(shown_as["metadata"], told["metadata"]):
                wrong.append(f"metadata of {id}: {shown_as['metadata']}, told {told['metadata']}")
        return wrong

    def differing_in_lake(self, lake: Lake) -> list[str]:
        """Return what differs between what was accepted and the typed tables."""
        wrong: list[str] = []
        for type_ in TYPES:
            told = {id: e for id, e in self.accepted.items() if e[1]["type"] == type_}
            rows = Tables().read(lake.path(f"typed/events.{self.category}.{type_}"))
            found = [] if rows is None else rows.to_pylist()
            ids = [row["event_id"] for row in found]
            if sorted(ids) != sorted(told):
                wrong.append(f"typed rows of {type_}: {len(ids)}, accepted {len(told)}")
                continue
            fields = _fields(event for _, event in told.values())
            for row in found:
                stream, event = told[row["event_id"]]
                alike = (row["stream"], row["type"]) == (stream, type_)
                if not (alike and same(shown(row, fields), meant(event["data"]) or {})):
                    wrong.append(f"row of {row['event_id']} shows {str(row)[:300]}")
        return wrong

    def _event(self) -> dict[str, Any]:
        return {
            "id": str(uuid.UUID(int=self._rng.getrandbits(128), version=4)),
            "type": self._rng.choice(TYPES),
            "data": self._object(3),
            "metadata": self._object(2),
        }

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._rng.sample(NAMES, self._rng.randrange(0, 5))
        if self._rng.random() < 0.02:
            names.append(self._rng.choice(UNFIT))
        return {name: self._value(name, depth - 1) for name in names}

    def _value(self, name: str, depth: int) -> Any:
        """Return a value, of one kind for each name: another kind is mostly refused."""
        place = f"{name} {depth}"
        kinds = ("flag", "number", "text", "text", *(("list", "object") if depth > 0 else ()))
        kind = self._kinds.setdefault(place, self._rng.choice(kinds))
        odd = self._rng.random()
        if odd < 0.1:
            return None
        match self._rng.choice(kinds) if odd < 0.12 else kind:
            case "flag":
                return self._rng.random() < 0.5
            case "number":
                return self._rng.choice(NUMBERS)
            case "text":
                return self._rng.choice(TEXTS)
            case "list":
                length = self._rng.randrange(0, 4)
                return [self._value(f"{name}[]", depth - 1) for _ in range(length)]
            case _:
                return self._object(depth)

    def _appended(self, http: httpx.Client, stream: str, events: list[dict[str, Any]]) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        body = orjson.dumps({"events": events})
        path = f"/v1/streams/{quote(stream, safe='')}"
        while time.monotonic() < deadline:
            try:
                answer = http.post(path, content=body, headers={"content-type": "application/json"})
            except httpx.TransportError:
                self.unanswered()
                time.sleep(0.2)
                continue
            if answer.status_code in (200, 201):
                return True
            if answer.status_code in (429, 503):
                time.sleep(0.2)
                continue
            # What the contract refuses is named with its place; anything else is a defect.
            assert answer.status_code in (409, 413, 422), (answer.status_code, answer.text[:500])
            return False
        raise AssertionError("an event was never answered")


def _comes_back(read: Any, told: Any) -> bool:
    """Return whether an event is read as it was told, by the rules of docs/reference/http.md.

    A field that is null and one that is absent are the same: a schema names neither before it has
    met a value. JSON does not tell 20 from 20.0: a field of doubles shows 20.0, metadata show 20.
    """
    match read, told:
        case dict(), dict():
            names = read.keys() | told.keys()
            return all(_comes_back(read.get(name), told.get(name)) for name in names)
        case list(), list():
            return len(read) == len(told) and all(map(_comes_back, read, told))
        case (bool(), _) | (_, bool()):
            return read is told
        case float(), int() if not isinstance(told, bool):
            return read == float(told)
        case int(), float():
            return read == told
        case _:
            return type(read) is type(told) and bool(read == told)


def _fields(events: Any) -> list[str]:
    """Return the fields of all events of a type, in the order in which their values came."""
    data = [event["data"] for event in events]
    return list(dict.fromkeys(k for each in data for k, v in each.items() if v is not None))
