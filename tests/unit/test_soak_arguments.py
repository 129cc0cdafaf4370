"""What a soak does when nothing is said about it."""

from __future__ import annotations

import sys

import pytest

from tests.soak.__main__ import arguments
from tests.soak.whole_run import Options


def test_what_is_left_out_is_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["soak"])
    found, usual = arguments(), Options()
    assert (found.kills, found.minutes, found.seed) == (usual.kills, usual.minutes, usual.seed)
