"""Moments as a place's clocks show them: `from_utc_timestamp` and `to_utc_timestamp`.

The zone is a literal: the rules of one that a row names could not be known before it comes.
"""

from __future__ import annotations

import re
from zoneinfo import available_timezones

from sqlglot import exp

from projections.sql.words.places import Script, nearest

OF_ZONES = (exp.AtTimeZone, exp.FromTimeZone)
_OFFSET = re.compile(r"[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00")


def check_zone(script: Script, found: exp.Expr, at: int) -> None:
    """Refuse a zone that is no literal, or that nobody knows."""
    zone = found.args.get("zone")
    if not isinstance(found.this, exp.Cast) or not isinstance(zone, exp.Literal):
        raise script.refusal(
            "a time in a zone that is not written out",
            at=at,
            fix="Write from_utc_timestamp(t, 'Europe/Berlin') or to_utc_timestamp(t, '+02:00').",
        )
    known = available_timezones()
    if known and zone.name not in known and not _OFFSET.fullmatch(zone.name):
        near = nearest(zone.name, known)
        raise script.refusal(
            f"there is no time zone {zone.name!r}{near if near.startswith('; did') else ''}",
            at=at,
            fix="Write a region, as 'Europe/Berlin', or an offset, as '+02:00'.",
        )
