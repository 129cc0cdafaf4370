"""Values of settings that a file may have: each is taken as it is, or refused by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.settings import DEFAULTS, load
from kernel.errors import Misconfigured

NUMBERS = [key for key, value in DEFAULTS.items() if isinstance(value, int)]


def written(tmp_path: Path, key: str, value: str) -> Path:
    section, _, name = key.partition(".")
    (tmp_path / "penstock.toml").write_text(f"[{section}]\n{name} = {value}\n")
    return tmp_path


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", ["-21", "100000000000000000000"])
def test_a_number_that_means_nothing_is_refused_by_name(
    tmp_path: Path, key: str, value: str
) -> None:
    settings = load(written(tmp_path, key, value))
    with pytest.raises(Misconfigured, match=rf"{key} must be from .* found {value} \(penstock"):
        settings.number(key)


@pytest.mark.parametrize(
    "key",
    [
        *("lake.retention_days", "pipeline.lease_seconds", "service.max_page"),
        *("service.max_connections", "service.max_header_bytes", "service.max_events"),
        *("service.idle_client_seconds", "service.import_chunk_events", "service.decider_seconds"),
    ],
)
def test_what_nothing_at_all_would_stop_is_something(tmp_path: Path, key: str) -> None:
    with pytest.raises(Misconfigured, match=f"{key} must be from 1 to"):
        load(written(tmp_path, key, "0")).number(key)


@pytest.mark.parametrize("key", NUMBERS)
def test_defaults_are_within_their_bounds(tmp_path: Path, key: str) -> None:
    assert load(tmp_path).number(key) == DEFAULTS[key]


@pytest.mark.parametrize("value", ["", " ", "file:", "file://"])
def test_a_lake_is_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Where a variable is empty, tables would lie among whatever the workspace has."""
    monkeypatch.setenv("PENSTOCK_LAKE_PATH", value)
    settings = load(tmp_path)
    with pytest.raises(Misconfigured, match=f"lake.path is '{value}', which names no folder"):
        _ = settings.lake


def test_an_address_that_is_blank_is_said_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_POSTGRES_DSN", " ")
    with pytest.raises(Misconfigured, match=r"postgres\.dsn is empty \(environment\)"):
        load(tmp_path).required("postgres.dsn")


@pytest.mark.parametrize("begun", ["[", "{b = "])
def test_a_file_that_nests_without_end_is_said(tmp_path: Path, begun: str) -> None:
    (tmp_path / "penstock.toml").write_text(f"a = {begun * 3_000}")
    with pytest.raises(Misconfigured, match="is not valid TOML"):
        load(tmp_path)


def test_a_name_in_quotes_is_shown_without(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('"service.port" = 7071\n')
    with pytest.raises(Misconfigured) as refused:
        load(tmp_path)
    assert refused.value.remedy == "Write service.port = … without quotes about its name."


def test_what_is_left_of_the_files_of_a_stack_is_answered_in_words(tmp_path: Path) -> None:
    (state := tmp_path / ".penstock").mkdir()
    (state / "endpoints.json").write_text("[" * 100_000)
    assert load(tmp_path).text("kafka.bootstrap") == ""
    (state / "token").write_bytes(b"\xff")
    with pytest.raises(Misconfigured, match="token cannot be read: it is not UTF-8"):
        load(tmp_path)


def test_all_unknown_settings_are_named_at_once(tmp_path: Path) -> None:
    """A file of a newer version has several, and its user should not meet them one by one."""
    (tmp_path / "penstock.toml").write_text("[service]\nprot = 1\n[wheel]\nspeed = 2\n")
    with pytest.raises(
        Misconfigured,
        match=r"settings service\.prot, wheel\.speed from penstock\.toml; .* service\.port\?",
    ) as refused:
        load(tmp_path)
    assert refused.value.remedy.startswith("Rename them, or take them out of penstock.toml.")


def test_a_list_is_no_text(tmp_path: Path) -> None:
    settings = load(written(tmp_path, "service.hosts", '["a.example", "b.example"]'))
    with pytest.raises(Misconfigured, match=r"service\.hosts must be one text") as refused:
        settings.text("service.hosts")
    assert 'hosts = "a.example,b.example"' in str(refused.value.remedy)


def test_a_file_in_another_encoding_is_said(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_bytes('[workspace]\nname = "jürgen"\n'.encode("latin-1"))
    with pytest.raises(Misconfigured, match="is not valid TOML"):
        load(tmp_path)


def test_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = load(written(tmp_path, "lake.path", '"~/lake"'))
    assert settings.lake == str(tmp_path / "lake")
    monkeypatch.setenv("PENSTOCK_WORKSPACE", "~")
    assert load().workspace == tmp_path
