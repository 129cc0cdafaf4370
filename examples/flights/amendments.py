"""What changes in the source database while the flights are posted, as recorded data.

The script is data, so that the oracle can apply the same amendments to the raw files without
running any of this SQL. One amendment is one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from examples.flights import raw

WEATHER_COLUMNS = ("temp", "wind_speed", "precip", "visib")
"""What the join with departures reads of a weather row."""
ORIGINS = ("EWR", "JFK", "LGA")
_MORNING = datetime(2013, 1, 1, 11, tzinfo=UTC)
_MISSING_HOUR = datetime(2013, 1, 1, 17, tzinfo=UTC)
_BROKEN_GAUGE = datetime(2013, 2, 12, 8, tzinfo=UTC)
_HOURS_AMENDED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class WeatherReading:
    """The final values of one hour at one airport: what the source says after the amendment.

    Fahrenheit, miles per hour, inches, miles.
    """

    origin: str
    time_hour: datetime
    temp: float
    wind_speed: float
    precip: float
    visib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One SQL statement of an amendment, and how many rows it must touch."""

    sql: str
    parameters: tuple[object, ...] = ()
    rows: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """One transaction of the source's own application, at a share of the events posted."""

    title: str
    after: float
    statements: tuple[Statement, ...]
    weather: tuple[WeatherReading, ...] = ()


def script() -> tuple[Amendment, ...]:
    """Return all amendments in order."""
    return (*_planes(), *_weather(), _airport())


def final_weather(amendments: tuple[Amendment, ...]) -> tuple[WeatherReading, ...]:
    """Return the last recorded values of every amended hour."""
    last = {
        (each.origin, each.time_hour): each for amended in amendments for each in amended.weather
    }
    return tuple(last.values())


def _planes() -> tuple[Amendment, ...]:
    seats = "UPDATE planes SET seats = %s WHERE tailnum = %s"
    return (
        Amendment(
            title="plane N14228: seats corrected",
            after=0.10,
            statements=(Statement(sql=seats, parameters=(151, "N14228")),),
        ),
        Amendment(
            title="plane N14228: corrected twice more, in one transaction",
            after=0.20,
            statements=(
                Statement(sql=seats, parameters=(149, "N14228")),
                Statement(
                    sql="UPDATE planes SET speed = 432, engine = 'Turbo-jet' WHERE tailnum = %s",
                    parameters=("N14228",),
                ),
            ),
        ),
        Amendment(
            title="plane N725MQ: registered at last",
            after=0.30,
            statements=(
                Statement(
                    sql="INSERT INTO planes (tailnum, year, type, manufacturer, model, engines, "
                    "seats, speed, engine) VALUES (%s, NULL, 'Fixed wing multi engine', "
                    "'EMBRAER', 'EMB-140', 2, 44, NULL, 'Turbo-fan')",
                    parameters=("N725MQ",),
                ),
            ),
        ),
        Amendment(
            title="plane N102UW: struck off",
            after=0.40,
            statements=(
                Statement(sql="DELETE FROM planes WHERE tailnum = %s", parameters=("N102UW",)),
            ),
        ),
    )


def _weather() -> tuple[Amendment, ...]:
    raw_rows = _raw_weather()
    first = _warmer(raw_rows, hours=range(_HOURS_AMENDED), by=1.8)
    second = _warmer(raw_rows, hours=range(2), by=2.7)
    found = tuple(
        WeatherReading(
            origin=origin,
            time_hour=_MISSING_HOUR,
            temp=39.9 + n,
            wind_speed=12.65858,
            precip=0.0,
            visib=9.0,
        )
        for n, origin in enumerate(("EWR", "JFK"))
    )
    gauge = raw_rows["EWR", _BROKEN_GAUGE]
    mended = _reading(gauge, temp=gauge["temp"], wind_speed=10.35702)
    return (
        Amendment(
            title=f"weather: {len(first)} past temperatures amended",
            after=0.50,
            statements=tuple(_temperature(each) for each in first),
            weather=first,
        ),
        Amendment(
            title="weather: two readings of an hour that was missing",
            after=0.60,
            statements=tuple(_inserted(each) for each in found),
            weather=found,
        ),
        Amendment(
            title=f"weather: {len(second)} of the temperatures amended again",
            after=0.70,
            statements=tuple(_temperature(each) for each in second),
            weather=second,
        ),
        Amendment(
            title="weather: a wind of 1,048 mph taken back",
            after=0.80,
            statements=(
                Statement(
                    sql="UPDATE weather SET wind_speed = %s WHERE origin = %s AND time_hour = %s",
                    parameters=(mended.wind_speed, mended.origin, mended.time_hour),
                ),
            ),
            weather=(mended,),
        ),
    )


def _airport() -> Amendment:
    return Amendment(
        title="airport EWR: renamed",
        after=0.85,
        statements=(
            Statement(
                sql="UPDATE airports SET name = %s WHERE faa = %s",
                parameters=("Newark Liberty International", "EWR"),
            ),
        ),
    )


def _raw_weather() -> dict[tuple[str, datetime], dict[str, object]]:
    table: pa.Table = raw.read_table("weather")
    rows = table.select(["origin", "time_hour", *WEATHER_COLUMNS]).to_pylist()
    return {(row["origin"], row["time_hour"].astimezone(UTC)): row for row in rows}


def _warmer(
    rows: dict[tuple[str, datetime], dict[str, object]], *, hours: range, by: float
) -> tuple[WeatherReading, ...]:
    found = (rows[origin, _MORNING + timedelta(hours=n)] for origin in ORIGINS for n in hours)
    return tuple(
        _reading(row, temp=round(_number(row["temp"]) + by, 2), wind_speed=row["wind_speed"])
        for row in found
    )


def _reading(row: dict[str, object], *, temp: object, wind_speed: object) -> WeatherReading:
    at = row["time_hour"]
    assert isinstance(at, datetime), "the raw file types this column as a time"
    return WeatherReading(
        origin=str(row["origin"]),
        time_hour=at.astimezone(UTC),
        temp=_number(temp),
        wind_speed=_number(wind_speed),
        precip=_number(row["precip"]),
        visib=_number(row["visib"]),
    )


def _number(value: object) -> float:
    return float(str(value))


def _temperature(reading: WeatherReading) -> Statement:
    return Statement(
        sql="UPDATE weather SET temp = %s WHERE origin = %s AND time_hour = %s",
        parameters=(reading.temp, reading.origin, reading.time_hour),
    )


def _inserted(reading: WeatherReading) -> Statement:
    return Statement(
        sql="INSERT INTO weather (origin, time_hour, temp, wind_speed, precip, visib) "
        "VALUES (%s, %s, %s, %s, %s, %s)",
        parameters=(
            reading.origin,
            reading.time_hour,
            reading.temp,
            reading.wind_speed,
            reading.precip,
            reading.visib,
        ),
    )
