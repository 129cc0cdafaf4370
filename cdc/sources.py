"""Captured sources as a workspace declares them: `sources/NAME.toml`, without secrets.

dsn = "host=db port=5432 dbname=shop user=capture"
password = "env:SHOP_PASSWORD"            # or "file:.penstock/secrets/shop", or absent
tables = ["public.orders", "public.customers"]

[keys]                                    # tables without a primary key
"public.visits" = ["visitor", "at"]
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cdc.database import split_password, split_table, with_password
from kernel.errors import InvalidRequest, Misconfigured, NotFound

FOLDER = "sources"
SECRETS = Path(".penstock/secrets")
RESERVED = frozenset({"events", "outbox"})

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
_KNOWN = {"dsn", "password", "tables", "keys"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One captured database. `dsn` has no password; `password` says where to find it."""

    name: str
    dsn: str
    password: str | None
    tables: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def full_dsn(self, workspace: Path) -> str:
        """Return the DSN with its password. Raises `Misconfigured` when that is not to be had."""
        return with_password(self.dsn, _password(self, workspace))


def declare(
    name: str,
    *,
    dsn: str,
    tables: tuple[str, ...],
    keys: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[Source, str | None]:
    """Make a source from what a person typed; return it and the DSN's password, if any.

    Table names without a schema are in `public`. Raises `InvalidRequest`.
    """
    if not _NAME.fullmatch(name) or name in RESERVED:
        raise InvalidRequest(
            f"{name!r} cannot name a source",
            remedy="Use a-z, 0-9 and _, first a letter, at most 31; not: events, outbox.",
        )
    if not tables:
        raise InvalidRequest("no tables", remedy="Name them: --tables public.a,public.b")
    plain, password = split_password(dsn)
    source = Source(
        name=name,
        dsn=plain,
        password=f"file:{SECRETS / name}" if password is not None else None,
        tables=tuple(dict.fromkeys(_full(table) for table in tables)),
        keys={_full(table): tuple(columns) for table, columns in (keys or {}).items()},
    )
    for table in source.keys:
        if table not in source.tables:
            raise InvalidRequest(f"{table} is not one of the tables", remedy="Add it to --tables.")
    return source, password


def save(workspace: Path, source: Source, password: str | None) -> Path:
    """Write the source's file, and its password to a file that only the owner can read."""
    if password is not None:
        secret = workspace / SECRETS / source.name
        secret.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret.touch(mode=0o600)
        secret.chmod(0o600)
        secret.write_text(password)
    path = workspace / FOLDER / f"{source.name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".toml.new")
    fresh.write_text(_render(source))
    fresh.replace(path)
    return path


def load(workspace: Path, name: str) -> Source:
    """Read one source. Raises `NotFound`, or `Misconfigured` for a file that is not right."""
    path = workspace / FOLDER / f"{name}.toml"
    if not path.exists():
        known = ", ".join(source.name for source in load_all(workspace)) or "none"
        raise NotFound(
            f"no source {name}; there are: {known}",
            remedy="penstock source add NAME --dsn DSN --tables schema.table,…",
        )
    return _parse(path)


def load_all(workspace: Path) -> tuple[Source, ...]:
    """Read every source of a workspace, by name."""
    return tuple(_parse(path) for path in sorted((workspace / FOLDER).glob("*.toml")))


def forget(workspace: Path, name: str) -> None:
    """Remove the source's file and its password."""
    (workspace / FOLDER / f"{name}.toml").unlink(missing_ok=True)
    (workspace / SECRETS / name).unlink(missing_ok=True)


def _full(table: str) -> str:
    return ".".join(split_table(table.strip()))


def _parse(path: Path) -> Source:
    try:
        found = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{path} is not valid TOML: {error}") from error
    unknown = sorted(found.keys() - _KNOWN)
    if unknown:
        raise Misconfigured(f"{path}: unknown {', '.join(unknown)}; known: {sorted(_KNOWN)}")
    match found:
        case {"dsn": str(dsn), "tables": [*tables]}:
            source, inline = declare(
                path.stem,
                dsn=dsn,
                tables=tuple(str(table) for table in tables),
                keys={table: tuple(key) for table, key in found.get("keys", {}).items()},
            )
        case _:
            raise Misconfigured(f"{path} needs dsn (text) and tables (list of texts)")
    if inline is not None:
        raise Misconfigured(
            f"{path} holds a password",
            remedy='Take it out of dsn and write password = "env:VARIABLE" or "file:PATH".',
        )
    password = found.get("password")
    return Source(
        name=source.name,
        dsn=source.dsn,
        password=None if password is None else str(password),
        tables=source.tables,
        keys=source.keys,
    )


def _password(source: Source, workspace: Path) -> str | None:
    kind, _, where = (source.password or "").partition(":")
    remedy = f"Correct `password` in {FOLDER}/{source.name}.toml."
    match kind:
        case "":
            return None
        case "env":
            if where in os.environ:
                return os.environ[where]
            raise Misconfigured(f"{where} is not in the environment", remedy=f"Set it. {remedy}")
        case "file":
            try:
                return (workspace / where).read_text().rstrip("\n")
            except OSError as error:
                raise Misconfigured(f"cannot read {where}: {error}", remedy=remedy) from error
        case _:
            raise Misconfigured(f"password is neither env:… nor file:…: {kind}", remedy=remedy)


def _render(source: Source) -> str:
    lines = [f"dsn = {json.dumps(source.dsn)}"]
    if source.password is not None:
        lines.append(f"password = {json.dumps(source.password)}")
    lines.append("tables = [")
    lines.extend(f"    {json.dumps(table)}," for table in source.tables)
    lines.append("]")
    if source.keys:
        lines.append("\n[keys]")
        lines.extend(f"{json.dumps(t)} = {json.dumps(list(key))}" for t, key in source.keys.items())
    return "\n".join(lines) + "\n"
