"""What `emit` makes of a query: conditions, rows that are final, and what has no end."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from projections.sql.plans.plan import Strategy, plan
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from tests.support.oracles.sql_world import planned

QUERY = (
    "CREATE PROJECTION q WITH (key = 'carrier', emit = 'when {}') AS "
    "SELECT carrier, COUNT(*) AS n FROM STREAM events.flight.departed GROUP BY carrier"
)


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("m > 1", "the projection gives no column m; there is carrier, n"),
        ("q.n > 1", "the projection gives no column n"),
        ("n", "emit = 'when n' is BIGINT, neither true nor false"),
        ("n > 1, n", "is no condition"),
        ("n > 1 FROM x", "is no condition"),
        ("n >", "is no condition"),
        ("n > 'it", "is no condition"),
        ("COUNT(*) > 1", "COUNT(…) cannot stand here"),
        ("rand() > 1", "gives another value at every run"),
    ],
)
def test_what_is_no_condition_is_refused_at_the_option(condition: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        planned(QUERY.format(condition.replace("'", "''")))
    assert said in refused.value.message
    assert refused.value.message.startswith("<sql>:4:51: ")
    assert refused.value.remedy


def test_a_condition_is_kept_by_regions_and_said() -> None:
    made = planned(QUERY.format("N > 1 AND carrier <> ''AA''"))
    assert made.strategy is Strategy.REGIONS
    assert made.notes[-1] == (
        "the table has the rows whose newest values satisfy: N > 1 AND carrier <> 'AA'"
    )


def test_another_condition_is_another_generation() -> None:
    one, same, other = (planned(QUERY.format(text)) for text in ("n > 1", "n  >  1", "n > 2"))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    plain = QUERY.replace(", emit = 'when {}'", "")
    assert (
        planned(plain).fingerprint
        == planned(plain.replace("key = 'carrier'", "key = carrier, emit = 'changes'")).fingerprint
    )


FINAL = "CREATE PROJECTION q WITH (key = '{}', emit = 'final') AS SELECT {}"
FROM = "FROM STREAM events.flight.departed"
HOUR = "TUMBLE(occurred_at, '1 hour')"
LATER = "b.flight = a.flight AND b.occurred_at > a.occurred_at"


@pytest.mark.parametrize(
    ("key", "query", "said", "fix"),
    [
        ("flight", f"flight, delay {FROM}", "each row stands by itself", "Leave emit out"),
        ("n", f"carrier AS n, COUNT(*) AS m {FROM} GROUP BY carrier", "never ends", "TUMBLE"),
        (
            "carrier, window_end",
            f"carrier, window_end, COUNT(*) AS n {FROM} GROUP BY carrier, "
            "TUMBLE(timestamp_micros(position), '1 hour')",
            "is not the time by which rows of its stream are late",
            "TUMBLE(occurred_at",
        ),
        (
            "until",
            f"window_end AS until, COUNT(*) AS n FROM (SELECT flight, window_start AS five {FROM} "
            "GROUP BY flight, TUMBLE(occurred_at, '5 minutes', '2 minutes')) x "
            "GROUP BY TUMBLE(five, '30 minutes')",
            "is not the time by which rows of its stream are late",
            "TUMBLE(occurred_at",
        ),
        (
            "position",
            f"position, LEAD(delay) OVER (PARTITION BY flight ORDER BY occurred_at) AS n {FROM}",
            "OVER reads rows that may come at any time",
            "CURRENT ROW",
        ),
        (
            "position",
            f"a.position {FROM} a LEFT ANTI JOIN STREAM events.flight.departed b ON {LATER}",
            "waits for another stream without a bound",
            "<= a.occurred_at + INTERVAL",
        ),
        (
            "position",
            f"position, delay - (SELECT MAX(delay) {FROM}) AS above {FROM}",
            "one value of all rows of a stream changes with every row",
            "TUMBLE",
        ),
        (
            "carrier",
            "carrier, COUNT(*) AS n FROM airlines GROUP BY carrier",
            "never ends",
            "TUMBLE",
        ),
    ],
)
def test_what_has_no_end_is_refused_with_a_form_that_works(
    key: str, query: str, said: str, fix: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        planned(FINAL.format(key, query))
    assert said in refused.value.message
    assert ":4:" in refused.value.message
    assert fix in refused.value.remedy


def test_final_rows_are_another_generation_and_say_what_they_wait_for() -> None:
    text = FINAL.format(
        "carrier, window_end", f"carrier, window_end {FROM} GROUP BY carrier, {HOUR}"
    )
    made = planned(text)
    assert made.fingerprint != planned(text.replace(", emit = 'final'", "")).fingerprint
    assert [each.name for each in made.columns] == ["carrier", "window_end"]
    assert any("the lateness" in note and "events.flight.departed" in note for note in made.notes)
    assert "<= 17" in made.rows_at(17)
    assert made.rows_at(None) != made.rows_at(17)


def test_a_day_is_the_moment_it_begins() -> None:
    """Spark's `unix_micros` takes no DATE."""
    days = Relation(
        name="events.day",
        columns=tuple(
            Column(name=name, type=kind)
            for name, kind in {"id": "STRING", "n": "INT", "day": "DATE"}.items()
        ),
        key=(),
        event_time="day",
    )
    query = (
        "id, SUM(n) OVER (PARTITION BY id ORDER BY day ROWS BETWEEN 2 PRECEDING AND "
        "CURRENT ROW) AS n FROM STREAM events.day"
    )
    (decl,) = parse_script(FINAL.format("id", query)).projections
    made = plan(decl, MemoryCatalog(streams={days.name: days}))
    assert "unix_micros(cast(`day` as timestamp))" in made.rows_at(None).lower()
