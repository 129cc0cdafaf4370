"""Builds `penstock-connect.jar` from its sources: `python -m stack.connect.build`.

The jar is kept in the repository because running Penstock needs a Java runtime, not a compiler.
Equal sources give equal bytes: entries carry a fixed time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from stack.connect import JAR
from stack.jars import resolve

FOLDER = Path(__file__).parent
SOURCES = {
    f"penstock/connect/{name}": FOLDER / name
    for name in (
        *("ColumnNames.java", "ColumnTypes.java", "KeepNulls.java", "OwnRows.java"),
        *("PostgresText.java", "RelationsOfWal.java", "TwinColumns.java", "WholeTransactions.java"),
    )
}
"""By the name under which they ride along in the jar."""

RELEASE = "17"
_TIME = (1980, 1, 1, 0, 0, 0)
_SERVICES = {
    "META-INF/services/org.apache.kafka.connect.transforms.Transformation": (
        "ColumnNames",
        "KeepNulls",
    ),
    "META-INF/services/org.apache.kafka.connect.source.SourceConnector": ("WholeTransactions",),
    "META-INF/services/io.debezium.snapshot.spi.SnapshotQuery": ("OwnRows",),
}


def build(target: Path) -> None:
    """Compile the sources and write the jar. Raises `CalledProcessError` with javac's complaint."""
    jars = resolve()
    debezium = jars.plugin_dir() / "debezium-connector-postgres"
    services = {
        name: "".join(f"penstock.connect.{own}\n" for own in classes).encode()
        for name, classes in _SERVICES.items()
    }
    pack(target, f"{jars.classpath('kafka')}{os.pathsep}{debezium}/*", SOURCES, services)


def pack(
    target: Path,
    classpath: str,
    sources: Mapping[str, Path],
    others: Mapping[str, bytes] | None = None,
) -> None:
    """Compile sources, by their names in the jar, and write the jar with them and `others`."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *("javac", "--release", RELEASE, "-g:none", "-Xlint:all", "-Werror", "-proc:none"),
                *("-cp", classpath, "-d", folder, *map(str, sources.values())),
            ],
            check=True,
        )
        classes = sorted(Path(folder).rglob("*.class"))
        entries = {str(path.relative_to(folder)): path.read_bytes() for path in classes}
    entries |= others or {}
    # Sources ride along: a jar that is older than its source is found without a compiler.
    entries |= {name: path.read_bytes() for name, path in sources.items()}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as jar:
        for name, content in sorted(entries.items()):
            jar.writestr(zipfile.ZipInfo(name, _TIME), content)


if __name__ == "__main__":
    build(JAR)
    sys.stdout.write(f"{JAR}: {JAR.stat().st_size} bytes\n")
