"""The shapes of answers about the lake, as components of the OpenAPI document."""

from __future__ import annotations

from typing import Final

from service.openapi_shapes import OBJECT, TEXT, TIME, WHOLE, Shape, listed, or_null, record

_STANDING: Final[dict[str, Shape]] = {
    "name": TEXT,
    "status": {"type": "string", "enum": ["live", "paused"]},
    "generation": WHOLE,
    "epoch": or_null(WHOLE),
    "newest_epoch": WHOLE,
    "rows": WHOLE,
    "lag_events": WHOLE,
    "lag_s": {"type": "number", "minimum": 0},
    "text": TEXT | {"description": "Its SQL"},
}
_TABLE: Final[dict[str, Shape]] = {
    "name": TEXT,
    "path": TEXT,
    "version": WHOLE,
    "rows": WHOLE,
    "bytes": WHOLE,
    "files": WHOLE,
    "committed_at": TIME,
    "held": or_null(TEXT),
}
_EPOCH: Final[Shape] = record(
    {
        "epoch": WHOLE,
        "run_id": TEXT,
        "batch_id": WHOLE,
        **dict.fromkeys(("end", "heads", "cuts", "pending_from", "tables"), OBJECT),
        **dict.fromkeys(("counts", "timings_ms", "topics"), OBJECT),
        "at": TIME,
        "installs": listed(WHOLE),
    }
)

LAKE_COMPONENTS: Final[dict[str, Shape]] = {
    "Projections": record(
        {
            "projections": listed(
                record({**_STANDING, "behind": {"type": "integer"}, "stands_still": or_null(TEXT)})
            )
        }
    ),
    "Projection": record(
        {
            **_STANDING,
            "key": listed(TEXT),
            "freshness_s": {"type": "number", "minimum": 0},
            "late_s": {"type": "number", "minimum": 0},
            "state_bytes": or_null(WHOLE),
            "error": or_null(TEXT),
        }
    ),
    "Rows": record(
        {
            "projection": TEXT,
            "generation": WHOLE,
            "status": TEXT,
            "epoch": WHOLE,
            "version": WHOLE,
            "key": listed(TEXT),
            "applied": {"type": "boolean", "description": "They have `after_position`"},
            "rows": listed(OBJECT),
            "next_after": or_null(TEXT),
        },
        optional=("applied",),
    ),
    "Tables": record({"tables": listed(record(_TABLE, optional=tuple(_TABLE)[1:-1]))}),
    "Table": record(
        {
            **_TABLE,
            "commits": listed(
                record(
                    {
                        "version": WHOLE,
                        "at": TIME,
                        "operation": TEXT,
                        "rows": or_null(WHOLE),
                        "engine": TEXT,
                    }
                )
            ),
        }
    ),
    "Epoch": _EPOCH,
    "Epochs": record({"epochs": listed(_EPOCH), "next_before": or_null(WHOLE)}),
}
