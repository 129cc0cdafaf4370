"""Spark's Java process may be ended beneath the pipeline: as the largest one it goes first."""

from __future__ import annotations

import psutil
import pytest

from tests.support.services.whole_stack import WholeStack

pytestmark = [pytest.mark.timeout(600), pytest.mark.matrix]


def test_p11_a_pipeline_whose_java_is_gone_ends_and_is_started_again(
    whole_bank: WholeStack,
) -> None:
    whole_bank.await_equal()
    pid = whole_bank.pid("pipeline")
    assert pid is not None
    (java,) = (each for each in psutil.Process(pid).children() if each.name() == "java")
    java.kill()
    whole_bank.revive("pipeline", besides=pid)
    whole_bank.await_equal()
