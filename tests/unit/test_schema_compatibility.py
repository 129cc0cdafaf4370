"""What may change in a schema, and what may not."""

from __future__ import annotations

import json

import pytest

from schemas.compatibility import complaints


def record(*fields: object, name: str = "T", **more: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(type_: object, name: str = "v", **more: object) -> dict[str, object]:
    return {"name": name, "type": type_, **more}


def enum(*symbols: str, **more: object) -> dict[str, object]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int) -> dict[str, object]:
    return {"type": "fixed", "name": "F", "size": size}


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
DATE = {"type": "int", "logicalType": "date"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
NODE = record(field(["null", "Node"], "next"), field("long"), name="Node")
WIDER_NODE = record(field(["null", "Node"], "next"), field("double"), name="Node")


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (record(field("int")), record(field("long"))),
        (record(field("long")), record(field("double"))),
        (record(field("string")), record(field("bytes"))),
        (record(field("long")), record(field(["null", "long"]))),
        (record(field("int")), record(field(["null", "long"]))),
        (record(field("long")), record()),
        (record(), record(field("long", default=0))),
        (record(field("long", "old")), record(field("long", "new", aliases=["old"]))),
        (record(field(enum("A"))), record(field(enum("A", "B")))),
        (record(field(enum("A", "B"))), record(field(enum("A", default="A")))),
        (record(field(["null", "long"])), record(field(["null", "double"]))),
        (record(field({"type": "array", "items": "int"})),) * 2,
        (record(field(MICROS)), record(field(MICROS))),
        (record(field(fixed(4))), record(field(fixed(4)))),
        (NODE, WIDER_NODE),
        (record(name="Old"), record(name="New", aliases=["Old"])),
        (record(name="T", namespace="a"), record(name="T", namespace="b")),
    ],
)
def test_readable(writer: object, reader: object) -> None:
    assert complaints(reader=json.dumps(reader), writer=json.dumps(writer)) == []


@pytest.mark.parametrize(
    ("writer", "reader", "complaint"),
    [
        (record(field("long")), record(field("int")), "$.v: long cannot be read as int"),
        (record(field("long")), record(field("string")), "$.v: long cannot be read as string"),
        (record(), record(field("long")), "$.v: new field without a default"),
        (record(field(["null", "long"])), record(field("long")), "$.v: null cannot be read as"),
        (
            record(field("string")),
            record(field(["null", "long"])),
            "$.v: string is in no branch of the union [null, long]",
        ),
        (record(field(enum("A", "B"))), record(field(enum("A"))), "$.v: the enum lost B"),
        (record(field(fixed(4))), record(field(fixed(8))), "$.v: fixed size 4 became 8"),
        (record(field(MILLIS)), record(field(MICROS)), "$.v: logical type"),
        (record(field("long")), record(field(MICROS)), "$.v: logical type none became"),
        (record(field("int")), record(field(MILLIS)), "$.v: logical type none became"),
        (record(field(DATE)), record(field("long")), "$.v: logical type ('date', None, None)"),
        (record(field(DATE)), record(field(["null", "double"])), "$.v: int is in no branch"),
        (record(field(DECIMAL)), record(field("string")), "$.v: logical type ('decimal', 9, 2)"),
        (
            record(field({"type": "array", "items": "long"})),
            record(field({"type": "array", "items": "int"})),
            "$.v[]: long",
        ),
        (
            record(field({"type": "map", "values": "long"})),
            record(field({"type": "map", "values": "int"})),
            "$.v{}: long",
        ),
        (WIDER_NODE, NODE, "$.v: double cannot be read as long"),
        (record(name="Old"), record(name="New"), "record Old became New"),
    ],
)
def test_unreadable(writer: object, reader: object, complaint: str) -> None:
    (found,) = complaints(reader=json.dumps(reader), writer=json.dumps(writer))
    assert complaint in found
