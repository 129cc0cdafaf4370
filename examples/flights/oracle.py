"""The expected tables, computed by DuckDB from the raw files and the recorded amendments.

Independent on purpose: nothing here uses the projections' SQL, the events, or the code that turns
clock times into instants; only the raw files, in one batch. `tests/property` holds it against the
generator, so a mistake in either shows.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa

from examples.flights.amendments import WeatherReading
from examples.flights.posting_order import HeldBack
from examples.flights.raw import FLIGHTS_ARCHIVE, FLIGHTS_MEMBER, data_folder

KEYS: Mapping[str, tuple[str, ...]] = {
    "flight_status": ("flight_id",),
    "carrier_delays": ("carrier", "window_start"),
    "departure_weather": ("flight_id",),
}
"""The expected tables and their keys."""
AWAITING_REPLAY = frozenset({"carrier_delays"})
"""Tables from which a row that came too late stays out until a replay; it passes the others, where
a row depends on no other fact than itself."""

_SETUP = """
SET TimeZone = 'UTC';
CREATE TABLE numbered AS
SELECT row_number() OVER (ORDER BY time_hour, minute, carrier, flight, origin) AS flight_id, *
FROM read_csv($flights, header = true, nullstr = ['NA', '']);
CREATE TABLE zones AS
SELECT faa, tzone FROM read_csv($airports, header = true, nullstr = ['NA', ''])
WHERE faa NOT IN ('BQN', 'PSE', 'SJU', 'STT')
UNION ALL
SELECT unnest(['BQN', 'PSE', 'SJU', 'STT']), 'America/Puerto_Rico';
CREATE TABLE weather AS
SELECT origin, time_hour, temp, wind_speed, precip, visib
FROM read_csv($weather, header = true, nullstr = ['NA', '']);
CREATE TABLE held_back (flight_id BIGINT, kind VARCHAR);
"""

_FLIGHTS = """
CREATE TABLE flown AS
WITH left_gate AS (
  SELECT
    n.*,
    z.tzone,
    time_hour + to_minutes(minute) AS due,
    time_hour + to_minutes(minute) + to_minutes(dep_delay) AS departed_at
  FROM numbered AS n JOIN zones AS z ON z.faa = n.dest
  WHERE flight_id <= $flights
), clocks AS (
  SELECT
    *,
    departed_at AT TIME ZONE tzone AS left_clock,
    date_trunc('day', departed_at AT TIME ZONE tzone)
      + to_hours(arr_time // 100 % 24) + to_minutes(arr_time % 100) AS landed_clock
  FROM left_gate
), landings AS (
  SELECT
    *,
    CASE WHEN landed_clock > left_clock THEN landed_clock
         ELSE landed_clock + INTERVAL 1 DAY END AS clock,
    clock AT TIME ZONE tzone AS instant
  FROM clocks
)
SELECT
  flight_id, carrier, flight, origin, dest, due, departed_at, dep_delay,
  -- An hour that clocks show twice is taken as its first pass; DuckDB takes the second.
  CASE WHEN (instant - INTERVAL 1 HOUR) AT TIME ZONE tzone = clock
            AND instant - INTERVAL 1 HOUR > departed_at
       THEN instant - INTERVAL 1 HOUR ELSE instant END AS arrived_at
FROM landings
"""

_DEPARTED = """
CREATE OR REPLACE VIEW departed AS
SELECT * FROM flown WHERE departed_at IS NOT NULL
  AND flight_id NOT IN (SELECT flight_id FROM held_back WHERE kind = 'departed')
"""

_QUERIES = {
    "flight_status": """
WITH known AS (
  SELECT
    f.*,
    departed_at IS NOT NULL AND NOT EXISTS (
      FROM held_back AS h WHERE h.flight_id = f.flight_id AND kind = 'departed') AS saw_departure,
    arrived_at IS NOT NULL AND NOT EXISTS (
      FROM held_back AS h WHERE h.flight_id = f.flight_id AND kind = 'arrived') AS saw_arrival
  FROM flown AS f
)
SELECT
  flight_id, carrier, flight AS flight_number, origin, dest,
  CASE WHEN departed_at IS NULL THEN 'cancelled' WHEN saw_arrival THEN 'arrived'
       WHEN saw_departure THEN 'departed' ELSE 'scheduled' END AS status,
  CASE WHEN departed_at IS NULL THEN due WHEN saw_arrival THEN arrived_at
       WHEN saw_departure THEN departed_at ELSE due - INTERVAL 24 HOUR END AS status_at
FROM known
""",
    "carrier_delays": """
WITH windows AS (
  SELECT *, date_trunc('hour', departed_at) - to_hours(back) AS window_start
  FROM departed, (SELECT unnest([0, 1, 2]) AS back)
)
SELECT
  carrier,
  window_start,
  window_start + INTERVAL 3 HOUR AS window_end,
  count(*) AS departures,
  sum(dep_delay)::DOUBLE / count(*) AS mean_delay_minutes,
  max(dep_delay) AS max_delay_minutes,
  count(*) FILTER (dep_delay >= 15)::DOUBLE / count(*) AS late_share
FROM windows
GROUP BY carrier, window_start
""",
    "departure_weather": """
SELECT
  d.flight_id, d.carrier, d.origin, d.departed_at,
  d.dep_delay AS departure_delay_minutes,
  w.time_hour AS observed_at,
  w.temp, w.wind_speed, w.precip, w.visib
FROM departed AS d
ASOF LEFT JOIN weather AS w ON w.origin = d.origin AND w.time_hour <= d.departed_at
""",
}


class Oracle:
    """Knows what every projection must hold for the first `flights` flights of the year."""

    def __init__(self, *, flights: int, readings: Sequence[WeatherReading] = ()) -> None:
        self._db = duckdb.connect(config={"threads": 2})
        data = data_folder()
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as scratch:
            with zipfile.ZipFile(data / FLIGHTS_ARCHIVE) as archive:
                unpacked = archive.extract(FLIGHTS_MEMBER, scratch)
            files = {
                "flights": unpacked,
                "airports": str(data / "airports.csv"),
                "weather": str(data / "weather.csv"),
            }
            self._script(_SETUP, files)
        self._db.execute(_FLIGHTS, {"flights": flights})
        self._db.execute(_DEPARTED)
        self._amend(readings)

    def tables(self, *, unsent: Sequence[HeldBack] = ()) -> dict[str, pa.Table]:
        """Return the expected tables by name; `unsent` are events that nobody has seen yet."""
        return {name: self.table(name, without=unsent) for name in KEYS}

    def tables_awaiting_replay(self, late: Sequence[HeldBack]) -> dict[str, pa.Table]:
        """Return the expected tables once `late` came in, later than the lateness allows."""
        return {
            name: self.table(name, without=late if name in AWAITING_REPLAY else ()) for name in KEYS
        }

    def table(self, name: str, *, without: Sequence[HeldBack] = ()) -> pa.Table:
        """Return one expected table, in no order."""
        self._db.execute("DELETE FROM held_back")
        if without:
            rows = [(each.flight_id, each.kind) for each in without]
            self._db.executemany("INSERT INTO held_back VALUES (?, ?)", rows)
        return self._db.sql(_QUERIES[name]).to_arrow_table()

    def _amend(self, readings: Sequence[WeatherReading]) -> None:
        rows = [(r.origin, r.time_hour, r.temp, r.wind_speed, r.precip, r.visib) for r in readings]
        if not rows:
            return
        hours = [row[:2] for row in rows]
        self._db.executemany("DELETE FROM weather WHERE origin = ? AND time_hour = ?", hours)
        self._db.executemany("INSERT INTO weather VALUES (?, ?, ?, ?, ?, ?)", rows)

    def _script(self, text: str, files: Mapping[str, str]) -> None:
        for statement in filter(str.strip, text.split(";")):
            named = {name: path for name, path in files.items() if f"${name}" in statement}
            self._db.execute(statement, named)
