"""What a workspace wants delivered: `deliveries/NAME.toml`, without secrets.

kind = "webhook"                       # or "mail"
url = "https://shop.example/events"
secret = "env:SHOP_WEBHOOK_SECRET"     # or "file:.penstock/secrets/shop"

[filter]
category = "order"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from delivery.mail import ADDRESS
from delivery.secrets import FORM
from eventstore.filters import kept_filter
from eventstore.groups.model import Terms, check_name
from eventstore.store import EventFilter
from kernel.errors import Misconfigured, PenstockError
from kernel.positions import Position
from schemas.complaints import complaint_of

FOLDER = "deliveries"
PATTERNS = (f"{FOLDER}/*.toml",)
"""All files of deliveries."""
MAX_DELIVERIES = 50
"""Files of one workspace: each is a task, connections, and a label of the metrics."""


def _address(text: str) -> str:
    if ADDRESS.fullmatch(text):
        return text
    raise ValueError("is no mail address")


_Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
_Text = Annotated[str, Field(min_length=1, max_length=255)]
_Secret = Annotated[str, Field(pattern=FORM)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class FilterSection(_Section):
    """`[filter]`: which events are delivered."""

    category: _Text | None = None
    type: _Text | None = None
    stream_prefix: _Text | None = None
    tag: _Text | None = None


class RetrySection(_Section):
    """`[retry]`: how patiently. By default a receiver may be away for some four hours."""

    max_deliveries: int = 15
    backoff_s: _Seconds = 2
    backoff_cap_s: _Seconds = 3_600
    ack_timeout_s: _Seconds = 120
    max_parked: int = 10_000


class _Delivery(_Section):
    subscription: str | None = None
    start: Annotated[int, Field(ge=0, le=2**62)] | Literal["end"] = "end"
    timeout_s: Annotated[float, Field(gt=0, le=300, allow_inf_nan=False)] = 10
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4
    filter: FilterSection = FilterSection()
    retry: RetrySection = RetrySection()


class WebhookSection(_Delivery):
    """A file with `kind = "webhook"`."""

    kind: Literal["webhook"]
    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+[^\s]*$", max_length=2_000)]
    secret: _Secret


class MailSection(_Delivery):
    """A file with `kind = "mail"`."""

    kind: Literal["mail"]
    host: _Text
    port: Annotated[int, Field(ge=1, le=65_535)] = 587
    security: Literal["none", "starttls", "tls"] = "starttls"
    user: _Text | None = None
    password: _Secret | None = None
    from_: Annotated[str, Field(alias="from"), AfterValidator(_address)]
    to: Annotated[list[_Text], Field(min_length=1, max_length=50)]
    subject: Annotated[str, Field(min_length=1, max_length=500)]
    body: Annotated[str, Field(min_length=1, max_length=100_000)]


Section = WebhookSection | MailSection
_SECTION: TypeAdapter[Section] = TypeAdapter(Annotated[Section, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFile:
    """One file, as it was read."""

    name: str
    section: Section

    @property
    def subscription(self) -> str:
        """The subscription that it takes its events from."""
        return self.section.subscription or self.name

    @property
    def filter(self) -> EventFilter:
        """Which events it takes."""
        return EventFilter(**self.section.filter.model_dump())

    @property
    def start(self) -> Position | None:
        """The position that it begins behind; None: the end."""
        start = self.section.start
        return None if start == "end" else Position(start)

    @property
    def terms(self) -> Terms:
        """How its subscription hands out."""
        section, retry = self.section, self.section.retry
        return Terms(
            max_deliveries=retry.max_deliveries,
            ack_timeout=timedelta(seconds=retry.ack_timeout_s),
            backoff=timedelta(seconds=retry.backoff_s),
            backoff_cap=timedelta(seconds=retry.backoff_cap_s),
            max_in_flight=section.concurrency * 4,
            max_parked=retry.max_parked,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenFile:
    """One file that is not right, and why."""

    name: str
    error: Misconfigured


def delivery_files(workspace: Path) -> tuple[DeliveryFile | BrokenFile, ...]:
    """Read all files, by name. One that is not right spoils no other."""
    paths = sorted((workspace / FOLDER).glob("*.toml"))
    found = [_read(path) for path in paths[:MAX_DELIVERIES]]
    for path in paths[MAX_DELIVERIES:]:
        error = Misconfigured(f"{path.name}: {MAX_DELIVERIES} deliveries are the most")
        found.append(BrokenFile(name=path.stem, error=error))
    return tuple(found)


def _read(path: Path) -> DeliveryFile | BrokenFile:
    try:
        check_name(path.stem)
        section = _SECTION.validate_python(tomllib.loads(path.read_text(encoding="utf-8-sig")))
        found = DeliveryFile(name=path.stem, section=section)
        check_name(found.subscription)
        _check_times(found)
        kept_filter(found.filter)
    except ValidationError as error:
        reason = _complaint(error)
    except (OSError, ValueError) as error:
        reason = f"is not valid TOML: {error}"
    except PenstockError as error:
        reason = error.message
    else:
        return found
    return BrokenFile(
        name=path.stem,
        error=Misconfigured(
            f"{FOLDER}/{path.name}: {reason}",
            remedy="Mend the file, which is then taken up; docs/how-to/deliver-events.md.",
        ),
    )


def _complaint(error: ValidationError) -> str:
    found = error.errors(include_input=False)
    if not found[0]["loc"]:
        return "kind: expected 'webhook' or 'mail'"
    # Which kind it is stands in front of each place.
    return complaint_of([{**each, "loc": each["loc"][1:]} for each in found])


def _check_times(found: DeliveryFile) -> None:
    if found.section.timeout_s * 2 > found.terms.ack_timeout.total_seconds():
        raise Misconfigured(
            "retry.ack_timeout_s must be twice timeout_s at least: what is still being sent would "
            "be given to another"
        )
