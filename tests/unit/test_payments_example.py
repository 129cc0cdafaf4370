"""The payments of the examples: their rules, and their events of every released version."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from eventstore.codecs import Codecs
from eventstore.deciders import Event
from eventstore.deciders.kit import Scenarios
from eventstore.deciders.workspace_code import load_code
from eventstore.intake import Intake
from eventstore.upcasting import MemoryVersions, Upcasting
from kernel.positions import Position, Version
from schemas.compatibility import complaints
from schemas.records import NewEvent, RecordedEvent
from schemas.registry import MemoryRegistry
from tests.architecture.tree import ROOT
from tests.support.store.memory import MemorySchemaCache

PAYMENTS = ROOT / "examples/payments"
CODE = load_code(PAYMENTS)
account = Scenarios(CODE.deciders["account"])

OPENED = Event("opened", {"owner": "Ada", "currency": "EUR"})
DEPOSITED = Event("deposited", {"amount": "100.00"})
LIMITED = Event("limit_set", {"daily_limit": "30.00"})
MONDAY = datetime(2013, 1, 7, 9, tzinfo=UTC)
TUESDAY = datetime(2013, 1, 8, 9, tzinfo=UTC)


def paid(amount: str, day: datetime = MONDAY) -> Event:
    data = {"amount": amount, "payee": "shop", "day": day.date().isoformat(), "reference": None}
    return Event("paid", data)


def test_an_account_is_opened_once() -> None:
    account.given().when("open", owner="Ada").then(OPENED)
    account.given(OPENED).when("open", owner="Bob").then_refused("open already")
    account.given().when("deposit", amount=1).then_refused("not open")


def test_payments_are_bounded_by_the_balance() -> None:
    bounded = account.given(OPENED, DEPOSITED)
    (
        bounded.when("pay", amount="100.00", payee="shop", at=MONDAY)
        .then(paid("100.00"))
        .then_state({"balance": "0.00"})
    )
    bounded.when("pay", amount="100.01", payee="shop").then_refused("the balance is 100.00 EUR")
    for amount in ("0", "-1", "0.001", "1e12"):
        bounded.when("pay", amount=amount, payee="shop").then_refused("no amount of money")


def test_the_limit_counts_one_day() -> None:
    limited = account.given(OPENED, DEPOSITED, LIMITED, paid("20.00"))
    limited.when("pay", amount=10, payee="shop", at=MONDAY).then(paid("10"))
    limited.when("pay", amount="10.01", payee="shop", at=MONDAY).then_refused("limit for a day")
    limited.when("pay", amount=30, payee="shop", at=TUESDAY).then(paid("30", TUESDAY))


def test_a_limit_that_is_there_already_is_no_news() -> None:
    account.given(OPENED, LIMITED).when("set_limit", daily_limit="30.00").then_nothing()
    account.given(OPENED, LIMITED).when("set_limit").then(Event("limit_set", {"daily_limit": None}))


# Every released version of every schema, for ever.

RELEASED = {
    folder.name: [(folder / f"v{n}.avsc").read_text() for n in range(1, len(files) + 1)]
    for folder in sorted((PAYMENTS / "schemas").iterdir())
    if (files := list(folder.glob("v*.avsc")))
}
SAMPLES: dict[tuple[str, int], dict[str, Any]] = {
    ("account.opened", 1): {"owner": "Ada"},
    ("account.opened", 2): {"owner": "Ada", "currency": "NOK"},
    ("account.deposited", 1): {"amount": "20.00"},
    ("account.paid", 1): {"cents": 1250, "payee": "shop", "day": "2013-01-07"},
    ("account.paid", 2): {"amount": "12.50", "payee": "shop", "day": "2013-01-07"},
    ("account.paid", 3): {
        "amount": "12.50",
        "payee": "shop",
        "day": "2013-01-07",
        "reference": "42",
    },
    ("account.limit_set", 1): {"daily_limit": "30.00"},
}
"""An event as a writer of each version writes it. A new version needs a new sample here."""
NEWEST: dict[tuple[str, int], dict[str, Any]] = {
    ("account.opened", 1): {"owner": "Ada", "currency": "EUR"},
    ("account.paid", 1): {
        "amount": "12.50",
        "payee": "shop",
        "day": "2013-01-07",
        "reference": None,
    },
    ("account.paid", 2): {
        "amount": "12.50",
        "payee": "shop",
        "day": "2013-01-07",
        "reference": None,
    },
}
"""What those that changed since say today."""


def test_every_released_version_has_a_sample() -> None:
    released = {(type_, n) for type_, texts in RELEASED.items() for n in range(1, len(texts) + 1)}
    assert released == set(SAMPLES)
    assert set(RELEASED) == {
        f"account.{name}" for name in ("deposited", "limit_set", "opened", "paid")
    }


@pytest.mark.parametrize("type_", RELEASED)
def test_each_version_may_follow_all_before(type_: str) -> None:
    for older, newer in itertools.combinations(RELEASED[type_], 2):
        assert complaints(reader=newer, writer=older) == []


@pytest.mark.parametrize(("type_", "version"), SAMPLES)
def test_events_of_any_version_are_read_with_all_later_ones(type_: str, version: int) -> None:
    """Written when `version` was new, read after each later release: by its own fields, today."""
    for newest in range(version, len(RELEASED[type_]) + 1):
        data = asyncio.run(written_then_read(type_, version, newest))
        if newest == len(RELEASED[type_]):
            assert data == NEWEST.get((type_, version), SAMPLES[type_, version])


def test_an_account_of_old_events_has_the_state_of_new_ones() -> None:
    old, new = (
        [
            Event(type_.partition(".")[2], asyncio.run(written_then_read(type_, version, newest)))
            for type_, version in versions
            for newest in (len(RELEASED[type_]),)
        ]
        for versions in (
            [("account.opened", 1), ("account.deposited", 1), ("account.paid", 1)],
            [("account.opened", 2), ("account.deposited", 1), ("account.paid", 3)],
        )
    )
    account.given(*old).then_state({"balance": "7.50", "currency": "EUR", "day": "2013-01-07"})
    account.given(*new).then_state({"balance": "7.50", "currency": "NOK", "day": "2013-01-07"})


async def written_then_read(type_: str, version: int, newest: int) -> dict[str, Any]:
    """Write the sample with `version`, release all up to `newest`, read with today's upcasters."""
    registry = MemoryRegistry()
    intake = Intake(registry, MemorySchemaCache(), "strict", Codecs())
    for text in RELEASED[type_][:version]:
        await intake.add(type_, text)
    category, _, name = type_.partition(".")
    sample = SAMPLES[type_, version]
    event = NewEvent(
        id=uuid.uuid4(), type=name, data=sample, metadata={}, tags=(), occurred_at=None
    )
    (encoded,) = await intake.encode(category, [event])
    for text in RELEASED[type_][version:newest]:
        await intake.add(type_, text)
    recorded = RecordedEvent(
        store_id="s",
        position=Position(1),
        id=encoded.id,
        stream=f"{category}-1",
        version=Version(0),
        category=category,
        type=name,
        schema_id=encoded.schema_id,
        data_format=encoded.data_format,
        data=encoded.data,
        subject=None,
        key_id=None,
        metadata={},
        tags=(),
        occurred_at=MONDAY,
        recorded_at=MONDAY,
    )
    upcasting = Upcasting(CODE.upcasters, registry, MemoryVersions())
    await upcasting.learn([recorded])
    return upcasting.data(recorded)
