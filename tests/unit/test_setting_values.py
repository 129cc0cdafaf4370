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


@pytest.mark.parametrize("key", ["lake.retention_days", "pipeline.lease_seconds"])
def test_nothing_is_kept_for_no_time(tmp_path: Path, key: str) -> None:
    with pytest.raises(Misconfigured, match=f"{key} must be from 1 to"):
        load(written(tmp_path, key, "0")).number(key)


@pytest.mark.parametrize("key", NUMBERS)
def test_defaults_are_within_their_bounds(tmp_path: Path, key: str) -> None:
    assert load(tmp_path).number(key) == DEFAULTS[key]


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
