"""Rows of many megabytes: they pass, or their connector says what is too large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from apps.capture import capture_site
from apps.settings import Settings
from cdc import capture
from cdc.connect import ConnectorStatus, refuse_too_large
from kernel.errors import Misconfigured
from schemas.records import Operation
from tests.support.services.waiting import until
from tests.support.sources.capturing import Captured, prepare

MEGABYTE = 1024**2


@pytest.fixture
def large(stack: Settings, new_source: Callable[[str], str]) -> Iterator[Captured]:
    made = "CREATE TABLE letters (id int PRIMARY KEY, body text)"
    found = prepare(stack, new_source(made), ["public.letters"], {})
    try:
        found.start()
        found.await_snapshot()
        yield found
    finally:
        found.remove()


def test_a_row_of_twenty_megabytes_passes(large: Captured) -> None:
    large.execute(f"INSERT INTO letters VALUES (1, repeat('letter', {20 * MEGABYTE // 6}))")
    large.execute("INSERT INTO letters VALUES (2, 'short')")
    large.await_stream()
    rows = [large.row(change) for change in large.of("public.letters", Operation.INSERT)]
    assert [len(row["body"][0].as_py()) for row in rows] == [20 * MEGABYTE // 6 * 6, 5]


# How the failure is told is tried without Connect, too, which takes half a minute to end a task
# that cannot send its records.
@pytest.mark.matrix
def test_a_row_that_is_too_large_is_named_and_passes_by_the_setting_alone(
    stack: Settings, large: Captured
) -> None:
    # Smaller records are asked for from here on, as if the row had grown. The connector is
    # stopped meanwhile: a running task would send the row by its old limit for a moment yet.
    large.connect.stop(large.connector)
    large.connect.await_status(
        large.connector, lambda s: s.connector == "STOPPED" and s.task is None, timeout_s=60
    )
    placement = replace(capture_site(stack).placement, max_record_bytes=MEGABYTE)
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
