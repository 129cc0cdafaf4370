"""Plans are kept, and made anew when a relation or the statement has become another."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from kernel.errors import InvalidRequest
from projections.sql.plans.kept_plans import Asked, KeptPlans
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, Relation

SQL = "CREATE PROJECTION seen WITH (key = 'id') AS SELECT id, word FROM STREAM events.a.b;"
LOG = Relation(
    name="events.a.b",
    columns=(Column(name="id", type="BIGINT"), Column(name="word", type="STRING")),
    key=("id",),
    event_time=None,
)


@dataclass
class Told:
    """A catalog whose log may change, and that counts what it is asked."""

    log: Relation | None = LOG
    asked: list[str] = field(default_factory=list)

    def stream(self, name: str) -> Relation | None:
        self.asked.append(name)
        return self.log

    def history(self, name: str) -> Relation | None:
        return None

    def latest(self, name: str) -> Relation | None:
        return None

    def projection(self, name: str) -> Relation | None:
        return None

    def names(self) -> list[str]:
        return []


def decl() -> ProjectionDecl:
    (found,) = parse_script(SQL).projections
    return found


def test_a_plan_is_kept_while_all_stays_the_same() -> None:
    plans, one = KeptPlans(), decl()
    made = plans.plan(one, Told())
    assert plans.plan(one, Told()) is made
    plans.keep_only({"another"})
    assert plans.plan(one, Told()) is not made


def test_another_column_or_another_statement_makes_another_plan() -> None:
    plans, one = KeptPlans(), decl()
    made = plans.plan(one, Told())
    wider = replace(LOG, columns=(Column(name="id", type="STRING"), *LOG.columns[1:]))
    again = plans.plan(one, Told(wider))
    assert again is not made
    assert again.columns[0].type == "STRING"
    assert plans.plan(decl(), Told(wider)) is not again


def test_a_refusal_is_not_kept_and_neither_is_a_plan_of_what_is_gone() -> None:
    plans, one = KeptPlans(), decl()
    with pytest.raises(InvalidRequest):
        plans.plan(one, Told(None))
    assert plans.plan(one, Told()).name == "seen"
    with pytest.raises(InvalidRequest):
        plans.plan(one, Told(None))


def test_a_catalog_is_asked_each_question_once() -> None:
    told = Told()
    asked = Asked(told)
    for _ in range(3):
        assert asked.stream("events.a.b") == LOG
        assert asked.latest("events.a.b") is None
    assert told.asked == ["events.a.b"]
