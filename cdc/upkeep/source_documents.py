"""What each captured source does now: the pipeline serves these documents, commands show them."""

from __future__ import annotations

from dataclasses import asdict

from cdc import declarations, sources
from cdc.capture import CaptureStatus
from cdc.connect import ConnectClient
from cdc.site import CaptureSite
from cdc.upkeep import lifecycle
from cdc.upkeep.topic_sources import topic_states


def source_documents(site: CaptureSite) -> list[dict[str, object]]:
    """Ask Connect, every database and Kafka; those that are taken away in part come last.

    Sources on external topics have the fields of `topic_sources.TopicState`.
    """
    declared = sources.load_all(site.folder)
    with ConnectClient(site.connect_url) as connect:
        found = [
            {
                **source_document(lifecycle.status(site, each, connect)),
                "tables": each.tables,
            }
            for each in declared
        ]
    external = [asdict(each) for each in topic_states(site)]
    return [*found, *external, *declarations.leaving_documents(site.folder)]


def source_document(state: CaptureStatus) -> dict[str, object]:
    """Return what a source does, for JSON."""
    watch = state.watch
    return {
        "source": state.source,
        "state": state.state,
        "reason": state.reason,
        "fix": state.remedy,
        "healthy": state.healthy,
        "connector": None if state.connector is None else asdict(state.connector),
        "slot": None if watch is None or watch.slot is None else asdict(watch.slot),
        "limit_bytes": None if watch is None else watch.limit_bytes,
        "alarm": None if watch is None else watch.alarm,
        "lost": None if watch is None else watch.lost,
        "snapshot": state.snapshot,
    }
