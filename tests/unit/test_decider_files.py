"""A workspace's code: what is loaded, and how files that cannot be are told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventstore.deciders.workspace_code import load_code
from kernel.errors import DeciderFailed, PenstockError

GOOD = """
from eventstore.deciders import Decider

def decide(command, state):
    return []

def evolve(state, event):
    return state

{name} = Decider(
    category="{category}",
    version=1,
    commands={{"do": None}},
    initial_state={{}},
    decide=decide,
    evolve=evolve,
)
"""

CARELESS = """
from eventstore.deciders import Refused

class Careless(Refused):
    def __init__(self, *_): pass

raise Careless("no text")
"""


def good(category: str = "order", name: str = "orders") -> str:
    return GOOD.format(category=category, name=name)


def write(workspace: Path, name: str, text: str) -> Path:
    path = workspace / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_workspace_without_code_has_none(tmp_path: Path) -> None:
    code = load_code(tmp_path)
    assert (code.deciders, code.upcasters) == ({}, ())


def test_files_may_share_and_tests_lie_beside_them(tmp_path: Path) -> None:
    write(tmp_path, "deciders/_shared.py", "CATEGORY = 'order'\n")
    write(
        tmp_path,
        "deciders/orders.py",
        "from ._shared import CATEGORY\n" + good().replace('"order"', "CATEGORY"),
    )
    write(tmp_path, "deciders/again.py", "from .orders import orders\n" + good("cart", "carts"))
    write(tmp_path, "deciders/test_orders.py", "raise SystemExit('never imported')\n")
    write(tmp_path, "deciders/conftest.py", "raise SystemExit('never imported')\n")
    assert sorted(load_code(tmp_path).deciders) == ["cart", "order"]


def code_of(workspace: Path) -> str:
    (told,) = load_code(workspace).told().deciders
    return told.code


def test_any_change_of_the_code_makes_snapshots_worthless(tmp_path: Path) -> None:
    path = write(tmp_path, "deciders/orders.py", good())
    seen = [code_of(tmp_path)]
    assert code_of(tmp_path) == seen[0]
    path.write_text(good() + "# more\n")
    seen.append(code_of(tmp_path))
    path.write_text(good().replace("version=1", "version=2"))
    seen.append(code_of(tmp_path))
    write(tmp_path, "deciders/_shared.py", "")
    seen.append(code_of(tmp_path))
    write(
        tmp_path,
        "upcasters/placed.py",
        "from eventstore.upcasting import Upcaster\n"
        "one = Upcaster(event='order.placed', version=1, upcast=dict)\n",
    )
    seen.append(code_of(tmp_path))
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("def decide(:\n", 1, "SyntaxError"),
        ("\nimport no_such_module\n", 2, "no_such_module"),
        ("\n\n1 / 0\n", 3, "ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit"),
        (CARELESS, 7, "no text"),
        ("", 1, "no Decider in this file"),
        (good().replace("    evolve=evolve,\n", ""), 10, "'evolve'"),
        (good().replace("    version=1,\n", ""), 10, "'version'"),
        (good().replace("version=1", "version=0"), 10, "version must be"),
        (good("Order"), 10, "is no category"),
        (good().replace('"do"', '"Do it"'), 10, "is no command name"),
        (good().replace('{"do": None}', "{}"), 10, "takes no commands"),
        (good().replace('{"do": None}', '{"do": bytes}'), 10, "no type that JSON can keep"),
        (good().replace("initial_state={}", "initial_state=object()"), 10, "initial_state"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_by_its_line(
    tmp_path: Path, text: str, line: int, told: str
) -> None:
    path = write(tmp_path, "deciders/orders.py", text)
    with pytest.raises(DeciderFailed) as failed:
        load_code(tmp_path)
    assert failed.value.message.startswith(f"{path}:{line}: ")
    assert told in failed.value.message
    assert failed.value.remedy


def test_two_deciders_for_a_category_name_both_files(tmp_path: Path) -> None:
    first = write(tmp_path, "deciders/a.py", good())
    second = write(tmp_path, "deciders/b.py", good())
    with pytest.raises(DeciderFailed) as failed:
        load_code(tmp_path)
    assert str(first) in failed.value.message
    assert str(second) in failed.value.message


def test_an_upcaster_is_found_where_it_belongs(tmp_path: Path) -> None:
    write(tmp_path, "upcasters/orders.py", good())
    with pytest.raises(PenstockError, match="no Upcaster in this file"):
        load_code(tmp_path)
