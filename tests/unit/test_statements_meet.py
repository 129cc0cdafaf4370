"""What is deployed at the same moment as something else is decided on what that left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernel.errors import Conflict
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import DeployedCatalog, Entry
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.statements.parse import parse_script
from replay.deployment import Outcome, apply
from tests.support.lake.handmade import SQL, HandMade, told

NAME = "report"


@pytest.fixture
def made(lake: Lake) -> HandMade:
    return told(lake)


def declared(text: str) -> tuple[ProjectionDecl, ...]:
    return tuple(parse_script(text).projections)


def meeting(monkeypatch: pytest.MonkeyPatch, rival: Callable[[], object]) -> None:
    """Let a rival deploy when the catalog was looked at for the first time."""
    look, met = DeployedCatalog.entries, list[None]()

    def entries(self: DeployedCatalog) -> list[Entry]:
        found = look(self)
        if not met:
            met.append(None)
            rival()
        return found

    monkeypatch.setattr(DeployedCatalog, "entries", entries)


def test_another_query_that_was_deployed_meanwhile_is_not_written_over(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SQL.format(name=NAME, key="id")
    other = text.replace("word FROM", "upper(word) AS word FROM")
    meeting(monkeypatch, lambda: apply(made.site, (), declared(other)))
    with pytest.raises(Conflict, match="is deployed with another query"):
        apply(made.site, (), declared(text))
    (entry,) = DeployedCatalog(made.lake, Tables()).entries()
    assert "upper" in entry.text


def test_a_generation_that_went_live_meanwhile_stays_live(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.deploy(NAME)
    meeting(monkeypatch, lambda: made.deploy(NAME, generation=2))
    slower = SQL.format(name=NAME, key="id").replace("WITH (", "WITH (freshness = '9 seconds', ")
    (done,) = apply(made.site, (), declared(slower))
    assert (done.outcome, done.generation) == (Outcome.CHANGED, 2)
    (entry,) = DeployedCatalog(made.lake, Tables()).entries()
    assert entry.generation == 2
