"""SQL from the files beside this module, each read once."""

from __future__ import annotations

from functools import cache
from importlib import resources

from psycopg import sql


@cache
def query(name: str) -> sql.SQL:
    """Return the text of `sql/<name>.sql`, without its comment lines."""
    text = (resources.files("eventstore.postgres") / "sql" / f"{name}.sql").read_text()
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return sql.SQL("\n".join(lines))
