"""Functions of other systems that Spark has not, and what says the same here."""

from __future__ import annotations

_TIME = (
    "The time at which a row was read is its column ingested_at; that of the event is the row's."
)
_DOCUMENT = (
    "to_json(named_struct('a', a, 'b', b)) writes an object, to_json(array(a, b)) an array, "
    "to_json(map('a', a)) one of values of one type."
)
FORMS = {
    "COLLECT": "There are no multisets. ARRAY_AGG(x) lists values in ascending order, "
    "collect_set(x) each once.",
    "PROCTIME": _TIME,
    "CURRENT_ROW_TIMESTAMP": _TIME,
    "CURRENT_WATERMARK": "Rows that wait for the watermark are those of emit = 'final'.",
    "TRUNC": "Digits of a number are cut off by CASE WHEN x < 0 THEN ceil(x, 2) ELSE floor(x, 2) "
    "END, hours of a time by date_trunc('DAY', t).",
    "CONVERT_TZ": "Write from_utc_timestamp(to_timestamp(x), 'Europe/Berlin').",
    "JSON_QUERY": "The form is JSON_QUERY(x, '$.a.b[0]'), with a path that is written out.",
    "JSON_EXISTS": "The form is JSON_EXISTS(x, '$.a.b[0]'), with a path that is written out.",
    "JSON_VALUE": "The form is JSON_VALUE(x, '$.a.b[0]'), with a path that is written out.",
    "JSON_EXTRACT": "x ->> 'a' is the text of a field; get_json_object(x, '$.a') that at a path.",
    "JSON_OBJECT": _DOCUMENT,
    "JSON_ARRAY": _DOCUMENT,
    "JSON_STRING": "Write to_json(x).",
    "COLLATE": "Compare lower(x) with lower(y), or write collate(x, 'UTF8_LCASE').",
    "SPLIT_INDEX": "The form is SPLIT_INDEX(x, ',', 0), with separator and place written out.",
    "TO_TIMESTAMP_LTZ": "The form is TO_TIMESTAMP_LTZ(x, 3), of milliseconds, or (x, 0).",
    "MATCH_NUMBER": "Number the matches in a query that reads them: ROW_NUMBER() OVER (PARTITION "
    "BY k ORDER BY first_at) FROM (SELECT … MATCH_RECOGNIZE (…)) q.",
    "HISTOGRAM_NUMERIC": "Count by bounds of your own: GROUP BY width_bucket(x, 0, 100, 10).",
    "ROW": "Write named_struct('a', a, 'b', b), or struct(a, b).",
}
"""What to write, by the name as a refusal has it."""
