"""Spark's functions whose value depends on their arguments alone, by the type that they give.

What the compiler has no word of its own for is passed on to Spark under the name, and with the
arguments, of the author: a test runs Spark's own examples of each, as written and compiled.
"""

from __future__ import annotations


def _words(*lines: str) -> tuple[str, ...]:
    return tuple(" ".join(lines).split())


CLASSES = frozenset(
    _words(
        "Abs Ceil Floor Round Sqrt Cbrt Pow Ln Exp Sign Greatest Least Radians Degrees Sin Cos Tan",
        "Asin Acos Atan Atan2 Coalesce Nvl2 Nullif Nanvl IsNan Concat ConcatWs Upper Lower Trim",
        "Length Substring Left Right Replace Translate RegexpReplace RegexpExtract StartsWith",
        "EndsWith Contains StrPosition Pad Reverse Initcap Repeat RegexpSplit SplitPart",
        "SubstringIndex MD5 SHA SHA2 Hex Ascii Levenshtein Soundex Year Quarter Month Day",
        "DayOfMonth DayOfWeek DayOfYear WeekOfYear Hour Minute Second Extract TimestampTrunc",
        "DateTrunc TsOrDsToDate TsOrDsAdd DateDiff AddMonths MonthsBetween LastDay TimeToStr",
        "TimeStrToTime UnixMicros UnixMillis UnixSeconds TimestampDiff ArraySize ArrayContains",
        "Array ArrayMax JSONExtractScalar SafeDivide SafeAdd AtTimeZone FromTimeZone Overlay",
    )
)
"""Functions for which sqlglot has a class, and writes to Spark what the author wrote."""
OPERATORS = frozenset(
    _words(
        "Add Sub Mul Div IntDiv Mod Neg Paren And Or Not EQ NEQ GT GTE LT LTE NullSafeEQ",
        "NullSafeNEQ Is In Between Like ILike RegexpLike Escape DPipe BitwiseAnd BitwiseOr",
        "BitwiseXor BitwiseNot BitwiseLeftShift BitwiseRightShift Case If Cast TryCast DataType",
        "DataTypeParam Interval IntervalSpan Literal Boolean Null Var Column Identifier Dot",
        "Bracket RawString HexString Anonymous Filter Where Distinct Star Tuple ColumnDef Lambda",
    )
)
"""What else may stand in an expression."""

_GIVING = {
    "DOUBLE": _words(
        "acosh asinh atanh cosh cot csc e expm1 hypot log log10 log1p log2 pi rint sec signum sinh",
        "tanh xpath_double xpath_number",
    ),
    "FLOAT": _words(
        "vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm xpath_float"
    ),
    "BIGINT": _words(
        "array_position bigint bitmap_bit_position bitmap_bucket_number bitmap_count crc32",
        "factorial to_unix_timestamp unix_timestamp width_bucket xpath_long xxhash64",
    ),
    "INT": _words(
        "array_size bit_count bit_length cardinality char_length character_length find_in_set hash",
        "json_array_length len octet_length regexp_count regexp_instr unix_date weekday xpath_int",
    ),
    "SMALLINT": _words("xpath_short"),
    "TINYINT": _words("bit_get getbit"),
    "BOOLEAN": _words(
        "arrays_overlap equal_null exists forall is_valid_utf8 is_valid_variant",
        "is_variant_null isnotnull isnull luhn_check map_contains_key regexp xpath_boolean",
    ),
    "STRING": _words(
        "array_join base64 bin btrim char chr collation conv dayname decode elt format_number",
        "format_string from_unixtime make_valid_utf8 mask monthname parse_url printf quote",
        "regexp_substr schema_of_csv schema_of_json schema_of_variant schema_of_xml space to_char",
        "to_csv to_json to_varchar to_xml try_parse_url try_url_decode try_validate_utf8 typeof",
        "url_decode url_encode validate_utf8 xpath_string",
    ),
    "BINARY": _words(
        "aes_decrypt encode to_binary try_aes_decrypt try_to_binary unbase64 unhex",
    ),
    "DATE": _words("date_from_unix_date make_date next_day try_to_date"),
    "TIMESTAMP": _words(
        "make_timestamp_ltz timestamp_micros timestamp_millis timestamp_seconds to_timestamp_ltz",
        "try_make_timestamp_ltz try_to_timestamp timestampadd",
    ),
    "": _words(
        "aggregate array array_append array_compact array_distinct array_except array_insert",
        "array_intersect array_min array_prepend array_remove array_repeat array_sort array_union",
        "arrays_zip assert_true bround collate convert_timezone date_part datepart filter flatten",
        "from_csv from_json from_xml get json_object_keys make_dt_interval make_interval",
        "make_timestamp make_timestamp_ntz make_ym_interval map map_concat map_entries map_filter",
        "map_from_arrays map_from_entries map_keys map_values map_zip_with named_struct negative",
        "nullifzero parse_json pmod positive raise_error reduce regexp_extract_all sentences",
        "sequence shiftleft shiftright shiftrightunsigned slice sort_array str_to_map",
        "time_bucket to_number to_timestamp to_timestamp_ntz to_variant_object transform",
        "transform_keys transform_values try_element_at try_make_interval try_make_timestamp",
        "try_make_timestamp_ntz try_mod try_multiply try_parse_json try_subtract try_to_number",
        "try_variant_get variant_get vector_normalize xpath zeroifnull zip_with",
    ),
}
PASSED_ON = {name: kind for kind, names in _GIVING.items() for name in names}
"""The names of functions that are passed on, with their types; the empty text where it varies."""
HELD_BY_NO_TABLE = {
    **dict.fromkeys(
        _words("make_dt_interval make_interval make_ym_interval try_make_interval"), "a length"
    ),
    **dict.fromkeys(_words("parse_json to_variant_object try_parse_json"), "a variant"),
    "collate": "a text with a collation",
}
"""Functions whose values are of use on the way only, and what these are."""
UNSTABLE = frozenset(
    _words(
        "aes_encrypt current_catalog current_database current_date current_path current_schema",
        "current_time current_timestamp current_timezone current_user curdate",
        "input_file_block_length input_file_block_start input_file_name localtimestamp",
        "monotonically_increasing_id now rand randn random randstr session_user shuffle",
        "spark_partition_id uniform user uuid version",
    )
)
"""Functions of the moment, of chance, of the session, and of where a row happens to be."""
BEYOND_SIGHT = frozenset(_words("java_method reflect try_reflect"))
"""Functions that call what nobody here can see."""
