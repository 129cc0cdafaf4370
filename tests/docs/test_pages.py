"""Pages lead somewhere: links end at something, blocks are marked, indexes are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, name_of
from tests.docs.markdown import blocks, pages

LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
KINDS = ("Tutorial", "How-to", "Reference", "Explanation")
FOLDERS = {"tutorial", "how-to", "reference", "explanation", "adr"}
EXECUTED = ("README.md", "docs/tutorial", "docs/how-to")


def headings(path: Path) -> set[str]:
    """Return the anchors of a page, as forges make them from headings."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("#")]
    titles = [re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()) for line in lines]
    return {title.replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_to_something(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        if not found.exists() or (anchor and anchor not in headings(found)):
            broken.append(target)
    assert not broken


def test_every_page_is_reachable_from_the_index() -> None:
    index = ROOT / "docs/README.md"
    seen: set[Path] = set()
    todo = [index]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        for target in LINK.findall(page.read_text()):
            name = target.partition("#")[0]
            if name and "://" not in name and (page.parent / name).exists():
                todo.append((page.parent / name).resolve())
    lost = [name_of(page) for page in (ROOT / "docs").rglob("*.md") if page not in seen]
    assert not lost


def test_every_page_says_which_kind_it_is() -> None:
    """By its folder, or in its first lines."""
    unsaid = [
        name_of(page)
        for page in (ROOT / "docs").rglob("*.md")
        if page.parent.name not in FOLDERS
        and not any(f"*{kind}.*" in page.read_text()[:400] for kind in KINDS)
    ]
    assert not unsaid, f"begin with one of {[f'*{kind}.*' for kind in KINDS]}"


def test_every_decision_has_its_four_parts_and_is_listed() -> None:
    index = (ROOT / "docs/adr/README.md").read_text()
    records = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    assert [record.name[:4] for record in records] == [
        f"{n:04}" for n in range(1, len(records) + 1)
    ]
    for record in records:
        text = record.read_text()
        for part in ("**Context.**", "**Decision.**", "**Cost.**", "**How we would know"):
            assert part in text, f"{record.name} lacks {part}"
        assert f"({record.name})" in index


def test_commands_for_newcomers_are_executed_or_say_why_not() -> None:
    unmarked = [
        block.place
        for page in pages()
        if name_of(page).startswith(EXECUTED)
        for block in blocks(page)
        if block.language in {"console", "sh", "bash", "shell"}
        and (block.mark is None or (block.mark[0] == "not run" and not block.mark[1]))
    ]
    assert not unmarked, "write <!-- run --> or <!-- not run: reason --> on the line above"


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in pages():
        named = set(re.findall(r"(?:^|`|\$ )make ([a-z]+)\b", page.read_text(), re.MULTILINE))
        assert named <= targets, f"{name_of(page)}: {named - targets}"
