"""What `source add --check` and `--fix` do: checks row by row, and what can be mended.

Upstream: a declared source, its own DSN and, where one is given, that of a role with more rights.
Downstream: `cdc.upkeep.topic_names`, `cdc.repairs`. Entry points: `checks` and `repairs`.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc import ddl
from cdc.admission import Check
from cdc.connectors import replication_name
from cdc.copies import copy_requests as copies
from cdc.database import Connection, connected
from cdc.repairs import Repair, publish, repair
from cdc.replication import wholly_published
from cdc.scope import columns_listed, scope_of
from cdc.site import CaptureSite
from cdc.sources import Source
from cdc.table_checks import PUBLISHABLE
from cdc.upkeep import topic_names
from cdc.upkeep.lifecycle import captured_tables
from lake.layout import Lake

_AS_SUPERUSER = "penstock source check NAME --fix --fix-as DSN"


def checks(site: CaptureSite, source: Source, dsn: str) -> tuple[Check, ...]:
    """Return what must be true before a source starts, row by row."""
    return topic_names.checks(site, source, dsn)


def repairs(
    site: CaptureSite, source: Source, dsn: str, found: Sequence[Check], *, as_: str | None = None
) -> tuple[Repair, ...]:
    """Mend what can be mended, as the role of `dsn` or of `as_`; see `cdc.repairs`.

    Where the source's role does not own its tables, the role of `as_` makes the publication.
    """
    name = replication_name(site.name, source.name)
    with connected(as_ or dsn) as connection:
        done = repair(connection, found)
        if as_ is not None:
            done += _publications(site, source, dsn, connection, name)
        if not ddl.installed(connection):
            made = ddl.ensure(connection)
            done += (
                Repair(
                    subject="database",
                    statement="event triggers of schema penstock",
                    done=made,
                    remains=None if made else f"as a superuser: {_AS_SUPERUSER}",
                ),
            )
    return done


def _publications(
    site: CaptureSite, source: Source, dsn: str, maker: Connection, name: str
) -> tuple[Repair, ...]:
    with connected(dsn) as own:
        scope = scope_of(source, own, name)
        lacking = [check for check in scope.checks if check.required == PUBLISHABLE]
        if all(check.ok for check in lacking) or not scope.publishable:
            return ()
        lists = columns_listed(source, own, scope.publishable)
        columns = {table: lists.get(table) for table in scope.publishable}
        late = [table for table in columns if table not in (wholly_published(own, name) or {})]
        reader = own.info.user
    lake = Lake.at(site.lake)
    # What happened to a table that was captured before, while nobody published it, takes a copy.
    copies.joining(lake, source.name, late, known=captured_tables(lake, source.name))
    owner = f"{site.name}-{source.name}"
    return (publish(maker, name, columns, reader=reader, owner=owner),)
