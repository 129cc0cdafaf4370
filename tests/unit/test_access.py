"""Who may call: the workspace's token, the names of a service, and the pipeline's own endpoint."""

from __future__ import annotations

import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from apps.access import Section, access_of, bearing, token_of
from apps.pipeline.metrics import PipelineMetrics
from apps.settings import TOKEN_FILE, load
from kernel.errors import Misconfigured, Unavailable
from penstock_client.access import found_token
from service.access import Access
from service.pipeline_endpoint import serve

LOCAL = "http://127.0.0.1:7070"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_TOKEN", "PENSTOCK_WORKSPACE", "PENSTOCK_SERVICE_AUTH"):
        monkeypatch.delenv(name, raising=False)


def test_a_token_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        made = set(pool.map(lambda _: token_of(load(tmp_path)), range(20)))
    (token,) = made
    assert len(token) >= 32
    kept = tmp_path / TOKEN_FILE
    assert kept.read_text() == token
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert [each.name for each in kept.parent.iterdir()] == ["token"]
    assert load(tmp_path).text("service.token") == token


def test_the_workspaces_own_token_is_asked_for_by_default(tmp_path: Path) -> None:
    access = access_of(load(tmp_path), "service")
    assert access.token == (tmp_path / TOKEN_FILE).read_text()
    assert access.bears(f"Bearer {access.token}".encode())
    assert not access.bears(b"")
    assert not access.bears(b"Bearer ")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
def test_the_name_of_the_scheme_has_no_case(scheme: str) -> None:
    access = Access(token="secret")
    assert access.bears(f"{scheme} secret".encode())
    assert not access.bears(f"{scheme} secre".encode())
    assert not access.bears(scheme.encode())
    assert not access.bears(b"secret")


@pytest.mark.parametrize("host", ["localhost:1@evil", "localhost:x", "[::1", "[::1]evil", "a:1:2"])
def test_what_is_no_host_names_nobody(host: str) -> None:
    assert not Access(hosts=frozenset({"a"})).names(host)


def test_a_token_of_the_environment_beats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_of(load(tmp_path))
    monkeypatch.setenv("PENSTOCK_TOKEN", "chosen")
    assert access_of(load(tmp_path), "pipeline").token == "chosen"


def test_the_end_of_a_line_is_no_part_of_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file, or a secret of a cluster, has it: nobody could send it."""
    monkeypatch.setenv("PENSTOCK_TOKEN", "größe\n")
    known = load(tmp_path)
    sent = bearing(known, LOCAL)["authorization"].encode("latin-1")
    assert access_of(known, "service").bears(sent)
    assert found_token(LOCAL, tmp_path) == "größe"


def test_asking_nobody_is_said_in_the_settings(tmp_path: Path) -> None:
    access = access_of(load(tmp_path, service__auth="none"), "service")
    assert access.bears(b"")
    assert not access.names("evil.example")
    with pytest.raises(Misconfigured, match=r"service\.auth is 'open'"):
        access_of(load(tmp_path, service__auth="open"), "service")


@pytest.mark.parametrize("section", ["service", "pipeline"])
@pytest.mark.parametrize("auth", ["token", "none"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid"])
def test_others_are_served_with_a_token_of_your_choice_alone(
    tmp_path: Path, section: Section, auth: str, host: str
) -> None:
    token_of(load(tmp_path))
    public = {f"{section}__host": host, "service__auth": auth}
    with pytest.raises(Misconfigured, match=f"{section}.host {host} can be reached by others"):
        access_of(load(tmp_path, **public), section)


def test_a_service_for_others_is_called_by_address_or_by_a_listed_name(tmp_path: Path) -> None:
    found = load(
        tmp_path, service__host="0.0.0.0", service__token="chosen", service__hosts="Service, shop"
    )
    access = access_of(found, "service")
    names = ("10.0.0.7:7070", "[2001:db8::1]:7070", "service:7070", "SHOP", "localhost")
    assert all(map(access.names, names))
    assert not access.names("evil.example:7070")
    assert Access(hosts=frozenset({"*"})).names("evil.example")


def test_our_token_goes_to_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = token_of(load(tmp_path))
    for url in (LOCAL, "http://localhost:7070", "http://[::1]:7070"):
        assert bearing(load(tmp_path), url) == {"authorization": f"Bearer {token}"}
        assert found_token(url, tmp_path) == token
    for url in ("http://10.0.0.7:7070", "https://penstock.example"):
        assert bearing(load(tmp_path), url) == {}
        assert found_token(url, tmp_path) == ""
    monkeypatch.setenv("PENSTOCK_TOKEN", "chosen")
    assert bearing(load(tmp_path), url) == {"authorization": "Bearer chosen"}
    assert found_token(url, tmp_path) == "chosen"


def test_a_client_finds_the_workspace_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = token_of(load(tmp_path))
    below = tmp_path / "src" / "shop"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert found_token(LOCAL, None) == token
    (tmp_path / "penstock.toml").write_text('[service]\ntoken = "written"\n')
    assert found_token(LOCAL, None) == "written"
    assert load(tmp_path).text("service.token") == "written"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("PENSTOCK_WORKSPACE", str(elsewhere))
    assert found_token(LOCAL, None) == ""
    assert found_token(LOCAL, tmp_path) == "written"


def test_a_port_of_the_pipeline_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"{port} cannot be listened on") as refused:
            serve("127.0.0.1", port, Access(token="secret"), PipelineMetrics(), lambda: (True, {}))
    assert "pipeline.port" in str(refused.value.remedy)


def test_the_pipeline_shows_strangers_its_status_alone() -> None:
    state = {"ingest": {"state": "failed", "reason": "password of postgres://…"}}
    server = serve(
        "127.0.0.1", 0, Access(token="secret"), PipelineMetrics(), lambda: (False, state)
    )
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with httpx.Client(base_url=url, trust_env=False) as http:
            bearer = {"authorization": "Bearer secret"}
            assert http.get("/health/live").json() == {"live": True}
            ready = http.get("/health/ready")
            assert (ready.status_code, ready.json()) == (503, {"ready": False})
            known = http.get("/health/ready", headers=bearer).json()
            assert (known["ready"], known["status"]) == (False, "unready")
            assert known["ingest"] == state["ingest"]
            assert [each["component"] for each in known["standing_still"]] == ["ingest"]
            assert http.get("/metrics").status_code == 401
            assert http.get("/sources").status_code == 401
            assert http.get("/sources", headers=bearer).json() == {"sources": []}
            assert "penstock_epoch" in http.get("/metrics", headers=bearer).text
            for headers in ({"host": "evil.example"}, bearer | {"host": "evil.example"}):
                for path in ("/health/live", "/health/ready", "/metrics"):
                    assert http.get(path, headers=headers).status_code == 421
            assert http.get("/metrics", headers={"authorization": "Bearer ü".encode()}).is_error
    finally:
        server.shutdown()
        server.server_close()
