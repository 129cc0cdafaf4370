"""Who decodes an epoch: the driver what is small, Spark's executors what is large."""

from __future__ import annotations

import pytest

from kernel.errors import Misconfigured
from lake.executor_tasks import TasksHere
from lake.upkeep.compaction import LargeCompaction, put_together_here
from pipeline.executor import FIRST_GUESS_BYTES, Executor, ExecutorChoice
from pipeline.verification.large_states import LargeStates
from tests.support.lake.rows_here import RowsHere

MOST = 100 * FIRST_GUESS_BYTES


def choice(asked: Executor = Executor.AUTO) -> ExecutorChoice:
    return ExecutorChoice(asked=asked, driver_bytes=MOST)


def test_what_fits_is_the_drivers_and_what_does_not_is_the_executors() -> None:
    assert choice().of(100) is Executor.DRIVER
    assert choice().of(101) is Executor.SPARK


def test_it_learns_how_large_records_are() -> None:
    learning = choice()
    learning.saw(10, 100 * FIRST_GUESS_BYTES)
    assert learning.of(11) is Executor.SPARK
    for _ in range(100):
        learning.saw(10, 10)
    assert learning.of(1_000) is Executor.DRIVER
    learning.saw(0, 0)
    assert learning.of(1_000) is Executor.DRIVER


def test_what_was_too_large_for_the_driver_goes_to_executors_the_next_time() -> None:
    learning = choice()
    assert learning.of(50) is Executor.DRIVER
    learning.refused(50)
    assert learning.of(50) is Executor.SPARK


@pytest.mark.parametrize("asked", [Executor.DRIVER, Executor.SPARK])
def test_one_that_is_asked_for_does_everything(asked: Executor) -> None:
    assert {choice(asked).of(records) for records in (1, 10**9)} == {asked}


def test_the_driver_has_a_bound_only_where_others_can_take_over() -> None:
    assert choice().most_bytes == MOST
    assert choice(Executor.DRIVER).most_bytes > 2**40
    assert not choice(Executor.DRIVER).may_pass_on


def test_rows_of_the_log_are_the_drivers_up_to_the_same_bound() -> None:
    tasks = TasksHere()
    auto, driver, spark = (choice(asked).executors(tasks) for asked in Executor)
    assert auto.rows_at_once(50) == 50
    assert auto.rows_at_once(10**6) == 100
    assert driver.rows_at_once(10**6) == 10**6
    assert spark.rows_at_once(10**6) == 0
    assert (auto.tasks, driver.tasks, spark.tasks) == (tasks, None, tasks)


def test_tables_are_hashed_by_executors_elsewhere_or_that_were_asked_for() -> None:
    tasks = RowsHere()
    auto, driver, spark = (choice(asked) for asked in Executor)
    for elsewhere in (True, False):
        assert driver.large_states(tasks, elsewhere=elsewhere) is None
        assert spark.large_states(tasks, elsewhere=elsewhere) == LargeStates(
            most_bytes=0, tasks=tasks
        )
    assert auto.large_states(tasks, elsewhere=True) == LargeStates(most_bytes=MOST, tasks=tasks)
    assert auto.large_states(tasks, elsewhere=False) is None


def test_files_are_put_together_by_executors_elsewhere_or_that_were_asked_for() -> None:
    by = put_together_here
    auto, driver, spark = (choice(asked) for asked in Executor)
    assert auto.large_compaction(by) is None
    assert driver.large_compaction(by) is None
    assert spark.large_compaction(by) == LargeCompaction(most_bytes=0, by=by)
    auto.elsewhere = True
    assert auto.large_compaction(by) == LargeCompaction(most_bytes=MOST, by=by)


def test_an_executor_that_there_is_not_is_named_with_those_there_are() -> None:
    assert Executor.named("auto") is Executor.AUTO
    with pytest.raises(Misconfigured) as refused:
        Executor.named("cluster")
    assert "auto, driver, spark" in refused.value.remedy
