"""SQL from the files beside this module, each read once."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from psycopg import sql

from eventstore.postgres.connect import Connection


@cache
def query(name: str) -> sql.SQL:
    """Return the text of `sql/<name>.sql`, without its comment lines."""
    text = (resources.files("eventstore.postgres") / "sql" / f"{name}.sql").read_text()
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return sql.SQL("\n".join(lines))


async def results(connection: Connection, *names: str, **values: object) -> list[list[Any]]:
    """Run files of statements in one round trip; return the rows of each that has a result.

    Needs a connection that puts values into the text (`AsyncClientCursor`).
    """
    text = query(names[0]) if len(names) == 1 else sql.SQL("\n").join(map(query, names))
    cursor = await connection.execute(text, values)
    found = []
    more: bool | None = True
    while more:
        if cursor.description is not None:
            found.append(await cursor.fetchall())
        more = cursor.nextset()
    return found
