"""What capture knows of a workspace, read from its settings when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

from apps.settings import Settings

if TYPE_CHECKING:
    from cdc.connectors import Placement
    from cdc.site import CaptureSite

T = TypeVar("T")


class _Read(Generic[T]):
    """A value of a workspace's settings. Raises `Misconfigured` when it is asked for and lacks."""

    def __init__(self, read: Callable[[Settings], T]) -> None:
        self._read = read

    def __get__(self, site: WorkspaceSite, _: type) -> T:
        return self._read(site.settings)


def _placement(settings: Settings) -> Placement:
    # It loads Arrow, which a command that only waits does not pay for.
    from cdc.connectors import Placement

    return Placement(
        workspace=settings.name,
        topic_prefix=settings.text("kafka.topic_prefix"),
        partitions=settings.number("kafka.partitions"),
        registry_url=settings.required("registry.url"),
        max_record_bytes=settings.number("kafka.max_record_bytes"),
    )


@dataclass(frozen=True, slots=True)
class WorkspaceSite:
    """A workspace's settings as `cdc.site.CaptureSite`, which says what each value is."""

    settings: Settings

    folder = _Read(lambda settings: settings.workspace)
    state_dir = _Read(lambda settings: settings.state_dir)
    name = _Read(lambda settings: settings.name)
    lake = _Read(lambda settings: settings.lake)
    placement = _Read(_placement)
    topic_prefix = _Read(lambda settings: settings.text("kafka.topic_prefix"))
    bootstrap = _Read(lambda settings: settings.required("kafka.bootstrap"))
    connect_url = _Read(lambda settings: settings.required("connect.url"))
    registry_url = _Read(lambda settings: settings.required("registry.url"))
    store_dsn = _Read(lambda settings: settings.required("postgres.dsn"))
    max_record_bytes = _Read(lambda settings: settings.number("kafka.max_record_bytes"))
    slot_alarm_bytes = _Read(lambda settings: settings.number("capture.slot_alarm_bytes"))
    copy_readers = _Read(lambda settings: settings.number("capture.copy_readers"))
    min_free_bytes = _Read(lambda settings: settings.number("storage.min_free_bytes"))
    retention = _Read(lambda settings: timedelta(days=settings.number("lake.retention_days")))
    verified_rows_per_second = _Read(lambda settings: settings.number("verify.rows_per_second"))


def capture_site(settings: Settings) -> CaptureSite:
    """Return what capture knows of a workspace."""
    return WorkspaceSite(settings)
