"""Every setting is documented, with the default that the code has."""

from __future__ import annotations

import json

from apps.settings import DEFAULTS
from tests.architecture.tree import ROOT
from tests.docs.markdown import table

PAGE = ROOT / "docs/reference/settings.md"


def documented() -> dict[str, dict[str, str]]:
    return {row["key"].strip("`"): row for row in table(PAGE, first="key")}


def test_every_setting_is_documented_in_the_order_of_the_code() -> None:
    assert list(documented()) == list(DEFAULTS)


def test_defaults_are_the_ones_of_the_code() -> None:
    shown = {key: row["default"].strip("`") for key, row in documented().items()}
    assert shown == {key: json.dumps(value) for key, value in DEFAULTS.items()}


def test_every_setting_says_what_it_does() -> None:
    assert all(len(row["meaning"].split()) >= 4 for row in documented().values())
