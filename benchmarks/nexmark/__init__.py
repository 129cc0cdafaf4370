"""Nexmark: people, auctions and bids from a seed, and its queries as projections.

`generator` makes the events in the proportions that the public description of Nexmark gives,
`queries/` holds one script for each query, over the three topics of `queries/sources.sql`. As a
benchmark it is how fast each query catches up with events that are there, beside other engines.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from contextlib import nullcontext

from benchmarks.harness import Context, Figures

NAME = "nexmark"
CONDITIONS = (
    "each query over the same events, all there before it starts, in order, on all cores. "
    "penstock: a build as `replay apply` makes it, from typed tables that ingest wrote (what "
    "decoding took is a figure of its own) into a Delta table by key, in slices that are each a "
    "durable commit and from which a killed build goes on; whatever comes later, late or twice is "
    "put right. flink: PyFlink reads files of JSON lines as a stream by event time, one process, "
    "two slots, mini-batches, no checkpoints; its rows go to the blackhole, or (flink_files) to "
    "JSON files where they are only added. pathway: reads the same files as one batch, without "
    "persistence; its rows go nowhere, or (pathway_files) to JSON lines of changes. Penstock "
    "and PyFlink answer one after the other in one process, behind a first query that does not "
    "count; Pathway each in a process whose start does not count"
)
ENGINES = ("penstock", "flink", "flink_files", "pathway", "pathway_files")


def add_options(parser: ArgumentParser) -> None:
    """Add the size, and which queries and engines."""
    group = parser.add_argument_group("nexmark")
    group.add_argument("--nexmark-events", type=int, default=1_000_000, help="(1,000,000)")
    group.add_argument("--nexmark-queries", nargs="+", metavar="Q", help="only these")
    group.add_argument(
        "--nexmark-engines", nargs="+", choices=ENGINES, default=ENGINES, help="only these"
    )


def run(context: Context) -> Figures:
    """Let each engine answer its queries once."""
    # What makes events is asked by tests too: they need not load the pipeline for it.
    from benchmarks.nexmark.auctions_lake import QUERIES, fill
    from benchmarks.nexmark.engines import answers

    count = context.options.nexmark_events
    wanted = context.options.nexmark_queries or QUERIES
    folder = context.folder / f"nexmark-{count}"

    def made() -> nullcontext[Mapping[str, float]]:
        context.progress(f"  making {count:,} events")
        return nullcontext(fill(folder, count))

    figures = {f"decode.{name}": value for name, value in context.once("lake", made).items()}
    # Each other time the other way round: nobody is always the first.
    engines = [each for each in ENGINES if each in context.options.nexmark_engines]
    for engine in engines[:: -1 if context.repetition % 2 else 1]:
        for told in answers(engine, folder, wanted, context.progress):
            found = {
                "s": told.seconds,
                "events_per_s": count / told.seconds,
                "events_per_cpu_s": count / told.cpu_seconds,
            }
            if told.rows is not None:
                found["rows"] = told.rows
            figures |= {f"{told.query}.{engine}.{name}": value for name, value in found.items()}
            context.progress(f"  {told.query} {engine}: {found}")
    return figures
