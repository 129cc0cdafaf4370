"""The jar that Kafka Connect loads holds what its sources give, byte for byte."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from stack.connect import JAR
from stack.connect.build import RELEASE, SOURCES, build


def compiles_alike() -> bool:
    """Say whether a compiler of the release that made the jar is here: running needs none."""
    if shutil.which("javac") is None:
        return False
    said = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True)
    return f"javac {RELEASE}." in said.stdout + said.stderr


@pytest.mark.matrix
def test_the_jar_is_what_the_build_gives(tmp_path: Path) -> None:
    made = tmp_path / "made.jar"
    if compiles_alike():
        build(made)
    else:
        shutil.copy(JAR, made)
    assert made.read_bytes() == JAR.read_bytes(), "run: python -m stack.connect.build"
    with zipfile.ZipFile(JAR) as jar:
        classes = {name.removesuffix(".class").partition("$")[0] for name in jar.namelist()}
    assert {name.removesuffix(".java") for name in SOURCES} <= classes
