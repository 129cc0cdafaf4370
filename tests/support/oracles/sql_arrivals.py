"""Arrivals in the SQL tests' world, drawn at random: late, out of order, split into epochs."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.oracles.sql_world import Fact, Reading, World

EPOCHS = st.integers(1, 4)
MINUTES = st.sampled_from([-40, -11, -10, -1, 0, 1, 9, 10, 15, 19, 20, 21, 25, 39, 40, 59])
"""On, just before and just after the borders of windows and versions."""
FACTS = st.builds(
    Fact,
    position=st.just(0),
    epoch=EPOCHS,
    flight=st.sampled_from(["f1", "f2", "f3"]),
    carrier=st.sampled_from(["AA", "UA", None]),
    origin=st.sampled_from(["JFK", "LGA"]),
    minute=MINUTES,
    delay=st.sampled_from([None, 0, 1, 3]),
    distance=st.sampled_from([0.1, 0.2, 1.0, 1e16, 0.0]),
)
READINGS = st.builds(
    Reading,
    sequence=st.just(0),
    epoch=EPOCHS,
    origin=st.sampled_from(["JFK", "LGA"]),
    minute=st.sampled_from([-40, -10, 0, 10, 20, 40]),
    wind=st.sampled_from([None, 1, 2, 3]),
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Arrivals in which source order and event time disagree freely.

    Facts get their positions apart from their epochs: an epoch may bring older positions late.
    Sequences of table rows follow their epochs, as a source's commits do.
    """
    facts = draw(st.lists(FACTS, min_size=1, max_size=12))
    positions = draw(st.permutations(range(len(facts))))
    readings = sorted(draw(st.lists(READINGS, max_size=8)), key=lambda one: one.epoch)
    return World(
        facts=tuple(
            Fact(p, f.epoch, f.flight, f.carrier, f.origin, f.minute, f.delay, f.distance)
            for p, f in zip(positions, facts, strict=True)
        ),
        readings=tuple(
            Reading(i, r.epoch, r.origin, r.minute, r.wind) for i, r in enumerate(readings)
        ),
    )
