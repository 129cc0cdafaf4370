"""Settings `spark.*` reach Spark as they are; what results depend on is not among them."""

from __future__ import annotations

import os
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from apps.settings import load
from kernel.errors import Misconfigured
from lake.shipment import FOLDER, PACKAGES, is_elsewhere, packed, settings_of
from lake.spark_session import FIXED, USUAL, with_asked
from tests.architecture.tree import ROOT
from tests.support.services.spark_cluster import make_python

WRITTEN = """
[spark]
master = "spark://here:7077"
executor.memory = "2g"
speculation = true
"executor.cores" = 3

[spark.sql.shuffle]
partitions = 7
"""


def test_settings_of_spark_are_passed_on_as_spark_writes_them(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(WRITTEN)
    settings = load(tmp_path)
    assert settings.text("spark.master") == "spark://here:7077"
    assert settings.spark() == {
        "spark.executor.memory": "2g",
        "spark.speculation": "true",
        "spark.executor.cores": "3",
        "spark.sql.shuffle.partitions": "7",
    }


def test_a_setting_below_another_part_is_still_unknown(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[kafka]\nbootstrap.servers = 'x'\n")
    with pytest.raises(Misconfigured, match=r"unknown setting kafka\.bootstrap\.servers"):
        load(tmp_path)


def test_what_is_asked_replaces_what_is_usual() -> None:
    asked = {"spark.driver.maxResultSize": "1g", "spark.executor.memory": "2g"}
    assert with_asked({**FIXED, **USUAL}, asked) == {**FIXED, **USUAL, **asked}


def test_lists_are_put_together() -> None:
    ours = {"spark.archives": "a.zip#penstock", "spark.jars": "a.jar"}
    asked = {"spark.archives": "env.tar.gz#env", "spark.executorEnv.PYTHONPATH": "more"}
    assert with_asked(ours, asked) == {
        "spark.archives": "a.zip#penstock,env.tar.gz#env",
        "spark.jars": "a.jar",
        "spark.executorEnv.PYTHONPATH": "more",
    }


@pytest.mark.parametrize("name", FIXED)
def test_what_results_depend_on_is_refused(name: str) -> None:
    assert with_asked(FIXED, {name: FIXED[name]}) == FIXED
    with pytest.raises(Misconfigured, match=name):
        with_asked(FIXED, {name: "another"})


@pytest.mark.parametrize(
    "name",
    [
        "spark.sql.ansi.enabled",
        "spark.sql.ansi.doubleQuotedIdentifiers",
        "spark.sql.caseSensitive",
        "spark.sql.decimalOperations.allowPrecisionLoss",
        "spark.sql.legacy.timeParserPolicy",
        "spark.sql.storeAssignmentPolicy",
        "spark.databricks.delta.schema.autoMerge.enabled",
    ],
)
def test_what_changes_the_meaning_of_sql_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match=name):
        with_asked(FIXED, {name: "another"})


def test_the_memory_of_the_driver_has_one_name() -> None:
    with pytest.raises(Misconfigured) as refused:
        with_asked({}, {"spark.driver.memory": "4g"})
    assert "pipeline.driver_memory" in refused.value.remedy


@pytest.mark.parametrize(
    ("master", "elsewhere"),
    [
        ("local[2]", False),
        ("local[*]", False),
        ("local-cluster[2,1,1024]", True),
        ("spark://host:7077", True),
        ("k8s://https://host:443", True),
        ("yarn", True),
    ],
)
def test_executors_elsewhere_are_told_by_the_master(master: str, elsewhere: bool) -> None:
    assert is_elsewhere(master) is elsewhere


def test_every_package_of_the_distribution_is_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert list(PACKAGES) == packages


def test_the_archive_has_every_module_and_the_same_name_for_the_same_code(tmp_path: Path) -> None:
    archive = packed(tmp_path / "a b")
    names = zipfile.ZipFile(archive).namelist()
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert modules <= set(names)
    assert not [name for name in names if name.endswith((".pyc", ".jar"))]
    written = archive.stat().st_mtime_ns
    assert packed(tmp_path / "a b") == archive
    assert archive.stat().st_mtime_ns == written, "what is there is not written again"
    assert settings_of(archive)["spark.archives"].endswith(f"a%20b/{archive.name}#penstock")


def test_workers_of_the_test_cluster_have_penstock_only_where_it_is_shipped(
    tmp_path: Path,
) -> None:
    make_python(tmp_path / "python")
    with zipfile.ZipFile(packed(tmp_path)) as archive:
        archive.extractall(tmp_path / "work" / FOLDER)

    def imports(**environ: str) -> subprocess.CompletedProcess[str]:
        known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [tmp_path / "python/bin/python", "-c", "import cdc.decode as d; print(d.__file__)"],
            cwd=tmp_path / "work",
            env={**known, **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    assert "No module named 'cdc'" in imports().stderr
    shipped = imports(PYTHONPATH=FOLDER)
    assert shipped.stdout.strip() == str(tmp_path / "work" / FOLDER / "cdc" / "decode.py")
