"""`penstock config show`: which settings hold, where each comes from, and no secret among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from apps.cli import workspace
from apps.cli.output import without_password
from kernel.errors import NotFound


def shown(folder: Path, *arguments: str) -> dict[str, dict[str, object]]:
    app = typer.Typer()
    workspace.register(app)
    asked = ["config", "show", "--workspace", str(folder), "--json", *arguments]
    result = CliRunner().invoke(app, asked, catch_exceptions=False)
    found: dict[str, dict[str, object]] = json.loads(result.stdout)
    return found


def test_each_setting_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "penstock.toml").write_text(
        '[service]\nport = 7171\ntoken = "sesame"\n[lake]\npath = "there"\n'
    )
    monkeypatch.setenv("PENSTOCK_LAKE_PATH", "elsewhere")
    changed = shown(tmp_path, "--changed")
    assert changed == {
        "service.port": {"value": 7171, "origin": "penstock.toml"},
        "service.token": {"value": "***", "origin": "penstock.toml"},
        "lake.path": {"value": "elsewhere", "origin": "environment"},
    }
    assert shown(tmp_path, "service.port").keys() == {"service.port"}
    section = shown(tmp_path, "kafka")
    assert section["kafka.partitions"] == {"value": 2, "origin": "default"}
    assert all(name.startswith("kafka.") for name in section)
    with pytest.raises(NotFound, match="no setting and no section serv"):
        shown(tmp_path, "serv")


def test_secrets_that_spark_hides_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(
        "[spark]\n"
        '"hadoop.fs.s3a.secret.key" = "sesame"\n"hadoop.fs.s3a.access.key" = "sesame"\n'
        '"ssl.keyPassword" = "sesame"\n"executor.memory" = "1g"\n'
        '"driver.extraJavaOptions" = "-Djavax.net.ssl.trustStorePassword=sesame -Xss4m"\n'
    )
    values = {name: each["value"] for name, each in shown(tmp_path, "--changed").items()}
    assert values == {
        "spark.hadoop.fs.s3a.secret.key": "***",
        "spark.hadoop.fs.s3a.access.key": "***",
        "spark.ssl.keyPassword": "***",
        "spark.executor.memory": "1g",
        "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=*** -Xss4m",
    }


@pytest.mark.parametrize(
    ("address", "seen"),
    [
        ("postgresql://me:se:c@ret@db:5432/shop", "postgresql://me@db:5432/shop"),
        ("postgresql://me@db/shop", "postgresql://me@db/shop"),
        ("host=db password='a b\\' c' user=x", "host=db password=*** user=x"),
        ("host=db password=plain", "host=db password=***"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        (7070, 7070),
    ],
)
def test_passwords_of_addresses_are_not_shown(address: object, seen: object) -> None:
    assert without_password(address) == seen
