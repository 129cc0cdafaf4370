"""Sources on external topics in `penstock source …`: `CREATE SOURCE` declares them, not `add`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from apps.accounts import standing_still
from apps.capture import capture_site
from apps.cli.commands import CommandCall
from apps.cli.output import table
from kernel.errors import EXIT_UNHEALTHY
from service.standstills import Standstill, of_source

if TYPE_CHECKING:
    from cdc.upkeep.topic_sources import TopicState

_SOURCE = "source"
"""The kind of declared sources, as `projections.run.catalog` names it."""
_HEADINGS = ("source", "topic", "format", "state", "records", "behind", "quarantined")


def is_declared(call: CommandCall, name: str) -> bool:
    """Say whether a source on an external topic has that name. Asks no broker."""
    if not call.catalog.live(_SOURCE):
        return False
    from cdc.upkeep import topic_sources

    return name in topic_sources.declared_topics(capture_site(call.settings))


def is_held(call: CommandCall, name: str) -> bool:
    """Say whether a declared source has that name whose text is refused by now."""
    catalog = call.catalog
    return bool(catalog.live(_SOURCE)) and (_SOURCE, name) in catalog.deployment().unread


def topic_state(call: CommandCall, name: str) -> TopicState | None:
    """Describe one source on an external topic; None where no such source has that name."""
    if not is_declared(call, name):
        return None
    from cdc.upkeep import topic_sources

    states = topic_sources.topic_states(capture_site(call.settings))
    return next(each for each in states if each.source == name)


def page(documents: Sequence[Mapping[str, Any]], still: Mapping[str, Sequence[Standstill]]) -> str:
    """Return a table of such sources; `still` has what stands still of each."""
    rows = [
        [*(each[name] for name in _HEADINGS), still_cell(still[each["source"]])]
        for each in documents
    ]
    return table((*_HEADINGS, "stands still"), rows)


def still_cell(still: Sequence[Standstill]) -> str | None:
    """Return what stands still as a cell of a table."""
    return "; ".join(f"{each.component} {each.name}: {each.cause}" for each in still) or None


def shown(call: CommandCall, name: str) -> bool:
    """Show one, where a source on an external topic has that name, and what of it stands still.

    Exit code 5 when something does, and when records are gone that it has not read.
    """
    topic = topic_state(call, name)
    if topic is None:
        return False
    still = of_source(standing_still(call.settings), name)
    said = (("cause: ", topic.cause), ("  fix: ", topic.fix))
    lines = [page([asdict(topic)], {name: still}), *still_lines(still)]
    lines += [label + text for label, text in said if text is not None]
    document = asdict(topic) | {"standing_still": [each.document() for each in still]}
    call.answer(document, text="\n".join(lines))
    if still or topic.fix is not None:
        raise typer.Exit(EXIT_UNHEALTHY)
    return True


def still_lines(still: Sequence[Standstill]) -> list[str]:
    """Say of each thing that stands still what it is, why, and what to do."""
    return [
        f"stands still: {each.component} {each.name}: {each.cause}\n  fix: {each.command}"
        for each in still
    ]


def pass_over(call: CommandCall, topic: TopicState, *, yes: bool) -> None:
    """Let reading go on behind records that Kafka lost."""
    if not yes:
        what = f"This gives up the records of topic {topic.topic} that Kafka does not have any more"
        call.refuse_unconfirmed(what, passes=topic.topic)
    from cdc.upkeep import topic_sources

    site = capture_site(call.settings)
    lost = topic_sources.pass_over(site, topic_sources.declared_topics(site)[topic.source])
    said = "; ".join(map(str, lost)) or "nothing is missing"
    document = {"source": topic.source, "passed": [asdict(gap) for gap in lost]}
    call.answer(document, text=f"{topic.source}: {said}")


def drop(call: CommandCall, name: str, *, yes: bool) -> None:
    """Stop reading a topic; refused while a projection reads it."""
    if not yes:
        what = f"{name} would not be read any more; its log and its tables stay"
        call.refuse_unconfirmed(what, removes=name)
    call.catalog.drop_source(name)
    call.answer({"removed": name, "whole": True}, text=f"{name} is removed")
