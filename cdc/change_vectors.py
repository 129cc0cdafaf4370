"""Many change envelopes of one schema at once: what `decode.ChangeDecoder` gives one by one.

Only where every record of the group is an ordinary change does it answer; for anything else the
answer is None, and the decoder looks at each record and says what is wrong with which.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from schemas.avro_vectors import Path, read_columns
from schemas.records import Operation

COLUMNS = pa.schema(
    [
        ("source", pa.string()),
        ("table", pa.string()),
        ("operation", pa.string()),
        ("transaction_id", pa.string()),
        ("lsn", pa.int64()),
        ("commit_order", pa.int64()),
        ("total_order", pa.int64()),
        ("snapshot", pa.bool_()),
        ("recorded_at", pa.timestamp("us", "UTC")),
        ("event_time", pa.timestamp("us", "UTC")),
    ]
)
"""The columns of a change beside its bytes; `recorded_at` is the commit's time, as in the log."""

_SCHEMA: Path = ("source", "schema")
_TABLE: Path = ("source", "table")
_LSN: Path = ("source", "lsn")
_SEQUENCE: Path = ("source", "sequence")
_AT: Path = ("source", "ts_us")
_OP: Path = ("op",)
_TRANSACTION: Path = ("transaction", "id")
_ORDER: Path = ("transaction", "total_order")
_WANTED = (_SCHEMA, _TABLE, _LSN, _SEQUENCE, _AT, _OP, _TRANSACTION, _ORDER)
_PREVIOUS = r'^\["(?P<lsn>[0-9]+)",|^\[(?P<none>null),'
_FIRST, _BEHIND = '["', '",'
"""What stands around the first number of a sequence, where there is one."""
_TXID = r"^(?P<txid>[^:]*)"
_OPERATIONS = pa.array([operation.value for operation in Operation])


def read_changes(
    values: pa.Array, schema_json: str, *, source: str, event_times: frozenset[str]
) -> pa.Table | None:
    """Decode framed envelopes of one schema to `COLUMNS`, one row each, in order.

    `event_times` names tables (`schema.table`) whose event time is in a column: those are left to
    the decoder. None: some record is not an ordinary change, or cannot be read side by side.
    """
    found = read_columns(values, schema_json, _WANTED)
    if found is None or not _ordinary(found):
        return None
    table = pc.binary_join_element_wise(found[_SCHEMA], found[_TABLE], ".")
    if event_times & set(pc.unique(table).to_pylist()):
        return None
    read = pc.equal(found[_OP], Operation.READ.value)
    order = _commit_order(found, read)
    if order is None:
        return None
    at = found[_AT].cast(pa.timestamp("us", "UTC"))
    txid = _before_colon(found[_TRANSACTION])
    columns = [
        pa.repeat(pa.scalar(source, pa.string()), len(values)),
        table,
        found[_OP],
        pc.if_else(read, pa.scalar(None, pa.string()), txid),
        found[_LSN],
        order,
        pc.if_else(read, 0, found[_ORDER]),
        read,
        at,
        at,
    ]
    return pa.Table.from_arrays(columns, schema=COLUMNS)


def _ordinary(found: dict[Path, pa.Array]) -> bool:
    """Say whether every record has all that an ordinary change has."""
    if any(found[path].null_count for path in (_SCHEMA, _TABLE, _LSN, _AT, _OP)):
        return False
    if not pc.all(pc.is_in(found[_OP], _OPERATIONS)).as_py():
        return False
    streamed = pc.not_equal(found[_OP], Operation.READ.value)
    there = pc.and_(pc.is_valid(found[_TRANSACTION]), pc.is_valid(found[_SEQUENCE]))
    return bool(pc.all(pc.or_(pc.invert(streamed), there)).as_py())


def _before_colon(texts: pa.Array) -> pa.Array:
    """Return what stands before the first colon of each text.

    Transactions that follow one another mostly have names of one length: these are cut at once.
    """
    width = _place_of(":", texts)
    if width is not None:
        cut = pc.utf8_slice_codeunits(texts, 0, width)
        same = pc.equal(pc.utf8_slice_codeunits(texts, width, width + 1), ":")
        if pc.all(same).as_py() and not pc.any(pc.match_substring(cut, ":")).as_py():
            return cut
    return pc.struct_field(pc.extract_regex(texts, _TXID), "txid")


def _place_of(mark: str, texts: pa.Array, after: int = 0) -> int | None:
    """Return where a mark stands in the first text, behind a place; None where nothing is told."""
    if not len(texts) or texts.null_count:
        return None
    place = texts[0].as_py().find(mark, after)
    return None if place < 0 else int(place)


def _previous_alike(sequence: pa.Array) -> pa.Array | None:
    """Return the first numbers of sequences that all have one of the same length; else None."""
    begin = len(_FIRST)
    end = _place_of(_BEHIND, sequence, begin)
    if end is None:
        return None
    digits = pc.utf8_slice_codeunits(sequence, begin, end)
    marked = (
        pc.equal(pc.utf8_slice_codeunits(sequence, 0, begin), _FIRST),
        pc.equal(pc.utf8_slice_codeunits(sequence, end, end + len(_BEHIND)), _BEHIND),
        pc.ascii_is_decimal(digits),
    )
    alike = all(pc.all(each).as_py() for each in marked)
    return digits.cast(pa.int64()) if alike else None


def _commit_order(found: dict[Path, pa.Array], read: pa.Array) -> pa.Array | None:
    """Return the end of the commit before; the row's own LSN where there was none, or a read."""
    alike = _previous_alike(found[_SEQUENCE])
    if alike is not None:
        return pc.if_else(read, found[_LSN], alike)
    parts = pc.extract_regex(found[_SEQUENCE], _PREVIOUS)
    known = pc.or_(pc.fill_null(pc.is_valid(parts), False), read)
    if not pc.all(known).as_py():
        return None
    # An alternative that did not match is an empty text.
    text = pc.struct_field(parts, "lsn")
    text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
    previous = text.cast(pa.int64())
    return pc.if_else(read, found[_LSN], pc.coalesce(previous, found[_LSN]))
