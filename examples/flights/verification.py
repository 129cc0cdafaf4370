"""What must hold once everything has arrived, checked place by place."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from examples.flights import hops, source_database
from examples.flights.closing import as_check, hashes_agree
from examples.flights.comparison import compare
from examples.flights.flights import CATEGORY
from examples.flights.mirror import mirrored
from examples.flights.narration import DemoCheck
from examples.flights.oracle import KEYS
from examples.flights.scene import Scene
from examples.flights.tables import rows_of


def check_hops(scene: Scene) -> None:
    """Events in = rows out, at each hop."""
    scene.narration.step("The same events at every hop")
    sent = scene.events - len(scene.river.held_back)
    caught = scene.catch_up()
    scene.narration.check(
        DemoCheck(
            title="acknowledged over HTTP",
            holds=scene.tally.events == sent,
            found=f"{scene.tally.events:,} (of {sent:,})",
        )
    )
    found = scene.found
    topic = f"{found.text('kafka.topic_prefix')}events.{CATEGORY}"
    for hop in (
        hops.in_postgres(found.required("postgres.dsn")),
        hops.in_kafka(found.required("kafka.bootstrap"), topic),
        hops.in_log(scene.lake, caught.store),
        hops.in_typed(scene.lake, CATEGORY),
    ):
        scene.narration.check(hops.agree(hop, events=sent))


def check_mirrors(scene: Scene) -> None:
    """Source tables = mirrored tables, by row hash as users have it and row by row."""
    scene.narration.step("Every table of the source and its mirror")
    verified = scene.penstock("source", "verify", source_database.NAME, accept=(0, 1))
    for check in hashes_agree(verified, tables=source_database.TABLES):
        scene.narration.check(check)
    for name in source_database.TABLES:
        found = mirrored(scene.source_dsn, scene.lake, name)
        scene.narration.check(as_check(f"{name}: rows of source and mirror", found))


def check_projections(scene: Scene) -> None:
    """Every projection = the oracle, for the events that were sent."""
    scene.narration.step("Every projection and the same computed by DuckDB from the raw files")
    _compare(scene, "= oracle", scene.oracle.tables(unsent=scene.river.held_back))


def check_late_few(scene: Scene) -> None:
    """Post the held back few: in the log, counted, and out of what depends on several facts."""
    late = scene.river.late_events()
    scene.narration.step(f"{len(late)} events that come far too late")
    with scene.poster() as poster:
        poster.post(late)
    caught = scene.catch_up()
    scene.narration.check(hops.agree(hops.in_log(scene.lake, caught.store), events=scene.events))
    marked = hops.closed_late(scene.lake, caught.store)
    scene.narration.check(
        DemoCheck(
            title="marked as closed_late in the log",
            holds=marked == {str(each.event.id) for each in late},
            found=f"{len(marked)} events, sent too late: {len(late)}",
        )
    )
    expected = scene.oracle.tables_awaiting_replay(scene.river.held_back)
    _compare(scene, "= oracle, the late ones waiting for a replay", expected)


def _compare(scene: Scene, outcome: str, expected: Mapping[str, pa.Table]) -> None:
    for name, key in KEYS.items():
        found = compare(name, expected[name], rows_of(scene.lake, f"projection/{name}"), key=key)
        scene.narration.check(as_check(f"{name} {outcome}", found))
