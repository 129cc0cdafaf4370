"""What a plan costs and keeps, in words, and the page that `projection explain` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from projections.sql.operators.column_origins import column_origins
from projections.sql.operators.shape import PARTIAL, InputKind, Plan, Strategy
from projections.sql.operators.tree import (
    Function,
    Grouped,
    Join,
    JoinKind,
    Map,
    Match,
    Newest,
    Node,
    Scan,
    Sessions,
    Windowed,
    scans,
    walk,
)
from projections.sql.operators.windows import WindowKind
from projections.sql.planning.element_keys import notes_of_elements
from projections.sql.plans.adding import Adding
from projections.sql.plans.changing_groups import changing_of, kept_by_groups
from projections.sql.plans.fact_keys import as_resolved
from projections.sql.plans.key_steps import key_steps
from projections.sql.plans.outline import outline
from projections.sql.plans.state_bounds import (
    NOT_MEASURED,
    Lateness,
    Measures,
    by_default,
    state_bounds,
    state_documents,
    state_lines,
)
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.values.expressions import render
from projections.sql.words.durations import in_words_us

NEW_ROWS = "new rows only"
NEW_ROWS_ADDED = "new rows only, added to the rows of their groups"
NEW_ROWS_ADDED_OR_MET = (
    "new rows only, added to the rows of their groups; all rows of the touched groups when a "
    "version changed that rows look up"
)
NEW_ROWS_AND_MET = "new rows, and those that look up a version which changed"
NEW_ROWS_AND_VALUES = (
    "new rows, added to the rows of their groups, and the different values that these groups have"
)
TOUCHED_WINDOWS = "rows of the touched windows"
TOUCHED_KEYS = "all rows of the touched keys"
TOUCHED_REGIONS = "rows of the touched regions"
EVERYTHING = "everything, at every run"
_LATE_GROUPS = (
    "late rows: until the source's closed_after (its lateness, where that is not declared) they "
    "correct results at once; later ones stay in the log and wait for: penstock replay "
    "--include-late"
)
_UNBOUND = "a join of streams without a bound in time keeps both sides whole"
_EVERY = (
    "a join that equates nothing compares each new row with every row of the other side: equate "
    "something where the sides are large"
)
_NULLS = (
    "NOT IN (SELECT …): a NULL that it gives leaves no row, and a row whose own value is NULL is "
    "there while it gives none; both are watched by joins of their own, unless WHERE says IS NOT "
    "NULL there and here"
)
MERGED = (
    "its table: each run writes the files anew that hold a key of a changed row; with keys all "
    "over that is the whole table, and a run takes longer the more rows this has, however few are "
    "computed; keys that are new, as those of recent windows, touch few files"
)
_BY_KEYS = (
    "; where files of many rows would be looked through for the facts of some keys, as of those of "
    "a version that changed, all facts are kept by these keys as well, in files of the temporary "
    "folder: disposable, made anew from the typed tables at the first such run of a process"
)
_LATE_ROWS = "late rows: take part whenever they come; the latest event time wins"


def cost_of(tree: Newest, strategy: Strategy, adding: Adding | None) -> str:
    """Return the cost class: what one run reads, apart from finding the keys."""
    looks_up = any(isinstance(node, Join) for node in walk(tree))
    groups = kept_by_groups(tree) if strategy is Strategy.REGIONS else None
    if groups is not None and changing_of(groups) is not None:
        return NEW_ROWS_AND_VALUES
    if strategy is Strategy.REGIONS or (adding is not None and not looks_up):
        return NEW_ROWS_ADDED
    if adding is not None:
        return NEW_ROWS_ADDED_OR_MET
    if strategy is Strategy.NEWEST:
        return NEW_ROWS_AND_MET if looks_up else NEW_ROWS
    windowed = any(isinstance(node, Windowed) for node in walk(tree))
    return TOUCHED_WINDOWS if windowed else TOUCHED_KEYS


def notes_of(
    decl: ProjectionDecl,
    read: Newest,
    tree: Newest,
    strategy: Strategy,
    beyond: str | None,
    adding: Adding | None,
) -> tuple[str, ...]:
    """Say what is kept, what late rows do, and what the author may not expect.

    `read` is the tree as the query has it, `beyond` what Spark alone computes.
    """
    grouped = any(isinstance(node, Grouped) for node in walk(read))
    notes = [_engine(beyond), _state(tree, strategy, adding)]
    notes.append(_LATE_GROUPS if grouped else _LATE_ROWS)
    if strategy is Strategy.NEWEST and decl.query.args.get("where") is not None:
        notes.append(
            "WHERE: a row that fails it never wins and never removes its key's row; the newest "
            "row that passes stays"
        )
    for node in walk(read):
        if isinstance(node, Join):
            notes.append(
                f"join with {scans(node.right)[0].name} as of "
                f"{render(as_resolved(node.as_of[0].expression))}: valid_from <= t < valid_to, "
                "never a later version; a version that comes late is joined again with the facts "
                "in its range"
            )
    notes += [
        f"{_windows(node)}; rows without a time are in no window"
        for node in walk(read)
        if isinstance(node, Windowed)
    ]
    notes += _folds(tree)
    texts = [render(item) for item in decl.query.expressions]
    if grouped and any(each.type == "DOUBLE" for each in read.columns):
        notes += _of_doubles(texts)
    return tuple(notes)


def _of_doubles(texts: Sequence[str]) -> Iterator[str]:
    if any("SUM(" in text or "AVG(" in text for text in texts):
        yield (
            "sums of DOUBLE are exact, and rounded once: a rebuild gives the same bits, whatever "
            "the order; what computes a group from all its rows has their values in memory at once"
        )
    if any("MIN(" in text or "MAX(" in text for text in texts):
        yield (
            "the least and the greatest DOUBLE have no zero with a sign: 0.0 stands for -0.0, too, "
            "where Spark's own gives whichever it met"
        )


def _windows(node: Windowed) -> str:
    size, step = map(in_words_us, (node.size_us, node.step_us))
    behind = f"{in_words_us(node.offset_us)} behind " if node.offset_us else ""
    aligned = f"[start, end), aligned to {behind}1970-01-01 UTC"
    if node.kind is WindowKind.TUMBLE:
        return f"tumbling windows of {size}, {aligned}"
    each = "every" if node.kind is WindowKind.HOP else "growing by"
    return f"windows of {size} {each} {step}, {aligned}"


def notes_of_rows(
    tree: Newest, strategy: Strategy, beyond: str | None, adding: Adding | None
) -> tuple[str, ...]:
    """Say how elements of a stream's facts are kept; `beyond` is what Spark alone computes."""
    late = _LATE_ROWS if adding is None else _LATE_GROUPS
    return (
        _engine(beyond),
        _state(tree, strategy, adding),
        late,
        *notes_of_elements(tree),
    )


def notes_of_steps(tree: Newest, beyond: str | None, *, stateful: bool) -> tuple[str, ...]:
    """Say how a query of several steps is kept; `beyond` is what Spark alone computes."""
    if beyond is not None:
        kept = (
            f"engine: Spark, which computes everything at every run, because of {beyond}; choose "
            "a freshness that allows for that, or write it with functions that are kept in small"
        )
    else:
        kept = (
            "engine: small changes in the pipeline's own process, as builds of up to 256 MiB of "
            "files; larger ones in Spark; "
            "state: disposable, made anew from the typed tables when the process starts"
        )
    notes = [kept, _LATE_GROUPS if stateful else _LATE_ROWS]
    for node in walk(tree):
        if isinstance(node, Join) and node.timed and not node.rest:
            notes.append(_UNBOUND)
        if isinstance(node, Join) and node.every:
            notes.append(_EVERY)
        if isinstance(node, Match) and node.within_us is None:
            notes.append("a pattern without WITHIN searches whole partitions at every change")
        if isinstance(node, Join):
            notes += [*_latest_of(node.right), *_nulls_of(node)]
    notes = [*dict.fromkeys(notes), *notes_of_elements(tree), *_folds(tree)]
    if any(scan.kind is InputKind.PROJECTION for scan in scans(tree)) and _chooses(tree):
        notes.append(
            "rows of another projection have no place in time: where one of several has to be "
            "chosen, it is the one with the greatest values, from the first column to the last"
        )
    return tuple(notes)


def notes_of_end(tree: Newest, name: str, beyond: str | None) -> tuple[str, ...]:
    """Say of final rows what they wait for, and what is done about rows that come later."""
    streams = dict.fromkeys(s.name for s in scans(tree) if s.kind is InputKind.STREAM)
    return (
        "a row is given out when its end is at or before the watermark: the least, over "
        f"{', '.join(streams)}, of the greatest event time that every partition has brought, minus "
        "the lateness; a stream that is silent for its idle_timeout is not waited for",
        "a row that was given out is corrected by rows that come later all the same, until their "
        "closed_after, and by tables that change"
        + (f"; each correction is a row of corrections/{name}" if beyond is None else ""),
    )


def _folds(tree: Newest) -> list[str]:
    """Say who folds the histories that a query reads."""
    kinds = (InputKind.HISTORY, InputKind.LATEST)
    names = dict.fromkeys(scan.name for scan in scans(tree) if scan.kind in kinds)
    return [
        f"versions of {name}: folded before each run, in the pipeline's own process where the rows "
        "that came and the stored versions of their keys fit into pipeline.driver_bytes, else by "
        "Spark"
        for name in names
    ]


def _latest_of(right: Node) -> list[str]:
    """Say what a join with a table's rows costs."""
    while isinstance(right, Map):
        right = right.input
    if not isinstance(right, Scan) or right.kind is not InputKind.LATEST:
        return []
    return [
        f"join with the rows of {right.name} as they are: an update there repairs all old rows "
        "that read it; FOR SYSTEM_TIME AS OF is the cheaper form, and usually the meant one"
    ]


def _nulls_of(join: Join) -> list[str]:
    """Say what NOT IN does about NULL: it is an anti join with a group of all rows."""
    right = join.right
    while isinstance(right, Map):
        right = right.input
    if join.kind is not JoinKind.ANTI or not isinstance(right, Grouped):
        return []
    below = right.input
    keys = [each for each in getattr(below, "outputs", ()) if each.name in right.keys]
    return [_NULLS] if all(isinstance(each.expression, exp.Literal) for each in keys) else []


def _chooses(tree: Newest) -> bool:
    """Say whether a result depends on which of several rows is the newest."""
    for node in walk(tree):
        calls = node.calls if isinstance(node, Grouped | Sessions) else ()
        if any(call.function is Function.NEWEST for call in calls):
            return True
    return not tree.unique


def _engine(beyond: str | None) -> str:
    if beyond is None:
        return (
            "engine: small changes in the pipeline's own process, as builds of up to 256 MiB of "
            "files; larger ones in Spark"
        )
    return (
        f"engine: Spark, because of {beyond}; a run costs seconds, however little came: write it "
        "with functions that are kept in small, or choose a freshness that allows for that"
    )


def _state(tree: Newest, strategy: Strategy, adding: Adding | None) -> str:
    if adding is not None:
        hidden = any(output.startswith(PARTIAL) for _, output in adding.held)
        beside = ", and totals and counts in hidden columns" if hidden else ""
        place = ", and the place of each group's newest row" if adding.ordered else ""
        return f"state: the target alone: new rows are added to its rows{beside}{place}"
    if strategy is Strategy.NEWEST:
        looks_up = any(isinstance(node, Join) for node in walk(tree))
        kept = "state: the target alone, with event time and sequence of each key's newest row"
        return f"{kept}{_BY_KEYS}" if looks_up else kept
    if strategy is Strategy.REGIONS:
        return (
            "state: the rows of all groups, and the values that results are made of, each once: "
            "disposable, made anew from the typed tables when the process starts"
        )
    steps = key_steps(tree)
    found = [fact for _, fact in steps.equal]
    if steps.window is not None:
        found.append(f"{steps.window.column}, by the windows' bounds")
    by_keys = _BY_KEYS if steps.equal else ""
    where = f", found by {' and '.join(found)}" if found else ", found among all there are"
    return (
        "state: none beside the inputs; the touched keys are computed again from their facts"
        f"{where}{by_keys}"
    )


def _operators(plan: Plan) -> list[str]:
    """Return the plan's operators; of a query of one step none holds anything."""
    lines = outline(plan.tree)
    if plan.strategy in (Strategy.NEWEST, Strategy.KEYS):
        lines = [line.partition(" | state: ")[0] for line in lines]
    return lines


def document(
    plan: Plan, lateness: Lateness = by_default, measures: Measures = NOT_MEASURED
) -> dict[str, object]:
    """Return a plan as a JSON-shaped document; see `page`."""
    origins = column_origins(plan.tree)
    return {
        "name": plan.name,
        "fingerprint": plan.fingerprint,
        "key": list(plan.key),
        "columns": [
            {"name": each.name, "type": each.type, "from": sorted(origins.get(each.name, ()))}
            for each in plan.columns
        ],
        "strategy": plan.strategy.value,
        "stateful": plan.stateful,
        "engine": "small" if plan.small else "spark",
        "cost": plan.cost,
        "freshness_seconds": plan.freshness.total_seconds(),
        "inputs": [
            {
                "view": one.view,
                "kind": one.kind.value,
                "name": one.name,
            }
            for one in plan.inputs
        ],
        "notes": list(plan.notes),
        "rows_sql": plan.rows_sql,
        "operators": _operators(plan),
        "state": state_documents(state_bounds(plan), lateness, measures),
    }


def page(plan: Plan, lateness: Lateness = by_default, measures: Measures = NOT_MEASURED) -> str:
    """Return a plan as text for people.

    `lateness`: how late rows of a stream may be; `measures`: what is known of the inputs' rows.
    """
    lines = [
        f"projection {plan.name}",
        f"  key        {', '.join(plan.key)}",
        f"  strategy   {plan.strategy.value} ({'stateful' if plan.stateful else 'stateless'})",
        f"  engine     {'small' if plan.small else 'Spark'}",
        f"  cost       {plan.cost}",
        f"  freshness  {plan.freshness.total_seconds():g} s",
        "  inputs",
    ]
    for one in plan.inputs:
        lines.append(f"    {one.view}  {one.kind.value:<8} {one.name}")
    lines.append("  columns")
    origins = column_origins(plan.tree)
    for column in plan.columns:
        read = ", ".join(sorted(origins.get(column.name, ()))) or "no column"
        lines.append(f"    {column.name}  {column.type or '(as Spark derives)'}  from {read}")
    lines.append("  notes")
    lines += [f"    - {note}" for note in plan.notes]
    lines.append("  operators")
    lines += [f"    {line}" for line in _operators(plan)]
    if bounds := state_bounds(plan):
        lines.append("  state")
        lines += [f"    {line}" for line in state_lines(bounds, lateness, measures)]
    lines += ["  SQL: all rows", f"    {plan.rows_sql}"]
    return "\n".join(lines)
