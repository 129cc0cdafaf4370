"""Fetching jars with the real Ivy from a stand-in on the loopback interface."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from kernel.errors import ChecksumMismatch, Unavailable
from stack.jars import resolve
from stack.truststore import VARIABLES, write_truststore
from tests.integration.maven_standin import Repository, path_of, serving

PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")


@pytest.fixture(autouse=True)
def _clean_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache of a user"))
    for name in (*PROXIES, *VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def repository() -> Repository:
    return Repository()


@pytest.fixture
def mirror(repository: Repository) -> Iterator[str]:
    with serving(repository) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def company(tmp_path: Path) -> tuple[trustme.CA, Path]:
    """A certificate authority that no machine knows, and its PEM file."""
    authority = trustme.CA()
    pem = tmp_path / "company.pem"
    authority.cert_pem.write_to_path(str(pem))
    return authority, pem


def server_side(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def test_what_is_missing_is_fetched_once_with_progress(repository: Repository, mirror: str) -> None:
    lock = [repository.offer("one", b"1" * 1000), repository.offer("two", b"2" * 500)]
    lines: list[str] = []
    found = resolve("spark", mirror=mirror, lock=lock, progress=lines.append)
    assert [path.read_bytes() for path in found.spark_jars()] == [b"1" * 1000, b"2" * 500]
    assert lines[-1].startswith("jars: 2/2 files, 0/0 MB")

    seen = len(repository.requests)
    assert resolve("spark", mirror=mirror, lock=lock, offline=True) == found
    assert len(repository.requests) == seen


def test_an_interrupted_fetch_goes_on_where_it_stopped(repository: Repository, mirror: str) -> None:
    lock = [repository.offer("one", b"1"), repository.offer("two", b"2")]
    repository.broken.add(path_of(lock[1]))
    with pytest.raises(Unavailable, match=r"org\.test#two"):
        resolve("spark", mirror=mirror, lock=lock)
    repository.broken.clear()
    resolve("spark", mirror=mirror, lock=lock)
    assert [repository.downloads(each) for each in lock] == [1, 1]


def test_other_bytes_than_pinned_are_refused_by_name_and_fetched_anew(
    repository: Repository, mirror: str
) -> None:
    lock = [repository.offer("fine", b"fine"), repository.offer("bad", b"evil", pinned=b"good")]
    with pytest.raises(ChecksumMismatch, match=r"org\.test:bad:1\.0 has SHA-256"):
        resolve("spark", mirror=mirror, lock=lock)
    repository.files[path_of(lock[1])] = b"good"
    found = resolve("spark", mirror=mirror, lock=lock)
    assert [path.read_bytes() for path in found.spark_jars()] == [b"fine", b"good"]


def test_no_network_is_said_with_what_to_do(tmp_path: Path) -> None:
    lock = [Repository().offer("one", b"1")]
    with pytest.raises(Unavailable, match="jars could not be fetched") as caught:
        resolve("spark", mirror="http://127.0.0.1:9/", lock=lock)
    assert "HTTPS_PROXY" in caught.value.remedy
    assert "PENSTOCK_MIRROR" in caught.value.remedy


@pytest.mark.parametrize(
    "variable",
    [VARIABLES[0], *(pytest.param(other, marks=pytest.mark.matrix) for other in VARIABLES[1:])],
)
def test_a_companys_authority_is_trusted(
    repository: Repository,
    company: tuple[trustme.CA, Path],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    authority, pem = company
    lock = [repository.offer("one", b"1")]
    monkeypatch.setenv(variable, str(pem))
    with serving(repository, server_side(authority, "localhost")) as port:
        found = resolve("spark", mirror=f"https://localhost:{port}/", lock=lock)
    assert found.spark_jars()[0].read_bytes() == b"1"


def test_an_unknown_authority_is_refused_with_the_variable_to_set(
    repository: Repository, company: tuple[trustme.CA, Path]
) -> None:
    lock = [repository.offer("one", b"1")]
    with (
        serving(repository, server_side(company[0], "localhost")) as port,
        pytest.raises(Unavailable) as caught,
    ):
        resolve("spark", mirror=f"https://localhost:{port}/", lock=lock)
    assert "SSL_CERT_FILE" in caught.value.remedy
    assert repository.requests == []


def test_everything_goes_through_a_companys_proxy_that_opens_tls(
    repository: Repository, company: tuple[trustme.CA, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy asks for a password and answers in the name of a host that does not exist."""
    authority, pem = company
    lock = [repository.offer("one", b"1"), repository.offer("two", b"2")]
    repository.credentials = "me:p@ss word"
    repository.inner_tls = server_side(authority, "jars.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    with serving(repository) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss%20word@127.0.0.1:{port}")
        found = resolve("spark", mirror="https://jars.test/", lock=lock)
    assert [path.read_bytes() for path in found.spark_jars()] == [b"1", b"2"]
    assert set(repository.tunnels) == {"jars.test:443"}


@pytest.mark.matrix
def test_what_java_itself_trusts_still_counts_beside_a_named_bundle(
    repository: Repository,
    company: tuple[trustme.CA, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Companies put their authority into Java's own store, and another one into a variable."""
    authority, pem = company
    javas_own, other = tmp_path / "own.p12", tmp_path / "other.pem"
    write_truststore(javas_own, [ssl.PEM_cert_to_DER_cert(pem.read_text())])
    trustme.CA().cert_pem.write_to_path(str(other))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djavax.net.ssl.trustStore={javas_own}")
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    lock = [repository.offer("one", b"1")]
    with serving(repository, server_side(authority, "localhost")) as port:
        found = resolve("spark", mirror=f"https://localhost:{port}/", lock=lock)
    assert found.spark_jars()[0].read_bytes() == b"1"
