"""Row-level policies of a table: whether they may hide rows from the role that reads it.

One that is `USING (true)` for the role hides none, as long as no restrictive one stands beside it.
"""

from __future__ import annotations

import re

from psycopg import sql

from cdc.database import Connection, split_table

ACTIVE = "row_security_active(c.oid)"
"""Whether policies apply to the reading role, in a query of `pg_class c`."""
HIDE_ROWS = f"""({ACTIVE} AND (
  SELECT NOT coalesce(bool_or(found.said = 'true') FILTER (WHERE found.permissive), false)
         OR coalesce(bool_or(found.said <> 'true') FILTER (WHERE NOT found.permissive), false)
    FROM (SELECT p.polpermissive AS permissive, pg_get_expr(p.polqual, p.polrelid) AS said
            FROM pg_policy p
           WHERE p.polrelid = c.oid AND p.polcmd IN ('*', 'r') AND EXISTS (
             SELECT FROM unnest(p.polroles) AS r (oid)
              WHERE r.oid = 0 OR pg_has_role(r.oid, 'USAGE'))) AS found))"""
"""Whether these may hide rows. What a policy says is not computed: any other text may."""
_ASKED = """
SELECT {} AS told FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = {} AND c.relname = {}
"""
_LEAVES_OUT = re.compile(r"(?:Filter|Cond|Removed): ")
"""What a plan has that does not read all rows; also where partitions are passed over as a whole."""


def heed_policies(connection: Connection, table: str) -> None:
    """Read a table under its policies for the rest of the transaction, if they hide no rows.

    Under `row_security = off` PostgreSQL refuses to read it under any: so it is where some may, and
    for a table without, until it is locked.
    """
    _secure(connection, "off")
    if not _told(connection, table, ACTIVE):
        return
    _secure(connection, "on")
    # Its lock keeps the policies as they are from here on.
    name = sql.Identifier(*split_table(table))
    connection.execute(sql.SQL("SELECT FROM {} WHERE false").format(name))
    if _told(connection, table, HIDE_ROWS) or _leaves_out(connection, name):
        _secure(connection, "off")


def _leaves_out(connection: Connection, name: sql.Identifier) -> bool:
    """Say whether a plan to read all of a table leaves rows out.

    What the catalog tells is of the transaction's snapshot, which may be hours old. A plan is made
    under the policies that the table has now, as every other statement is.
    """
    plan = connection.execute(sql.SQL("EXPLAIN (COSTS OFF) SELECT FROM {}").format(name))
    return any(_LEAVES_OUT.search(str(line)) for row in plan for line in row.values())


def _secure(connection: Connection, setting: str) -> None:
    # SET LOCAL would warn outside of a transaction, in the server's log.
    connection.execute("SELECT set_config('row_security', %s, true)", (setting,))


def _told(connection: Connection, table: str, what: str) -> bool:
    names = map(sql.Literal, split_table(table))
    row = connection.execute(sql.SQL(_ASKED).format(sql.SQL(what), *names)).fetchone()
    return row is not None and bool(row["told"])
