"""What a table is made of just now: whether a snapshot of before still reads it as it was.

A snapshot keeps rows, and not columns: DDL that commits behind it is seen by every statement, and a
table that was written anew, or truncated, has no rows for it at all.
"""

from __future__ import annotations

from cdc.database import Connection, split_table

_SHAPE = """
WITH RECURSIVE parts AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = %s AND c.relname = %s
    UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN parts p ON p.oid = i.inhparent
)
SELECT c.oid::bigint, c.relfilenode::bigint, a.attnum, a.attname, a.atttypid::bigint, a.atttypmod,
       a.attisdropped, ARRAY(SELECT e.enumlabel::text FROM pg_enum e
                              WHERE e.enumtypid IN (t.oid, t.typelem, t.typbasetype)
                              ORDER BY e.oid) AS labels
  FROM parts p JOIN pg_class c ON c.oid = p.oid JOIN pg_attribute a ON a.attrelid = c.oid
  LEFT JOIN pg_type t ON t.oid = a.atttypid
 WHERE a.attnum > 0
 ORDER BY c.oid, a.attnum
"""


def same_shape(snapshot: Connection, now: Connection, table: str) -> bool:
    """Say whether a table is in `snapshot` what it is `now`: its columns, files and partitions.

    Ask behind a statement that has read the table in the snapshot's transaction: from then on its
    lock keeps DDL away.
    """
    names = split_table(table)
    before, after = (each.execute(_SHAPE, names).fetchall() for each in (snapshot, now))
    return before == after
