"""Conditions over HTTP: courses with places, students with a limit (the example of dcb.events)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.services.http import service_in_thread
from tests.support.store.postgres import Cluster, database

COURSES, STUDENTS, PLACES, COURSES_EACH = 4, 10, 3, 2


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn) as client:
        yield client


@pytest.fixture(scope="module")
def refusing(postgres_cluster: Cluster) -> Iterator[httpx.Client]:
    """One service for all that is refused: its store stays empty."""
    with database(postgres_cluster) as dsn, service_in_thread(dsn) as client:
        yield client


def append(
    http: httpx.Client, stream: str, event: dict[str, object], condition: object
) -> httpx.Response:
    appends = [{"stream": stream, "events": [event]}]
    return http.post("/v1/append", json={"appends": appends, "condition": condition})


def enrolments(http: httpx.Client) -> tuple[list[dict[str, Any]], int]:
    page = http.get("/v1/events", params={"limit": 1_000, "type": "enrolled"}).json()
    assert page["next_after"] == page["head"]
    return page["events"], page["head"]


class Enrolling:
    """One client: reads what its decision depends on, decides, appends on that condition."""

    def __init__(self, http: httpx.Client, seed: int) -> None:
        self.http = http
        self.rng = random.Random(seed)
        self.outcomes: Counter[str] = Counter()

    def enrol(self) -> None:
        course, student = self.rng.randrange(COURSES), self.rng.randrange(STUDENTS)
        events, head = enrolments(self.http)
        tags = [event["tags"] for event in events]
        taken = sum(f"course:{course}" in given for given in tags)
        attended = sum(f"student:{student}" in given for given in tags)
        if taken >= PLACES or attended >= COURSES_EACH:
            self.outcomes["refused"] += 1
            return
        answer = append(
            self.http,
            f"enrolment-{course}-{student}",
            {
                "type": "enrolled",
                "data": {"course": course, "student": student},
                "tags": [f"course:{course}", f"student:{student}"],
            },
            {
                "query": [
                    {"types": ["enrolment.enrolled"], "tags": [f"course:{course}"]},
                    {"types": ["enrolled"], "tags": [f"student:{student}"]},
                ],
                "after": head,
            },
        )
        self.outcomes[str(answer.status_code)] += 1
        if answer.status_code == 409:
            problem = answer.json()
            assert problem["type"] == "condition-failed"
            assert problem["position"] > problem["after"] == head


def test_concurrent_students_never_overfill_a_course(http: httpx.Client) -> None:
    clients = [Enrolling(http, seed) for seed in range(8)]

    def work(client: Enrolling) -> None:
        for _ in range(25):
            client.enrol()

    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(work, clients))
    outcomes = sum((client.outcomes for client in clients), Counter[str]())
    events, _ = enrolments(http)
    by_course = Counter(event["data"]["course"] for event in events)
    by_student = Counter(event["data"]["student"] for event in events)
    assert outcomes.keys() <= {"201", "409", "refused"}
    assert outcomes["201"] == len(events)
    assert max(by_course.values()) <= PLACES
    assert max(by_student.values()) <= COURSES_EACH
    # Enough was tried to fill every course.
    assert len(events) == COURSES * PLACES


def test_the_short_form_makes_a_name_unique(http: httpx.Client) -> None:
    def claim(number: int) -> int:
        tag = "username:bob"
        event = {"type": "claimed", "data": {"by": number}, "tags": [tag]}
        condition = {"types": ["claimed"], "tags": [tag]}
        return append(http, f"account-{number}", event, condition).status_code

    with ThreadPoolExecutor(10) as pool:
        statuses = sorted(pool.map(claim, range(10)))
    assert statuses == [201] + [409] * 9


def test_a_retry_of_a_conditional_append_gets_its_first_answer(http: httpx.Client) -> None:
    event: dict[str, object] = {
        "id": "8e5f0a52-6a0e-4f0c-9d0f-5a3c1e1f7b11",
        "type": "claimed",
        "data": {"n": 1},
        "tags": ["a:1"],
    }
    condition = {"tags": ["a:1"], "after": 0}
    first = append(http, "name-1", event, condition)
    again = append(http, "name-1", event, condition)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()


@pytest.mark.parametrize(
    ("condition", "complaint"),
    [
        ([], "$.condition: expected an object"),
        ({}, "neither types nor tags"),
        ({"query": []}, "no items"),
        ({"query": [{}]}, "neither types nor tags"),
        ({"query": {}}, "$.condition.query: expected a list"),
        ({"query": [{"tags": "a"}]}, "$.condition.query[0].tags"),
        ({"query": [{"tags": [7]}]}, "$.condition.query[0].tags"),
        ({"query": [{"tags": ["a b"]}]}, "is not a tag"),
        ({"query": [{"types": ["a.b.c"]}]}, "is not an event type"),
        ({"query": [{"tags": ["a"], "after": 1}]}, "unknown field 'after'"),
        ({"query": [{"tags": ["a"]}], "tags": ["a"]}, "unknown field 'tags'"),
        ({"tags": ["a"], "after": -1}, "$.condition.after"),
        ({"tags": ["a"], "after": "end"}, "$.condition.after"),
        ({"tags": [f"t:{n}" for n in range(17)]}, "at most 16"),
        ({"query": [{"tags": ["a"]}] * 17}, "at most 16"),
    ],
)
def test_a_condition_of_no_use_is_refused_by_place(
    refusing: httpx.Client, condition: object, complaint: str
) -> None:
    answer = append(refusing, "order-1", {"type": "placed", "data": {"n": 1}}, condition)
    assert answer.status_code == 422, answer.text
    assert complaint in answer.json()["detail"]
    assert refusing.get("/v1/events").json()["head"] == 0


def test_a_condition_of_another_store_is_refused(refusing: httpx.Client) -> None:
    event: dict[str, object] = {"type": "placed", "data": {"n": 1}}
    answer = append(refusing, "order-1", event, {"tags": ["a"], "after": 7})
    assert (answer.status_code, answer.json()["type"]) == (409, "beyond-head")
