"""Connector configuration and Connect's answers, without a worker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

from cdc.connect import (
    ConnectClient,
    ConnectorStatus,
    cause_of,
    differences,
    refuse_too_large,
)
from cdc.connectors import (
    CaptureConnector,
    ConnectorDatabase,
    OutboxConnector,
    Placement,
    replication_name,
)
from cdc.options import TableOptions
from cdc.owners import refuse_other_writer
from kernel.errors import Conflict, InvalidRequest, Misconfigured, NotFound, Unavailable

DATABASE = ConnectorDatabase(host="db", port=5432, name="shop", user="capture", password="secret")
PLACEMENT = Placement(
    workspace="local", topic_prefix="p.", partitions=3, registry_url="http://registry/"
)
CAPTURE = CaptureConnector(
    source="shop",
    database=DATABASE,
    tables=("public.orders", "public.a$b"),
    placement=PLACEMENT,
    keys={"public.a$b": ("x", "y")},
)
OUTBOX = OutboxConnector(database=DATABASE, placement=PLACEMENT)

Answers = Callable[[httpx.Request], httpx.Response]


def client(answers: Answers) -> ConnectClient:
    return ConnectClient("http://connect", transport=httpx.MockTransport(answers))


def test_what_keeps_data_whole_is_configured() -> None:
    config = CAPTURE.render()
    assert config["decimal.handling.mode"] == "string"
    assert config["interval.handling.mode"] == "string"
    assert config["event.converting.failure.handling.mode"] == "fail"
    assert config["skipped.operations"] == "none"
    assert config["include.unknown.datatypes"] == "true"
    assert config["transforms.nulls.type"] == "penstock.connect.KeepNulls"
    assert config["provide.transaction.metadata"] == "true"
    for each in (config, OUTBOX.render()):
        assert each["exactly.once.support"] == "required"
        assert each["publication.autocreate.mode"] == "disabled"
        assert "pg_logical_emit_message" in each["heartbeat.action.query"]
        assert all(isinstance(value, str) for value in each.values())


def test_names_carry_workspace_and_source() -> None:
    assert (CAPTURE.name, CAPTURE.slot, CAPTURE.topics) == (
        "local-shop",
        "penstock_local_shop",
        "p.shop",
    )
    assert (OUTBOX.name, OUTBOX.slot) == ("local-outbox", "penstock_local_outbox")
    config = CAPTURE.render()
    assert config["table.include.list"] == r"public\.orders,public\.a\$b"
    assert config["message.key.columns"] == r"public\.a\$b:x,y"
    assert config["topic.creation.default.partitions"] == "3"
    assert config["topic.creation.single.partitions"] == "1"
    router = "transforms.outbox.route.topic.replacement"
    assert OUTBOX.render()[router] == "p.events.${routedByValue}"


def test_a_declared_key_is_named_by_whole_names() -> None:
    """The connector takes table and column together for a pattern."""
    columns = ("cost ($)", "a|b", "x*", "größe", "back\\slash")
    keyed = replace(CAPTURE, keys={"public.a$b": columns}).render()["message.key.columns"]
    table, _, patterns = keyed.partition(":")
    for column, pattern in zip(columns, patterns.split(","), strict=True):
        assert re.fullmatch(f"{table}.{pattern}", f"public.a$b.{column}")


def test_only_topics_of_a_connector_s_own_have_one_partition() -> None:
    """Events of a category that is called as those topics end are spread like all others."""
    single = OUTBOX.render()["topic.creation.single.include"]
    topics = ("p.local-outbox.message", "__debezium-heartbeat.p.local-outbox", "p.events.message")
    assert [bool(re.fullmatch(single, topic)) for topic in topics] == [True, True, False]


def test_topics_that_another_connector_writes_are_refused() -> None:
    other = replace(CAPTURE, placement=replace(PLACEMENT, workspace="theirs"))
    events = replace(OUTBOX, placement=replace(PLACEMENT, workspace="theirs"))
    there = {each.name: each.render() for each in (CAPTURE, OUTBOX)}

    def answers(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/connectors":
            return httpx.Response(200, json=list(there))
        return httpx.Response(200, json=there[request.url.path.split("/")[2]])

    connect = client(answers)
    below = replace(other, source="eu", placement=replace(other.placement, topic_prefix="p.shop."))
    around = replace(other, source="p", placement=replace(other.placement, topic_prefix=""))
    for desired, writer in (
        *((other, "local-shop"), (events, "local-outbox")),
        *((below, "local-shop"), (around, "local-outbox")),
    ):
        with pytest.raises(Conflict, match=f"connector {writer} writes the topics of theirs-"):
            refuse_other_writer(connect, desired)
    for own in (CAPTURE, OUTBOX, replace(CAPTURE, source="shopping")):
        refuse_other_writer(connect, own)


def test_slot_names_are_legal_or_refused() -> None:
    assert replication_name("My-Work.Space", "a") == "penstock_my_work_space_a"
    with pytest.raises(InvalidRequest, match="longer than"):
        replication_name("w" * 60, "a")


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(CAPTURE)


def test_veiled_columns_are_named_by_whole_names() -> None:
    people = TableOptions(exclude=("card",), mask=("phone",), hash=("e.mail",))
    veiled = replace(CAPTURE, options={"public.a$b": people}, salt="salt0123456789salt")
    config = veiled.render()
    excluded, masked_ = config["column.exclude.list"], config["column.mask.with.8.chars"]
    hashed = config["column.mask.hash.v2.SHA-256.with.salt.salt0123456789salt"]
    assert re.fullmatch(excluded, "public.a$b.card")
    assert re.fullmatch(masked_, "public.a$b.phone")
    assert re.fullmatch(hashed, "public.a$b.e.mail")
    # As it travels where an earlier column came to be called so but for letter case.
    assert re.fullmatch(hashed, "public.a$b.e.mail\uf8ff2")
    for other in (
        "public.a$b.e.mail2",
        "public.a$b.e_mail",
        "public.a$b.e.mail\uf8ff",
        "a$b.e.mail",
    ):
        assert not re.fullmatch(hashed, other)
    # The rule for all columns must let the hashed ones pass: the connector follows the first.
    rule = config["column.propagate.source.type"]
    assert re.fullmatch(rule, "public.a$b.e.mail") is None
    assert re.fullmatch(rule, "shop.public.a$b.e.mail") is None
    assert re.fullmatch(rule, "public.a$b.card") is not None


def test_differences_ignore_what_connect_adds() -> None:
    running = {"a": "1", "b": "2", "name": "local-shop"}
    assert differences({"a": "1", "b": "2"}, running) == ()
    assert differences({"a": "1", "b": "3", "c": "4"}, running) == ("b", "c")
    assert differences({"a": "1"}, running) == ("b",)


def test_apply_changes_only_what_differs() -> None:
    puts = []

    def answers(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            puts.append(json.loads(request.content))
        return httpx.Response(200, json={"a": "1", "name": "n"})

    with client(answers) as connect:
        assert connect.apply("n", {"a": "1"}) == ()
        assert connect.apply("n", {"a": "2"}) == ("a",)
    assert puts == [{"a": "2"}]


TRACE = """org.apache.kafka.connect.errors.ConnectException: An exception occurred.
\tat io.debezium.pipeline.ErrorHandler.setProducerThrowable(ErrorHandler.java:67)
Caused by: io.debezium.DebeziumException: Failed to convert 'public.t.f'
\tat x.Y.z(Y.java:1)
\t... 19 more
"""


def test_the_cause_of_a_failure_comes_first() -> None:
    assert cause_of(TRACE) == "Failed to convert 'public.t.f' <- An exception occurred."


def test_a_failed_task_is_named_with_its_cause() -> None:
    def answers(_: httpx.Request) -> httpx.Response:
        task = {"state": "FAILED", "worker_id": "w", "trace": TRACE}
        connector = {"state": "RUNNING", "worker_id": "w"}
        return httpx.Response(200, json={"connector": connector, "tasks": [task]})

    with client(answers) as connect, pytest.raises(Misconfigured) as error:
        connect.await_running("local-shop", timeout_s=1)
    assert "Failed to convert 'public.t.f'" in error.value.message
    assert "penstock source resume shop" in error.value.remedy


def test_a_connector_that_does_not_come_up_is_unavailable() -> None:
    def answers(_: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"message": "No status found"})

    with client(answers) as connect, pytest.raises(Unavailable, match="is unknown after 0 s"):
        connect.await_running("local-shop", timeout_s=0)


@pytest.mark.parametrize(
    ("status", "expected"), [(404, NotFound), (400, Misconfigured), (405, Misconfigured)]
)
def test_refusals_become_errors_of_ours(status: int, expected: type[Exception]) -> None:
    answer = httpx.Response(status, json={"message": "because"})
    with client(lambda _: answer) as connect, pytest.raises(expected, match="because"):
        connect.status("n")


def test_a_connect_without_our_plugin_is_told_what_it_lacks() -> None:
    said = "Failed to find any class that implements Connector and which name matches penstock.…"
    answer = httpx.Response(500, json={"message": said})
    with client(lambda _: answer) as connect, pytest.raises(Misconfigured) as error:
        connect.apply("n", {"connector.class": "penstock.connect.WholeTransactions"})
    assert "lacks a plugin: Failed to find" in error.value.message
    assert "stack/connect/penstock-connect.jar" in error.value.remedy


@pytest.mark.parametrize(
    "not_yet",
    [
        httpx.Response(409, json={"message": "rebalance in process"}),
        httpx.Response(404, text="<html>a server without resources</html>"),
    ],
)
def test_a_worker_that_is_not_ready_is_waited_for(not_yet: httpx.Response) -> None:
    calls = []

    def answers(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return not_yet if len(calls) < 3 else httpx.Response(200, json=["b", "a"])

    with client(answers) as connect:
        assert connect.names() == ("a", "b")
    assert len(calls) == 3


def test_a_record_that_no_topic_takes_is_named_with_its_setting() -> None:
    cause = (
        "org.apache.kafka.common.errors.RecordTooLargeException: The message is 6291745 bytes when"
        " serialized which is larger than 1048576, which is the value of the max.request.size"
        " configuration."
    )
    failed = ConnectorStatus(
        name="local-shop", connector="RUNNING", task="FAILED", worker="w", cause=cause
    )
    with pytest.raises(Misconfigured, match=r"larger than kafka\.max_record_bytes") as refused:
        refuse_too_large(failed)
    assert "penstock source resume shop" in refused.value.remedy
    refuse_too_large(replace(failed, cause="org.postgresql.util.PSQLException: gone"))
