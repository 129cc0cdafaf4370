"""The client's README runs as it stands: a newcomer copies its blocks into one program."""

from __future__ import annotations

from typing import Any

import pytest

from tests.architecture.tree import ROOT
from tests.docs.markdown import blocks
from tests.support.services.http import service_in_thread

README = ROOT / "clients/python/README.md"


def test_the_readme_is_a_program_that_runs_and_runs_again(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = [block for block in blocks(README) if block.language == "python"]
    assert len(examples) >= 6
    with service_in_thread(postgres_dsn) as http:
        monkeypatch.setenv("PENSTOCK_SERVICE_URL", str(http.base_url))
        for _ in range(2):
            names: dict[str, Any] = {}
            for block in examples:
                # The place stands in a traceback.
                exec(compile("\n" * block.line + block.text, block.place, "exec"), names)
        assert http.get("/v1/subscriptions").json()["subscriptions"] == []
