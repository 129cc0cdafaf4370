"""The walkthrough cannot rot: every step is imported, and each fits the next."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.architecture.tree import ROOT
from tests.docs.walkthrough import CHAINS, Step, chain, is_there, signature, type_of_field

STEPS = [pytest.param(step, id=f"{name}: {step.name}") for name in CHAINS for step in chain(name)]


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_goes_from_the_source_to_rows(name: str) -> None:
    steps = chain(name)
    assert len(steps) >= 8
    assert steps[-1].gives[-1] == "QueryAnswer", "a chain ends in rows and the epoch they belong to"


@pytest.mark.parametrize("name", CHAINS)
def test_what_a_step_gives_is_what_the_next_one_takes(name: str) -> None:
    torn = [
        f"{before.name} gives {before.gives}, {after.name} takes {after.takes}"
        for before, after in pairwise(chain(name))
        if after.takes.partition(".")[0] not in before.gives
    ]
    assert not torn


@pytest.mark.parametrize("name", CHAINS)
def test_a_part_that_is_handed_over_is_a_field_of_the_right_type(name: str) -> None:
    for before, after in pairwise(chain(name)):
        if "." in after.takes:
            assert before.file is not None
            assert after.file is not None
            assert after.function is not None
            found = signature(after.function, after.file).takes
            assert type_of_field(after.takes, before.file) & found, after.name


@pytest.mark.parametrize("step", STEPS)
def test_the_function_has_the_types_that_the_page_says(step: Step) -> None:
    if step.function is None or step.file is None:
        assert step.function is step.file is None, "a function without its file, or the reverse"
        return
    found = signature(step.function, step.file)
    assert "." in step.takes or step.takes in found.takes, f"it takes {sorted(found.takes)}"
    assert set(step.gives) <= found.gives, f"it gives {sorted(found.gives)}"


@pytest.mark.parametrize("step", STEPS)
def test_the_step_has_a_test_and_says_what_may_go_wrong(step: Step) -> None:
    if step.test is not None:
        assert is_there(step.test), step.test
    assert step.test is not None or step.file is None, "a step of ours needs its test"
    assert len(step.wrong.split()) >= 4


def test_both_chains_share_their_tail() -> None:
    command, capture = chain("command"), chain("capture")
    shared = [step.function for step in capture if step.function in {s.function for s in command}]
    assert len(shared) >= 3


def test_a_wrong_step_is_noticed() -> None:
    """The check sees a function's types: `frame` takes an int and bytes, and gives bytes."""
    found = signature("frame", "schemas/wire.py")
    assert found.takes >= {"int", "bytes"}
    assert found.gives == {"bytes"}
    assert "str" not in found.takes
    with pytest.raises(AttributeError):
        signature("no_such_function", "schemas/wire.py")
    assert not is_there("tests/docs/test_walkthrough.py::test_that_is_not_there")
    assert (ROOT / "docs/walkthrough.md").is_file()
