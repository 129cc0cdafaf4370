"""The batch query of a join, for both engines.

A version that holds at a time is looked up by order where the engine can, and one version at most
holds: among the versions of a key that begin at or before the time it is the last one, if it has
not ended by then. Comparing each fact with each version of its key would cost their product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from projections.sql.operators.shape import ORDER, InputKind
from projections.sql.operators.tree import Join, JoinKind, Map, Node, Scan, column
from projections.sql.values.expressions import unwrapped
from projections.sql.words.catalog import Column

if TYPE_CHECKING:
    from projections.sql.rendering.dialect import Dialect

_MET = "__met"


def joined(node: Join, left: str, right: str, dialect: Dialect, weight: str = "") -> str:
    """Write the query of a `Join`; `weight` is a column that is given beside."""
    if dialect.by_order and looks_up_one(node):
        return _by_order(node, left, right, dialect, weight)
    on = join_condition(node, dialect)
    own = _columns(node.left, "l", dialect)
    order = ", ".join(f"l.{name}" for name in ORDER)
    if node.kind in (JoinKind.SEMI, JoinKind.ANTI):
        word = dialect.semi if node.kind is JoinKind.SEMI else dialect.anti
        return (
            f"SELECT {own}, {order}{weight} FROM ({left}) AS l {word} JOIN ({right}) AS r ON {on}"
        )
    if node.timed:
        later = _later("l", "r", dialect)
        order = ", ".join(
            f"CASE WHEN {later} THEN r.{name} ELSE l.{name} END AS {name}" for name in ORDER
        )
    theirs = _columns(node.right, "r", dialect)
    return (
        f"SELECT {own}, {theirs}, {order}{weight} "
        f"FROM ({left}) AS l {node.kind} JOIN ({right}) AS r ON {on}"
    )


def join_condition(node: Join, dialect: Dialect) -> str:
    """Write when the rows `l` and `r` of a join are a pair."""
    rest = dialect.conditions(node.rest, _both(node))
    return " AND ".join(filter(None, [*_equal(node, dialect), rest]))


def looks_up_one(node: Join) -> bool:
    """Say whether a left row is joined with the one version of a key that holds at its time."""
    if len(node.as_of) != 2 or not isinstance(node.as_of[0], exp.LTE):
        return False
    equal = {theirs for _, theirs in node.pairs}
    below: Node = node.right
    while isinstance(below, Map):
        made = [each.expression for each in below.outputs if each.name in equal]
        equal = {found.name for found in map(unwrapped, made) if isinstance(found, exp.Column)}
        below = below.input
    if not isinstance(below, Scan) or below.kind is not InputKind.HISTORY:
        return False
    return bool(below.relation.key) and {*below.relation.key} <= equal


def _by_order(node: Join, left: str, right: str, dialect: Dialect, weight: str) -> str:
    """Write a look-up by order. Of versions that begin at one time all but the last are empty."""
    begins, time = node.as_of[0].this, node.as_of[0].expression
    from_ = dialect.expression(begins, node.right.columns)
    to = dialect.name(f"{begins.name.removesuffix('valid_from')}valid_to")
    versions = f"SELECT *, true AS {_MET} FROM ({right}) AS v WHERE {to} IS NULL OR {from_} < {to}"
    moment = dialect.expression(time, node.left.columns)
    on = " AND ".join([*_equal(node, dialect), f"{moment} >= r.{from_}"])
    rest = tuple(part for part in node.rest if part is not node.as_of[0])
    met = Column(name=_MET, type="BOOLEAN")
    holds = dialect.conditions((column(_MET), *rest), (*_both(node), met))
    all_left = node.kind in (JoinKind.LEFT, JoinKind.ANTI)
    rows = f"FROM ({left}) AS l ASOF {'LEFT ' if all_left else ''}JOIN ({versions}) AS r ON {on}"
    own = _columns(node.left, "l", dialect)
    order = ", ".join(f"l.{name}" for name in ORDER)
    match node.kind:
        case JoinKind.SEMI:
            return f"SELECT {own}, {order}{weight} {rows} WHERE {holds}"
        case JoinKind.ANTI:
            return f"SELECT {own}, {order}{weight} {rows} WHERE ({holds}) IS NOT TRUE"
        case JoinKind.INNER:
            theirs = _columns(node.right, "r", dialect)
            return f"SELECT {own}, {theirs}, {order}{weight} {rows} WHERE {holds}"
        case JoinKind.LEFT:
            named = [dialect.name(each.name) for each in node.right.columns]
            theirs = ", ".join(f"CASE WHEN {holds} THEN r.{n} END AS {n}" for n in named)
            return f"SELECT {own}, {theirs}, {order}{weight} {rows}"


def _equal(node: Join, dialect: Dialect) -> list[str]:
    return [f"l.{dialect.name(ours)} = r.{dialect.name(theirs)}" for ours, theirs in node.pairs]


def _both(node: Join) -> tuple[Column, ...]:
    return (*node.left.columns, *node.right.columns)


def _columns(node: Node, of: str, dialect: Dialect) -> str:
    return ", ".join(f"{of}.{dialect.name(each.name)}" for each in node.columns)


def _later(left: str, right: str, dialect: Dialect) -> str:
    """Write that the row `right` comes after the row `left`, in the order of `ORDER`."""
    ours, theirs = (dialect.row([f"{side}.{name}" for name in ORDER]) for side in (left, right))
    return f"{right}._time IS NOT NULL AND {theirs} > {ours}"
