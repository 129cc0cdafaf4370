"""Whether the columns of a projection can be sent to its sink, asked when it is declared."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.words.catalog import Column
from projections.sql.words.sinks import TopicSink
from schemas.row_avro import avro_schema, encoder


def check_sink_columns(decl: ProjectionDecl, columns: Sequence[Column]) -> None:
    """Raise `Incompatible` for columns of which Avro has no form; a type that is not known yet is
    left to the sink.
    """
    if not isinstance(decl.sink, TopicSink):
        return
    shapes = [(each.name, _shape_of(each.type)) for each in columns]
    fields = [pa.field(name, shape) for name, shape in shapes if shape is not None]
    encoder(avro_schema(fields, decl.name))


def _shape_of(text: str) -> pa.DataType | None:
    if "<" not in text:
        return pa.string()
    try:
        return _shape(exp.DataType.build(text, dialect="spark"))
    except SqlglotError:
        return None


def _shape(kind: exp.DataType) -> pa.DataType:
    """Return nested types and their names as they are; of simple ones only whether it is text."""
    inner = [each for each in kind.expressions if isinstance(each, exp.DataType)]
    if kind.is_type("array") and inner:
        return pa.list_(_shape(inner[0]))
    if kind.is_type("map") and len(inner) == 2:
        return pa.map_(_shape(inner[0]), _shape(inner[1]))
    if kind.is_type("struct"):
        fields = [each for each in kind.expressions if isinstance(each, exp.ColumnDef)]
        return pa.struct([pa.field(each.name, _shape(each.args["kind"])) for each in fields])
    return pa.string() if kind.is_type("text") else pa.int64()
