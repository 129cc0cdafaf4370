"""P6 and P5 over tables that change and projections that read each other.

Rows change, vanish and come again, keys move between groups, facts come late, states are lost in
between. At every epoch the outermost table is what its oracle says of everything up to that epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.run import operator_tables
from tests.support.oracles.element_projections import OF_TABLES
from tests.support.oracles.shop_projections import CASES as SHOP_CASES
from tests.support.oracles.shop_world import Change, KeptChain, Payment, Shop
from tests.support.oracles.sql_world import canonical


@pytest.fixture(autouse=True, scope="module")
def compacted_often() -> Iterator[None]:
    """Drop what came and went in small tables too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(operator_tables, "SMALL_ROWS", 1)
        yield


CASES = {**SHOP_CASES, **OF_TABLES}
KEYS = st.integers(1, 3)
ORDER = st.tuples(
    st.sampled_from([1, 2, 3, None]),
    st.sampled_from([None, 1, 5]),
    st.sampled_from(["open", "shut"]),
)
CUSTOMER = st.tuples(st.sampled_from(["Ada", "Bob"]), st.sampled_from(["Rome", "Oslo", None]))
CHANGES = st.one_of(
    st.tuples(st.integers(1, 4), st.just("orders"), KEYS, st.none() | ORDER),
    st.tuples(st.integers(1, 4), st.just("customers"), KEYS, st.none() | CUSTOMER),
)
PAYMENTS = st.tuples(st.integers(1, 4), KEYS, st.integers(-5, 5), st.sampled_from([None, 1, 2, 7]))


@st.composite
def shops(draw: st.DrawFn) -> Shop:
    """Changes follow their source's order, payments come in any."""
    changes = sorted(draw(st.lists(CHANGES, min_size=4, max_size=16)), key=lambda one: one[0])
    payments = draw(st.lists(PAYMENTS, max_size=8))
    places = draw(st.permutations(range(len(payments))))
    return Shop(
        changes=tuple(Change(n, *change) for n, change in enumerate(changes)),
        payments=tuple(Payment(n, *paid) for n, paid in zip(places, payments, strict=True)),
    )


LOST = st.sampled_from([None, 1, 2, 3])


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=2, deadline=None)
@given(shop=shops(), lost=LOST)
def test_p5_p6_tables_and_projections_fit_at_every_epoch(
    name: str, shop: Shop, lost: int | None
) -> None:
    keep(name, shop, lost)


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None)
@given(shop=shops(), lost=LOST)
def test_p5_p6_many_tables_and_projections_fit_at_every_epoch(
    name: str, shop: Shop, lost: int | None
) -> None:
    keep(name, shop, lost)


def keep(name: str, shop: Shop, lost: int | None) -> None:
    """Keep the projections of a case; after the epoch `lost` the state of each is gone."""
    case = CASES[name]
    kept = KeptChain(case.statements)
    try:
        for epoch in shop.epochs:
            now = shop.until(epoch)
            kept.epoch(now)
            assert canonical(kept.result()) == canonical(case.oracle(now))
            if epoch == lost:
                written = kept.written
                for projection in kept.rows:
                    kept.forget(projection, now)
                assert kept.written == written, "state that is made anew says the same"
    finally:
        kept.close()
