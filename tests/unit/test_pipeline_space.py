from __future__ import annotations

from pathlib import Path

from lake.space import SpaceGuard


def test_ingest_pauses_below_the_reserve_with_the_reason_and_resumes_above_it() -> None:
    free = 100
    guard = SpaceGuard("/lake", reserve_bytes=200, free_bytes=lambda _: free)
    shortage = guard.shortage()
    assert shortage is not None
    assert "/lake" in shortage
    assert "storage.min_free_bytes" in shortage
    free = 200
    assert guard.shortage() is None


def test_it_looks_at_the_real_disk(tmp_path: Path) -> None:
    assert SpaceGuard(str(tmp_path), reserve_bytes=1).shortage() is None
    assert SpaceGuard(str(tmp_path), reserve_bytes=2**62).shortage() is not None
