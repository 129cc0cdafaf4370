"""The page on torture runs names every kill and every anomaly, in the words of the code."""

from __future__ import annotations

from tests.architecture.tree import ROOT
from tests.docs.markdown import table
from tests.torture.options import KILLS, Options
from tests.torture.verification.anomalies import Anomaly

PAGE = ROOT / "docs/how-to/prove-it-yourself.md"


def test_every_kill_is_described() -> None:
    assert tuple(row["kill"].strip("`") for row in table(PAGE, first="kill")) == KILLS
    assert Options().kill_every_s == 6, "the page says so"


def test_every_anomaly_is_explained_as_the_report_does() -> None:
    shown = {row["anomaly"].strip("`"): row["meaning"] for row in table(PAGE, first="anomaly")}
    assert shown == {anomaly.name.lower(): anomaly.value for anomaly in Anomaly}
