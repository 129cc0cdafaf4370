"""A short torture run: everything is killed once under load, and the judge finds nothing."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from uuid import UUID

import orjson
import pytest

from kernel.errors import InvalidRequest
from tests.support.store.killing import MortalDatabase
from tests.support.store.postgres import Cluster
from tests.torture import progress
from tests.torture.__main__ import summary
from tests.torture.options import KILLS, Options
from tests.torture.run import torture
from tests.torture.verification.history import author, event_id
from tests.torture.workload import Workload

RUN = 0x20130101


def test_p1_p2_p3_everything_is_killed_while_clients_write(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    options = Options(
        events=2_000,
        writers=8,
        transactors=4,
        readers=3,
        kills=("service", "writer", "connections", "postgres"),
        kill_every_s=0.5,
        least_kills=4,
        streams_read=20,
        folder=tmp_path,
    )
    database = MortalDatabase(cluster=own_cluster)
    verdict = asyncio.run(torture(options, database, say=progress.silent))
    print(summary(verdict))
    document = verdict.document()
    assert verdict.clean, json.dumps(document, indent=2)
    assert {kill.kind for kill in verdict.board.kills} == set(options.kills)
    figures = verdict.report.figures
    assert figures["events"] >= options.events
    assert figures["events_shown_to_readers"] >= 3 * options.events
    assert figures["refused"] > 0
    assert figures["conditions_judged"] > 0
    assert verdict.board.answers["committed in SQL"] > 0
    assert verdict.board.answers["rolled back in SQL"] > 0
    assert json.loads(orjson.dumps(document))["clean"] is True


def requests(options: Options, count: int) -> list[tuple[bytes, tuple[UUID, ...]]]:
    workload = Workload(run=RUN, process=3, options=options, rng=random.Random(5))
    found = []
    for _ in range(count):
        request = workload.request()
        numbers = (n for w in request.writes for n in range(w.first, w.first + w.count))
        found.append((request.body, tuple(event_id(RUN, 3, number) for number in numbers)))
    return found


def test_requests_carry_the_ids_that_the_judge_expects() -> None:
    kinds = set()
    for body, ids in requests(Options(batch=20), 300):
        document = json.loads(body)
        entries = document.get("appends", [document])
        kinds |= {(len(entries), "condition" in document, str(entries[0]["expected_version"]))}
        sent = [UUID(event["id"]) for entry in entries for event in entry["events"]]
        assert tuple(sent) == ids
        assert [author(RUN, id_.int) for id_ in sent] == [
            (3, event["data"]["n"]) for entry in entries for event in entry["events"]
        ]
    assert kinds >= {
        (1, False, "any"),
        (1, False, "no_stream"),
        (1, False, "stream_exists"),
        (3, False, "any"),
        (1, True, "any"),
    }


def test_an_unknown_kill_is_refused(tmp_path: Path) -> None:
    nobody = Cluster(folder=tmp_path, port=1)
    options = Options(kills=("thunder",), folder=tmp_path)
    with pytest.raises(InvalidRequest, match="no kill 'thunder'"):
        asyncio.run(torture(options, MortalDatabase(cluster=nobody), say=progress.silent))
    assert set(Options().kills) == set(KILLS)
