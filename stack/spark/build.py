"""Builds `penstock-spark.jar` from its source: `python -m stack.spark.build`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from stack.connect.build import pack
from stack.jars import resolve
from stack.spark import JAR

FOLDER = Path(__file__).parent
SOURCES = {f"penstock/spark/{name}": FOLDER / name for name in ("ConditionalLogStore.java",)}
"""By the name under which they ride along in the jar."""


def build(target: Path) -> None:
    """Compile the source and write the jar. Raises `CalledProcessError` with javac's complaint."""
    found = find_spec("pyspark")
    assert found is not None, "it is a dependency"
    assert found.origin is not None, "it is an ordinary package"
    (hadoop,) = (Path(found.origin).parent / "jars").glob("hadoop-client-api-*.jar")
    (delta,) = [path for path in resolve("spark").paths["spark"] if "delta-storage" in path.name]
    pack(target, f"{delta}{os.pathsep}{hadoop}", SOURCES)


if __name__ == "__main__":
    build(JAR)
    sys.stdout.write(f"{JAR}: {JAR.stat().st_size} bytes\n")
