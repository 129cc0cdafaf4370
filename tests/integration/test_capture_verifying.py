"""The continuous verifier: no false alarm while writers write, every break found and healed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from apps.capture import capture_site
from apps.settings import Settings, load
from cdc import sources
from cdc.database import split_password
from cdc.upkeep.lifecycle import record_capture
from cdc.verification import verifier
from cdc.verification.reports import TableReport
from cdc.verification.rounds import load_rounds
from cdc.verification.verifier import Verifying, VerifyMetrics
from lake.layout import Lake
from lake.tables import Tables
from pipeline.verification.book import Fact, Kind, Verifications
from projections.run.captured_tables import CapturedTable
from projections.run.catalog import LIVE
from tests.support.sources.mirroring import Mirror, mirrored
from tests.support.sources.writing_shop import KEYS, MOODS, ORDERS, TABLES, Writers


@dataclass
class Watched:
    """A mirror with a workspace of its own that a verifier works for."""

    mirror: Mirror
    settings: Settings
    verifying: Verifying = field(init=False)
    metrics: CollectorRegistry = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def steps_until(self, done: Callable[[], bool], *, most: int = 1_000) -> int:
        """Make steps until something holds; return how many.

        A slow machine takes more of them: each looks again at what writers changed meanwhile.
        """
        for number in range(most):
            if done():
                return number
            self.verifying.step()
            assert not self.away, self.away
        raise AssertionError(f"not within {most} steps: {self.verifying.states}")

    @property
    def away(self) -> list[object]:
        return [state for state in self.verifying.states.values() if isinstance(state, str)]

    def facts(self, kind: Kind) -> list[Fact]:
        found = Verifications(self.mirror.lake, Tables()).of(self.mirror.name)
        return [fact for fact in found if fact.kind is kind]

    def restart(self) -> None:
        """Begin as a new process would."""
        self.metrics = CollectorRegistry()
        self.verifying = Verifying(
            capture_site(self.settings),
            self.mirror.registry(),
            VerifyMetrics(self.metrics),
            round_s=0,
            # The epochs beside it are made as fast as the machine can, and no faster.
            timeout_s=600.0,
        )

    def verified(self, table: str) -> float | None:
        """Return the gauge of when a table was found equal last; None where it never was."""
        labels = {"source": self.mirror.name, "table": table}
        return self.metrics.get_sample_value("penstock_verify_verified_timestamp_seconds", labels)


@pytest.fixture
def watched(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    new_source: Callable[[str], str],
    tmp_path: Path,
) -> Iterator[Watched]:
    folder = tmp_path / "workspace"
    folder.mkdir()
    with mirrored(stack, spark, lake, prefix, new_source(TABLES), tuple(KEYS)) as mirror:
        mirror.catch_up()
        keys = ("postgres.dsn", "kafka.bootstrap", "registry.url", "connect.url")
        lines = [f"[lake]\npath = {json.dumps(lake.root)}"]
        for key in keys:
            section, _, name = key.partition(".")
            lines.append(f"[{section}]\n{name} = {json.dumps(stack.required(key))}")
        (folder / "penstock.toml").write_text("\n".join(lines))
        _, password = split_password(mirror.dsn)
        sources.save(folder, mirror.source, password)
        captured = {table: CapturedTable(keys=key) for table, key in KEYS.items()}
        record_capture(lake, mirror.name, LIVE, captured)
        settings = load(folder)
        yield Watched(mirror, settings)


@pytest.mark.matrix
def test_nothing_differs_while_writers_write_and_a_restart_goes_on(watched: Watched) -> None:
    mirror = watched.mirror
    with mirror.following(), Writers(mirror.dsn, pause_s=0.02):
        watched.verifying.step()
        watched.verifying.step()
        before = load_rounds(watched.settings.state_dir, mirror.name)
        watched.restart()
        watched.steps_until(lambda: len(watched.facts(Kind.ROUND)) >= 5)
    after = load_rounds(watched.settings.state_dir, mirror.name)
    assert {before.turn} < set(KEYS) | {""}
    assert all(each.last_ended is not None for each in after.tables.values())
    assert {fact.table for fact in watched.facts(Kind.ROUND)} == set(KEYS)
    assert [fact for fact in watched.facts(Kind.ROUND) if not fact.equal] == []
    assert watched.facts(Kind.DIFFERENCE) == []


@pytest.mark.matrix
def test_a_table_broken_by_hand_is_found_healed_and_told_of(watched: Watched) -> None:
    mirror = watched.mirror
    path = mirror.path(ORDERS)
    DeltaTable(path).delete("id BETWEEN 20 AND 25")
    DeltaTable(path).update(updates={"amount": "0.01"}, predicate="id = 4000")
    row = {"id": pa.array([77_777], pa.int64()), "customer": pa.array(["nobody"])}
    write_deltalake(path, pa.table(row), mode="append", schema_mode="merge")
    DeltaTable(mirror.path(MOODS)).delete("mood = 'sad'")
    with mirror.following():
        watched.steps_until(lambda: len(watched.facts(Kind.ROUND)) >= 3)
        reports = mirror.compare()
    assert {table: report.equal for table, report in reports.items()} == dict.fromkeys(KEYS, True)
    found = watched.facts(Kind.DIFFERENCE)
    assert {(fact.table, fact.missing, fact.extra, fact.differing) for fact in found} == {
        (ORDERS, 6, 1, 1),
        (MOODS, 1, 0, 0),
    }
    healed = watched.facts(Kind.HEAL)
    assert [(fact.after, fact.install is not None) for fact in healed] == [("equal", True)] * 2
    (orders,) = (fact for fact in found if fact.table == ORDERS)
    assert {"key": {"id": "77777"}, "what": "extra", "columns": []} in orders.keys
    assert orders.cause is not None
    assert "was not written by the pipeline" in orders.cause
    assert 77_777 not in mirror.rows(ORDERS)["id"].to_pylist()


@pytest.mark.matrix
def test_what_healing_does_not_mend_is_not_verified_and_healed_no_more_than_thrice(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = watched.mirror
    DeltaTable(mirror.path(MOODS)).delete("mood = 'sad'")
    healed: list[str] = []

    def in_vain(*arguments: Any, **options: Any) -> TableReport:
        captured, report = arguments[4], arguments[5]
        healed.append(captured.table)
        return cast(TableReport, report).healed("install", equal=False)

    monkeypatch.setattr(verifier, "heal", in_vain)

    def times(kind: Kind, table: str) -> int:
        return len([fact for fact in watched.facts(kind) if fact.table == table])

    with mirror.following():
        watched.steps_until(lambda: times(Kind.DIFFERENCE, MOODS) >= 5)
        assert healed == [MOODS] * 3
        assert times(Kind.ROUND, MOODS) == 0
        found = load_rounds(watched.settings.state_dir, mirror.name).tables[MOODS]
        assert found.verified_at is None
        assert f"penstock source resnapshot {mirror.name} --tables {MOODS} --yes" in str(found.note)
        assert watched.verified(MOODS) is None
        assert watched.verified(ORDERS)

        # Equal again, by whatever somebody did: from then on it is healed as before.
        mirror.execute("DELETE FROM moods WHERE mood = 'sad'")
        watched.steps_until(lambda: times(Kind.ROUND, MOODS) >= 1)
    found = load_rounds(watched.settings.state_dir, mirror.name).tables[MOODS]
    assert (found.note, found.failed_heals) == (None, 0)
    assert watched.verified(MOODS)


@pytest.mark.matrix
def test_a_table_that_could_not_be_compared_is_not_booked_as_verified(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(*arguments: Any, **options: Any) -> TableReport:
        return TableReport(table=arguments[1].table, lsn="0/7", epoch=1, held="is copied")

    monkeypatch.setattr(Verifying, "_compare", held)
    with watched.mirror.following():
        for _ in range(6):
            watched.verifying.step()
    assert not watched.away
    assert MOODS not in {fact.table for fact in watched.facts(Kind.ROUND)}
    found = load_rounds(watched.settings.state_dir, watched.mirror.name).tables[MOODS]
    assert (found.verified_at, found.note, found.last_ended) == (None, "is copied", None)
    assert watched.verified(MOODS) is None


@pytest.mark.matrix
def test_a_source_that_is_away_is_named_and_left_alone_for_a_while(watched: Watched) -> None:
    mirror = watched.mirror
    away = replace(mirror.source, dsn="host=127.0.0.1 port=1 dbname=x user=y connect_timeout=2")
    sources.save(watched.settings.workspace, away, None)
    assert watched.verifying.step()[0] == 0
    (reason,) = watched.away
    assert "does not answer" in str(reason)
    # Its turn comes after a pause only, and no other source waits for it.
    assert watched.verifying.step() == (0, 0.0)
    sources.save(watched.settings.workspace, mirror.source, split_password(mirror.dsn)[1])
    watched.restart()
    with mirror.following():
        watched.steps_until(lambda: len(watched.facts(Kind.ROUND)) >= 1)
