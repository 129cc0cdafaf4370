"""Two pages for people: `/` says what answers here, `/docs` shows the OpenAPI document.

Both are whole in themselves: no script, nothing from elsewhere, so they work without a network and
under a Content-Security-Policy that forbids everything but the one style sheet in the page.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from typing import Any, Final

from fastapi import APIRouter, Request, Response

router = APIRouter()

PATHS: Final = ("/", "/docs")
"""Pages that need no token: they hold nothing of the store, and a browser sends no token."""

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { border-bottom: 1px solid rgb(128 128 128 / 60%); margin-top: 2.5rem }
h3 { margin: 2rem 0 .5rem }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
pre { overflow-x: auto; padding: .75rem; border: 1px solid rgb(128 128 128 / 30%) }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0 }
tr { border-top: 1px solid rgb(128 128 128 / 30%) }
:root { color-scheme: light dark }
"""
_STYLE_HASH: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
_LINKS: Final = (
    ("/docs", "every call, its parameters and its answers"),
    ("/openapi.json", "the same for programs (OpenAPI 3.1)"),
    ("/health/ready", "whether appends and reads are accepted"),
    ("/metrics", "metrics for Prometheus"),
    ("/v1/categories", "categories and their numbers of streams"),
    ("/v1/streams", "streams, by name"),
    ("/v1/events", "events, by position"),
    ("/v1/projections", "projections, and how they stand"),
    ("/v1/tables", "the lake's tables"),
)


@router.get("/", include_in_schema=False)
async def welcome() -> Response:
    """Say what answers here, and where to go on."""
    rows = "".join(
        f'<tr><td><a href="{path}"><code>{path}</code></a></td><td>{escape(what)}</td></tr>'
        for path, what in _LINKS
    )
    return _page(
        "Penstock",
        "<h1>Penstock</h1><p>This is the event store of a Penstock workspace: it takes events, "
        "gives them back, and lets readers follow them. Where a token is set, the links below "
        f"that show data need it.</p><table>{rows}</table>",
    )


@router.get("/docs", include_in_schema=False)
async def documentation(request: Request) -> Response:
    """Show the OpenAPI document."""
    return _page("Penstock: HTTP", "".join(_document(request.app.openapi())))


def _page(title: str, body: str) -> Response:
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width">'
        # An empty icon: a browser would ask for /favicon.ico, without the token.
        '<link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>"
    )
    return Response(text, media_type="text/html", headers=_HEADERS)


def _document(document: dict[str, Any]) -> Iterator[str]:
    info = document["info"]
    yield f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
    yield f"<p>{escape(info['description'])} "
    yield '<a href="/openapi.json">openapi.json</a></p>'
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            section = "".join(_operation(f"{method.upper()} {path}", operation))
            by_tag.setdefault(operation["tags"][0], []).append(section)
    for tag, sections in by_tag.items():
        yield f"<h2>{escape(tag)}</h2>{''.join(sections)}"
    yield "<h2>shapes</h2>"
    for name, shape in sorted(document["components"]["schemas"].items()):
        yield f'<h3 id="{escape(name)}">{escape(name)}</h3>{_shape(shape)}'


def _operation(name: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h3><code>{escape(name)}</code></h3><p><b>{escape(operation['summary'])}.</b> "
    yield f"{escape(operation.get('description', ''))}</p>"
    parameters = operation.get("parameters", [])
    if parameters:
        yield "<table><tr><th>parameter</th><th>in</th><th>shape</th><th></th></tr>"
        for each in parameters:
            shape = each["schema"]
            told = each.get("description") or shape.get("description") or ""
            yield f"<tr><td><code>{escape(each['name'])}</code></td><td>{escape(each['in'])}</td>"
            yield f"<td>{_short(shape)}</td><td>{escape(told)}</td></tr>"
        yield "</table>"
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<p>Body, <code>{escape(media)}</code>:</p>{_shape(content['schema'])}"
    yield "<table><tr><th>answer</th><th></th><th>shape</th></tr>"
    for status, answer in sorted(operation["responses"].items()):
        shapes = "<br>".join(
            f"<code>{escape(media)}</code> {_short(content['schema'])}"
            for media, content in answer.get("content", {}).items()
        )
        yield f"<tr><td>{status}</td><td>{escape(answer['description'])}</td><td>{shapes}</td></tr>"
    yield "</table>"


def _shape(shape: dict[str, Any]) -> str:
    """Return a shape in full, except that what it refers to is a link."""
    if "$ref" in shape:
        return f"<p>{_short(shape)}</p>"
    return f"<pre>{escape(json.dumps(shape, indent=2, ensure_ascii=False))}</pre>"


def _short(shape: dict[str, Any]) -> str:
    """Return what a shape is in a few words."""
    match shape:
        case {"$ref": str(reference)}:
            name = escape(reference.rpartition("/")[2])
            return f'<a href="#{name}">{name}</a>'
        case {"enum": list(values)}:
            return escape(", ".join(map(str, values)))
        case {"type": "array", "items": dict(items)}:
            return f"list of {_short(items)}"
        case {"anyOf": list(branches)} | {"oneOf": list(branches)}:
            return " or ".join(map(_short, branches))
        case _:
            return escape(str(shape.get("type", "any")))
