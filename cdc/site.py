"""What capture knows of the workspace that it works for."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Protocol

from cdc.connectors import Placement


class CaptureSite(Protocol):
    """One workspace: its files, its services and its bounds.

    What lacks a setting raises `Misconfigured` when it is asked for, and not before.
    """

    @property
    def folder(self) -> Path:
        """Where `sources/*.toml` and their secrets lie."""
        ...

    @property
    def state_dir(self) -> Path:
        """Where what this machine notes lies; it may be lost."""
        ...

    @property
    def name(self) -> str:
        """The workspace's name: connectors, slots and publications are named by it."""
        ...

    @property
    def lake(self) -> str:
        """Where the tables lie."""
        ...

    @property
    def placement(self) -> Placement:
        """What the connectors of this workspace share."""
        ...

    @property
    def topic_prefix(self) -> str:
        """What the names of the workspace's topics begin with."""
        ...

    @property
    def bootstrap(self) -> str:
        """The address of Kafka."""
        ...

    @property
    def connect_url(self) -> str:
        """The address of Kafka Connect."""
        ...

    @property
    def registry_url(self) -> str:
        """The address of the schema registry."""
        ...

    @property
    def store_dsn(self) -> str:
        """The event store's database, which the outbox is read from."""
        ...

    @property
    def max_record_bytes(self) -> int:
        """The largest record that topics take."""
        ...

    @property
    def slot_alarm_bytes(self) -> int:
        """So much WAL kept by a slot raises an alarm."""
        ...

    @property
    def copy_readers(self) -> int:
        """So many connections read a copy side by side."""
        ...

    @property
    def min_free_bytes(self) -> int:
        """So much room stays free where the lake lies."""
        ...

    @property
    def retention(self) -> timedelta:
        """So long old versions of tables can be read."""
        ...

    @property
    def verified_rows_per_second(self) -> int:
        """The rate of the continuous verifier; 0 turns it off."""
        ...
