"""Where a lake may lie, and what is asked of the place."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kernel.errors import Misconfigured
from lake import storage
from lake.layout import Lake, lake_root
from lake.tables import Tables


@pytest.mark.parametrize(
    ("place", "root"),
    [
        ("lake", "/srv/lake"),
        ("/else/where", "/else/where"),
        ("file:lake", "/srv/lake"),
        ("file:///else/a%20b", "/else/a b"),
        ("file://localhost/else/a%20b", "/else/a b"),
        ("file:/else/a%20b", "/else/a b"),
        ("file:a%b", "/srv/a%b"),
        ("/else/a%b", "/else/a%b"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket", "s3://bucket"),
    ],
)
def test_a_place_is_named_as_every_engine_takes_it(place: str, root: str) -> None:
    assert lake_root(place, base=Path("/srv")) == root


@pytest.mark.parametrize("place", ["http://host/lake", "hdfs://name/lake", "gs://bucket/x", "://x"])
def test_a_scheme_that_nothing_here_writes_is_refused(place: str) -> None:
    with pytest.raises(Misconfigured, match="no lake can lie at") as refused:
        lake_root(place)
    assert "s3://" in refused.value.remedy


def test_a_file_uri_that_names_a_host_is_refused() -> None:
    with pytest.raises(Misconfigured, match="names the host 'data'") as refused:
        lake_root("file://data/lake")
    assert "file:///data/lake" in refused.value.remedy


@pytest.mark.parametrize(
    "place",
    [
        *("C#/lake", "/srv/really?/lake", "file:///srv/a%23b"),
        *("/srv/shop [eu]/lake", "/srv/a|b", "/srv/a^b", "/srv/a\\b", "/srv/a%20b/lake"),
    ],
)
def test_a_folder_that_not_all_engines_find_again_is_refused(place: str) -> None:
    """Spark's own commits were taken for another writer's there, and no table had a history.

    And deltalake ends in a panic where it writes rows, or looks for them in another folder.
    """
    with pytest.raises(Misconfigured, match="is lost on its way") as refused:
        lake_root(place)
    assert "Move the workspace" in refused.value.remedy


def test_a_store_without_a_bucket_is_refused() -> None:
    with pytest.raises(Misconfigured, match="names no bucket"):
        lake_root("s3:///")


def test_names_below_a_store_are_those_of_a_folder() -> None:
    lake = Lake.at("s3://bucket/prefix")
    assert lake.path("current/shop.a/b") == "s3://bucket/prefix/current/shop.a@2Fb"
    assert lake.written_by_ingest(lake.path("log/changes/shop"))
    assert not storage.is_local(lake.root)
    assert storage.spark_settings(lake.root)
    assert storage.spark_settings("/srv/lake") == {}


def test_a_folder_that_is_not_there_yet_has_the_room_of_its_disk(tmp_path: Path) -> None:
    assert not storage.exists(str(tmp_path / "a" / "b"))
    assert (storage.free_bytes(str(tmp_path / "a" / "b")) or 0) > 0
    assert storage.free_bytes("s3://bucket/prefix") is None
    assert list(storage.files_in(str(tmp_path / "a"))) == []
    storage.remove(str(tmp_path / "a"))
    storage.remove_file(str(tmp_path), str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["a{b}", "100%", "a*b", "a;b", "it's", 'a"b', "ü ö", "a%zz"])
def test_a_folder_with_an_odd_name_keeps_its_rows(tmp_path: Path, name: str) -> None:
    path, tables = f"{lake_root(tmp_path / name)}/t", Tables()
    write_deltalake(path, pa.table({"id": [1]}))
    write_deltalake(path, pa.table({"id": [2]}), mode="append")
    rows = tables.read(path)
    assert rows is not None
    assert sorted(rows["id"].to_pylist()) == [1, 2]
