"""A comparison as a file to keep: JSON for programs, or one HTML page that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from kernel.errors import InvalidRequest
from replay.differences import Drift
from replay.verify import GenerationComparison

SUFFIXES = (".html", ".json")
_ACCEPTED, _REFUSED = '<p class="accepted">', '<p class="refused">'
_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem }
th, td { border-bottom: 1px solid #bbb; padding: 0.25rem 0.75rem; text-align: left }
td { font-family: ui-monospace, monospace; overflow-wrap: anywhere }
.accepted { color: light-dark(#05603a, #6ce9a6) } .refused { color: light-dark(#b42318, #fda29b) }
"""


def refuse_other(path: Path) -> None:
    """Raise `InvalidRequest` for a file that is not called as a report must be, or cannot be there.

    It is asked before tables are compared: nobody should wait for that to hear of it.
    """
    if path.suffix not in SUFFIXES:
        raise InvalidRequest(
            f"{path} is neither .html nor .json", remedy="Name the report so: --report verify.html"
        )
    if not path.parent.is_dir():
        raise InvalidRequest(
            f"{path} cannot be written: there is no folder {path.parent}",
            remedy="Name a file in a folder that is there.",
        )


def write_report(found: GenerationComparison, path: Path) -> None:
    """Write a comparison to a file, in the form that its suffix names."""
    refuse_other(path)
    text = page(found) if path.suffix == ".html" else json.dumps(found.document, indent=2)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be written: {error.strerror}",
            remedy="Name a file in a folder that is there.",
        ) from error


def page(found: GenerationComparison) -> str:
    """Return a comparison as an HTML page without scripts or anything from elsewhere."""
    title = f"{found.name}: generation {found.generation} at epoch {found.epoch}"
    verdict = _ACCEPTED if found.accepted else _REFUSED
    rows = found.rows
    body = [
        f"<h1>{escape(title)}</h1>",
        f"{verdict}<strong>{escape(found.verdict.value)}</strong></p>",
        *_expectation(found),
        _table(
            ["generation", "rows", "hash"],
            [
                ["live", rows.live_rows, rows.live_hash],
                ["built", rows.built_rows, rows.built_hash],
            ],
        ),
        _table(
            ["missing", "extra", "differing", "expected among these", "rows too many for a key"],
            [[rows.missing, rows.extra, rows.differing, rows.expected, rows.repeated_keys]],
        ),
    ]
    if found.types:
        types = [[each.name, each.live, each.built] for each in found.types]
        body += ["<h2>Types</h2>", _table(["column", "live", "built"], types)]
    if rows.drift:
        names = ["column", "differs in rows", "by up to", "key", "live", "built"]
        body += ["<h2>Columns</h2>", _table(names, map(_drift, rows.drift))]
    if rows.examples:
        body += ["<h2>Examples</h2>", _examples(found)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>"
    )


def _expectation(found: GenerationComparison) -> Iterable[str]:
    if found.expectation.rows:
        yield f"<p>Expected: <code>{escape(found.expectation.rows)}</code></p>"
    if found.expectation.columns:
        names = ", ".join(found.expectation.columns)
        yield f"<p>Expected to differ: <code>{escape(names)}</code></p>"
    if found.declared:
        yield "<p>Late rows were asked for.</p>"


def _drift(drift: Drift) -> list[object]:
    return [drift.name, drift.rows, drift.greatest, drift.key, drift.live, drift.built]


def _examples(found: GenerationComparison) -> str:
    rows: list[list[object]] = []
    for example in found.rows.examples:
        for side in ("live", "built"):
            values = example[side]
            cells = list(values.values()) if isinstance(values, dict) else ["no row"]
            rows.append([example["key"], side, *cells])
    return _table(["key", "generation", *sorted(found.columns)], rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in headings)
    lines = (
        "".join(f"<td>{'NULL' if value is None else escape(str(value))}</td>" for value in row)
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
