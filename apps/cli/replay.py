"""`penstock replay …`: build a projection again, compare, swap, roll back.

Commands import the lake and Spark when they run: it takes seconds, which `--help` should not pay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.cli.groups import Group
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, refuse_unconfirmed, table
from apps.cli.replay_builds import (
    Built,
    Generation,
    Name,
    apply,
    book_of,
    builder_of,
    pause_,
    plan,
    resume,
)
from apps.cli.replay_derived import is_derived
from apps.cli.replay_events import events
from apps.cli.replay_pages import (
    comparison_page,
    document,
    drift_line,
    drift_of,
    drift_page,
    short,
    swapped,
)
from apps.cli.replay_places import OtherLake, other_lake, told_there
from apps.cli.sites import site_of
from kernel import failpoints
from kernel.errors import EXIT_FAILED, InvalidRequest
from lake.layout import Lake

if TYPE_CHECKING:
    from kernel.positions import Epoch
    from replay.book import Replay, State
    from replay.subject import Site
    from replay.swap import CatchUp, Swapped


Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME", help="The projection, or several that belong together."),
]
Expect = Annotated[
    str | None,
    typer.Option(metavar="SQL", help="A condition over the rows live and built of a key."),
]
ExpectColumn = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="A column that may differ (may be given again)."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group,
        help="Build projections again from the lake, compare, swap; send events elsewhere.",
    )
    group.command("plan")(plan)
    group.command("apply")(told_there(apply))
    group.command("pause")(told_there(pause_))
    group.command("resume")(told_there(resume))
    group.command("status")(told_there(status))
    group.command("verify")(told_there(verify_))
    group.command("compare")(compare_)
    group.command("swap")(swap_)
    group.command("rollback")(rollback_)
    group.command("cancel")(told_there(cancel_))
    group.command("events")(events)
    app.add_typer(group, name="replay")


def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One projection.")] = None,
    lake: OtherLake = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show generations: state, epoch, progress of a build, result of a comparison."""
    from lake.rows import SmallTables
    from projections.serve.standings import standing
    from replay.book import ReplayBook

    settled = settings.load(workspace)
    own, into = Lake.named(settled.lake), other_lake(settled, lake)
    if name is not None and not is_derived(name, into):
        standing(own, name)  # It refuses a name that is not deployed.
    found = [r for r in ReplayBook(into or own, SmallTables()).all() if name in (None, r.name)]
    rows = [[r.name, r.generation, r.base, r.state.value, r.epoch, r.at, short(r)] for r in found]
    headings = ["projection", "generation", "built beside", "state", "epoch", "since", "detail"]
    nothing = "nothing was built again; see what would be: penstock replay plan NAME"
    text = table(headings, rows, nothing=nothing)
    emit([document(r) for r in found], as_json=as_json, text=text)


def verify_(
    name: Built,
    generation: Generation = None,
    expect: Expect = None,
    expect_column: ExpectColumn = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the result to FILE, .html or .json.")
    ] = None,
    lake: OtherLake = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the built generation with the live one at one epoch: types, then row for row.

    Exit code 1 when they differ otherwise than expected: rows for which --expect holds, columns
    named by --expect-column, and rows that --include-late brings are what was asked for.
    """
    from replay.book import READY

    found = settings.load(workspace)
    into = other_lake(found, lake)
    built = book_of(found, name, into).newest(name, *READY, generation=generation)
    from apps.large_states import large_states
    from replay.derivations.derivation_check import verify_derived
    from replay.report import refuse_other, write_report
    from replay.verify import Expectation, comparable, live_epoch, verify

    if report is not None:
        refuse_other(report)
    also = None if into is None else into.root
    site = replace(site_of(found, into=into), large=large_states(found, also=also))
    derived = is_derived(name, into)
    if into is None and not comparable(site, built):
        # It was brought past an epoch of the live one; bring it to one that both have.
        builder_of(found, site).catch_up(built, live_epoch(site, built))
    expectation = Expectation(rows=expect, columns=tuple(expect_column or ()))
    judge = verify_derived if derived else verify
    compared = judge(site, name, generation=built.generation, expectation=expectation)
    if report is not None:
        write_report(compared, report)
    emit(compared.document, as_json=as_json, text=comparison_page(compared))
    if not compared.accepted:
        raise typer.Exit(EXIT_FAILED)


def compare_(
    name: Name,
    generation: Generation = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on with every newer epoch, until interrupted.")
    ] = False,
    expect: Expect = None,
    expect_column: ExpectColumn = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many rows of two generations differ, now and at each epoch compared before.

    The built one is brought to the live one's epoch first. Meant for two versions side by side on
    the live stream; each comparison reads both tables, as `replay verify` does.
    """
    from replay.book import READY

    found = settings.load(workspace)
    book = book_of(found, name)
    built = book.newest(name, *READY, generation=generation)
    from apps.large_states import large_states
    from replay.side_by_side import comparisons
    from replay.verify import Expectation

    site = replace(site_of(found), large=large_states(found))
    builder = cache(lambda: builder_of(found, site))  # Spark starts where something is new.

    def catch_up(epoch: Epoch) -> CatchUp:
        return lambda replay: builder().catch_up(replay, epoch)

    def go_on() -> bool:
        time.sleep(1.0 if watch else 0.0)
        return watch

    wanted, number = Expectation(rows=expect, columns=(*(expect_column or ()),)), built.generation
    compared = comparisons(site, name, catch_up, generation=number, expectation=wanted, go_on=go_on)
    for each in compared:
        if watch:
            line = drift_of(book.compared(name, each.generation)[-1])
            print(json.dumps(line, default=str) if as_json else drift_line(line), flush=True)
    if not watch:
        drift = [drift_of(each) for each in book.compared(name, number)]
        told = {"name": name, "generation": number, "drift": drift}
        emit(told, as_json=as_json, text=drift_page(drift))


def swap_(
    names: Names,
    generation: Generation = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Also when it was not compared, or differs.")
    ] = False,
    reason: Annotated[
        str | None,
        typer.Option(metavar="WHY", help="With --yes: why all the same; `replay status` shows it."),
    ] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the built generation the table, by one commit. `replay rollback` takes it back.

    Without --yes and --reason only what `replay verify` accepted; exit code 3 otherwise. Several
    projections that belong together go at once: readers by name and over HTTP see all of them new
    or all of them old.
    """
    from replay.book import READY, State

    found = settings.load(workspace)
    failpoints.arm_from_environment()
    members = _members(found, names, *READY, State.SWAPPING, generation=generation)
    # A swap that was interrupted had its confirmation.
    unsure = [each for each in members if each.state not in (State.VERIFIED, State.SWAPPING)]
    why_not = (reason or "").strip()
    if unsure and not (yes and why_not):
        what = "; ".join(map(_not_accepted, unsure))
        verify = ", ".join(f"penstock replay verify {each.name}" for each in unsure)
        refuse_unconfirmed(what, as_json=as_json, fix=f"{verify}, or add --yes --reason WHY")
    from replay.swap import swap

    site, told = site_of(found), why_not if unsure else None

    def catch_up(replay: Replay) -> Replay:
        builder = builder_of(found, site)
        return builder.catch_up(replay, builder.head())

    def bring(seen: Site, replay: Replay, epoch: Epoch, live: bool) -> Replay:
        return builder_of(found, seen).catch_up(replay, epoch, live=live)

    if len(members) > 1:
        from replay.swap_sets import swap_set

        _emit_swapped(swap_set(site, members, bring, reason=told), as_json=as_json)
        return
    (built,) = members
    done = swap(site, built.name, catch_up, generation=built.generation, reason=told)
    emit(asdict(done), as_json=as_json, text=swapped(done))


def _members(
    found: settings.Settings, names: list[str], *states: State, generation: int | None = None
) -> list[Replay]:
    """Return the generations that are meant, and those that go with them."""
    for name in names:
        book = book_of(found, name)
    if generation is not None and len(names) > 1:
        raise InvalidRequest(
            "--generation is of one projection, and several are named",
            remedy="Leave it out: the newest of each is taken.",
        )
    return book.set_of([*dict.fromkeys(names)], *states, generation=generation)


def _not_accepted(built: Replay) -> str:
    from replay.book import State

    why = "differs from" if built.state is State.DIFFERS else "was not compared with"
    return f"generation {built.generation} of {built.name} {why} the live one"


def _emit_swapped(done: Sequence[Swapped], *, as_json: bool) -> None:
    emit([asdict(each) for each in done], as_json=as_json, text="\n".join(map(swapped, done)))


def rollback_(names: Names, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Make the generation before the live one the table again, as it was at the swap.

    The pipeline then brings it up to date, from its own epoch. What was swapped together is taken
    back together, also where that swap was interrupted.
    """
    from replay.book import State

    failpoints.arm_from_environment()
    found = settings.load(workspace)
    members = _members(found, names, State.SWAPPED, State.ROLLING_BACK)
    from replay.swap import rollback

    site = site_of(found, fields=False)
    if len(members) > 1:
        from replay.swap_sets import rollback_set

        _emit_swapped(rollback_set(site, members), as_json=as_json)
        return
    done = rollback(site, members[0].name)
    emit(asdict(done), as_json=as_json, text=swapped(done))


def cancel_(
    name: Name,
    generation: Generation = None,
    lake: OtherLake = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a build, or drop a built generation that is not the table; its files are removed.

    Of one whose rollback was interrupted, and changed nothing yet, the rollback is given up.
    """
    from replay.book import CLAIMED, READY, UNFINISHED, State

    found = settings.load(workspace)
    into, open_ = other_lake(found, lake), (*UNFINISHED, *READY, *CLAIMED)
    book_of(found, name, into).newest(name, *open_, generation=generation)
    from replay.cancel import cancel

    done = cancel(site_of(found, fields=False, into=into), name, generation=generation)
    text = f"generation {done.generation} of {name} is cancelled; the live one was not touched"
    if done.state is State.SWAPPED:
        text = f"generation {done.generation} of {name} stays the table: its rollback is given up"
    emit(document(done), as_json=as_json, text=text)
