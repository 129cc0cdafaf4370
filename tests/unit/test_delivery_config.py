"""Files of deliveries: read one by one, complained about with their place, never with a secret."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from delivery.config import (
    MAX_DELIVERIES,
    BrokenFile,
    DeliveryFile,
    MailSection,
    delivery_files,
)
from delivery.secrets import secret
from eventstore.store import EventFilter
from kernel.errors import Misconfigured

WEBHOOK = 'kind = "webhook"\nurl = "https://h/x"\nsecret = "env:S"\n'
MAIL = (
    'kind = "mail"\nhost = "h"\nfrom = "a@b.example"\nto = ["{data.mail}"]\n'
    'subject = "s"\nbody = "b"\n'
)


def read(tmp_path: Path, text: str, name: str = "shop") -> DeliveryFile | BrokenFile:
    (tmp_path / "deliveries").mkdir(exist_ok=True)
    (tmp_path / "deliveries" / f"{name}.toml").write_text(text)
    (found,) = [each for each in delivery_files(tmp_path) if each.name == name]
    return found


def test_a_workspace_without_files_delivers_nothing(tmp_path: Path) -> None:
    assert delivery_files(tmp_path) == ()


def test_defaults_begin_at_the_end_and_are_patient(tmp_path: Path) -> None:
    found = read(tmp_path, WEBHOOK)
    assert isinstance(found, DeliveryFile)
    assert (found.subscription, found.start, found.filter) == ("shop", None, EventFilter())
    terms = found.terms
    pauses = [terms.backoff_after(n) for n in range(1, terms.max_deliveries)]
    assert sum(pauses, timedelta()) > timedelta(hours=4)
    assert found.section.timeout_s * 2 <= terms.ack_timeout.total_seconds()


def test_what_a_file_says(tmp_path: Path) -> None:
    text = (
        WEBHOOK + 'subscription = "other"\nstart = 7\nconcurrency = 2\n'
        '[filter]\ncategory = "order"\ntag = "shop:1"\n[retry]\nmax_deliveries = 3\n'
    )
    found = read(tmp_path, text)
    assert isinstance(found, DeliveryFile)
    assert (found.subscription, found.start) == ("other", 7)
    assert found.filter == EventFilter(category="order", tag="shop:1")
    assert (found.terms.max_deliveries, found.terms.max_in_flight) == (3, 8)
    mail = read(tmp_path, MAIL, "thanks")
    assert isinstance(mail, DeliveryFile)
    assert isinstance(mail.section, MailSection)
    assert (mail.section.port, mail.section.security) == (587, "starttls")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "kind: expected 'webhook' or 'mail'"),
        (WEBHOOK + 'colour = "red"', "colour: there is no such field"),
        (WEBHOOK.replace("https:", "ftp:"), "url: "),
        (WEBHOOK + "start = -1", "start: must be at least 0, or expected 'end'"),
        (WEBHOOK + "concurrency = 0", "concurrency: "),
        (WEBHOOK + 'subscription = "No"', "cannot name a subscription"),
        (WEBHOOK + "[retry]\nmax_deliveries = 0", "max_deliveries: 0 is not in 1 to 1000"),
        (WEBHOOK + '[filter]\ncategory = "Orders"', "not a category"),
        (MAIL.replace("a@b.example", "nobody"), "from: is no mail address"),
        (MAIL.replace('["{data.mail}"]', "[]"), "to: "),
        (MAIL + 'password = "hunter2"', "password: "),
        ("x = \x00", "is not valid TOML"),
    ],
)
def test_a_complaint_names_its_place_and_no_value(tmp_path: Path, text: str, reason: str) -> None:
    found = read(tmp_path, text)
    assert isinstance(found, BrokenFile)
    assert found.error.message.startswith("deliveries/shop.toml: ")
    assert reason in found.error.message
    assert "hunter2" not in found.error.message
    assert "taken up" in found.error.remedy


def test_a_name_that_no_subscription_can_have(tmp_path: Path) -> None:
    assert isinstance(read(tmp_path, WEBHOOK, "Bad Name"), BrokenFile)


def test_there_are_only_so_many(tmp_path: Path) -> None:
    for number in range(MAX_DELIVERIES + 1):
        read(tmp_path, WEBHOOK, f"d{number:03}")
    found = delivery_files(tmp_path)
    assert [each.name for each in found if isinstance(each, BrokenFile)] == [
        f"d{MAX_DELIVERIES:03}"
    ]


def test_secrets_come_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SECRET", "one")
    (tmp_path / "kept").write_text("two\n")
    assert secret("env:SOME_SECRET", tmp_path) == "one"
    assert secret("file:kept", tmp_path) == "two"
    (tmp_path / "empty").write_text("\n")
    for reference in ("env:NOT_SET_ANYWHERE", "file:absent", "file:empty"):
        with pytest.raises(Misconfigured):
            secret(reference, tmp_path)
