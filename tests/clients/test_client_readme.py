"""Every Python block of the client's README runs, in order, against a real service."""

from __future__ import annotations

from typing import Any

from tests.architecture.tree import ROOT
from tests.docs.markdown import blocks
from tests.support.services.http import service_in_thread

README = ROOT / "clients/python/README.md"


def test_the_examples_of_the_readme_run(postgres_dsn: str) -> None:
    examples = [block for block in blocks(README) if block.language == "python"]
    assert len(examples) >= 5
    with service_in_thread(postgres_dsn) as http:
        names: dict[str, Any] = {"url": str(http.base_url)}
        for block in examples:
            # The place stands in a traceback.
            exec(compile("\n" * block.line + block.text, block.place, "exec"), names)
