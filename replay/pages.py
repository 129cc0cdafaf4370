"""How builds, their plans and their comparisons look to people.

Who prints a page hands in what lays out its tables: it knows how much room there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from shutil import disk_usage
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from replay.bases import Base
    from replay.book import Replay
    from replay.planning import ReplayPlan
    from replay.swap_commits import Swapped
    from replay.verify import GenerationComparison

Table = Callable[[Sequence[str], Sequence[Sequence[object]]], str]
"""Lays out headings and rows."""
NO_PACE = "--rate has no effect, there is nothing to wait between"


def document(replay: Replay) -> dict[str, object]:
    """Return a generation's row for programs."""
    return {**asdict(replay), "state": replay.state.value}


def short(replay: Replay) -> str:
    """Return what a generation's state is about, in a few words."""
    from replay.book import State

    match replay.state:
        case State.BUILDING if "done" in replay.detail:
            return f"{replay.detail['done']} of {replay.detail['rows']} rows"
        case State.DIFFERS | State.VERIFIED:
            names = ("missing", "extra", "differing")
            return ", ".join(f"{name} {replay.detail.get(name)}" for name in names)
        case State.PAUSED | State.STOPPED if "build" in replay.detail:
            # As `replay.slices.build_of` restores it, which takes a second to load.
            begun = cast("dict[str, Any]", replay.detail["build"])
            why = str(replay.detail.get("error", ""))[:200]
            return (
                f"{begun['done']} of {_slices(begun['slicing']['slices'])}"
                f"{': ' if why else ''}{why}"
            )
        case State.BUILDING | State.PAUSED | State.STOPPED if "derived" in replay.detail:
            why = str(replay.detail.get("error", ""))[:200]
            return f"{replay.detail['rows']} rows of the log{': ' if why else ''}{why}"
        case State.SWAPPED if "reason" in replay.detail:
            return f"swapped without a good comparison: {str(replay.detail['reason'])[:200]}"
        case State.FAILED:
            return str(replay.detail.get("error"))[:200]
        case _:
            return "late rows included" if replay.include_late else ""


def plan_page(found: ReplayPlan, table: Table) -> str:
    """Lay out a plan."""
    low, high = found.seconds
    rows = [[item.name, item.rows, item.bytes, item.late] for item in found.inputs]
    late = (
        f"{found.late_rows:,} rows came too late and "
        f"{'are taken in' if found.include_late else 'stay out (--include-late takes them in)'}"
    )
    kept = f" ({found.reserve_bytes:,} stay in reserve)" if found.reserve_bytes else ""
    free = "" if found.free_bytes is None else f", {found.free_bytes:,} are free{kept}"
    which = f"generation {found.generation} beside {found.live_generation}"
    if found.place is not None:
        which = f"build {found.generation} in another lake, the table at {found.place}"
    lines = [
        f"{found.name}: {which}, {_epochs(found)}",
        *([] if found.base is None else [_base(found.base)]),
        f"change: {found.change} ({found.why})",
        *(
            f"column {each.name}: {each.live or 'not there'} now, {each.built or 'gone'} then"
            for each in found.types
        ),
        table(["reads", "rows", "bytes", "late"], rows),
        *(
            f"{each.name} is held since epoch {each.from_epoch}: {each.reason} | fix: {each.fix}"
            for each in found.held
        ),
        late,
        f"writes about {found.live_rows:,} rows in {_slices(found.slices)}; "
        f"needs {found.needed_bytes:,} bytes{free}{'' if found.fits else ': too few'}",
        *([] if found.scratch_bytes == 0 else [_laid_apart(found, kept)]),
        *([] if found.sliceable else [f"it is one slice, however large: {NO_PACE}"]),
        f"takes {low} to {high} s, from {found.rates.slowest:,.0f} to "
        f"{found.rates.fastest:,.0f} rows/s ({found.rates.of})",
        *_seen_by(found),
        *(
            f"{each.what}: silent up to epoch {each.epoch}; then {each.then}"
            for each in found.silent
        ),
        *(
            f"readers without Delta's feature {name} cannot read the result"
            for name in found.new_features
        ),
        f"to go back{'' if found.place else ' after the swap'}: {found.go_back}",
    ]
    return "\n".join(lines)


def _laid_apart(found: ReplayPlan, kept: str) -> str:
    """Say what of the inputs is laid apart, and which room there is for it."""
    most = "rows" if found.scratch_bytes is None else f"at most {found.scratch_bytes:,} bytes"
    told = f"lays {most} of its inputs apart in {gettempdir()}, where "
    told += f"{disk_usage(gettempdir()).free:,} are free{kept}"
    return told if found.scratch_bytes is not None else f"{told}: how many, the first ones show"


def _slices(many: int) -> str:
    return f"{many} slice{'' if many == 1 else 's'}"


def _epochs(found: ReplayPlan) -> str:
    """Say which epochs are taken in."""
    first, last = found.epochs
    if first <= last:
        return f"epochs {first} to {last}"
    return f"nothing came after epoch {last}" if last else "nothing was taken in yet"


def _seen_by(found: ReplayPlan) -> list[str]:
    """Say who sees the result, and when."""
    if found.place is not None:
        return [
            "nothing is written to the lake that is read; readers there see it once it is whole, "
            "by one commit; nothing is sent to anyone"
        ]
    return [
        f"downstream: {', '.join(found.downstream) or 'no other projection reads it'}",
        "readers see nothing until the swap, which is one commit; nothing is sent to anyone",
    ]


def _base(base: Base) -> str:
    """Say what a build begins with."""
    if base.where is not None:
        return (
            f"computes again: {base.asked}; copies the others of {base.rows:,} rows of epoch "
            f"{base.epoch}, {base.bytes:,} bytes"
        )
    what = "" if base.asked == f"epoch {base.epoch}" else f" ({base.asked})"
    return f"begins with {base.rows:,} rows of epoch {base.epoch}{what}, {base.bytes:,} bytes"


def comparison_page(found: GenerationComparison, table: Table) -> str:
    """Lay out a comparison."""
    rows = found.rows
    lines = [
        f"generation {found.generation} of {found.name}, epoch {found.epoch}: {found.verdict}",
        table(
            ["generation", "rows", "hash"],
            [
                ["live", rows.live_rows, rows.live_hash],
                ["built", rows.built_rows, rows.built_hash],
            ],
        ),
        f"missing {rows.missing}, extra {rows.extra}, differing {rows.differing}; "
        f"expected among these {rows.expected}",
    ]
    if found.declared:
        lines.append("late rows were asked for, and there are some")
    lines += [
        f"column {each.name}: {each.live or 'not there'} in the live one, "
        f"{each.built or 'not there'} in the built one"
        for each in found.types
    ]
    for each in rows.drift:
        most = "" if each.greatest is None else f" by up to {each.greatest:g}"
        lines.append(f"{each.name} differs in {each.rows} rows{most}")
    for example in rows.examples:
        lines += [str(example["key"]), f"  live  {example['live']}", f"  built {example['built']}"]
    return "\n".join(lines)


def drift_of(compared: Replay) -> dict[str, object]:
    """Return what one comparison in the book says, in a few numbers."""
    detail = compared.detail
    names = ("verdict", "live_rows", "built_rows", "missing", "extra", "differing", "expected")
    kept = {name: detail.get(name) for name in names}
    drift = cast("list[Any]", detail.get("drift", []))
    columns = {each["name"]: each["rows"] for each in drift}
    most = {each["name"]: each["greatest"] for each in drift if each["greatest"] is not None}
    told = {"columns": columns, "by_up_to": most}
    return {"epoch": compared.epoch, "at": compared.at, **kept, **told}


_DRIFT = ("epoch", "at", "live_rows", "built_rows", "missing", "extra", "differing")


def drift_page(drift: Sequence[Mapping[str, object]], table: Table) -> str:
    """Lay out comparisons, the oldest first."""
    rows = [[*(each[name] for name in _DRIFT), _columns(each) or "-"] for each in drift]
    if not rows:
        return "nothing was compared yet: the two generations have no epoch in common"
    headings = [*(name.replace("_", " ") for name in _DRIFT), "columns"]
    return table(headings, rows)


def drift_line(told: Mapping[str, object]) -> str:
    """Lay out one comparison of many, as a line of its own."""
    columns = _columns(told)
    return (
        f"epoch {told['epoch']}: missing {told['missing']}, extra {told['extra']}, "
        f"differing {told['differing']} of {told['live_rows']}{': ' if columns else ''}{columns}"
    )


def _columns(told: Mapping[str, object]) -> str:
    """Say in how many rows each column differs, and by how much at most if it is a number."""
    most = cast("Mapping[str, float]", told["by_up_to"])
    return ", ".join(
        f"{name} in {rows:,} rows{f' by up to {most[name]:g}' if name in most else ''}"
        for name, rows in cast("Mapping[str, int]", told["columns"]).items()
    )


def swapped(done: Swapped) -> str:
    """Say what a swap or rollback did."""
    return (
        f"{done.name} is generation {done.generation} now (was {done.replaced}), "
        f"at epoch {done.epoch}, version {done.version} of its table"
    )
