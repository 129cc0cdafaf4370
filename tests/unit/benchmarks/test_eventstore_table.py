"""How figures of stores are named, compared and judged; what is pinned."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from benchmarks.eventstore.lines import EVENT_BYTES, GOALS, LINES, Goal, Scale, event_data
from benchmarks.eventstore.report import table, verdict
from benchmarks.eventstore.table import compared
from benchmarks.peers import delivery
from benchmarks.peers.closed_loop import Tally, Work, percentile, run_threads
from benchmarks.peers.delivery import delivered, run_delivery
from benchmarks.peers.install import HERE


def asked(
    *, line: str = "append", rate: float = 0.0, warm_s: float = 0.0, clients: int = 1
) -> Work:
    return Work(
        line=line, address="", data="", rate=rate, warm_s=warm_s, clients=clients, seconds=0.05
    )


def test_data_of_an_event_have_the_size_that_is_promised() -> None:
    assert len(json.dumps(event_data())) == EVENT_BYTES


def test_goals_are_about_lines_that_are_measured() -> None:
    assert {goal.line for goal in GOALS} <= {line.name for line in LINES}


def test_ours_are_compared_with_each_peer_with_the_floor_and_with_an_empty_store() -> None:
    found = compared(
        {
            "append_1.penstock_http.events_per_s": 300.0,
            "append_1.penstock_http.p50_ms": 3.0,
            "append_1.umadb.events_per_s": 100.0,
            "append_1.bare_insert.p50_ms": 1.5,
            "append_1.penstock_http_grown.events_per_s": 200.0,
            "append_1.penstock_http_grown.p50_ms": 4.5,
        }
    )
    assert found == {
        "append_1.penstock_http.times_umadb": 3.0,
        "append_1.penstock_http.p50_times_bare_insert": 2.0,
        "append_1.penstock_http_grown.time_of_empty": 1.5,
        "append_1.penstock_http_grown.p50_ms_of_empty": 1.5,
        "append_1.penstock_http_grown.p50_times_bare_insert": 3.0,
    }


@pytest.mark.parametrize(
    ("lower", "value", "said"),
    [
        (False, 9.0, "missed"),
        (False, 10.0, "reached"),
        (False, 20.0, "aim reached"),
        (True, 21.0, "missed"),
        (True, 10.0, "reached"),
        (True, 5.0, "aim reached"),
    ],
)
def test_verdict_knows_which_way_is_better(lower: bool, value: float, said: str) -> None:
    least, aim = (20.0, 5.0) if lower else (10.0, 20.0)
    goal = Goal(line="x", product="y", figure="z", at_least=least, aim=aim, lower=lower)
    assert verdict(goal, value) == said


def test_table_shows_figures_goals_and_guarantees() -> None:
    shown = table(
        {
            "append_64.penstock_http.events_per_s": 9_000.0,
            "append_64.emmett.events_per_s": 2_000.0,
            "append_64.penstock_http.times_emmett": 4.5,
        },
        {"guarantees": {"emmett": "its order"}, "postgres": {"fsync": "on"}},
    )
    assert "| single-event appends, 64 clients | emmett | 2,000 |" in shown
    assert "| append_64 | penstock_http | times_emmett | 3 |  | 4.50 | reached |" in shown
    assert "- emmett: its order" in shown
    assert "PostgreSQL: fsync=on" in shown


def test_percentiles_are_values_that_were_measured() -> None:
    ordered = [float(number) for number in range(1, 101)]
    assert (percentile(ordered, 50), percentile(ordered, 99), percentile([7.0], 99)) == (51, 100, 7)


def test_a_client_that_fails_ends_the_measurement() -> None:
    def refuse() -> int:
        raise ValueError("no room")

    with pytest.raises(SystemExit, match="no room"):
        run_threads(asked(), lambda _number: refuse)


def test_nothing_answered_is_no_figure() -> None:
    with pytest.raises(SystemExit, match="no request"):
        Tally().figures(1.0)


def test_delivery_is_counted_from_the_acknowledgement_and_from_the_request() -> None:
    figures = delivered(
        {1: 10.0, 2: 11.0, 3: 12.0},
        {1: 10.2, 2: 11.2, 3: 12.2},
        {1: 10.3, 2: 11.1},
        begun=10.2,
        ended=14.2,
    )
    assert figures["p50_ms"] == pytest.approx(100)
    assert figures["p99_ms"] == pytest.approx(2_000), "what never came is as late as the end"
    assert figures["sent_p50_ms"] == pytest.approx(300)
    assert figures["events_per_s"] == pytest.approx(1.5)
    assert figures["not_seen"] == 1


def test_an_event_that_never_arrives_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "DRAIN_S", 0.2)
    numbers = iter(range(1_000))
    figures = run_delivery(
        asked(line="deliver", rate=200.0),
        lambda _number: lambda: next(numbers),
        iter(range(1, 1_000)),
    )
    assert figures["not_seen"] == 1


def test_options_choose_lines_products_and_length() -> None:
    scale = Scale.of(Namespace(quick=True, seconds=None, lines="read_all", products="umadb,emmett"))
    assert [line.name for line in scale.lines] == ["read_all"]
    assert scale.products == {"umadb", "emmett"}
    assert scale.seconds == 1
    assert Scale.of(Namespace()).lines == LINES


def test_every_peer_is_pinned_to_one_version() -> None:
    requirements = [
        line for line in (HERE / "requirements.txt").read_text().splitlines() if line[0] != "#"
    ]
    assert requirements
    assert all("==" in line for line in requirements)
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
    locked = json.loads((HERE / "package-lock.json").read_text())["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert not [name for name, entry in locked.items() if "resolved" in entry]
