"""Sources as files: what is written, what is not, and what a mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc import sources
from cdc.sources import TableOptions
from kernel.errors import InvalidRequest, Misconfigured, NotFound

PLAIN = 'dsn = "dbname=a"\ntables = ["t"]\n'
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
        (f'{PLAIN}keys = "id"', "keys are written as a section"),
        (f'{PLAIN}[keys]\nt = "id"', "t wants a list of columns"),
        (f'{PLAIN}snapshot = "fast"', '"copy" or "connector", not \'fast\''),
        (f'{PLAIN}table = "a"', "written as sections"),
        (f'{PLAIN}[table."public.u"]\nexclude = ["a"]', "public.u, which is not one of the"),
        (f'{PLAIN}[table."t"]\nexcludes = ["a"]', "unknown excludes"),
        (f'{PLAIN}[table."t"]\nmask = "a"', "mask is a list of column names, not 'a'"),
        (f'{PLAIN}[table."t"]\nmask = ["a"]\nhash = ["a"]', "a is named twice"),
        (f'{PLAIN}[table."t"]\nhistory = "yes"', "history is true or false"),
        (f'{PLAIN}[table."t"]\ndeletes = "never"', 'deletes is "hard" or "soft", not \'never\''),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, cause: str) -> None:
    write(tmp_path, text)
    with pytest.raises(Misconfigured, match=cause):
        sources.load(tmp_path, "shop")


def test_a_file_of_another_encoding_is_told_so(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    file = tmp_path / "sources/shop.toml"
    file.write_bytes(b"\xef\xbb\xbf" + PLAIN.encode())
    assert sources.load(tmp_path, "shop").tables == ("public.t",)
    file.write_bytes('dsn = "dbname=größe"'.encode("latin-1"))
    with pytest.raises(Misconfigured, match="not valid TOML"):
        sources.load(tmp_path, "shop")


def test_names_of_any_script_survive_their_file(tmp_path: Path) -> None:
    odd = ("public.größe", "public.😀", "public.a\x7fb")
    source, _ = sources.declare(
        "shop",
        dsn=DSN,
        tables=odd,
        keys={odd[1]: ("😀",)},
        options={odd[1]: TableOptions(exclude=("é😀",))},
    )
    sources.save(tmp_path, source, None)
    assert sources.load(tmp_path, "shop") == source


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
    (workspace / "sources").mkdir(exist_ok=True)
    (workspace / "sources/shop.toml").write_text(text)


OPTIONS = {
    "public.people": TableOptions(exclude=("card",), mask=("phone",), hash=("email",)),
    "public.order_*": TableOptions(history=True, soft_deletes=True),
}


def test_options_and_patterns_survive_their_file(tmp_path: Path) -> None:
    source, _ = sources.declare(
        "shop",
        dsn=DSN,
        tables=("people", "order_*"),
        keys={"order_lines": ("a",)},
        options=OPTIONS,
        snapshot=sources.COPY,
    )
    sources.save(tmp_path, source, None)
    assert sources.load(tmp_path, "shop") == source
    assert source.patterns == ("public.order_*",)
    assert source.covers("public.order_lines")
    assert not source.covers("app.order_lines")
    assert not source.covers("public.orders")
    assert source.options_of("public.order_lines") == OPTIONS["public.order_*"]
    assert source.options_of("public.people") == OPTIONS["public.people"]
    assert source.options_of("public.cards") == TableOptions()


def test_a_tables_own_options_beat_those_of_a_pattern(tmp_path: Path) -> None:
    source, _ = sources.declare(
        "shop",
        dsn=DSN,
        tables=("public.*",),
        options={"public.*": TableOptions(history=True), "public.a": TableOptions(mask=("b",))},
    )
    assert source.options_of("public.a") == TableOptions(mask=("b",))
    assert source.options_of("public.b") == TableOptions(history=True)


def test_the_salt_of_hashed_columns_is_a_secret_that_is_made_once(tmp_path: Path) -> None:
    source, _ = sources.declare("shop", dsn=DSN, tables=("people",), options=OPTIONS_OF_PEOPLE)
    path = sources.save(tmp_path, source, None)
    salt = sources.load(tmp_path, "shop").full_salt(tmp_path)
    assert len(salt) == 64
    assert salt not in path.read_text()
    assert (tmp_path / ".penstock/secrets/shop.salt").stat().st_mode & 0o777 == 0o600
    sources.save(tmp_path, source, None)
    assert source.full_salt(tmp_path) == salt
    write(tmp_path, f'{PLAIN}[table."t"]\nhash = ["a"]')
    with pytest.raises(Misconfigured, match="needs a salt of 16 to 128 letters and digits"):
        sources.load(tmp_path, "shop").full_salt(tmp_path)
    write(tmp_path, f'{PLAIN}salt = "env:SHOP_SALT"\n[table."t"]\nhash = ["a"]')
    with pytest.raises(Misconfigured, match="SHOP_SALT is not in the environment"):
        sources.load(tmp_path, "shop").full_salt(tmp_path)


OPTIONS_OF_PEOPLE = {"people": OPTIONS["public.people"]}
