"""A range that ingest declined was not healed: it is read again, or halved, or refused."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from cdc.verification import healing
from cdc.verification.comparison import Captured, Comparison
from kernel.errors import InvalidRequest, Unavailable
from lake.layout import Lake
from lake.tables import Tables
from pipeline.installs.installation import TOO_LARGE
from pipeline.position.progress import Progress
from schemas.key_ranges import WHOLE


@pytest.mark.parametrize(
    ("reasons", "error", "told"),
    [
        ({"1": f"{TOO_LARGE}: 9"}, InvalidRequest, "too many rows"),
        (dict.fromkeys("123", "a key moved"), Unavailable, "a key moved"),
        ({"1": "a key moved"}, None, ""),
    ],
)
def test_what_was_declined_is_not_taken_for_installed(
    lake: Lake,
    reasons: dict[str, str],
    error: type[Exception] | None,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = iter(range(1, 9))
    monkeypatch.setattr(
        healing,
        "stage",
        lambda *args, **how: SimpleNamespace(number=(n := next(numbers)), id=f"i{n}"),
    )
    progress = Progress()
    for number in range(1, 9):
        progress.installs.add(number)
    progress.declined.update(reasons)
    reader = SimpleNamespace(progress=lambda: progress)
    captured = cast("Captured", SimpleNamespace(table="public.items", source="shop"))

    def install() -> str:
        return healing._install(
            lake,
            Tables(),
            cast("Comparison", SimpleNamespace(reader=reader)),
            "dsn",
            captured,
            WHOLE,
            deadline=time.monotonic() + 60,
        )

    if error is None:
        assert install() == "i2"
    else:
        with pytest.raises(error, match=told):
            install()
