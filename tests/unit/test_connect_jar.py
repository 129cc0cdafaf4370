"""The classes that are kept as a jar are those whose sources lie beside it."""

from __future__ import annotations

import struct
import zipfile

from cdc.connectors import CaptureConnector, ConnectorDatabase, Placement
from stack.connect import JAR
from stack.connect.build import RELEASE, SOURCES

CLASS_FILE_OF_JAVA_1 = 44


def test_the_jar_was_built_from_its_sources() -> None:
    with zipfile.ZipFile(JAR) as jar:
        for name, source in SOURCES.items():
            assert jar.read(name) == source.read_bytes(), "run: python -m stack.connect.build"


def test_it_runs_on_the_oldest_java() -> None:
    with zipfile.ZipFile(JAR) as jar:
        classes = [name for name in jar.namelist() if name.endswith(".class")]
        versions = {struct.unpack_from(">H", jar.read(name), 6)[0] for name in classes}
    assert versions == {CLASS_FILE_OF_JAVA_1 + int(RELEASE)}


def test_connectors_name_classes_that_it_has() -> None:
    connector = CaptureConnector(
        source="s",
        database=ConnectorDatabase(host="h", port=1, name="d", user="u", password=""),
        tables=("public.t",),
        placement=Placement(workspace="w", topic_prefix="", partitions=1, registry_url=""),
    )
    config = connector.render()
    with zipfile.ZipFile(JAR) as jar:
        types = [config[f"transforms.{each}.type"] for each in config["transforms"].split(",")]
        for name in (config["connector.class"], config["text.type"], *types):
            assert f"{name.replace('.', '/')}.class" in jar.namelist()
