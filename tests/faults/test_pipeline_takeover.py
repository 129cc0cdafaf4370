"""Two pipelines over one lake: one writes; whoever dies or sleeps, nothing is lost or doubled."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stack.control import kill_part
from tests.support.services.second_pipeline import SecondPipeline, second_pipeline
from tests.support.services.waiting import until
from tests.support.services.whole_stack import ACCOUNTS, Teller, WholeStack

pytestmark = [pytest.mark.timeout(900), pytest.mark.matrix]
LEASE_S = "5"
"""Of the second one, so that it takes over soon; the first one says that it lives every three."""


@pytest.fixture
def second(whole_bank: WholeStack, tmp_path: Path) -> Iterator[SecondPipeline]:
    whole_bank.await_equal()
    with second_pipeline(whole_bank, tmp_path, PENSTOCK_PIPELINE_LEASE_SECONDS=LEASE_S) as second:
        until(lambda: second.ingest() == "standby", "it stands by", deadline_s=90)
        yield second


def test_p4_p8_p11_a_lake_moves_to_the_other_pipeline_and_back(
    whole_bank: WholeStack, second: SecondPipeline
) -> None:
    health = second.health()
    assert health["status"] == "ready"
    assert "writes this lake (lease " in health["ingest"]["reason"]
    teller = Teller(whole_bank.dsn)
    teller.start()
    try:
        first = psutil.Process(kill_part(whole_bank.workspace, "pipeline", signal.SIGSTOP))
        until(lambda: second.ingest() == "running", "it takes over", deadline_s=60)
        epoch = second.health()["epoch"]
        until(lambda: second.health()["epoch"] > epoch, "it makes epochs", deadline_s=60)
        first.send_signal(signal.SIGCONT)
        until(lambda: not first.is_running() or first.status() == "zombie", "the sleeper ends")
        whole_bank.revive("pipeline", besides=first.pid)
        standing = whole_bank.health
        until(lambda: standing().get("ingest", {}).get("state") == "standby", "it stands by now")
        assert whole_bank.command("status")["state"] == "ready"
        assert second.ingest() == "running"
        second.kill()
        until(lambda: standing()["ingest"]["state"] == "running", "it takes over", deadline_s=60)
    finally:
        teller.finish()
    whole_bank.await_equal()
    assert whole_bank.accounts() == 100 * ACCOUNTS
    assert whole_bank.doubled() == 0
