"""Where typed tables have copied rows instead of changes: a source's cut stood still for them."""

from __future__ import annotations

from collections.abc import Sequence

from kernel.positions import Epoch
from pipeline.commit.manifest_rows import Committed
from pipeline.installs.install_book import HOLD, Install, InstallEntry
from pipeline.position.progress import Progress


def copied_over(
    source: str,
    installs: Sequence[tuple[Install, Epoch]],
    epochs: Sequence[Committed],
    entries: Sequence[InstallEntry],
) -> list[tuple[int, int]]:
    """Return the ranges (after, up to) of ENDs of which copied rows have all that was done.

    `installs` are those that `epochs` took in; the first of these is the epoch before, if there is
    one. Only what releases the cut counts, and there from the first place that was read: other
    tables of the same copy may be due later, and their chunks were read at several places.
    """
    holds = [e.number for e in entries if (e.kind, e.source) == (HOLD, source)]
    found: list[tuple[int, int]] = []
    for place, done in enumerate(epochs):
        own = [i for i, epoch in installs if epoch == done.epoch and i.source == source]
        first = min((min(i.lsns) for i in own if i.releases), default=None)
        if first is None:
            continue
        prior = epochs[place - 1] if place else None
        before = Progress() if prior is None else Progress.from_json(prior.progress)
        taken = Progress.from_json(done.progress).installs
        began = any(number in taken and number not in before.installs for number in holds)
        if began or before.cut(source).held:
            found.append((prior.cuts.get(source, 0) if prior else 0, first))
    return found
