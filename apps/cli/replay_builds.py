"""`penstock replay plan | apply | pause | resume`: what a build would do, and the build itself.

Commands import the lake and Spark when they run: it takes seconds, which `--help` should not pay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.cli.commands import CommandCall
from apps.cli.output import table, tell
from apps.cli.replay_derived import (
    derived_plan,
    is_derived,
    make_derived,
    refuse_options,
)
from apps.cli.replay_places import OtherLake, naming, other_lake
from apps.cli.sites import site_of
from kernel import failpoints
from lake.layout import Lake
from replay.build_requests import (
    asked_start,
    chosen_names,
    read_plan,
    refuse_plan,
    refuse_stale,
    start_of,
    text_for,
)
from replay.pages import NO_PACE, document, plan_page

if TYPE_CHECKING:
    from replay.book import Replay, ReplayBook
    from replay.build import Builder
    from replay.planning import ReplayPlan
    from replay.starts import Start
    from replay.subject import Site

Built = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The projection; with --lake also a table of the log, as typed.events.order.placed, "
        "current.shop.public.orders, history.shop.public.orders.",
    ),
]
Several = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME",
        help="The projection, or several; with --lake also tables of the log, as "
        "typed.events.order.placed, current.shop.public.orders, history.shop.public.orders.",
    ),
]
Downstream = Annotated[
    bool, typer.Option("--downstream", help="And all projections that read these, and so on.")
]
Sql = Annotated[
    Path | None, typer.Option("--sql", help="A file with another query for the new generation.")
]
Late = Annotated[
    bool, typer.Option("--include-late", help="Take in rows that came later than allowed.")
]
Generation = Annotated[
    int | None, typer.Option(help="Which generation (default: the newest in question).")
]
Savepoint = Annotated[
    str | None,
    typer.Option("--from-savepoint", metavar="NAME", help="Begin with the rows that it keeps."),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHERE",
        help="Begin with the rows of then: a position, epoch:N, savepoint:NAME, or a time, "
        "ISO 8601 (UTC).",
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="SQL",
        help='Compute only these keys again, as "id IN (1, 2)"; all other rows are copied.',
    ),
]

Planned = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="A plan, refused when it is stale."),
]


def plan(
    call: CommandCall,
    names: Several,
    sql: Sql = None,
    include_late: Late = False,
    from_savepoint: Savepoint = None,
    from_: From = None,
    where: Where = None,
    downstream: Downstream = False,
    lake: OtherLake = None,
) -> None:
    """Show what a replay would read, write and change, and how to go back. Changes nothing.

    With --json the answer is a plan that `replay apply --plan` takes, but for one with --lake; of
    several projections a list of plans, in the order in which they are built.
    """
    settled = call.settings
    into = other_lake(settled, lake)
    asked = _asked(sql, from_savepoint, from_, where, include_late=include_late)
    chosen = chosen_names(_reads(settled, into), names, downstream=downstream)
    with call.answers(several=len(names) > 1 or downstream) as told:
        for name in chosen:
            if is_derived(name, into):
                refuse_options(name, asked)
                made = derived_plan(settled, name, into)
                told.add(asdict(made), made.page)
                continue
            book_of(settled, name, into)
            start = asked_start(from_savepoint, from_, where)
            text = text_for(sql, name, several=len(chosen) > 1)
            look = _planner(settled, site_of(settled, into=into), name)
            found = look(text=text, include_late=include_late, start=start)
            told.add(asdict(found), plan_page(found, table))


def _reads(found: settings.Settings, into: Lake | None) -> Callable[[], Site]:
    """Return what is asked which projection reads which."""
    return partial(site_of, found, fields=False, into=into)


def _asked(
    sql: Path | None,
    from_savepoint: str | None,
    from_: str | None,
    where: str | None,
    *,
    include_late: bool,
) -> dict[str, object]:
    """Return what was asked of a projection's build, by option; None for what was not."""
    return {
        "--sql": sql,
        "--include-late": include_late or None,
        "--from-savepoint": from_savepoint,
        "--from": from_,
        "--where": where,
    }


def apply(
    call: CommandCall,
    names: Several,
    sql: Sql = None,
    include_late: Late = False,
    rate: Annotated[
        float | None, typer.Option(help="At most so many input rows a second, on average.")
    ] = None,
    slices: Annotated[
        int | None, typer.Option(help="In so many slices, each a commit (default: by size).")
    ] = None,
    from_savepoint: Savepoint = None,
    from_: From = None,
    where: Where = None,
    planned: Planned = None,
    downstream: Downstream = False,
    lake: OtherLake = None,
) -> None:
    """Build a new generation beside the live one, up to the live one's epoch.

    Works with the stack up or down, in a Spark session of its own. Readers see nothing of it.
    Given again after a crash it goes on where the build was. With --lake it is a table of another
    lake, in one commit once it is whole, and nothing is written to this one. Several projections
    are built one after the other, each behind those that it reads.
    """
    found = call.settings
    failpoints.arm_from_environment()
    into = other_lake(found, lake)
    chosen = chosen_names(_reads(found, into), names, downstream=downstream)
    asked = _asked(sql, from_savepoint, from_, where, include_late=include_late)
    build = partial(
        _apply_one,
        found,
        into=into,
        sql=sql,
        include_late=include_late,
        asked=partial(asked_start, from_savepoint, from_, where),
        pace=(slices, rate),
        planned=planned,
        several=len(chosen) > 1,
    )
    with call.answers(several=len(names) > 1 or downstream, between="\n") as told:
        for name in chosen:
            if is_derived(name, into):
                paces = {"--rate": rate, "--slices": slices, "--plan": planned}
                refuse_options(name, asked | paces)
                built = make_derived(found, name, into)
            else:
                built = build(name)
            told.add(document(built), _built_page(built, into))
            if built.state == "paused":
                break


def _apply_one(
    found: settings.Settings,
    name: str,
    *,
    into: Lake | None,
    sql: Path | None,
    include_late: bool,
    asked: Callable[[], Start],
    pace: tuple[int | None, float | None],
    planned: Path | None,
    several: bool,
) -> Replay:
    """Build one projection, as it was asked or planned."""
    book = book_of(found, name, into)
    from replay.slices import refuse_pace

    slices, rate = pace
    refuse_pace(slices, rate)
    site, begin = site_of(found, into=into), asked()
    text = text_for(sql, name, several=several)
    given = sql is not None or include_late or not begin.is_beginning or into is not None
    agreed = read_plan(planned, name, given=given)
    if agreed:
        text, include_late, begin = agreed["text"], agreed["include_late"], start_of(agreed)
    planner = _planner(found, site, name)
    look = partial(planner, text=text, include_late=include_late, start=begin)
    refuse_plan(book, agreed, now := look())  # Before Spark starts, which takes seconds.
    _tell_pace(now, rate)
    return builder_of(found, site).build(
        name,
        text=text,
        include_late=include_late,
        slices=slices,
        rate=rate,
        start=begin,
        agreed=partial(refuse_stale, agreed, look),
    )


def _planner(found: settings.Settings, site: Site, name: str) -> Callable[..., ReplayPlan]:
    """Return what plans a build as `builder_of` would make it."""
    from apps.executor_choice import executor_choice
    from replay.planning import plan_replay

    choice = executor_choice(found, found.text("replay.spark_master"))
    reserve = found.number("storage.min_free_bytes")
    return partial(plan_replay, site, name, choice=choice, reserve_bytes=reserve)


def _tell_pace(planned: ReplayPlan, rate: float | None) -> None:
    """Say of a rate that it has no effect."""
    if rate is not None and not planned.sliceable:
        tell(f"{planned.name} is built in one slice: {NO_PACE}")


def pause_(
    call: CommandCall, name: Built, generation: Generation = None, lake: OtherLake = None
) -> None:
    """Let a build rest after the slice under way; its process ends, `replay resume` goes on."""
    found = call.settings
    done = book_of(found, name, other_lake(found, lake)).pause(name, generation=generation)
    text = (
        f"generation {done.generation} of {name} pauses after its slice; "
        f"to go on: penstock replay resume {name}{naming(lake)}"
    )
    call.answer(document(done), text=text)


def resume(
    call: CommandCall,
    name: Built,
    generation: Generation = None,
    sql: Annotated[
        Path | None,
        typer.Option("--sql", help="A file with the query, mended where a row failed."),
    ] = None,
    lake: OtherLake = None,
) -> None:
    """Go on with a build that was paused, stopped by an error, or whose process died.

    At most one slice is computed again. With --sql the query may give NULL where it failed, as by
    try_divide, TRY_CAST or NULLIF; one that may give other rows is refused.
    """
    from replay.book import UNFINISHED

    text = text_for(sql, name)
    found = call.settings
    failpoints.arm_from_environment()
    into = other_lake(found, lake)
    book_of(found, name, into).newest(name, *UNFINISHED, generation=generation)
    if is_derived(name, into):
        refuse_options(name, {"--sql": sql})
        _answer_built(call, make_derived(found, name, into), into)
        return
    site = site_of(found, into=into)
    done = builder_of(found, site).resume(name, generation=generation, text=text)
    _answer_built(call, done, into)


def book_of(found: settings.Settings, name: str, into: Lake | None = None) -> ReplayBook:
    """Return the book of builds, of those `into` another lake where one is named.

    Raises `NotFound` for a projection that is not deployed.

    What is refused by it costs no second to load what builds.
    """
    from lake.rows import SmallTables
    from projections.serve.standings import standing
    from replay.book import ReplayBook

    lake = Lake.named(found.lake)
    if not is_derived(name, into):
        standing(lake, name)
    return ReplayBook(into or lake, SmallTables())


def builder_of(found: settings.Settings, site: Site) -> Builder:
    """Return what builds and tells of its progress on standard error.

    It starts Spark for what it does not compute itself.
    """
    from apps.executor_choice import executor_choice
    from apps.large_states import replay_session
    from lake.sessions import SparkOnDemand
    from replay.build import Builder

    also = None if site.into is None else site.into.root
    choice = executor_choice(found, found.text("replay.spark_master"))
    return Builder(
        SparkOnDemand(replay_session(found, also=also)),
        site,
        lambda progress: tell(progress.line),
        choice=choice,
        reserve_bytes=found.number("storage.min_free_bytes"),
    )


def _answer_built(call: CommandCall, built: Replay, into: Lake | None) -> None:
    call.answer(document(built), text=_built_page(built, into))


def _built_page(built: Replay, into: Lake | None) -> str:
    from replay.book import State
    from replay.generation_names import stable_name

    there = naming(None if into is None else into.root)
    which = f"generation {built.generation} of {built.name}"
    if built.state is State.PAUSED:
        text = f"{which} is paused; to go on: penstock replay resume {built.name}{there}"
    elif into is not None:
        text = (
            f"{built.name} as of epoch {built.epoch} is the table at "
            f"{into.path(stable_name(built.name))}; "
            f"compare it: penstock replay verify {built.name}{there}"
        )
    else:
        text = (
            f"{which} is built up to epoch {built.epoch}; "
            f"compare it: penstock replay verify {built.name}"
        )
    return text
