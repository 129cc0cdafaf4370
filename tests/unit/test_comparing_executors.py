"""Where commands that compare tables have their executors from: by the workspace's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.large_states import large_states
from apps.settings import load


@pytest.mark.parametrize(
    ("executor", "master", "most_bytes"),
    [
        ("auto", "local[4]", None),
        ("auto", "spark://cluster:7077", 1000),
        ("auto", "local-cluster[2,1,1024]", 1000),
        ("driver", "spark://cluster:7077", None),
        ("spark", "local[4]", 0),
    ],
)
def test_executors_compare_where_they_are_elsewhere_or_asked_for(
    tmp_path: Path, executor: str, master: str, most_bytes: int | None
) -> None:
    (tmp_path / "penstock.toml").write_text(
        f'[pipeline]\nexecutor = "{executor}"\ndriver_bytes = 1000\n'
        f'[replay]\nspark_master = "{master}"\n'
    )
    found = large_states(load(tmp_path))
    assert (None if found is None else found.most_bytes) == most_bytes
