"""Rows of projections in memory: as a test puts them there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from penstock_client.errors import NotFound, Refused
from penstock_client.testing.bodies import MAX_PAGE
from penstock_client.testing.requests import reply, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    key: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    epoch: int


class MemoryProjections:
    """Projections by name. They have whatever was appended, at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, _Table] = {}
        self._epoch = 0

    def put(self, name: str, key: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace a projection's rows, as of a new epoch."""
        columns = tuple(key)
        by_key = sorted(rows, key=lambda row: [row[column] for column in columns])
        with self._lock:
            self._epoch += 1
            self._tables[name] = _Table(key=columns, rows=tuple(by_key), epoch=self._epoch)

    def rows(self, request: httpx.Request, name: str) -> httpx.Response:
        """Answer with rows by key, or with a page of all."""
        table, params = self._table(name), request.url.params
        limit = whole(request, "limit", 100, least=1, most=MAX_PAGE)
        epoch = whole(request, "epoch", table.epoch, least=1)
        if epoch != table.epoch:
            raise NotFound(f"epoch {epoch} is not committed", remedy="penstock epoch list")
        next_after = None
        keys = params.get_list("key")
        if keys:
            wanted = [_key(text, table) for text in keys]
            found = [row for row in table.rows if _of(row, table) in wanted]
        else:
            after = params.get("after")
            first = None if after is None else _key(after, table)
            found = [row for row in table.rows if first is None or _of(row, table) > first]
            if len(found) > limit:
                found = found[:limit]
                next_after = json.dumps({name: found[-1][name] for name in table.key})
        document = {
            "projection": name,
            "generation": 1,
            "status": "live",
            "epoch": table.epoch,
            "version": table.epoch,
            "key": list(table.key),
            "rows": found,
            "next_after": next_after,
        }
        return reply(document | ({"applied": True} if "after_position" in params else {}))

    def show(self, _request: httpx.Request, name: str) -> httpx.Response:
        """Show how a projection stands."""
        table = self._table(name)
        document = {
            "name": name,
            "status": "live",
            "generation": 1,
            "epoch": table.epoch,
            "newest_epoch": table.epoch,
            "rows": len(table.rows),
            "text": "",
            "key": list(table.key),
            "freshness_s": 1.0,
            "error": None,
        }
        return reply(document)

    def _table(self, name: str) -> _Table:
        with self._lock:
            if name not in self._tables:
                raise NotFound(f"no projection {name}", remedy="penstock projection list")
            return self._tables[name]


def _of(row: Mapping[str, Any], table: _Table) -> list[Any]:
    return [row[column] for column in table.key]


def _key(text: str, table: _Table) -> list[Any]:
    """Return a key's values. A single column's text stands for a number where rows have numbers."""
    try:
        given = json.loads(text)
    except ValueError:
        given = text
    if isinstance(given, dict) and given.keys() == set(table.key):
        return [given[column] for column in table.key]
    if len(table.key) > 1:
        raise Refused(f"key: {text!r} does not name the key's columns")
    is_text = any(isinstance(row[table.key[0]], str) for row in table.rows)
    return [text if is_text else given]
