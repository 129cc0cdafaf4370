"""`penstock replay …`: build a projection again, compare, swap, roll back.

Commands import the lake and Spark when they run: it takes seconds, which `--help` should not pay.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.cli.commands import CommandCall, commands
from apps.cli.options import ProjectionName
from apps.cli.output import Columns, listing, table
from apps.cli.replay_builds import (
    Generation,
    Several,
    apply,
    book_of,
    builder_of,
    pause_,
    plan,
    resume,
)
from apps.cli.replay_derived import is_derived
from apps.cli.replay_events import events
from apps.cli.replay_places import OtherLake, other_lake, told_there
from apps.cli.sites import site_of
from kernel import failpoints
from kernel.errors import EXIT_FAILED, InvalidRequest
from lake.layout import Lake
from replay.pages import (
    comparison_page,
    document,
    drift_line,
    drift_of,
    drift_page,
    short,
    swapped,
)

if TYPE_CHECKING:
    from kernel.positions import Epoch
    from replay.book import Replay, State
    from replay.side_by_side import CatchUp
    from replay.subject import Site
    from replay.swap_commits import Swapped
    from replay.verify import Expectation, GenerationComparison


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


def status(
    call: CommandCall,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One projection.")] = None,
    lake: OtherLake = None,
) -> None:
    """Show generations: state, epoch, progress of a build, result of a comparison."""
    from lake.rows import SmallTables
    from projections.serve.standings import standing
    from replay.book import ReplayBook

    settled = call.settings
    own, into = Lake.named(settled.lake), other_lake(settled, lake)
    if name is not None and not is_derived(name, into):
        standing(own, name)  # It refuses a name that is not deployed.
    found = [r for r in ReplayBook(into or own, SmallTables()).all() if name in (None, r.name)]
    columns: Columns = {
        "projection": "name",
        "generation": "generation",
        "built beside": "base",
        "state": lambda each: each.state.value,
        "epoch": "epoch",
        "since": "at",
        "detail": short,
    }
    nothing = "nothing was built again; see what would be: penstock replay plan NAME"
    text = listing(found, columns, nothing=nothing)
    call.answer([document(each) for each in found], text=text)


def verify_(
    call: CommandCall,
    names: Several,
    generation: Generation = None,
    expect: Expect = None,
    expect_column: ExpectColumn = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the result to FILE, .html or .json.")
    ] = None,
    lake: OtherLake = None,
) -> None:
    """Compare the built generation with the live one at one epoch: types, then row for row.

    Exit code 1 when they differ otherwise than expected: rows for which --expect holds, columns
    named by --expect-column, and rows that --include-late brings are what was asked for. Several
    projections are compared one after the other, each with its own live one.
    """
    from replay.book import READY

    found = call.settings
    chosen = [*dict.fromkeys(names)]
    _refuse_of_one(chosen, {"--generation": generation, "--report": report})
    into = other_lake(found, lake)
    builds = [book_of(found, n, into).newest(n, *READY, generation=generation) for n in chosen]
    from replay.report import refuse_other, write_report
    from replay.verify import Expectation

    if report is not None:
        refuse_other(report)
    expectation = Expectation(rows=expect, columns=tuple(expect_column or ()))
    accepted = True
    with call.answers(several=len(names) > 1) as told:
        for each in builds:
            compared = _verified(found, into, each, expectation)
            told.add(compared.document, comparison_page(compared, table))
            if report is not None:
                write_report(compared, report)
            accepted = accepted and compared.accepted
    if not accepted:
        raise typer.Exit(EXIT_FAILED)


def _verified(
    found: settings.Settings, into: Lake | None, built: Replay, expectation: Expectation
) -> GenerationComparison:
    """Compare one generation, which is brought to an epoch that both have where it has none."""
    from apps.large_states import large_states
    from replay.derivations.derivation_check import verify_derived
    from replay.verify import comparable, live_epoch, verify

    also = None if into is None else into.root
    site = replace(site_of(found, into=into), large=large_states(found, also=also))
    if into is None and not comparable(site, built):
        builder_of(found, site).catch_up(built, live_epoch(site, built))
    judge = verify_derived if is_derived(built.name, into) else verify
    return judge(site, built.name, generation=built.generation, expectation=expectation)


def compare_(
    call: CommandCall,
    name: ProjectionName,
    generation: Generation = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on with every newer epoch, until interrupted.")
    ] = False,
    expect: Expect = None,
    expect_column: ExpectColumn = None,
) -> None:
    """Show how many rows of two generations differ, now and at each epoch compared before.

    The built one is brought to the live one's epoch first. Meant for two versions side by side on
    the live stream; each comparison reads both tables, as `replay verify` does, and expects what
    was accepted before unless told otherwise.
    """
    from replay.book import READY

    found = call.settings
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

    asked, number = expect is not None or expect_column, built.generation
    wanted = Expectation(rows=expect, columns=(*(expect_column or ()),)) if asked else None
    compared = comparisons(site, name, catch_up, generation=number, expectation=wanted, go_on=go_on)
    for each in compared:
        if watch:
            line = drift_of(book.compared(name, each.generation)[-1])
            print(json.dumps(line, default=str) if call.as_json else drift_line(line), flush=True)
    if watch:
        print(f"generation {number} of {name} is the table now", file=sys.stderr, flush=True)
    else:
        drift = [drift_of(each) for each in book.compared(name, number)]
        told = {"name": name, "generation": number, "drift": drift}
        call.answer(told, text=drift_page(drift, table))


def swap_(
    call: CommandCall,
    names: Names,
    generation: Generation = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Also when it was not compared, or differs.")
    ] = False,
    reason: Annotated[
        str | None,
        typer.Option(metavar="WHY", help="With --yes: why all the same; `replay status` shows it."),
    ] = None,
) -> None:
    """Make the built generation the table, by one commit. `replay rollback` takes it back.

    Without --yes and --reason only what `replay verify` accepted; exit code 3 otherwise. Several
    projections that belong together go at once: readers by name and over HTTP see all of them new
    or all of them old.
    """
    from replay.book import READY, State

    found = call.settings
    failpoints.arm_from_environment()
    members = _members(found, names, *READY, State.SWAPPING, generation=generation)
    # A swap that was interrupted had its confirmation.
    unsure = [each for each in members if each.state not in (State.VERIFIED, State.SWAPPING)]
    why_not = (reason or "").strip()
    if unsure and not (yes and why_not):
        what = "; ".join(map(_not_accepted, unsure))
        verify = f"penstock replay verify {' '.join(each.name for each in unsure)}"
        call.refuse_unconfirmed(what, fix=f"{verify}, or add --yes --reason WHY")
    from replay.swap import swap_set

    def bring(seen: Site, replay: Replay, epoch: Epoch, live: bool) -> Replay:
        return builder_of(found, seen).catch_up(replay, epoch, live=live)

    done = swap_set(site_of(found), members, bring, reason=why_not if unsure else None)
    _answer_swapped(call, done, several=len(members) > 1)


def _members(
    found: settings.Settings, names: list[str], *states: State, generation: int | None = None
) -> list[Replay]:
    """Return the generations that are meant, and those that go with them."""
    for name in names:
        book = book_of(found, name)
    chosen = [*dict.fromkeys(names)]
    _refuse_of_one(chosen, {"--generation": generation})
    return book.set_of(chosen, *states, generation=generation)


def _refuse_of_one(names: Sequence[str], given: Mapping[str, object]) -> None:
    """Raise `InvalidRequest` for options that are of one projection where several are named."""
    for option, value in given.items():
        if value is not None and len(names) > 1:
            raise InvalidRequest(
                f"{option} is of one projection, and several are named",
                remedy="Leave it out, or name one.",
            )


def _not_accepted(built: Replay) -> str:
    from replay.book import State

    why = "differs from" if built.state is State.DIFFERS else "was not compared with"
    return f"generation {built.generation} of {built.name} {why} the live one"


def _answer_swapped(call: CommandCall, done: Sequence[Swapped], *, several: bool) -> None:
    documents = [asdict(each) for each in done]
    text = "\n".join(map(swapped, done))
    call.answer(documents if several else documents[0], text=text)


def rollback_(call: CommandCall, names: Names) -> None:
    """Make the generation before the live one the table again, as it was at the swap.

    The pipeline then brings it up to date, from its own epoch. What was swapped together is taken
    back together. A swap that was interrupted is given up, or taken back where it came to a table.
    """
    from replay.book import READY, State

    failpoints.arm_from_environment()
    found = call.settings
    members = _members(found, names, State.SWAPPED, State.ROLLING_BACK, State.SWAPPING)
    from replay.swap import rollback_set

    done = rollback_set(site_of(found, fields=False), members)
    if done or len(members) > 1:
        _answer_swapped(call, done, several=len(members) > 1)
        return
    (given_up,) = members
    name, number = given_up.name, given_up.generation
    built = book_of(found, name).newest(name, *READY, generation=number)
    told = f"generation {number} of {name} did not become the table"
    call.answer(document(built), text=f"{told}: its swap is given up, and nothing was changed")


def cancel_(
    call: CommandCall, name: ProjectionName, generation: Generation = None, lake: OtherLake = None
) -> None:
    """Stop a build, or drop a built generation that is not the table; its files are removed.

    Of one whose rollback was interrupted, and changed nothing yet, the rollback is given up.
    """
    from replay.book import CLAIMED, READY, UNFINISHED, State

    found = call.settings
    into, open_ = other_lake(found, lake), (*UNFINISHED, *READY, *CLAIMED)
    book_of(found, name, into).newest(name, *open_, generation=generation)
    from replay.cancel import cancel

    done = cancel(site_of(found, fields=False, into=into), name, generation=generation)
    text = f"generation {done.generation} of {name} is cancelled; the live one was not touched"
    if done.state is State.SWAPPED:
        text = f"generation {done.generation} of {name} stays the table: its rollback is given up"
    call.answer(document(done), text=text)


register = commands(
    replay=[
        plan,
        told_there(apply),
        told_there(pause_),
        told_there(resume),
        told_there(status),
        told_there(verify_),
        compare_,
        swap_,
        rollback_,
        told_there(cancel_),
        events,
    ]
)
