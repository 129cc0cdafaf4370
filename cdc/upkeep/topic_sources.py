"""Declared sources on external topics: how each stands, and what people may decide about it.

The topics are on the broker of the workspace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdc.site import CaptureSite
from kernel.positions import Offsets
from lake.layout import Lake, topics_log
from lake.tables import Tables
from pipeline.commit.manifest import Manifest, first_progress
from pipeline.commit.manifest_rows import Committed
from pipeline.installs.install_book import InstallBook
from pipeline.read import gaps
from pipeline.read.kafka_topics import KafkaTopics
from pipeline.read.topic_lag import ends_of, pattern_of, records_behind, waits_for
from projections.run.catalog import DeployedCatalog
from projections.serve.lake_tables import row_count
from schemas.topic_records import TopicShape

RUNS, WAITS, GAP = "runs", "waits", "gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """How the source of a topic stands: records in its log, behind it, and in quarantine."""

    source: str
    topic: str
    format: str
    state: str
    records: int
    behind: int
    quarantined: int
    cause: str | None = None
    fix: str | None = None


def declared_topics(site: CaptureSite) -> Mapping[str, TopicShape]:
    """Return the deployed sources on external topics, by name."""
    return DeployedCatalog(Lake.named(site.lake), Tables()).deployment().topics


def topic_states(site: CaptureSite) -> list[TopicState]:
    """Describe the sources on external topics. Raises `Unavailable` when Kafka does not answer."""
    declared = declared_topics(site)
    if not declared:
        return []
    lake, tables = Lake.named(site.lake), Tables()
    last = Manifest(lake, tables).last()
    topics = KafkaTopics(site.bootstrap)
    ends, lost = ends_of(topics, declared), missing(site, declared)
    return [_state(shape, last, ends, lost.get(name, []), lake) for name, shape in declared.items()]


def missing(site: CaptureSite, declared: Mapping[str, TopicShape]) -> Mapping[str, list[gaps.Gap]]:
    """Return, by source, what Kafka lost of its topic before it was read."""
    lake, tables = Lake.named(site.lake), Tables()
    manifest = Manifest(lake, tables)
    return gaps.look(
        KafkaTopics(site.bootstrap),
        pattern_of(declared),
        manifest.last(),
        InstallBook(lake, tables),
        {},
        site.topic_prefix,
        {shape.topic: shape.source for shape in declared.values()},
        bound=manifest.unfinished(),
    )


def pass_over(site: CaptureSite, shape: TopicShape) -> list[gaps.Gap]:
    """Note that reading may go on at the first records that Kafka has; return what is passed."""
    lost = missing(site, {shape.source: shape}).get(shape.source, [])
    if lost:
        gaps.skip(InstallBook(Lake.at(site.lake), Tables()), shape.source, lost)
    return lost


def _state(
    shape: TopicShape,
    last: Committed | None,
    ends: Offsets,
    lost: Sequence[gaps.Gap],
    lake: Lake,
) -> TopicState:
    taken = last.end.get(shape.topic, {}) if last is not None else {}
    quarantined = first_progress(last).quarantine.get(shape.topic)
    cause, fix = waits_for(shape, ends), None
    state = RUNS if cause is None else WAITS
    if lost:
        state, cause, fix = GAP, gaps.reason(lost), gaps.remedy(shape.source)
    return TopicState(
        source=shape.source,
        topic=shape.topic,
        format=shape.format,
        state=state,
        records=row_count(lake, topics_log(shape.source)),
        behind=records_behind(ends.get(shape.topic, {}), taken),
        quarantined=0 if quarantined is None else quarantined.records,
        cause=cause,
        fix=fix,
    )
