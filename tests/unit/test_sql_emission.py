"""`emit = 'when …'`: which conditions there are, and what they change."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from projections.sql.plan import Strategy
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
