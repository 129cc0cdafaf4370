"""Watches the slots of all sources: metrics, an alarm before it is too late, and what is lost.

A slot that is found lost is noted in the catalog and its connector is stopped: Connect would
otherwise try again for ever, and what it then reads would have a gap before it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge

from cdc.connect import ConnectClient
from cdc.connectors import replication_name
from cdc.database import Connection
from cdc.site import CaptureSite
from cdc.slots import SlotWatch, next_incarnation, refuse_lost, watch
from cdc.upkeep.noted_incarnations import incarnation_of, record_incarnation, record_lost
from kernel.errors import NotFound
from lake.layout import Lake
from schemas.identifiers import OUTBOX

log = logging.getLogger("penstock.slots")

_STATUSES = ("reserved", "extended", "unreserved", "lost", "missing")


class SlotMetrics:
    """Gauges per source. A slot that is gone is `missing`, its sizes stay what they were."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, what: str, *more: str) -> Gauge:
            return Gauge(name, what, ["source", *more], registry=registry)

        self.lag = gauge(
            "penstock_slot_lag_bytes", "WAL written that the connector has not confirmed"
        )
        self.retained = gauge(
            "penstock_slot_retained_bytes", "WAL that the slot keeps on the server's disk"
        )
        self.limit = gauge(
            "penstock_slot_limit_bytes", "What the server lets the slot keep; 0: no limit"
        )
        self.active = gauge("penstock_slot_active", "Whether a connector reads the slot")
        self.alarm = gauge("penstock_slot_alarm", "Whether the slot keeps too much WAL, or is lost")
        self.status = gauge(
            "penstock_slot_wal_status", "1 for what the slot's WAL is now", "status"
        )

    def set(self, source: str, seen: SlotWatch) -> None:
        """Book one look."""
        at = seen.slot
        now = "missing" if at is None else at.wal_status
        for status in _STATUSES:
            self.status.labels(source, status).set(status == now)
        self.alarm.labels(source).set(seen.alarm is not None or seen.lost is not None)
        self.limit.labels(source).set(seen.limit_bytes or 0)
        self.active.labels(source).set(at is not None and at.active_pid is not None)
        if at is not None:
            self.lag.labels(source).set(at.lag_bytes)
            self.retained.labels(source).set(at.retained_bytes)

    def forget(self, source: str) -> None:
        """Drop the series of a source that is gone."""
        for gauge in (self.lag, self.retained, self.limit, self.active, self.alarm):
            gauge.remove_by_labels({"source": source})
        self.status.remove_by_labels({"source": source})


class SlotGuard:
    """Looks at one source's slot at a time. `alarms` says which keep too much, for health."""

    def __init__(self, site: CaptureSite, lake: Lake, metrics: SlotMetrics) -> None:
        self._site = site
        self._placement = site.placement
        self._lake = lake
        self._metrics = metrics
        self.alarms: dict[str, str] = {}

    def look(self, name: str, connection: Connection, connect: ConnectClient) -> None:
        """Book a slot's sizes. Raises `Incompatible` (state slot-lost), once it is stopped."""
        known = incarnation_of(self._lake, name)
        connector = f"{self._placement.workspace}-{name}"
        seen = watch(
            connection,
            replication_name(self._placement.workspace, name),
            known=known,
            offsets=lambda: _offsets(connect, connector),
            alarm_bytes=self._site.slot_alarm_bytes,
        )
        self._metrics.set(name, seen)
        self._note_alarm(name, seen.alarm)
        if seen.lost is None:
            if known is None and seen.slot is not None and name != OUTBOX:
                record_incarnation(self._lake, name, next_incarnation(seen.server, seen.slot, None))
            if known is not None and known.timeline != seen.server.timeline:
                log.warning("source %s: a standby took over", name)
                record_incarnation(self._lake, name, known.on(seen.server.timeline))
            return
        if known is None:
            known = next_incarnation(seen.server, None, None)
        if known.lost is None:
            log.error("source %s is slot-lost: %s", name, seen.lost)
            if name != OUTBOX:
                record_lost(self._lake, name, known, seen.lost)
        if connect.config(connector) is not None:
            connect.stop(connector)
        refuse_lost(name, seen.lost)

    def forget(self, name: str) -> None:
        """Stop speaking of a source that is gone."""
        self.alarms.pop(name, None)
        self._metrics.forget(name)

    def _note_alarm(self, name: str, alarm: str | None) -> None:
        if alarm is None:
            if self.alarms.pop(name, None) is not None:
                log.info("source %s: its slot is small again", name)
            return
        if name not in self.alarms:
            log.warning("source %s: %s", name, alarm)
        self.alarms[name] = alarm


def _offsets(connect: ConnectClient, connector: str) -> Mapping[str, object]:
    try:
        return connect.offsets(connector)
    except NotFound:
        return {}
