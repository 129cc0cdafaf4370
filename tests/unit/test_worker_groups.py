"""How groups of tests are given out to workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.services.workers import Groups

LAWS = ["tests/property/test_law.py", "tests/property/test_other_law.py"]
OTHERS = ["stack", "whole", "tests/faults/test_kills.py", "tests/unit/test_property.py"]
COUNT = 5


@dataclass(eq=False)
class Node:
    """A worker that notes what it is given."""

    gateway: Any
    given: list[int] = field(default_factory=list)
    shutting_down: bool = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def run(workers: int, groups: list[str]) -> dict[str, list[str]]:
    """Return which groups each worker had, in their order, where all are equally quick."""
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["popen"] * workers, option=SimpleNamespace(loadscopereorder=False)
    )
    scheduler = Groups(config)
    tests = [f"a.py::test_{n}@{group}" for group in groups for n in range(COUNT)]
    nodes: list[Any] = [Node(SimpleNamespace(id=f"gw{n}")) for n in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, tests)
    scheduler.schedule()
    done: list[int] = []
    while len(done) < len(tests):
        before = len(done)
        for node in nodes:
            for index in [each for each in node.given if each not in done][:1]:
                done.append(index)
                scheduler.mark_test_complete(node, index)
        assert len(done) > before, "what is left is given to nobody"
    assert len({*done}) == len(tests)
    return {
        node.gateway.id: list(dict.fromkeys(tests[n].partition("@")[2] for n in node.given))
        for node in nodes
    }


def test_a_third_worker_is_given_laws_alone_and_ends_without_one() -> None:
    had = run(3, [*OTHERS, *LAWS])
    assert had == {"gw0": [OTHERS[0], OTHERS[2]], "gw1": [OTHERS[1], OTHERS[3]], "gw2": LAWS}
    assert run(3, OTHERS)["gw2"] == []


@pytest.mark.parametrize("workers", [1, 2])
def test_others_are_given_all_in_its_order(workers: int) -> None:
    had = run(workers, [*OTHERS, *LAWS])
    for worker, groups in enumerate(had.values()):
        assert groups == [*OTHERS, *LAWS][worker::workers]
