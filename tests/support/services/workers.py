"""Which worker runs what, where a run has two or three of them (pytest-xdist, loadgroup).

A pytest plugin module. Each of the long groups is one worker's: the tests of the warm stack, those
that ask for Spark alone (in `make test` a part of the former), and those of the whole stack. What
they share is started once per group. Every other file is a group of its own: its fixtures are made
once, too. Groups are given out in the order of their first tests: the warm stack, Spark and the
whole stack, then folders whose files take long, then laws, then folders of quick files, so that no
worker is left with a long group while the other has nothing to do. Who reads the code is one
worker's, too: it parses all files once. Without workers nothing of this has an effect.

Tests of services wait for a part of their time. What two cores have left then a third worker gets:
it steps back behind everybody else on the machine, so that nobody misses a time because of it, and
runs laws alone, which wait for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadgroup import LoadGroupScheduling
from xdist.workermanage import WorkerController

from tests.support.services.tier import spark_group

SHARED = frozenset({"stack", "spark", "s3"})
"""Fixtures of the session that cost much to start."""
WHOLE = "whole_stack"
"""The fixture that starts every part. Nothing else of the session is asked for beside it."""
LONG = ("stack", "spark", "whole")
"""The long groups, in the order in which they begin. A test of the warm stack may use Spark too."""

CODE = "architecture"
"""The folder of tests that read the code, and the group of all that do."""
QUICK = frozenset({"docs", "unit"})
"""Folders whose files take a second or two each."""
LAWS = "property"
"""The folder whose tests compute all the time."""
BEHIND = "gw2"
"""The third worker."""
STEPS_BACK = 10
"""How much nicer it is than the others: it gets what they leave, and a tenth where they do not."""


def pytest_configure() -> None:
    """Forget the width that a worker is given: what commands print is not folded in a pipe."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.pop("COLUMNS", None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Step back, as the third worker. What it has collected the others waited for."""
    if os.environ.get("PYTEST_XDIST_WORKER") == BEHIND:
        os.nice(STEPS_BACK)


class Groups(LoadGroupScheduling):
    """Gives out groups in their order; to the third worker those of laws alone."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node.gateway.id == BEHIND:
            law = next((name for name in self.workqueue if name.split("/")[1:2] == [LAWS]), None)
            if law is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(law, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups | None:
    """Have groups given out here, where the command asks for groups."""
    return Groups(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Give every test its group, unless its file names one, and put long groups first.

    Tests have been shuffled behind the `yield`; they keep that order within groups and ranks.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    yield
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_rank)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell of a test under the name by which it can be run, without the group behind it."""
    if os.environ.get("PYTEST_XDIST_WORKER") is None and hasattr(report, "node"):
        name, at, _ = report.nodeid.rpartition("@")
        report.nodeid = name if at else report.nodeid


def _group(item: pytest.Item) -> str:
    fixtures = frozenset(getattr(item, "fixturenames", ()))
    if WHOLE in fixtures:
        assert SHARED.isdisjoint(fixtures), f"{item.nodeid} would start the warm stack once more"
        return "whole"
    if SHARED.isdisjoint(fixtures):
        return CODE if _folder(item) == CODE else item.nodeid.partition("::")[0]
    return "stack" if "stack" in fixtures else spark_group()


def _rank(item: pytest.Item) -> int:
    marker = item.get_closest_marker("xdist_group")
    if marker is not None and marker.args[0] in LONG:
        return LONG.index(marker.args[0])
    return len(LONG) + (_folder(item) == LAWS) + 2 * (_folder(item) in QUICK)


def _folder(item: pytest.Item) -> str:
    return item.nodeid.split("/")[1]
