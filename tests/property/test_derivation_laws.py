"""Whatever came to a table, in whatever epochs: what is made of its log equals the live tables."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lake.layout import Lake
from replay.derivations.derivation_check import verify_derived
from tests.property.test_followed_laws import END, STEPS, Walk
from tests.support.services.tier import examples
from tests.support.sources.made_of_the_log import OF_ITEM, build, site_of


@settings(max_examples=examples(2, matrix=40))
@given(st.data())
def test_p6_tables_made_of_the_log_equal_the_live_ones(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(data, Lake.at(Path(folder) / "lake"))
        for step in [*data.draw(st.lists(st.sampled_from(STEPS), min_size=3, max_size=18)), *END]:
            walk.take(step)
        walk.followed.bring()
        site = site_of(walk.lake, Path(folder))
        for name in OF_ITEM:
            build(site, walk.followed.registry, name, most_rows=data.draw(st.integers(1, 4)))
            found = verify_derived(site, name)
            assert found.equal, (name, found.types, found.rows)
