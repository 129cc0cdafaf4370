"""Rows of many megabytes: they pass, or their connector says what is too large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from apps.capture import placement_of
from apps.settings import Settings
from cdc import capture
from cdc.connect import ConnectorStatus, refuse_too_large
from kernel.errors import Misconfigured
from schemas.records import Operation
from tests.support.services.waiting import until
from tests.support.sources.capturing import prepare

MEGABYTE = 1024**2


def test_a_row_of_twenty_megabytes_passes_and_a_larger_one_is_named(
    stack: Settings, new_source: Callable[[str], str]
) -> None:
    made = "CREATE TABLE letters (id int PRIMARY KEY, body text)"
    large = prepare(stack, new_source(made), ["public.letters"], {})
    try:
        large.start()
        large.await_snapshot()
        large.execute(f"INSERT INTO letters VALUES (1, repeat('letter', {20 * MEGABYTE // 6}))")
        large.execute("INSERT INTO letters VALUES (2, 'short')")
        large.await_stream()
        rows = [large.row(change) for change in large.of("public.letters", Operation.INSERT)]
        assert [len(row["body"][0].as_py()) for row in rows] == [20 * MEGABYTE // 6 * 6, 5]

        # Smaller records are asked for from here on, as if the row had grown. The connector is
        # stopped meanwhile: a running task would send the row by its old limit for a moment yet.
        large.connect.stop(large.connector)
        large.connect.await_status(
            large.connector, lambda s: s.connector == "STOPPED" and s.task is None, timeout_s=60
        )
        placement = replace(placement_of(stack), max_record_bytes=MEGABYTE)
        capture.ensure(large.source, large.access, placement, large.connect)
        large.execute(f"INSERT INTO letters VALUES (3, repeat('letter', {MEGABYTE}))")
        large.connect.resume(large.connector)

        def status() -> ConnectorStatus:
            return large.connect.status(large.connector)

        until(lambda: status().failed, "the connector fails", deadline_s=60)
        with pytest.raises(Misconfigured, match=r"larger than kafka\.max_record_bytes") as refused:
            refuse_too_large(status())
        assert "penstock source resume" in refused.value.remedy

        # What failed runs again by the setting alone, and nothing is missing.
        large.start()
        large.await_stream()
        assert large.differing("public.letters") == []
        assert large.rejected == []
    finally:
        large.remove()
