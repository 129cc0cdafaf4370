"""Functions of a workspace: what their files say, what is refused, and rows that they fail on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.errors import ContractViolation, InvalidRequest
from projections.run.database import arrow_type
from projections.run.dataflow import Dataflow
from projections.sql.operators.shape import Plan, Strategy
from projections.sql.operators.tree import scans
from projections.sql.plans.plan import plan
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from projections.sql.words.functions import FunctionFile, files_of, read_statement
from projections.sql.words.places import Script
from projections.sql.words.tokens import tokenized
from projections.trial.sql_files import read_files

START = datetime(2026, 3, 2, 10, tzinfo=UTC)
COLUMNS = {"id": "BIGINT", "s": "STRING", "n": "INT", "x": "DOUBLE", "at": "TIMESTAMP"}
CATALOG = MemoryCatalog(
    streams={
        "r": Relation(
            name="r",
            columns=tuple(Column(name=n, type=t) for n, t in COLUMNS.items()),
            key=("id",),
            event_time="at",
        )
    }
)
TEXTS = '''
from datetime import date, datetime

from ._letters import LETTERS


def count_letters(text: str, letter: str) -> int:
    """Count a letter."""
    return text.count(letter) + LETTERS


def shown(n: int | None, at: datetime) -> str | None:
    return None if n == 2 else f"{n} at {at:%H:%M%z}"


def a_second_later(at: datetime) -> datetime:
    return at.replace(second=at.second + 1)


def share(a: float, b: float) -> float:
    part = a / b
    return part


def wrong(n: int) -> int:
    return "seven" if n == 7 else n


def cut(x: float) -> int:
    return x


def day_of(at: datetime) -> date:
    return at
'''
COLUMNWISE = """
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc

Doubles = Annotated[pa.Array, float]


def halved(x: Doubles) -> Doubles:
    return pc.divide(x, 2.0)


def strict(x: Doubles) -> Doubles:
    if pc.any(pc.greater(x, 5.0)).as_py():
        raise ValueError("too much")
    return x
"""
FILES = {
    "functions/texts.py": TEXTS,
    "functions/columnwise.py": COLUMNWISE,
    "functions/_letters.py": "LETTERS = 0\n",
}


def declared(query: str, files: Mapping[str, str] = FILES, key: str = "id") -> ProjectionDecl:
    statements = [each.statement for each in files_of(files)]
    text = f"CREATE PROJECTION p WITH (key = '{key}') AS {query}"
    (decl,) = parse_script(";\n".join([text, *statements])).projections
    return decl


def planned(query: str, files: Mapping[str, str] = FILES) -> Plan:
    return plan(declared(query, files), CATALOG)


def read_rows(rows: list[dict[str, object]]) -> pa.Table:
    """Return rows as a typed table has them."""
    schema = pa.schema([(n, arrow_type(Column(name=n, type=t))) for n, t in COLUMNS.items()])
    table = pa.Table.from_pylist([{"at": START, **row} for row in rows], schema)
    zeros = pa.array([0] * len(rows), pa.int64())
    places = pa.array(range(len(rows)), pa.int64())
    for name, values in (("_time", table["at"]), ("_seq_hi", places), ("_seq_lo", zeros)):
        table = table.append_column(name, values)
    return table


def computed(query: str, rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Compute a query in the small executor."""
    made = planned(query)
    assert made.strategy is Strategy.REGIONS, made.notes
    assert made.tree is not None
    (scan,) = scans(made.tree)
    dataflow = Dataflow(made.tree)
    try:
        dataflow.add(scan, [read_rows(rows)])
        found = dataflow.round().sort_by(made.key[0]).drop_columns(["_w"]).to_pylist()
    finally:
        dataflow.close()
    return list(found)


def test_rows_and_columns_are_computed_in_the_small_executor() -> None:
    rows = computed(
        "SELECT id, count_letters(s, 'a') AS letters, SHOWN(n, at) AS words, halved(x) AS half, "
        "halved(n) AS half_n, a_second_later(at) AS later FROM STREAM r WHERE share(n, 2) < 2",
        [
            {"id": 1, "s": "banana", "n": 1, "x": 3.0},
            {"id": 2, "s": None, "n": 2, "x": None},
            {"id": 3, "s": "a", "n": 9, "x": 1.0},
        ],
    )
    later = START.replace(second=1)
    half = {"words": "1 at 10:00+0000", "half": 1.5, "half_n": 0.5, "later": later}
    assert rows == [
        {"id": 1, "letters": 3, **half},
        {"id": 2, "letters": None, "words": None, "half": None, "half_n": 1.0, "later": later},
    ]


def test_functions_stand_in_groups_and_over_the_results_of_groups() -> None:
    rows = computed(
        "SELECT count_letters(s, 'a') AS id, halved(SUM(x)) AS half, COUNT(*) AS n "
        "FROM STREAM r GROUP BY count_letters(s, 'a')",
        [{"id": 1, "s": "aa", "x": 1.0}, {"id": 2, "s": "aab", "x": 2.0}],
    )
    assert rows == [{"id": 2, "half": 1.5, "n": 2}]


@pytest.mark.parametrize(
    ("query", "place"),
    [
        (
            "share(x, n)",
            "functions/texts.py:21: ZeroDivisionError: float division by zero, in share",
        ),
        ("wrong(n + 7)", "functions/texts.py:25: ArrowInvalid"),
        (
            "cut(x + 0.75e0)",
            "functions/texts.py:29: ValueError: 1.75 is no whole number, in cut(x=1.75)",
        ),
        (
            "day_of(at)",
            "functions/texts.py:33: ValueError: 2026-03-02 10:00:00+00:00 has a time of day",
        ),
        ("strict(x + 9)", "functions/columnwise.py:16: ValueError: too much, in strict(x=10.0)"),
    ],
)
def test_what_goes_wrong_names_the_file_the_line_and_the_row(query: str, place: str) -> None:
    with pytest.raises(ContractViolation) as raised:
        computed(f"SELECT id, {query} AS v FROM STREAM r", [{"id": 1, "n": 0, "x": 1.0}])
    assert place in raised.value.message
    assert "(" in raised.value.message.partition(" in ")[2]


def test_files_of_the_folder_are_imported_in_any_form_and_may_have_classes() -> None:
    files = {
        "functions/f.py": """
from dataclasses import dataclass, field
from . import _rates, _words as words
from ._rates import Rate


@dataclass(frozen=True, slots=True)
class Sum:
    parts: list[int] = field(default_factory=list)


def f(n: int) -> int:
    return sum(Sum([n, _rates.RATE.value, Rate(3).value, words.LENGTH]).parts)
""",
        "functions/_rates.py": """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from . import _words


@dataclass
class Rate:
    value: int
    unit: ClassVar[str] = "EUR"


RATE = Rate(10 * _words.LENGTH)
""",
        "functions/_words.py": "from . import _rates\nLENGTH = 2\n",
    }
    (file,) = files_of(files)
    assert {name for name, _ in file.texts} == {*files}
    query = "SELECT id, f(n) AS v FROM STREAM r"
    made = planned(query, files)
    assert made.tree is not None
    dataflow = Dataflow(made.tree)
    try:
        dataflow.add(scans(made.tree)[0], [read_rows([{"id": 1, "n": 100}])])
        assert dataflow.round()["v"].to_pylist() == [125]
    finally:
        dataflow.close()


@pytest.mark.parametrize(
    "line",
    [
        "from . import _missing",
        "from . import _letters, _missing",
        "from ._missing import RATE",
        "from ._letters.more import RATE",
        "from .. import _letters",
        "from .._letters import LETTERS",
        "from . import *",
        "import functions._letters",
        "from functions._letters import LETTERS",
    ],
)
def test_an_import_that_is_not_part_of_the_statement_is_refused(line: str) -> None:
    files = {**FILES, "functions/f.py": f"\n{line}\n\ndef f(s: str) -> str:\n    return s\n"}
    with pytest.raises(InvalidRequest, match=r"functions/f\.py:2 has no such file beside it: "):
        planned("SELECT id, f(s) AS v FROM STREAM r", files)


REFUSED = {
    "nothing(s)": ("nothing", "no type"),
    "count_letters(s)": ("takes 2 arguments, not 1", "count_letters(text, letter)"),
    "count_letters(s, letters => 'a')": ("each of its names once", "count_letters(text, letter)"),
    "count_letters(s, text => 'a')": ("each of its names once", "count_letters(text, letter)"),
    "count_letters(n, s)": ("takes text as STRING, not as INT", "CAST(… AS STRING)"),
    "unreadable(n)": ("functions/odd.py:6: parameter a of unreadable has no type", "Annotate"),
    "unending(n)": ("functions/odd.py:7: its result of unending has no type", "Annotate"),
    "starred(s)": ("other than plain parameters", "without *"),
    "mixed(x, n)": ("takes columns and single values", "one kind"),
    "upper(s)": None,
}
ODD = """
from typing import Annotated
import pyarrow as pa

def nothing(a): return a
def unreadable(a: "int |") -> int: return a
def unending(a: int) -> "": return a
def starred(*a: str) -> str: return a[0]
def mixed(a: Annotated[pa.Array, float], b: int) -> float: return 1.0
def upper(a: str) -> str: return "mine"
def unused(a, b, *, c): return random.random()
"""


@pytest.mark.parametrize("call", REFUSED)
def test_a_call_that_cannot_be_is_refused_with_a_form_that_works(call: str) -> None:
    files = {**FILES, "functions/odd.py": ODD}
    query = f"SELECT id, {call} AS v FROM STREAM r"
    wanted = REFUSED[call]
    if wanted is None:
        assert not declared(query, files).functions, "a function of SQL stays that"
        return
    with pytest.raises(InvalidRequest) as raised:
        planned(query, files)
    assert wanted[0] in raised.value.message
    assert raised.value.message.startswith("<sql>:1:")
    assert wanted[1] in f"{raised.value.message} {raised.value.remedy}"


@pytest.mark.parametrize(
    "line",
    [
        "import random",
        "from os import environ",
        "from datetime import datetime\nNOW = datetime.now()",
        "VALUE = open('x').read()",
        "def h(a): return hash(a)",
        "def k(a):\n    global SEEN\n    SEEN = a",
    ],
)
def test_a_file_that_plainly_gives_other_values_another_time_is_refused(line: str) -> None:
    files = {"functions/f.py": f"{line}\n\ndef f(s: str) -> str:\n    return s\n"}
    with pytest.raises(InvalidRequest, match="a rebuild would differ"):
        planned("SELECT id, f(s) AS v FROM STREAM r", files)
    declared("SELECT id, s FROM STREAM r", files)


def test_two_files_with_one_name_are_refused_where_it_is_called() -> None:
    one = "def f(s: str) -> str:\n    return s\n"
    with pytest.raises(InvalidRequest, match=r"functions/a\.py and in functions/b\.py"):
        planned(
            "SELECT id, f(s) AS v FROM STREAM r", {"functions/a.py": one, "functions/b.py": one}
        )


def test_a_changed_file_is_a_changed_projection_and_no_other_file_is() -> None:
    query = "SELECT id, count_letters(s, 'a') AS v FROM STREAM r"
    before = declared(query)
    imported = {**FILES, "functions/_letters.py": "LETTERS = 1\n"}
    own = {**FILES, "functions/texts.py": TEXTS + "\n# another text\n"}
    other = {**FILES, "functions/columnwise.py": COLUMNWISE + "\n"}
    assert declared(query, imported).fingerprint != before.fingerprint
    assert declared(query, own).fingerprint != before.fingerprint
    assert declared(query, other) == before
    assert plan(declared(query, own), CATALOG).fingerprint != plan(before, CATALOG).fingerprint


def test_what_is_deployed_holds_its_functions() -> None:
    before = declared("SELECT id, count_letters(s, 'a') AS v FROM STREAM r")
    (again,) = parse_script(before.text).projections
    assert again == before
    assert again.text == before.text
    assert "LETTERS = 0" in before.text
    assert "halved" not in before.text


@given(text=st.text())
def test_a_statement_holds_any_text(text: str) -> None:
    file = FunctionFile((("functions/x.py", text), ("functions/_y.py", text[::-1])))
    script = Script(origin="<sql>", text=file.statement)
    assert read_statement(script, tokenized(script)) == file


def test_the_folder_beside_a_sql_file_or_above_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "projections").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "functions" / "test_texts.py").write_text("import random")
    file = tmp_path / "projections" / "p.sql"
    file.write_text(
        "CREATE PROJECTION p WITH (key = 'id') AS SELECT id, halved(x) AS v FROM STREAM r -- end"
    )
    (decl,) = read_files([file]).projections
    assert [each.name for each in decl.functions] == ["halved"]
    (tmp_path / "functions" / "texts.py").write_text("def broken(:")
    (refused,) = read_files([file]).refused
    assert "functions/texts.py:1: " in refused.message


def test_arguments_behind_their_names_are_those_in_their_places() -> None:
    wanted = planned("SELECT id, count_letters(s, 'a') AS v FROM STREAM r").rows_sql
    for call in ("count_letters(letter => 'a', text => s)", "count_letters(s, letter => 'a')"):
        assert planned(f"SELECT id, {call} AS v FROM STREAM r").rows_sql == wanted
