"""The pages for browsers: whole in themselves, under a strict policy, and complete."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser

import httpx
import pytest

from service.pages import PATHS
from tests.support.services.http import service_in_thread

VOID = {"meta", "br", "link"}
ICON = ("link", {"rel": "icon", "href": "data:,"})


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn, token="secret") as client:
        yield client


class Elements(HTMLParser):
    """Elements and their attributes; raises where one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_pages_bring_all_that_they_need(http: httpx.Client) -> None:
    for path in PATHS:
        answer = httpx.get(f"{http.base_url}{path}")  # A browser sends no token.
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = answer.headers["content-security-policy"].split("; ")
        assert policy[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]
        found = Elements(answer.text).found
        # Without an icon of its own a browser asks for one, and gets a 401.
        assert found.count(ICON) == 1
        for tag, attributes in (each for each in found if each != ICON):
            assert tag not in {"script", "link", "img", "iframe", "form"}
            assert not attributes.keys() & {"src", "style", "onclick"}
            assert str(attributes.get("href", "/")).startswith(("/", "#"))


def test_the_first_page_leads_to_what_there_is(http: httpx.Client) -> None:
    links = re.findall(r'href="(/[^"]*)"', http.get("/").text)
    assert {"/docs", "/health/ready", "/v1/streams"} <= set(links)
    assert {http.get(link).status_code for link in links} == {200}


def test_the_documentation_shows_every_operation_and_shape(http: httpx.Client) -> None:
    text = http.get("/docs").text
    document = http.get("/openapi.json").json()
    shown = set(map(unescape, re.findall(r"<h3><code>(.*?)</code></h3>", text)))
    assert shown == {
        f"{method.upper()} {path}" for path, each in document["paths"].items() for method in each
    }
    targets = set(re.findall(r'id="(\w+)"', text))
    assert targets == set(document["components"]["schemas"])
    assert set(re.findall(r'href="#(\w+)"', text)) <= targets
    parameter = "<td><code>stream_prefix</code></td><td>query</td><td>string</td>"
    assert parameter in text
