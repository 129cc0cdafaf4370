"""Plans and builds of several projections: their order, their JSON, and whose query is whose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

import apps.cli.replay_builds as commands
from apps.cli import build
from kernel.errors import InvalidRequest
from lake.layout import Lake
from projections.run.catalog import LIVE, PROJECTION, Entry
from projections.sql.statements.lineage import reads_of, with_their_readers
from projections.sql.statements.parse import parse_script
from replay.book import Replay
from replay.build_requests import read_plan, text_for
from tests.support.lake.handmade import SQL, HandMade, told, words

CHAIN = ("last", "middle", "alone", "first")
"""In the order of their deployment: who reads comes before what it reads."""
READS = {"last": "middle", "middle": "first"}


def text_of(name: str, word: str = "word") -> str:
    text = SQL.format(name=name, key="id").replace("id, word", f"id, {word} AS word")
    return text.replace("STREAM events.thing.told", READS.get(name, "STREAM events.thing.told"))


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandMade:
    found = told(Lake.at(tmp_path / "lake"))
    for name in CHAIN:
        entry = Entry(kind=PROJECTION, name=name, generation=1, status=LIVE, text=text_of(name))
        found.deployed.put([entry])
        found.run(name, words((1, "w")), 1)
    monkeypatch.setenv("PENSTOCK_LAKE_PATH", found.lake.root)
    monkeypatch.chdir(tmp_path)
    return found


def answered(*words: str) -> object:
    answer = CliRunner().invoke(build(), ["replay", *words, "--json"])
    assert answer.exit_code == 0, (answer.output, answer.exception)
    return json.loads(answer.stdout)


def names_of(document: object) -> list[str]:
    assert isinstance(document, list)
    return [each["name"] for each in document]


@pytest.mark.usefixtures("made")
def test_a_plan_of_several_is_a_list_in_the_order_of_their_builds() -> None:
    several = answered("plan", "alone", "last", "first")
    assert names_of(several) == ["first", "last", "alone"], "as they read each other"
    assert names_of(answered("plan", "first", "--downstream")) == ["first", "middle", "last"]
    assert names_of(answered("plan", "last", "--downstream")) == ["last"]
    one = answered("plan", "alone")
    assert isinstance(one, Mapping)
    assert isinstance(several, list)
    assert [[*each] for each in several] == [[*one]] * 3, "the same names in the same order"
    assert names_of(answered("plan", "first", "last", "alone", "last")) == names_of(several)


def test_builds_of_several_come_behind_what_they_read(
    made: HandMade, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts: list[tuple[str, str | None]] = []

    class Built:
        def build(self, name: str, *, text: str | None, **_: object) -> Replay:
            texts.append((name, text))
            return made.build(name, words((1, "w")), 1)

    monkeypatch.setattr(commands, "builder_of", lambda *_: Built())
    (sql := tmp_path / "new.sql").write_text(
        f"{text_of('middle', 'upper(word)')};\n{text_of('first', 'lower(word)')};\n"
    )
    built = answered("apply", "first", "--downstream", "--sql", str(sql))
    assert names_of(built) == ["first", "middle", "last"]
    assert [name for name, _ in texts] == ["first", "middle", "last"]
    said = dict(texts)
    assert said["last"] is None, "it keeps its query"
    for name, word in (("first", "lower"), ("middle", "upper")):
        (decl,) = parse_script(said[name] or "").projections
        assert decl.name == name
        assert word in (said[name] or "")


def test_a_plan_of_several_is_agreed_to_one_by_one(made: HandMade, tmp_path: Path) -> None:
    assert made.lake.root
    planned = answered("plan", "last", "first")
    (path := tmp_path / "plan.json").write_text(json.dumps(planned))
    for name in ("first", "last"):
        assert read_plan(path, name, given=False)["name"] == name
    with pytest.raises(InvalidRequest, match="no plan for middle"):
        read_plan(path, "middle", given=False)


def test_of_a_file_with_several_statements_a_projection_gets_its_own(tmp_path: Path) -> None:
    """The text of all of them, deployed under one name, would declare the others anew."""
    (path := tmp_path / "both.sql").write_text(f"{text_of('first')};\n{text_of('alone')};\n")
    (decl,) = parse_script(text_for(path, "alone") or "").projections
    assert decl.name == "alone"
    with pytest.raises(InvalidRequest, match="declares no projection middle"):
        text_for(path, "middle")
    assert text_for(path, "middle", several=True) is None
    (path := tmp_path / "one.sql").write_text(f"-- as it was\n{text_of('first')}")
    assert text_for(path, "first") == path.read_text()


def test_readers_are_found_through_others() -> None:
    reads = reads_of([parse_script(text_of(name)).projections[0] for name in CHAIN])
    assert reads == {"last": ["middle"], "middle": ["first"], "alone": [], "first": []}
    assert with_their_readers(["first"], reads) == {"first", "middle", "last"}
    assert with_their_readers(["alone"], reads) == {"alone"}
