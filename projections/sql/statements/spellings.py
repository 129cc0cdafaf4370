"""Statements as Flink spells them: `CREATE TABLE … WITH`, `CREATE VIEW`, `INSERT INTO … SELECT`.

`CREATE MATERIALIZED VIEW … AS` and ksqlDB's `CREATE TABLE … AS` are such insertions. Flows are
those of Databricks (`flows`).

Each is written anew as the statement of the dialect that means the same: a table becomes a source
or the name of a log, a view a query of WITH, an insertion a projection. What is kept and deployed
is that text; a refusal names the place in the text as it was written.

A table is known in its own script alone. One with the connector `projection` is written by an
insertion, all others are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.tokens import Token

from projections.sql.forms.arguments import read_query
from projections.sql.forms.flows import STEPS, is_flow, read_flow
from projections.sql.operators.windows import WindowKind, is_session, window_kind
from projections.sql.statements.match_clause import (
    MatchClause,
    clause_of,
    columns_of_match,
    without_matches,
)
from projections.sql.statements.tables import CONNECTORS, Table, read_table, with_options
from projections.sql.words.options import OptionValue
from projections.sql.words.places import Piece, Script
from projections.sql.words.tokens import TokenCursor, with_sessions, with_streams

_VIEW_FORM = "CREATE [TEMPORARY] VIEW name AS SELECT …;"
_INSERT_FORM = "INSERT INTO name SELECT …;"
_ONE_BY_ONE = (
    "a set of statements is read one by one",
    "Leave out EXECUTE STATEMENT SET, BEGIN and END: each INSERT INTO is a projection of its own.",
)
_OF_SESSIONS = {
    **dict.fromkeys(("EXECUTE", "BEGIN", "END"), _ONE_BY_ONE),
    "SET": (
        "SET says nothing of what is computed",
        "Leave it out: settings are the workspace's, and a projection's own stand in WITH (…).",
    ),
    "USE": ("there are no catalogs to choose", "Leave it out, and name tables in full."),
}
"""Statements of a session, which declare nothing: why they are refused, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """A declared view. `reads` are the views that it reads, each after those it reads itself.

    `names` are all that it reads by one word.
    """

    written: str
    pieces: Sequence[Piece]
    reads: tuple[str, ...]
    names: frozenset[str]


@dataclass(slots=True, kw_only=True)
class Spellings:
    """Writes the statements of one script anew, in their order."""

    script: Script
    _matches: Sequence[MatchClause] = ()
    _tables: dict[str, Table] = field(default_factory=dict)
    _views: dict[str, _View] = field(default_factory=dict)

    def respelled(self, tokens: list[Token]) -> Script | None:
        """Return a statement in the dialect's own words; an empty text where it needs none.

        None for a statement that is in these words already.
        """
        if is_flow(tokens):
            return self._flow(tokens)
        made = _created(tokens)
        if made is not None:
            return self._insertion(made)
        tokens = _declaring(tokens)
        words = [token.text.upper() for token in tokens[:2]]
        if words[0] in _OF_SESSIONS:
            reason, fix = _OF_SESSIONS[words[0]]
            raise self.script.refusal(reason, at=int(tokens[0].start), fix=fix)
        if words == ["CREATE", "TABLE"]:
            return self._table(tokens)
        if words == ["CREATE", "VIEW"]:
            return self._view(tokens)
        if words == ["INSERT", "INTO"]:
            return self._insertion(tokens)
        return None

    def _table(self, tokens: list[Token]) -> Script:
        table = read_table(self.script, tokens)
        self._once(table.written, table.at)
        self._tables[table.name] = table
        return self._at(table.source, table.at)

    def _once(self, written: str, at: int) -> None:
        if written.lower() in self._tables or written.lower() in self._views:
            raise self.script.refusal(
                f"{written} is declared twice", at=at, fix="Give every table and view its own name."
            )

    def _view(self, tokens: list[Token]) -> Script:
        cursor = TokenCursor(self.script, tokens, form=_VIEW_FORM)
        cursor.expect("CREATE")
        cursor.expect("VIEW")
        at = cursor.at
        name = cursor.name("the name of a view")
        self._once(name, at)
        cursor.expect("AS")
        if not cursor.rest:
            raise cursor.refusal("expected a SELECT after AS")
        pieces, query = self._pieces(list(cursor.rest))
        reads = tuple(self._views_read(query))
        read = {each.name.lower() for each in _named_alone(query)}
        names = frozenset(read.difference(_ctes(query)))
        view = _View(written=name, pieces=pieces, reads=reads, names=names)
        self._views[name.lower()] = view
        return self._at("", at)

    def _insertion(self, tokens: list[Token]) -> Script:
        cursor = TokenCursor(self.script, tokens, form=_INSERT_FORM)
        if not cursor.take("CREATE"):
            cursor.expect("INSERT")
            cursor.expect("INTO")
        at = cursor.at
        written = cursor.name("the name of a table")
        target = self._tables.get(written.lower())
        if written.lower() in self._views:
            raise self.script.refusal(
                f"{written} is a view, and cannot be written",
                at=at,
                fix="Insert into another name.",
            )
        if target is not None and target.read is not None:
            raise self.script.refusal(
                f"{written} is read, and cannot be written",
                at=at,
                fix=f"Insert into another name, or declare it: CREATE TABLE {written} (…) WITH "
                "('connector' = 'projection').",
            )
        cursor.take("AS")
        if not cursor.rest:
            raise cursor.refusal("expected a SELECT")
        pieces, query = self._pieces(list(cursor.rest))
        options = dict(target.options) if target is not None else {}
        if target is not None:
            self._check_columns(target, query, written, at)
        if "key" not in options:
            options["key"] = OptionValue(text=self._groups(query, written, at), at=at)
        rest = [each for each in CONNECTORS["projection"] if each in options]
        head = f"CREATE PROJECTION {written.lower()}{with_options(options, rest)} AS\n"
        self._tables[written.lower()] = Table(
            written=written, at=at, options={}, read=written.lower()
        )
        return _spliced(self.script, [Piece(head, at, False), *self._with_views(query, pieces)])

    def _flow(self, tokens: list[Token]) -> Script:
        logs = {
            name: each.rows(f"STREAM {each.read.removeprefix('STREAM ')}")
            for name, each in self._tables.items()
            if each.read is not None
        }
        views = {name: each.written for name, each in self._views.items()}
        flow = read_flow(self.script, tokens, logs | views)
        self._once(flow.target, flow.at)
        self._tables[flow.target] = Table(
            written=flow.target, at=flow.at, options={}, read=flow.target
        )
        view = self._views.get(flow.source)
        if view is None:
            return _spliced(self.script, [*flow.head, *flow.query])
        needed = [*view.reads, flow.source]
        read = frozenset(needed).union(*(self._views[name].names for name in needed))
        for name in sorted(read & STEPS):
            raise self.script.refusal(
                f"{name}, which a view is called or reads, is a name of a flow's own",
                at=flow.at,
                fix="Give it another name.",
            )
        return _spliced(self.script, [*flow.head, *self._behind(needed, flow.query, within=True)])

    def _check_columns(self, target: Table, query: exp.Expr, written: str, at: int) -> None:
        select = query.find(exp.Select)
        given = [] if select is None else [each.alias_or_name for each in select.expressions]
        first = None if select is None else select.args.get("from_")
        if given == ["*"] and first is not None and isinstance(first.this, exp.Subquery):
            clause = clause_of(first.this.this, self._matches)
            given = given if clause is None else columns_of_match(clause, None) or given
        if target.columns and [*map(str.lower, given)] != [*map(str.lower, target.columns)]:
            raise self.script.refusal(
                f"{written} has the columns {', '.join(target.columns)}, and the SELECT gives "
                f"{', '.join(given) or 'none'}",
                at=at,
                fix="Give the SELECT's columns these names, in this order: SELECT x AS name, ….",
            )

    def _groups(self, query: exp.Expr, written: str, at: int) -> str:
        """Return the columns of the result that a query is grouped by: they are the key."""
        group = query.args.get("group")
        if isinstance(query, exp.Select) and group is None and query.args.get("distinct"):
            return ", ".join(each.alias_or_name for each in query.expressions)
        names = []
        for each in group.expressions if group is not None else ():
            names += _items_of(query, each)[:1]
        if group is None or len(names) < len(group.expressions):
            raise self.script.refusal(
                f"nothing says which columns identify a row of {written}",
                at=at,
                fix=f"Declare its key: CREATE TABLE {written} (…, PRIMARY KEY (column) NOT "
                "ENFORCED) WITH ('connector' = 'projection'); or write CREATE PROJECTION "
                f"{written.lower()} WITH (key = 'column') AS SELECT ….",
            )
        return ", ".join(names)

    def _with_views(self, query: exp.Expr, pieces: Sequence[Piece]) -> list[Piece]:
        """Put the views that a query reads before it, as queries of WITH."""
        needed = self._views_read(query)
        within = query.args.get("with_") is not None
        return self._behind(needed, pieces, within=within) if needed else list(pieces)

    def _behind(
        self, needed: Sequence[str], pieces: Sequence[Piece], *, within: bool
    ) -> list[Piece]:
        """Put views before a query, `within` its WITH where it has one."""
        found = [Piece("WITH ", pieces[0].at, False)]
        for name in needed:
            view = self._views[name]
            at = view.pieces[0].at
            found += [Piece(f"{view.written} AS (", at, False), *view.pieces]
            found.append(Piece("), ", at, False))
        first = pieces[0]
        if within:
            # The query has names of its own: they follow.
            cut = len("WITH")
            at = first.at + cut if first.same else first.at
            return [*found, Piece(first.text[cut:], at, first.same), *pieces[1:]]
        found[-1] = Piece(") ", first.at, False)
        return [*found, *pieces]

    def _views_read(self, query: exp.Expr) -> list[str]:
        """Return the views that a query reads, those that others read before them."""
        needed: dict[str, None] = {}
        for name in (each.name.lower() for each in _named_alone(query)):
            if name in self._views:
                needed |= dict.fromkeys([*self._views[name].reads, name])
        return list(needed)

    def _pieces(self, body: list[Token]) -> tuple[list[Piece], exp.Expr]:
        """Return a query's text with the declared tables' own names put in."""
        plain, self._matches = without_matches(self.script, body)
        query = read_query(self.script, with_sessions(with_streams(plain)), with_names=True)
        self._refuse_captured(query)
        text, pieces, done = self.script.text, [], body[0].start
        for table in sorted(_named_alone(query), key=_start):
            known = self._tables.get(table.name.lower())
            if known is None or table.name.lower() in _ctes(query):
                continue
            if known.read is None:
                raise self.script.refusal(
                    f"{table.name} is written by an insertion that comes later",
                    at=_start(table),
                    fix="Write the insertion before what reads it.",
                )
            start, end = _start(table), int(table.this.meta["end"]) + 1
            if known.items and table.args.get("version"):
                raise self.script.refusal(
                    f"{table.name} as of a time, with columns that are computed",
                    at=start,
                    fix="Compute them in SELECT, and leave them out of CREATE TABLE.",
                )
            pieces.append(Piece(text[done:start], done, True))
            alias = "" if table.alias else known.alias
            pieces.append(Piece(f"{known.rows(known.read)}{alias}", start, False))
            done = end
        pieces.append(Piece(text[done : body[-1].end + 1], done, True))
        return pieces, query

    def _refuse_captured(self, query: exp.Expr) -> None:
        """Refuse names of WITH that views have or read: the views stand in the same WITH."""
        needed = self._views_read(query)
        for name, at in _ctes(query).items():
            if name in self._views or any(name in self._views[view].names for view in needed):
                raise self.script.refusal(
                    f"WITH names {name}, which a view is called or reads",
                    at=at,
                    fix="Give the query of WITH a name of its own.",
                )

    def _at(self, text: str, at: int) -> Script:
        return _spliced(self.script, [Piece(text, at, False)])


def _declaring(tokens: list[Token]) -> list[Token]:
    """Leave out what makes no difference in a script: OR REPLACE, TEMPORARY and IF NOT EXISTS."""
    words = [token.text.upper() for token in tokens[:8]]
    place = 3 if words[1:3] == ["OR", "REPLACE"] else 1
    place += words[place : place + 1] in (["TEMPORARY"], ["TEMP"])
    if words[:1] != ["CREATE"] or words[place : place + 1] not in (["TABLE"], ["VIEW"]):
        return tokens
    behind = place + 1
    behind += 3 if words[behind : behind + 3] == ["IF", "NOT", "EXISTS"] else 0
    return [tokens[0], tokens[place], *tokens[behind:]]


def _created(tokens: list[Token]) -> list[Token] | None:
    """Return CREATE and what stands behind the words that say what kind of view a SELECT makes.

    Those of Materialize and RisingWave are materialized, those of ksqlDB tables and streams.
    """
    words = [token.text.upper() for token in tokens[:10]]
    place = 3 if words[1:3] == ["OR", "REPLACE"] else 1
    kinds = (["MATERIALIZED", "VIEW"], ["TABLE"], ["STREAM"])
    kind = next((each for each in kinds if words[place : place + len(each)] == each), None)
    if words[:1] != ["CREATE"] or kind is None:
        return None
    place += len(kind)
    place += 3 if words[place : place + 3] == ["IF", "NOT", "EXISTS"] else 0
    plain = words[place + 1 : place + 2] == ["AS"]
    return [tokens[0], *tokens[place:]] if plain else None


def _spliced(script: Script, pieces: Sequence[Piece]) -> Script:
    text = "".join(piece.text for piece in pieces)
    return Script(origin=script.origin, text=text, pieces=tuple(pieces), written=script)


def _items_of(query: exp.Expr, group: exp.Expr) -> list[str]:
    """Return the columns of the result that a group stands in; a window in its bounds."""
    items = query.expressions
    if isinstance(group, exp.Literal) and group.is_int:
        return [each.alias_or_name for each in items[int(group.name) - 1 :][:1]]
    kind = window_kind(group)
    if kind is not None or is_session(group):
        # Windows of CUMULATE differ in their end alone.
        bounds = ["window_end"] if kind is WindowKind.CUMULATE else ["window_start", "window_end"]
        told = [(item.unalias().sql().lower(), item.alias_or_name) for item in items]
        return [name for bound in bounds for text, name in told if text == bound]
    return [
        item.alias_or_name
        for item in items
        if item.unalias().sql() == group.sql() or item.alias_or_name == group.sql()
    ]


def _ctes(query: exp.Expr) -> dict[str, int]:
    """Return the names of a query's queries of WITH, and their places."""
    return {each.alias.lower(): _start(each.args["alias"]) for each in query.find_all(exp.CTE)}


def _named_alone(query: exp.Expr) -> list[exp.Table]:
    """Return the tables of a query that are named by one word."""
    return [
        each
        for each in query.find_all(exp.Table)
        if len(each.parts) == 1 and not isinstance(each.parent, exp.Stream)
    ]


def _start(table: exp.Expr) -> int:
    return int(table.this.meta.get("start", 0))
