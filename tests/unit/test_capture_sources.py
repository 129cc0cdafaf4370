"""Sources as files: what is written, what is not, and what a mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc import sources
from kernel.errors import InvalidRequest, Misconfigured, NotFound

DSN = "postgresql://capture:s3cret@db:5433/shop?sslmode=require"


def test_a_source_survives_its_file(tmp_path: Path) -> None:
    source, password = sources.declare(
        "shop", dsn=DSN, tables=("orders", "app.visits", "orders"), keys={"app.visits": ("a", "b")}
    )
    path = sources.save(tmp_path, source, password)
    assert sources.load(tmp_path, "shop") == source
    assert sources.load_all(tmp_path) == (source,)
    assert source.tables == ("public.orders", "app.visits")
    assert "s3cret" not in path.read_text()
    secret = tmp_path / ".penstock/secrets/shop"
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("s3cret", 0o600)
    assert "password=s3cret" in source.full_dsn(tmp_path)
    assert "sslmode=require" in source.dsn
    sources.forget(tmp_path, "shop")
    assert sources.load_all(tmp_path) == ()
    assert not secret.exists()


def test_a_password_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 'dsn = "dbname=shop"\ntables = ["a"]\npassword = "env:SHOP_PASSWORD"\n')
    source = sources.load(tmp_path, "shop")
    with pytest.raises(Misconfigured, match="SHOP_PASSWORD is not in the environment"):
        source.full_dsn(tmp_path)
    monkeypatch.setenv("SHOP_PASSWORD", "x y")
    assert source.full_dsn(tmp_path) == "dbname=shop password='x y'"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("dsn = ", "not valid TOML"),
        ('dsn = "dbname=a"', "needs dsn"),
        ('dsn = "dbname=a"\ntables = ["t"]\ntabels = []', "unknown tabels"),
        ('dsn = "dbname=a password=x"\ntables = ["t"]', "holds a password"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, cause: str) -> None:
    write(tmp_path, text)
    with pytest.raises(Misconfigured, match=cause):
        sources.load(tmp_path, "shop")


def test_an_unknown_source_names_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, 'dsn = "dbname=a"\ntables = ["t"]')
    with pytest.raises(NotFound, match="no source shopp; there are: shop"):
        sources.load(tmp_path, "shopp")


@pytest.mark.parametrize("name", ["", "Shop", "a-b", "1a", "events", "outbox", "x" * 32])
def test_names_that_cannot_be_topics_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name a source"):
        sources.declare(name, dsn=DSN, tables=("t",))


@pytest.mark.parametrize("table", ["a.b.c", ".a", "a.", ""])
def test_names_that_are_no_tables_are_refused(table: str) -> None:
    with pytest.raises(InvalidRequest, match="not a table name"):
        sources.declare("shop", dsn=DSN, tables=(table,))


def test_a_key_needs_its_table() -> None:
    with pytest.raises(InvalidRequest, match="is not one of the tables"):
        sources.declare("shop", dsn=DSN, tables=("a",), keys={"b": ("id",)})


def test_a_dsn_that_is_none() -> None:
    with pytest.raises(InvalidRequest, match="not a PostgreSQL DSN"):
        sources.declare("shop", dsn="postgresql//x", tables=("a",))


def write(workspace: Path, text: str) -> None:
    (workspace / "sources").mkdir()
    (workspace / "sources/shop.toml").write_text(text)
