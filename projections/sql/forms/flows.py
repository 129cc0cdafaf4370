"""`CREATE FLOW … AS AUTO CDC INTO …`, as Databricks spells it: the projection that keeps it.

A flow keeps a table from changes that come late, twice and in any order: the newest row of each key
(SCD type 1), or every version of it with `start_at` and `end_at` (SCD type 2). It is written as
a query over its source, so that it is kept, built, replayed and explained as any other.

Steps, each a query of WITH, the latter ones where they are asked for: the changes that can be used
(`said`), those behind the last TRUNCATE (`left_over`), nulls that say nothing filled from before
(`lives`, `filled`), one change of each place (`one`), where a version begins (`marked`,
`counted`), versions (`version`). Of changes of one key and sequence a delete counts, else the one
that is later in its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot.tokens import Token

from projections.sql.forms.flow_clauses import (
    END_AT,
    FLOW_FORM,
    START_AT,
    Clauses,
    read_clauses,
)
from projections.sql.words.places import Piece, Script
from projections.sql.words.tokens import TokenCursor
from schemas.identifiers import spark_name

_GONE, _LIFE, _NEW, _NUMBER = "flow_gone", "flow_life", "flow_new", "flow_number"
STEPS = frozenset(
    ("said", "left_over", "lives", "filled", "one", "marked", "counted", "version"),
)
"""The names of the queries of WITH."""
_SO_FAR = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"


def is_flow(tokens: Sequence[Token]) -> bool:
    """Say whether a statement is a flow: `CREATE FLOW …`, or `APPLY CHANGES INTO …` alone."""
    words = [token.text.upper() for token in tokens[:3]]
    return words[:2] == ["CREATE", "FLOW"] or words == ["APPLY", "CHANGES", "INTO"]


@dataclass(slots=True)
class _Text:
    """A text that is put together of our words and of what was written."""

    at: int
    pieces: list[Piece] = field(default_factory=list)

    def add(self, *parts: str | Piece) -> None:
        for part in parts:
            self.pieces.append(part if isinstance(part, Piece) else Piece(part, self.at, False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A flow's target, its place, and the projection that keeps it: `head` and `query`.

    `source` is the name of what it reads, as it is looked up.
    """

    target: str
    at: int
    source: str
    head: Sequence[Piece]
    query: Sequence[Piece]


def read_flow(script: Script, tokens: Sequence[Token], read: Mapping[str, str]) -> Flow:
    """Return the projection that keeps a flow's target.

    `read` says what stands in FROM for the tables and views that the script declares.
    Raises `InvalidRequest` for clauses that are missing, contradict each other or are not known.
    """
    cursor = TokenCursor(script, tokens, form=FLOW_FORM)
    if cursor.take("CREATE"):
        cursor.expect("FLOW")
        cursor.dotted("the name of a flow")
        cursor.expect("AS")
    if cursor.take("AUTO"):
        cursor.expect("CDC")
    else:
        cursor.expect("APPLY")
        cursor.expect("CHANGES")
    cursor.expect("INTO")
    at = cursor.at
    target = cursor.name("the name of a table").lower()
    clauses = read_clauses(script, list(cursor.rest), at)
    name = clauses.source.text.strip("`").lower()
    source = _source(clauses, read.get(name))
    head, query = _Text(at), _Text(at)
    _head(head, target, clauses)
    _projection(query, clauses, source)
    return Flow(target=target, at=at, source=name, head=head.pieces, query=query.pieces)


def _source(flow: Clauses, named: str | None) -> Sequence[str | Piece]:
    text: list[str | Piece] = ["STREAM ", flow.source] if named is None else [named]
    return text if flow.alias is None else [*text, " ", flow.alias]


def _head(text: _Text, target: str, flow: Clauses) -> None:
    identity = [*flow.keys, START_AT] if flow.versions else list(flow.keys)
    quoted = ", ".join(identity).replace("'", "''")
    # Any other name stands in quotes, so that it is refused as one.
    name = target if target.isidentifier() else spark_name(target)
    text.add(f"CREATE PROJECTION {name} WITH (key = '{quoted}'")
    if flow.options is not None:
        text.add(", ", flow.options)
    text.add(") AS\n")


def _projection(text: _Text, flow: Clauses, source: Sequence[str | Piece]) -> None:
    keys = _listed(flow.keys)
    text.add("WITH said AS (\n  SELECT ")
    for place, (name, at) in enumerate(flow.columns.items()):
        text.pieces.append(Piece(f"{', ' if place else ''}{spark_name(name)}", at, False))
    for place, part in enumerate(flow.sequence):
        text.add(", ", part, f" AS {_sequence(flow)[place]}")
    text.add(", ")
    _condition(text, flow.deletes)
    text.add(f" AS {_GONE}\n  FROM ", *source, "\n  WHERE ")
    text.add(" AND ".join(f"{spark_name(key)} IS NOT NULL" for key in flow.keys))
    for part in flow.sequence:
        text.add(" AND (", part, ") IS NOT NULL")
    if flow.where is not None:
        text.add(" AND (", flow.where, ")")
    if flow.truncates is not None:
        text.add(" AND NOT ")
        _condition(text, flow.truncates)
    text.add("\n)")
    last = "said"
    if flow.truncates is not None:
        last = _behind_truncates(text, flow, source, last)
    if flow.filled:
        last = _filled(text, flow, last)
    if not flow.versions:
        text.add(
            f"\nSELECT {_listed(flow.columns)} FROM (\n  ", _last(flow, last, keys, of_key=True)
        )
        text.add(f"\n)\nWHERE NOT {_GONE}")
        return
    text.add(",\none AS (\n  ", _last(flow, last, keys, of_key=False), "\n)")
    _versions(text, flow, keys)


def _behind_truncates(text: _Text, flow: Clauses, source: Sequence[str | Piece], last: str) -> str:
    """Leave out what was said up to the last TRUNCATE."""
    sequence = _sequence(flow)[0]
    text.add(",\nleft_over AS (\n  SELECT s.* FROM ", last, " s CROSS JOIN (\n    SELECT MAX(")
    text.add(flow.sequence[0], ") AS cleared FROM ", *source, " WHERE ")
    assert flow.truncates is not None, "asked for"
    _condition(text, flow.truncates)
    if flow.where is not None:
        text.add(" AND (", flow.where, ")")
    text.add(f"\n  ) t WHERE t.cleared IS NULL OR s.{sequence} > t.cleared\n)")
    return "left_over"


def _filled(text: _Text, flow: Clauses, last: str) -> str:
    """Put what was said before in the place of nulls that say nothing, as far as the last delete.

    Of several changes of one place each column is told by the last one that says something.
    """
    keys, sequence = _listed(flow.keys), ", ".join(_sequence(flow))
    text.add(f",\nlives AS (\n  SELECT *, SUM(CASE WHEN {_GONE} THEN 1 ELSE 0 END) OVER (")
    text.add(f"PARTITION BY {keys} ORDER BY {sequence}, {_GONE} {_SO_FAR}) AS {_LIFE}")
    text.add("\n  FROM ", last, "\n),\nfilled AS (\n  SELECT ")
    items = []
    for name in flow.columns:
        column = spark_name(name)
        if name in flow.filled:
            column = (
                # A delete begins a life, and what it says of the row is of the one before.
                f"LAST_VALUE(CASE WHEN NOT {_GONE} THEN {column} END) IGNORE NULLS OVER ("
                f"PARTITION BY {keys}, {_LIFE} "
                f"ORDER BY {sequence}, {_GONE} {_SO_FAR}) AS {column}"
            )
        items.append(column)
    text.add(",\n    ".join([*items, *_sequence(flow), _GONE]), "\n  FROM lives\n)")
    return "filled"


def _last(flow: Clauses, of: str, keys: str, *, of_key: bool) -> str:
    """Select the last change of each key, or of each place of it; a delete is behind all others."""
    sequence = ", ".join(_sequence(flow))
    part, order = (keys, f"{sequence}, {_GONE}") if of_key else (f"{keys}, {sequence}", _GONE)
    return (
        f"SELECT * FROM {of}\n  QUALIFY LEAD(1) OVER (PARTITION BY {part} ORDER BY {order}) IS NULL"
    )


def _versions(text: _Text, flow: Clauses, keys: str) -> None:
    columns = _listed(flow.columns)
    window = f"OVER (PARTITION BY {keys} ORDER BY {START_AT})"
    same = [
        f"{spark_name(name)} IS NOT DISTINCT FROM LAG({spark_name(name)}) {window}"
        for name in flow.tracked
    ]
    begins = " AND ".join([f"NOT {_GONE}", f"NOT LAG({_GONE}, 1, TRUE) {window}", *same])
    text.add(",\nmarked AS (\n  SELECT ", f"{columns}, {START_AT}, {_GONE},\n    ")
    text.add(f"CASE WHEN {begins} THEN 0 ELSE 1 END AS {_NEW}\n  FROM one\n)")
    if flow.tracks_all:
        text.add(f",\nversion AS (SELECT * FROM marked WHERE {_NEW} = 1)")
    else:
        # Columns that are not tracked show their last values within the version.
        text.add(f",\ncounted AS (\n  SELECT *, SUM({_NEW}) OVER (PARTITION BY {keys} ")
        text.add(f"ORDER BY {START_AT} {_SO_FAR}) AS {_NUMBER}\n  FROM marked\n)")
        text.add(
            f",\nversion AS (\n  SELECT {columns}, MIN({START_AT}) OVER (PARTITION BY {keys}, "
        )
        text.add(f"{_NUMBER}) AS {START_AT}, {_GONE}\n  FROM counted\n  QUALIFY LEAD(1) OVER (")
        text.add(f"PARTITION BY {keys}, {_NUMBER} ORDER BY {START_AT}) IS NULL\n)")
    text.add(f"\nSELECT {columns}, {START_AT}, {END_AT} FROM (\n  SELECT *, LEAD({START_AT}) ")
    text.add(f"{window} AS {END_AT} FROM version\n)\nWHERE NOT {_GONE}")


def _condition(text: _Text, condition: Piece | None) -> None:
    """Say a condition that is no truth where it is NULL."""
    if condition is None:
        text.add("FALSE")
    else:
        text.add("COALESCE((", condition, "), FALSE)")


def _sequence(flow: Clauses) -> list[str]:
    if flow.versions:
        return [START_AT]
    return [f"flow_sequence_{place}" for place in range(len(flow.sequence))]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(spark_name, names))
