"""What capture knows of a workspace, read from its settings when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from apps.settings import Settings

if TYPE_CHECKING:
    from cdc.connectors import Placement
    from cdc.site import CaptureSite


@dataclass(frozen=True, slots=True)
class WorkspaceSite:
    """A workspace's settings as `cdc.site.CaptureSite`."""

    settings: Settings

    @property
    def folder(self) -> Path:
        """Where `sources/*.toml` and their secrets lie."""
        return self.settings.workspace

    @property
    def state_dir(self) -> Path:
        """Where what this machine notes lies; it may be lost."""
        return self.settings.state_dir

    @property
    def name(self) -> str:
        """The workspace's name: connectors, slots and publications are named by it."""
        return self.settings.name

    @property
    def lake(self) -> str:
        """Where the tables lie."""
        return self.settings.lake

    @property
    def placement(self) -> Placement:
        """What the connectors of this workspace share."""
        # It loads Arrow, which a command that only waits does not pay for.
        from cdc.connectors import Placement

        return Placement(
            workspace=self.settings.name,
            topic_prefix=self.settings.text("kafka.topic_prefix"),
            partitions=self.settings.number("kafka.partitions"),
            registry_url=self.settings.required("registry.url"),
            max_record_bytes=self.settings.number("kafka.max_record_bytes"),
        )

    @property
    def topic_prefix(self) -> str:
        """What the names of the workspace's topics begin with."""
        return self.settings.text("kafka.topic_prefix")

    @property
    def bootstrap(self) -> str:
        """The address of Kafka."""
        return self.settings.required("kafka.bootstrap")

    @property
    def connect_url(self) -> str:
        """The address of Kafka Connect."""
        return self.settings.required("connect.url")

    @property
    def registry_url(self) -> str:
        """The address of the schema registry."""
        return self.settings.required("registry.url")

    @property
    def store_dsn(self) -> str:
        """The event store's database, which the outbox is read from."""
        return self.settings.required("postgres.dsn")

    @property
    def max_record_bytes(self) -> int:
        """The largest record that topics take."""
        return self.settings.number("kafka.max_record_bytes")

    @property
    def slot_alarm_bytes(self) -> int:
        """So much WAL kept by a slot raises an alarm."""
        return self.settings.number("capture.slot_alarm_bytes")

    @property
    def copy_readers(self) -> int:
        """So many connections read a copy side by side."""
        return self.settings.number("capture.copy_readers")

    @property
    def min_free_bytes(self) -> int:
        """So much room stays free where the lake lies."""
        return self.settings.number("storage.min_free_bytes")

    @property
    def retention(self) -> timedelta:
        """So long old versions of tables can be read."""
        return timedelta(days=self.settings.number("lake.retention_days"))

    @property
    def verified_rows_per_second(self) -> int:
        """The rate of the continuous verifier; 0 turns it off."""
        return self.settings.number("verify.rows_per_second")


def capture_site(settings: Settings) -> CaptureSite:
    """Return what capture knows of a workspace."""
    return WorkspaceSite(settings)
