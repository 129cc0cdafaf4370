"""Captured sources as a workspace declares them: `sources/NAME.toml`, without secrets.

dsn = "host=db port=5432 dbname=shop user=capture"
password = "env:SHOP_PASSWORD"            # or "file:.penstock/secrets/shop", or absent
tables = ["public.customers", "public.order_*"]   # names, and patterns with * and ?
snapshot = "copy"                         # who reads the rows that are there: "copy", "connector"
salt = "file:.penstock/secrets/shop.salt" # only where columns are hashed; or "env:SHOP_SALT"

[keys]                                    # tables without a primary key
"public.visits" = ["visitor", "at"]

[table."public.customers"]                # see `cdc.options`
exclude = ["card"]
"""

from __future__ import annotations

import os
import re
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cdc.database import split_password, split_table, with_password
from cdc.declarations import FOLDER, REMOVING, unknown_source
from cdc.options import CONNECTOR as CONNECTOR
from cdc.options import COPY as COPY
from cdc.options import (
    DEFAULT_SNAPSHOT,
    PLAIN,
    is_pattern,
    matches,
    options_of,
    parse_options,
    render_options,
    toml_text,
)
from cdc.options import TableOptions as TableOptions
from kernel.errors import InvalidRequest, Misconfigured
from schemas.identifiers import EVENTS, OUTBOX

SECRETS = Path(".penstock/secrets")
RESERVED = frozenset({EVENTS, "topics", OUTBOX})

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
# It is part of a connector property's name: no other characters survive that.
_SALT = re.compile(r"[A-Za-z0-9]{16,128}")
_KNOWN = {"dsn", "password", "tables", "keys", "snapshot", "salt", "table"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One captured database. `dsn` has no password; `password` and `salt` say where to find them.

    `tables` are names and patterns, `options` by name or pattern. `snapshot` says who reads the
    rows that are there before the stream: our parallel readers (`copy`) or the connector.
    """

    name: str
    dsn: str
    password: str | None
    tables: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Mapping[str, TableOptions] = field(default_factory=dict)
    snapshot: str = DEFAULT_SNAPSHOT
    salt: str | None = None

    @property
    def patterns(self) -> tuple[str, ...]:
        """Those of `tables` that stand for all tables whose names match."""
        return tuple(table for table in self.tables if is_pattern(table))

    @property
    def set_options(self) -> Mapping[str, TableOptions]:
        """The options of tables that have any."""
        return {table: said for table, said in self.options.items() if said != PLAIN}

    @property
    def hashes(self) -> bool:
        """Whether any column is hashed, so that a salt is needed."""
        return any(option.hash for option in self.options.values())

    def covers(self, table: str) -> bool:
        """Say whether a table is declared, by name or by pattern."""
        return any(matches(declared, table) for declared in self.tables)

    def options_of(self, table: str) -> TableOptions:
        """Return a table's options: its own, else those of the first pattern that it matches."""
        return options_of(self.options, table)

    def full_dsn(self, workspace: Path) -> str:
        """Return the DSN with its password. Raises `Misconfigured` when that is not to be had."""
        return with_password(self.dsn, _secret(self, "password", self.password, workspace))

    def full_salt(self, workspace: Path) -> str:
        """Return the salt of hashed columns; empty when none is hashed. Raises `Misconfigured`."""
        if not self.hashes:
            return ""
        found = _secret(self, "salt", self.salt, workspace)
        if not found or not _SALT.fullmatch(found):
            raise Misconfigured(
                f"source {self.name} hashes columns and needs a salt of 16 to 128 letters and"
                f" digits; found {'none' if not found else 'another text'}",
                remedy=f'Write salt = "env:VARIABLE" or "file:PATH" in {FOLDER}/{self.name}.toml.',
            )
        return found


def declare(
    name: str,
    *,
    dsn: str,
    tables: tuple[str, ...],
    keys: Mapping[str, tuple[str, ...]] | None = None,
    options: Mapping[str, TableOptions] | None = None,
    snapshot: str = DEFAULT_SNAPSHOT,
) -> tuple[Source, str | None]:
    """Make a source from what a person typed; return it and the DSN's password, if any.

    Table names without a schema are in `public`. Hashed columns get a salt file's name; `save`
    fills the file. Raises `InvalidRequest`.
    """
    if not _NAME.fullmatch(name) or name in RESERVED:
        raise InvalidRequest(
            f"{name!r} cannot name a source",
            remedy="Use a-z, 0-9 and _, first a letter, at most 31; not: events, outbox, topics.",
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
        options={_full(table): option for table, option in (options or {}).items()},
        snapshot=snapshot,
    )
    _refuse_strangers(source)
    if source.hashes:
        source = replace(source, salt=f"file:{SECRETS / f'{name}.salt'}")
    return source, password


def save(workspace: Path, source: Source, password: str | None) -> Path:
    """Write the source's file, and its password to a file that only the owner can read.

    A salt is made once: with another one, equal values would no longer be equal.
    """
    if password is not None:
        _keep_secret(workspace / SECRETS / source.name, password)
    ours = f"{source.name}.salt"
    if source.salt == f"file:{SECRETS / ours}" and not (workspace / SECRETS / ours).exists():
        _keep_secret(workspace / SECRETS / ours, secrets.token_hex(32))
    path = workspace / FOLDER / f"{source.name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".toml.new")
    fresh.write_text(_render(source), encoding="utf-8")
    fresh.replace(path)
    return path


def load(workspace: Path, name: str) -> Source:
    """Read one source. Raises `NotFound`, or `Misconfigured` for a file that is not right."""
    path = workspace / FOLDER / f"{name}.toml"
    if not path.exists():
        raise unknown_source(workspace, name)
    return _parse(path)


def load_all(workspace: Path) -> tuple[Source, ...]:
    """Read every source of a workspace, by name."""
    return tuple(_parse(path) for path in sorted((workspace / FOLDER).glob("*.toml")))


def set_aside(workspace: Path, name: str) -> None:
    """Put a declaration where nobody starts it, before what it made is taken away."""
    path = workspace / FOLDER / f"{name}.toml"
    if path.exists():
        (workspace / REMOVING).mkdir(parents=True, exist_ok=True)
        path.replace(workspace / REMOVING / path.name)


def load_removing(workspace: Path) -> tuple[Source, ...]:
    """Read the sources that are taken away in part, by name."""
    return tuple(_parse(path) for path in sorted((workspace / REMOVING).glob("*.toml")))


def forget(workspace: Path, name: str) -> None:
    """Remove the source's file, its password and its salt."""
    (workspace / FOLDER / f"{name}.toml").unlink(missing_ok=True)
    (workspace / REMOVING / f"{name}.toml").unlink(missing_ok=True)
    (workspace / SECRETS / name).unlink(missing_ok=True)
    (workspace / SECRETS / f"{name}.salt").unlink(missing_ok=True)


def _full(table: str) -> str:
    return ".".join(split_table(table.strip()))


def _refuse_strangers(source: Source) -> None:
    """Keys and options are of tables that are declared; the rest is a typing mistake."""
    for table in source.keys:
        if not source.covers(table):
            raise InvalidRequest(f"{table} is not one of the tables", remedy="Add it to --tables.")
    for table in source.options:
        if not source.covers(table) and table not in source.tables:
            raise InvalidRequest(
                f"options for {table}, which is not one of the tables", remedy="Add it to `tables`."
            )
    if source.snapshot not in (COPY, CONNECTOR):
        raise InvalidRequest(f'snapshot is "copy" or "connector", not {source.snapshot!r}')


def _keep_secret(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text, encoding="utf-8")


def _parse(path: Path) -> Source:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misconfigured(f"{path} is not valid TOML: {error}") from error
    unknown = sorted(found.keys() - _KNOWN)
    if unknown:
        raise Misconfigured(
            f"{path}: unknown {', '.join(unknown)}; known: {', '.join(sorted(_KNOWN))}"
        )
    try:
        source, inline = _declared(path, found)
    except InvalidRequest as error:
        raise Misconfigured(f"{path}: {error.message}", remedy=error.remedy) from error
    if inline is not None:
        raise Misconfigured(
            f"{path} holds a password",
            remedy='Take it out of dsn and write password = "env:VARIABLE" or "file:PATH".',
        )
    password, salt = found.get("password"), found.get("salt")
    return replace(
        source,
        password=None if password is None else str(password),
        salt=None if salt is None else str(salt),
    )


def _declared(path: Path, found: Mapping[str, Any]) -> tuple[Source, str | None]:
    match found:
        case {"dsn": str(dsn), "tables": [*tables]}:
            options = found.get("table", {})
            if not isinstance(options, dict):
                raise InvalidRequest('table is written as sections: [table."public.orders"]')
            return declare(
                path.stem,
                dsn=dsn,
                tables=tuple(str(table) for table in tables),
                keys=_keys(found.get("keys", {})),
                options={table: parse_options(table, option) for table, option in options.items()},
                snapshot=str(found.get("snapshot", DEFAULT_SNAPSHOT)),
            )
        case _:
            raise Misconfigured(f"{path} needs dsn (text) and tables (list of texts)")


def _keys(found: object) -> dict[str, tuple[str, ...]]:
    """Read `[keys]`. Raises `InvalidRequest`: a text is a list of its letters to Python."""
    if not isinstance(found, dict):
        raise InvalidRequest('keys are written as a section: [keys], beneath it "public.t" = ["a"]')
    for table, key in found.items():
        if not isinstance(key, list) or not all(isinstance(name, str) for name in key):
            raise InvalidRequest(f'[keys]: {table} wants a list of columns, as "{table}" = ["id"]')
    return {table: tuple(key) for table, key in found.items()}


def _secret(source: Source, what: str, said: str | None, workspace: Path) -> str | None:
    kind, _, where = (said or "").partition(":")
    remedy = f"Correct `{what}` in {FOLDER}/{source.name}.toml."
    match kind:
        case "":
            return None
        case "env":
            if where in os.environ:
                return os.environ[where]
            raise Misconfigured(f"{where} is not in the environment", remedy=f"Set it. {remedy}")
        case "file":
            try:
                return (workspace / where).read_text(encoding="utf-8").rstrip("\n")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise Misconfigured(f"cannot read {where}: {why}", remedy=remedy) from error
        case _:
            raise Misconfigured(f"{what} is neither env:… nor file:…: {kind}", remedy=remedy)


def _render(source: Source) -> str:
    lines = [f"dsn = {toml_text(source.dsn)}"]
    if source.password is not None:
        lines.append(f"password = {toml_text(source.password)}")
    lines.append("tables = [")
    lines.extend(f"    {toml_text(table)}," for table in source.tables)
    lines.append("]")
    lines.append(f"snapshot = {toml_text(source.snapshot)}")
    if source.salt is not None:
        lines.append(f"salt = {toml_text(source.salt)}")
    if source.keys:
        lines.append("\n[keys]")
        lines += [
            f"{toml_text(table)} = [{', '.join(map(toml_text, key))}]"
            for table, key in source.keys.items()
        ]
    lines.extend(render_options(source.options))
    return "\n".join(lines) + "\n"
