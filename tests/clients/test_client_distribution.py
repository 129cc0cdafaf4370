"""The client as a package: what it imports, what is generated, what its errors mirror."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest

import penstock_client
from penstock_client import PenstockError, ServiceFault, errors
from penstock_client.errors import error_of
from penstock_client.lines import Lines, Message, Messages
from service.problems import KINDS
from tests.architecture.tree import ROOT

HOME = ROOT / "clients/python"
PACKAGE = HOME / "penstock_client"


def tree(kind: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from tree(each)


def test_the_sync_client_is_what_the_script_makes() -> None:
    done = subprocess.run(
        [sys.executable, HOME / "generate_sync.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, f"run clients/python/generate_sync.py: {done.stdout}{done.stderr}"


def test_it_needs_httpx_and_nothing_else() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    found |= {each.name.partition(".")[0] for each in names}
                case ast.ImportFrom(module=str(module), level=0):
                    found.add(module.partition(".")[0])
                case _:
                    continue
    assert found - sys.stdlib_module_names == {"httpx", "penstock_client"}
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    assert [each.split(">")[0] for each in project["dependencies"]] == ["httpx"]
    assert project["license"] == "Apache-2.0"
    assert (HOME / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (PACKAGE / "py.typed").exists()


def test_every_problem_of_the_service_has_an_error() -> None:
    known = {kind.type_ for kind in tree()}
    served = {kind for _, _, kind, _ in KINDS} - {"misconfigured"}
    assert served <= known, served - known


def test_every_error_is_exported_and_survives_a_process_border() -> None:
    for kind in tree():
        assert kind.__name__ in penstock_client.__all__
        error = kind("why", remedy="do this", status=409, type="x-y", position=7)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert (again.detail, again.remedy, again.status, again.type) == (
            *("why", "do this", 409, "x-y"),
        )
        assert again.fields == {"position": 7}
    assert set(penstock_client.__all__) <= set(vars(penstock_client))


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (418, b"", errors.Refused),
        (404, b"<html>", errors.NotFound),
        (500, b"{}", ServiceFault),
        (502, b"<html>", errors.OutcomeUnknown),
        (503, b"[]", errors.Unavailable),
        (409, b'{"type": "never-heard-of"}', errors.Conflict),
        (412, b'{"type": "version-conflict", "actual": 3}', errors.VersionConflict),
        (429, b'{"type": "too-many-subscriptions"}', errors.Overloaded),
        (400, b'{"type": "malformed-body", "detail": "d"}', errors.Refused),
    ],
)
def test_answers_that_were_not_foreseen_become_errors_too(
    status: int, body: bytes, kind: type[PenstockError]
) -> None:
    error = error_of(status, body, {"retry-after": "1000"})
    assert type(error) is kind
    assert error.status == status
    assert error.detail
    if isinstance(error, errors.Unavailable):
        assert error.retry_after_s == errors.MAX_RETRY_AFTER_S


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_lines_end_at_line_feeds_only_however_they_arrive(size: int) -> None:
    text = "a\u2028b\r\n\nc\x0bd\x85e\nlast".encode()
    lines = Lines()
    found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]
    assert [*found, lines.end()] == [
        *("a\u2028b".encode(), b"", "c\x0bd\x85e".encode(), b"last"),
    ]


def test_messages_are_built_from_their_fields() -> None:
    text = b": hi\n\nevent: caught-up\nid: 3\ndata: {}\n\nid:4\ndata:a\ndata: b\nretry: 1\n\n"
    messages, lines = Messages(), Lines()
    found = [messages.feed(line) for line in lines.feed(text)]
    assert list(filter(None, found)) == [
        Message(),
        Message(event="caught-up", id="3", data=b"{}"),
        Message(id="4", data=b"a\nb"),
    ]
