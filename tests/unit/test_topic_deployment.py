"""Which sources on external topics can be deployed beside others, and when one can be taken out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from apps import settings
from apps.cli import source
from kernel.errors import Conflict, Incompatible, NotFound
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import LIVE, PROJECTION, SOURCE, DeployedCatalog, Entry
from projections.sql.statements.parse import parse_script
from replay.deployment import Deployed, Outcome, apply
from replay.subject import Site

PINGS = "CREATE SOURCE pings (device INT) WITH (topic = 'ext.pings', format = json, key = device);"
COUNTED = (
    "CREATE PROJECTION counted WITH (key = device) AS "
    "SELECT device, COUNT(*) AS n FROM STREAM pings GROUP BY device;"
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(lake=Lake.at(tmp_path))


def deploy(site: Site, text: str, prefix: str = "") -> list[Deployed]:
    script = parse_script(text)
    return apply(site, script.sources, script.projections, prefix=prefix)


def test_a_topic_is_read_by_one_source(site: Site) -> None:
    deploy(site, PINGS)
    assert DeployedCatalog(site.lake, Tables()).deployment().topics["pings"].topic == "ext.pings"
    with pytest.raises(Conflict, match=r"topic ext.pings is in the log of source pings"):
        deploy(site, PINGS.replace("SOURCE pings", "SOURCE again"))


def test_the_topics_of_the_workspace_are_no_external_ones(site: Site) -> None:
    for prefix in ("", "w."):
        text = f"CREATE SOURCE s (a INT) WITH (topic = '{prefix}events.flight', format = json);"
        with pytest.raises(Conflict, match="one of the workspace's own"):
            deploy(site, text, prefix)
    assert deploy(site, "CREATE SOURCE s (a INT) WITH (topic = 'events.x', format = json)", "w.")


def test_a_projection_over_a_topic_can_be_deployed_before_its_first_record(site: Site) -> None:
    assert [each.waits for each in deploy(site, PINGS + COUNTED)] == [None, None]


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("w.events.flight", "is not for sinks"),
        ("_places", "is not for sinks"),
        ("ext.pings", "is read by source pings: rows would go round"),
        ("heard", "is the sink of first and of counted"),
    ],
)
def test_a_sink_writes_a_topic_of_its_own(site: Site, topic: str, reason: str) -> None:
    def sent(name: str, topic: str) -> str:
        text = COUNTED.replace("PROJECTION counted", f"PROJECTION {name}")
        return text.replace("key = device)", f"key = device, sink = 'topic:{topic}')")

    deploy(site, PINGS + sent("first", "heard"), "w.")
    with pytest.raises(Conflict, match=reason):
        deploy(site, sent("counted", topic), "w.")
    assert deploy(site, sent("counted", "events.flight"), "w.")  # Here it is another's topic.


def test_a_sink_comes_and_goes_without_a_new_generation(site: Site) -> None:
    deploy(site, PINGS + COUNTED)
    with_sink = COUNTED.replace("key = device)", "key = device, sink = 'topic:heard')")
    for text, topic in ((with_sink, "heard"), (COUNTED, None)):
        (done,) = deploy(site, text)
        assert (done.outcome, done.generation) == (Outcome.CHANGED, 1)
        (declared,) = DeployedCatalog(site.lake, Tables()).deployment().declared.values()
        assert (declared.sink.topic if declared.sink else None) == topic


def test_a_declaration_changes_when_nothing_reads_it_any_more(site: Site) -> None:
    deploy(site, PINGS + COUNTED)
    wider = PINGS.replace("device INT", "device BIGINT")
    with pytest.raises(Conflict, match="deployed with another input") as refused:
        deploy(site, wider)
    assert "penstock source remove pings --yes" in refused.value.remedy
    catalog = DeployedCatalog(site.lake, Tables())
    with pytest.raises(Conflict, match="counted read the source pings"):
        catalog.drop_source("pings")
    catalog.set_status("counted", "dropped")
    assert catalog.entries()[-1].kind == PROJECTION
    catalog.drop_source("pings")
    with pytest.raises(NotFound):
        catalog.drop_source("pings")
    assert catalog.deployment().topics == {}
    with pytest.raises(Conflict, match=r"has the records of topic ext.pings"):
        deploy(site, PINGS.replace("ext.pings", "other"))
    assert [each.outcome for each in deploy(site, wider)] == [Outcome.CREATED]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (pa.struct([("grün", pa.int64())]), "grün of column n is no name in Avro"),
        (pa.list_(pa.struct([("groß", pa.string())])), "groß of column n is no name in Avro"),
        (pa.map_(pa.int64(), pa.string()), "for which Avro has no form"),
    ],
)
def test_columns_that_a_sink_cannot_take_are_refused_before_it_stands_still(
    tmp_path: Path, kind: pa.DataType, reason: str
) -> None:
    fields = {"device.pinged": pa.schema({"device": pa.string(), "n": kind})}
    site = Site(lake=Lake.at(tmp_path), fields=fields)
    without = (
        "CREATE PROJECTION newest WITH (key = device) AS "
        "SELECT device, n FROM STREAM events.device.pinged;"
    )
    with_sink = without.replace("key = device)", "key = device, sink = 'topic:heard')")
    with pytest.raises(Incompatible, match=reason):
        deploy(site, with_sink)
    assert site.deployed.entries() == []
    assert deploy(site, without)[0].waits is None


def test_structs_whose_names_read_alike_can_be_sent(tmp_path: Path) -> None:
    inner = pa.struct([("x", pa.int64())])
    columns = {"device": pa.string(), "a": pa.struct([("b", inner)]), "a_b": inner}
    site = Site(lake=Lake.at(tmp_path), fields={"device.pinged": pa.schema(columns)})
    text = (
        "CREATE PROJECTION newest WITH (key = device, sink = 'topic:heard') AS "
        "SELECT device, a, a_b FROM STREAM events.device.pinged;"
    )
    assert deploy(site, text)[0].waits is None


ALARMS = """
CREATE PROJECTION alarms WITH (key = device, sink = 'event:alarm') AS
SELECT device, n FROM STREAM events.device;
"""
SEEN = "CREATE PROJECTION seen WITH (key = device{}) AS SELECT device FROM STREAM {};"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("", SEEN.format(", sink = 'event:alarm'", "events.alarm.raised")),
        (ALARMS, SEEN.format(", sink = 'event:device'", "events.alarm.raised")),
        (
            "CREATE SOURCE heard ON events.alarm WITH (lateness = '1 minute');" + ALARMS,
            SEEN.format(", sink = 'event:device'", "heard"),
        ),
        (ALARMS, SEEN.format(", sink = 'event:alarm'", "events.other.pinged")),
    ],
    ids=["own", "through another", "through a source", "two of one category"],
)
def test_events_of_a_sink_never_come_back_to_it(tmp_path: Path, first: str, then: str) -> None:
    columns = pa.schema({"device": pa.string(), "n": pa.int64()})
    names = ("device.pinged", "alarm.raised", "other.pinged")
    site = Site(lake=Lake.at(tmp_path), fields=dict.fromkeys(names, columns))
    if not first:
        with pytest.raises(Conflict, match="rows would go round"):
            deploy(site, then)
        return
    deploy(site, first)
    two = "is the sink of alarms and of seen"
    with pytest.raises(Conflict, match=two if "other" in then else "rows would go round"):
        deploy(site, then)
    without_sink = SEEN.format("", "events.alarm.raised")
    assert deploy(site, without_sink), "what reads the alarms and makes none of them"


def test_a_source_whose_text_is_refused_by_now_is_removed_by_its_name(tmp_path: Path) -> None:
    found = settings.load(tmp_path)
    catalog = DeployedCatalog(Lake.at(found.lake), Tables())
    text = PINGS.replace("device INT", "device NOTHING")
    catalog.put([Entry(kind=SOURCE, name="pings", generation=1, status=LIVE, text=text)])
    app = typer.Typer()
    source.register(app)
    done = CliRunner().invoke(app, ["source", "remove", "pings", "--yes", "-w", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert not catalog.deployment().unread
