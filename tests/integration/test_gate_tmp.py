"""Rows of many megabytes: they pass, or their connector says what is too large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import time
import pytest
T=[time.time()]
def tick(n):
    with open("/tmp/w/gate_x/ticks","a") as f: f.write(f"TICK {n} {round(time.time()-T[0],2)}\n")
    T[0]=time.time()

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
        tick('large.start()')
        large.await_snapshot()
        tick('large.await_snapshot()')
        large.execute(f"INSERT INTO letters VALUES (1, repeat('letter', {20 * MEGABYTE // 6}))")
        tick('large.execute(f"INSERT INTO letters VALU')
        large.execute("INSERT INTO letters VALUES (2, 'short')")
        tick('large.execute("INSERT INTO letters VALUE')
        large.await_stream()
        tick('large.await_stream()')
        rows = [large.row(change) for change in large.of("public.letters", Operation.INSERT)]
        tick('rows = [large.row(change) for change in ')
        assert [len(row["body"][0].as_py()) for row in rows] == [20 * MEGABYTE // 6 * 6, 5]
        tick('assert [len(row["body"][0].as_py()) for ')

        # Smaller records are asked for from here on, as if the row had grown. The connector is
        # stopped meanwhile: a running task would send the row by its old limit for a moment yet.
        large.connect.stop(large.connector)
        tick('large.connect.stop(large.connector)')
        large.connect.await_status(
            large.connector, lambda s: s.connector == "STOPPED" and s.task is None, timeout_s=60
        )
        tick(')')
        placement = replace(placement_of(stack), max_record_bytes=MEGABYTE)
        tick('placement = replace(placement_of(stack),')
        capture.ensure(large.source, large.access, placement, large.connect)
        tick('capture.ensure(large.source, large.acces')
        large.execute(f"INSERT INTO letters VALUES (3, repeat('letter', {MEGABYTE}))")
        tick('large.execute(f"INSERT INTO letters VALU')
        large.connect.resume(large.connector)
        tick('large.connect.resume(large.connector)')

        def status() -> ConnectorStatus:
            return large.connect.status(large.connector)

        until(lambda: status().failed, "the connector fails", deadline_s=60)
        tick('until(lambda: status().failed, "the conn')
        with pytest.raises(Misconfigured, match=r"larger than kafka\.max_record_bytes") as refused:
            refuse_too_large(status())
        assert "penstock source resume" in refused.value.remedy

        # What failed runs again by the setting alone, and nothing is missing.
        large.start()
        tick('large.start()')
        large.await_stream()
        tick('large.await_stream()')
        assert large.differing("public.letters") == []
        tick('assert large.differing("public.letters")')
        assert large.rejected == []
        tick('assert large.rejected == []')
    finally:
        large.remove()
        tick('large.remove()')
