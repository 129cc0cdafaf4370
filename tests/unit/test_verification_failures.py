"""What goes wrong with one table, or once, keeps the verification of no other for long."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from apps.capture import capture_site
from apps.settings import load
from cdc.sources import Source
from cdc.verification import verifier
from cdc.verification.verifier import Verifying, VerifyMetrics
from kernel.errors import Misconfigured

TABLES = ("public.renamed", "public.whole")


class Registry:
    """Nothing asks it."""

    def schema(self, schema_id: int) -> str:
        raise AssertionError(schema_id)


@pytest.fixture
def verifying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verifying:
    (tmp_path / "penstock.toml").write_text(
        '[postgres]\ndsn = "postgresql://x@127.0.0.1:1/x"\n[registry]\nurl = "http://127.0.0.1:1"'
    )
    site = capture_site(load(tmp_path))
    source = Source(
        name="shop", dsn="host=127.0.0.1 port=1 dbname=x user=y", password=None, tables=TABLES
    )
    found = [SimpleNamespace(table=table, source="shop") for table in TABLES]
    monkeypatch.setattr(verifier, "load_all", lambda folder: (source,))
    monkeypatch.setattr(verifier, "captured_tables", lambda *given: found)
    made = Verifying(site, Registry(), VerifyMetrics(CollectorRegistry()), round_s=0)
    monkeypatch.setattr(
        made, "_deployed", SimpleNamespace(deployment=lambda: SimpleNamespace(captures={"shop": 1}))
    )
    last = SimpleNamespace(cuts={"shop": 1})
    reader = SimpleNamespace(last=lambda: last)
    monkeypatch.setattr(made, "_comparison", SimpleNamespace(reader=reader))
    return made


def undefined() -> Misconfigured:
    error = Misconfigured('127.0.0.1:1/x as y: column "a" does not exist')
    error.__cause__ = psycopg.errors.UndefinedColumn('column "a" does not exist')
    return error


def test_ddl_amid_a_look_at_one_table_stops_no_other(
    verifying: Verifying, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def check(captured: Any, dsn: str, current: Any) -> tuple[int, float]:
        looked.append(captured.table)
        current.begin(1)
        if captured.table == TABLES[0]:
            raise undefined()
        return 1, 0.1

    monkeypatch.setattr(verifying, "_check_table", check)
    for _ in range(4):
        verifying.step()
    assert set(looked) == {*TABLES}
    told: Any = verifying.states["shop"]
    assert told[TABLES[0]]["note"].endswith(
        'column "a" does not exist | fix: penstock source check shop'
    )


def test_a_failure_is_followed_by_its_own_pause_however_long_it_took(
    verifying: Verifying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rests are fifty times what was done: a slow minute would be an hour in which it stands."""
    clock = iter([float(n) for n in range(0, 10_000, 60)])
    monkeypatch.setattr(verifier.time, "monotonic", lambda: next(clock))

    def check(*given: object) -> tuple[int, float]:
        raise Misconfigured("the database says no")

    monkeypatch.setattr(verifying, "_check_table", check)
    assert verifying.step() == (0, 0.0)
    assert verifying.states == {"shop": verifying.states["shop"]}
    assert "the database says no" in str(verifying.states["shop"])
