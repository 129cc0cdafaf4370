"""What each captured source does now: the pipeline serves these documents, commands show them."""

from __future__ import annotations

from dataclasses import asdict

from apps import capture
from apps.settings import Settings
from cdc import declarations, sources
from cdc.capture import CaptureStatus
from cdc.connect import ConnectClient


def source_documents(settings: Settings) -> list[dict[str, object]]:
    """Ask Connect and every database; those that are taken away in part come last."""
    declared = sources.load_all(settings.workspace)
    with ConnectClient(settings.required("connect.url")) as connect:
        found = [
            {**source_document(capture.status(settings, each, connect)), "tables": each.tables}
            for each in declared
        ]
    return [*found, *declarations.leaving_documents(settings.workspace)]


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
