"""Values keep their type: a real PostgreSQL renders them, capture must bring the same.

Every row arrives twice, by the snapshot and by the stream: the connector reads the two in
different ways. The oracle is the source's own SELECT, row hash for row hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa
import pytest

from apps.settings import Settings
from schemas.pg_exact import EXACT
from schemas.records import Operation
from tests.support.services.waiting import until
from tests.support.sources.capturing import Captured, prepare

ODD_SETTINGS = """
DO $$
DECLARE setting text;
BEGIN
  FOREACH setting IN ARRAY ARRAY['extra_float_digits = -5', 'DateStyle = "German, DMY"',
      'IntervalStyle = sql_standard', 'bytea_output = escape', 'TimeZone = "Asia/Kathmandu"',
      'client_encoding = LATIN1', 'quote_all_identifiers = on', 'idle_session_timeout = 2000',
      'idle_in_transaction_session_timeout = 2000', 'default_transaction_deferrable = on']
  LOOP
    EXECUTE format('ALTER DATABASE %I SET %s', current_database(), setting);
  END LOOP;
END $$;
"""
"""How a database may have its values printed, and its sessions bounded: nothing of it may reach the
stream, or end it."""
RESTING = """
SELECT FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'Debezium%' AND state LIKE 'idle%'
   AND now() - state_change > interval '3 seconds'
"""
TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE TABLE kinds (
    id int PRIMARY KEY, yes boolean, i2 smallint, i4 int, i8 bigint, f4 real, f8 double precision,
    n_scaled numeric(20, 6), n_free numeric, n_big numeric(60, 10), n_negative numeric(5, -2),
    price money, words text, short varchar(10), padded char(8), d date, t time,
    t_zone timetz, ts timestamp, ts_milli timestamp(3), tz timestamptz, tz_second timestamptz(0),
    lasts interval CHECK (isfinite(lasts)), u uuid, js json, jsb jsonb, raw bytea, feeling mood,
    more positive,
    bits bit(3), bits_varying bit varying(5), flag bit(1), net inet, part int4range, place pg_lsn,
    i4s int[], words_all text[], n_all numeric(10, 2)[], n_frees numeric[], feelings mood[],
    tzs timestamptz[], ds date[], us uuid[], jsbs jsonb[], raws bytea[], i8s bigint[],
    f8s double precision[], yeses boolean[]
);
ALTER TABLE kinds REPLICA IDENTITY FULL;
"""
FULL_ROW = r"""
INSERT INTO kinds VALUES (1, true, -3, 4, 5, 1.5, 2.25,
    1234.5, 12345.678901234567890, 12345678901234567890123456789012345678901234567890.5, 12345,
    12.34, 'héllo, "wörld" \ {}', 'abc', 'ab', '2024-02-29', '12:34:56.789012',
    '12:34:56.789+02', '2024-02-29 12:34:56.789012', '2024-02-29 12:34:56.789',
    '2024-02-29 12:34:56.789012+02', '2024-02-29 12:34:56+00', '1 year 2 mons 3 days 04:05:06.789',
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": 1,  "b":[1,2]}', '{"b":1,"a":2.50}',
    '\x00ff10', 'ok', 7, '101', '00101', '1', '10.0.0.1', '[1,5)', '16/B374D848',
    '{1,NULL,3}', '{"a","b,c",NULL,""}', '{1.5,NULL}', '{1.50,22}', '{ok,sad}',
    '{2024-02-29 12:34:56.789012+02,NULL}', '{2024-02-29}',
    '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}', array['{"a":1}']::jsonb[], array['\x00ff']::bytea[],
    '{1,9223372036854775807}', '{1.5,NaN}', '{t,f,NULL}');
"""
EDGES = """
INSERT INTO kinds (id) VALUES (2);
INSERT INTO kinds (id, n_free, f4, f8, ts, tz, t, lasts) VALUES
    (3, 'NaN', 'NaN', 'Infinity', 'infinity', 'infinity', '24:00:00', '-1 mon -3 days 00:00:00.01'),
    (4, '1e-20', '-Infinity', '-0.0', '-infinity', '-infinity', '00:00', '-00:00:01'),
    (5, '-1.10', 1e-40, 5e-324, '0044-03-15 12:00 BC', '0044-03-15 12:00+00 BC', NULL, '0'),
    (6, 123456789012345678901234567890, 3.4e38, 1.7e308, '1582-10-10', '1500-02-28 12:00+00',
     '23:59:59.999999', '178000000 years'),
    (7, 'Infinity', 1.1000001, 0.30000000000000004, '294276-12-31 23:59:59.999999',
     '294276-12-31 23:59:59.999999+00', '00:00:00.000001', '1.5 days');
INSERT INTO kinds (id, n_scaled, padded, words, raw, i4s, words_all, d) VALUES
    (8, 'NaN', '', '', '', '{}', '{}', 'infinity'), (9, -0.000001, ' x', ' ', '', '{}', '{}',
     '-infinity'), (10, 0, 'é', 'N', '', '{NULL}', '{N,"3:abc"}', '5874897-12-31');
"""
FALLBACKS = r"""
CREATE TABLE fallbacks (
    id int PRIMARY KEY, b bit(3) NOT NULL DEFAULT '101', vb bit varying(20) DEFAULT '0',
    empty bit varying NOT NULL DEFAULT '', flag bit(1) NOT NULL DEFAULT '1',
    d date NOT NULL DEFAULT 'infinity', early date DEFAULT '0044-03-15 BC',
    ts timestamp NOT NULL DEFAULT '-infinity',
    milli timestamp(3) DEFAULT '2024-02-29 12:34:56.789',
    tz timestamptz NOT NULL DEFAULT 'infinity', t time DEFAULT '24:00',
    zone timetz DEFAULT '12:34+02',
    lasts interval NOT NULL DEFAULT '1 mon -3 days 00:00:00.01' CHECK (isfinite(lasts)),
    u uuid DEFAULT gen_random_uuid(),
    n numeric NOT NULL DEFAULT 'NaN', n_scaled numeric(20, 6) DEFAULT 1.5, price money DEFAULT 1.5,
    f4 real DEFAULT 'NaN', f8 double precision NOT NULL DEFAULT '-Infinity', yes bool DEFAULT true,
    i2 smallint NOT NULL DEFAULT -3, i8 bigint DEFAULT 9223372036854775807,
    words text NOT NULL DEFAULT '', short varchar(10) DEFAULT 'it''s', padded char(8) DEFAULT 'x',
    raw bytea NOT NULL DEFAULT '\x00ff', js json DEFAULT '{"a": 1}',
    jsb jsonb NOT NULL DEFAULT '[]',
    net inet NOT NULL DEFAULT '10.0.0.1', part int4range DEFAULT '[1,5)',
    place point NOT NULL DEFAULT '(1,2)', area box DEFAULT '((0,0),(1,1))',
    feeling mood NOT NULL DEFAULT 'ok', more positive NOT NULL DEFAULT 7,
    i4s int[] NOT NULL DEFAULT '{1,NULL}', words_all text[] DEFAULT '{}',
    bits bit(3)[] DEFAULT '{101}', "名" text DEFAULT 'no name of LATIN1'
);
INSERT INTO fallbacks (id) VALUES (1), (2);
"""
"""Every type with a default, which the schema of a column's records has."""
NOTHING = """
UPDATE fallbacks SET vb = NULL, early = NULL, milli = NULL, t = NULL, zone = NULL, u = NULL,
    n_scaled = NULL, price = NULL, f4 = NULL, yes = NULL, i8 = NULL, short = NULL, padded = NULL,
    js = NULL, part = NULL, area = NULL, words_all = NULL, bits = NULL WHERE id = 3
"""
"""Null where a default would be."""
ADDED = """
ALTER TABLE fallbacks ADD b2 bit(3) NOT NULL DEFAULT '011', ADD vb2 bit varying(20) DEFAULT '0',
    ADD lasts2 interval NOT NULL DEFAULT '1 day' CHECK (isfinite(lasts2)),
    ADD d2 date DEFAULT '-infinity'
"""
WANTED = {
    "yes": pa.bool_(),
    "i2": pa.int16(),
    "i4": pa.int32(),
    "i8": pa.int64(),
    "f4": pa.float32(),
    "f8": pa.float64(),
    "n_scaled": pa.decimal128(20, 6),
    "n_free": pa.string(),
    "n_big": pa.string(),
    "n_negative": pa.decimal128(7, 0),
    "price": pa.decimal128(19, 2),
    "padded": pa.string(),
    "d": pa.date32(),
    "t": pa.string(),
    "ts": pa.timestamp("us"),
    "ts_milli": pa.timestamp("us"),
    "tz": pa.timestamp("us", "UTC"),
    "lasts": pa.string(),
    "u": pa.string(),
    "jsb": pa.string(),
    "raw": pa.binary(),
    "feeling": pa.string(),
    "more": pa.int32(),
    "bits": pa.string(),
    "flag": pa.bool_(),
    "n_all": pa.list_(pa.decimal128(10, 2)),
    "tzs": pa.list_(pa.timestamp("us", "UTC")),
    "ds": pa.list_(pa.date32()),
    "raws": pa.list_(pa.binary()),
}


TABLES = ["public.kinds", "public.fallbacks"]


@pytest.fixture
def kinds(stack: Settings, new_source: Callable[[str], str]) -> Iterator[Captured]:
    captured = prepare(
        stack, new_source(ODD_SETTINGS + TYPES + FULL_ROW + EDGES + FALLBACKS), TABLES, {}
    )
    try:
        captured.start()
        captured.await_snapshot()
        yield captured
    finally:
        captured.remove()


def test_every_type_arrives_as_postgresql_has_it(kinds: Captured) -> None:
    assert kinds.rejected == []
    assert kinds.differing("public.kinds") == []
    found = kinds.current("public.kinds").schema
    assert {name: found.field(name).type for name in WANTED} == WANTED
    beside = {row["id"]: row[EXACT] for row in kinds.current("public.kinds").to_pylist()}
    assert beside[8] == '{"d":"infinity","n_scaled":"NaN"}'
    assert beside[4] == '{"ts":"-infinity","tz":"-infinity"}'
    assert beside[1] is None

    # Once more, through the stream: as updates, as inserts, and with every column set to null.
    columns = kinds.current("public.kinds").column_names
    kinds.execute("UPDATE kinds SET i4 = coalesce(i4, 0) + 1")
    kinds.execute("DELETE FROM kinds WHERE id > 2")
    kinds.execute(EDGES.replace("INSERT INTO kinds (id) VALUES (2);", ""))
    # Dates before Christ saturate, in the stream only.
    kinds.execute("INSERT INTO kinds (id, d) VALUES (44, '0044-03-15 BC')")
    kinds.await_stream()
    assert kinds.differing("public.kinds") == []
    assert len(kinds.of("public.kinds", Operation.INSERT)) == 9
    (early,) = [r for r in kinds.current("public.kinds").to_pylist() if r["id"] == 44]
    assert early["d"].isoformat() == "0001-01-01"
    nulls = ", ".join(f"{name} = NULL" for name in columns if name not in ("id", EXACT))
    kinds.execute(f"UPDATE kinds SET {nulls} WHERE id = 1")
    kinds.await_stream()
    assert kinds.differing("public.kinds") == []
    (row,) = [r for r in kinds.current("public.kinds").to_pylist() if r["id"] == 1]
    assert {name for name, value in row.items() if value is not None} == {"id"}
    assert kinds.rejected == []


@pytest.mark.matrix
def test_sessions_of_the_connector_may_rest_where_those_of_others_may_not(kinds: Captured) -> None:
    """It would begin again every few seconds, and wait ten of them before it does."""

    def rests() -> bool:
        with psycopg.connect(kinds.dsn) as connection:
            found = connection.execute(RESTING.encode()).fetchall()
        return bool(found)

    kinds.await_stream()
    until(rests, "a session rests for longer than its database lets others", deadline_s=30)


@pytest.mark.matrix
def test_defaults_of_every_type_stop_no_connector(kinds: Captured) -> None:
    assert kinds.differing("public.fallbacks") == []
    kinds.execute("INSERT INTO fallbacks (id) VALUES (3)")
    kinds.execute(NOTHING)
    kinds.await_stream()
    assert kinds.differing("public.fallbacks") == []
    # The connector meets the new columns with the next change.
    kinds.execute(ADDED)
    kinds.execute("INSERT INTO fallbacks (id) VALUES (4)")
    kinds.execute("UPDATE fallbacks SET i2 = 1")
    kinds.await_stream()
    assert kinds.differing("public.fallbacks") == []
    assert kinds.rejected == []
