"""The lock of jars and the cache of verified files; nothing here touches a network."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kernel.errors import ChecksumMismatch, Misconfigured, Unavailable
from stack import jars
from stack.ivy import proxy_options
from stack.jars import absent, resolve
from stack.lock import GROUPS, STORES, Artifact, read_lock, version_of
from stack.truststore import certificates_from_environment

CONTENT = b"bytes of a jar"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "the cache"))
    return tmp_path / "the cache"


def artifact(name: str = "thing", group: str = "spark", content: bytes = CONTENT) -> Artifact:
    return Artifact(
        group=group,
        organisation="org.test",
        name=name,
        revision="1.0",
        classifier="",
        extension="jar",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def put(cache: Path, which: Artifact, content: bytes = CONTENT) -> Path:
    path = cache / "jars" / which.group / which.file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_lock_pins_every_artefact_of_the_stack() -> None:
    lock = read_lock()
    assert len([each for each in lock if each.group in GROUPS]) == 131
    assert len([each for each in lock if each.group in STORES]) == 37
    assert {each.group for each in lock} == {*GROUPS, *STORES}
    assert all(len(each.sha256) == 64 and each.size_bytes > 0 for each in lock)
    files = [(each.group, each.file_name) for each in lock]
    assert len(set(files)) == len(files)


def test_the_lock_pins_the_versions_that_go_together() -> None:
    assert version_of("debezium-connector-postgres") == "3.7.0.Final"
    assert version_of("kafka-server") == "4.3.1"
    with pytest.raises(Misconfigured, match="nothing called ghost"):
        version_of("ghost")


def test_an_archive_keeps_its_classifier() -> None:
    (registry,) = [each for each in read_lock() if each.group == "registry"]
    assert registry.file_name == "apicurio-registry-app-3.0.9-all.tar.gz"
    assert registry.coordinates == "io.apicurio:apicurio-registry-app:3.0.9"


def test_a_line_that_cannot_be_read_is_shown(tmp_path: Path) -> None:
    broken = tmp_path / "jars.lock"
    broken.write_text("# comment\nkafka org.test:thing:1.0 many abc\n")
    with pytest.raises(Misconfigured, match=r"kafka org.test:thing:1.0 many abc"):
        read_lock(broken)


def test_offline_serves_from_the_cache(cache: Path) -> None:
    which = artifact()
    path = put(cache, which)
    found = resolve("spark", offline=True, lock=[which])
    assert found.spark_jars() == [path]
    assert found.classpath("spark") == str(path)


def test_offline_names_what_is_missing() -> None:
    with pytest.raises(Unavailable, match=r"1 of 1 jars are not in .*org\.test:thing:1\.0"):
        resolve("spark", offline=True, lock=[artifact()])


def test_other_bytes_are_refused_by_name_and_removed(cache: Path) -> None:
    which = artifact()
    path = put(cache, which, b"something else")
    with pytest.raises(ChecksumMismatch, match=r"org\.test:thing:1\.0 has SHA-256") as caught:
        resolve("spark", offline=True, lock=[which])
    assert caught.value.fields["expected"] == which.sha256
    assert not path.exists(), "or else every later run fails as well"


def test_a_file_that_changed_after_it_was_verified_is_verified_again(cache: Path) -> None:
    which = artifact()
    path = put(cache, which)
    assert absent([which]) == []
    path.write_bytes(b"other bytes now")
    with pytest.raises(ChecksumMismatch):
        absent([which])


def test_a_verified_file_is_not_hashed_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    which = artifact()
    put(cache, which)
    assert absent([which]) == []
    monkeypatch.setattr(Artifact, "verify", lambda self, path: pytest.fail("hashed again"))
    assert absent([which]) == []


def test_plugins_leave_out_what_the_worker_brings_and_name_the_converter(cache: Path) -> None:
    kept, clashing = artifact("avro", "apicurio"), artifact("kafka-clients", "apicurio")
    for each in (kept, clashing):
        put(cache, each)
    found = jars.Jars(
        root=cache,
        paths={
            "apicurio": tuple(cache / "jars/apicurio" / e.file_name for e in (kept, clashing)),
            "debezium": (),
        },
    )
    folder = found.plugin_dir()
    names = {path.name for path in (folder / "apicurio-converter").iterdir()}
    assert names == {"avro-1.0.jar", "manifest.jar"}
    assert (folder / "debezium-connector-postgres" / "penstock-connect.jar").is_file()
    assert found.plugin_dir() == folder


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({}, []),
        ({"NO_PROXY": "a"}, []),
        (
            {"HTTPS_PROXY": "http://proxy.test:8080"},
            ["-Dhttps.proxyHost=proxy.test", "-Dhttps.proxyPort=8080"],
        ),
        (
            {"https_proxy": "proxy.test", "no_proxy": "localhost, .corp.test"},
            [
                "-Dhttps.proxyHost=proxy.test",
                "-Dhttps.proxyPort=3128",
                "-Dhttp.nonProxyHosts=localhost|*.corp.test",
            ],
        ),
        (
            {"HTTPS_PROXY": "http://me:p%40ss@proxy.test:1"},
            [
                "-Dhttps.proxyHost=proxy.test",
                "-Dhttps.proxyPort=1",
                "-Djdk.http.auth.tunneling.disabledSchemes=",
                "-Dhttp.proxyUser=me",
                "-Dhttp.proxyPassword=p@ss",
            ],
        ),
    ],
)
def test_proxies_are_told_to_java(environ: dict[str, str], options: list[str]) -> None:
    assert proxy_options(environ) == options


def test_a_proxy_that_is_no_address_is_refused() -> None:
    with pytest.raises(Misconfigured, match="HTTPS_PROXY"):
        proxy_options({"HTTPS_PROXY": "http://"})


def test_without_a_named_bundle_java_trusts_what_it_trusts() -> None:
    assert certificates_from_environment({}) == []


def test_a_bundle_without_certificates_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    with pytest.raises(Misconfigured, match="SSL_CERT_FILE names"):
        certificates_from_environment({"SSL_CERT_FILE": str(empty)})
