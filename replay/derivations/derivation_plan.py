"""What making a table of the log in another lake would read, write and take, before it does."""

from __future__ import annotations

from dataclasses import dataclass

from kernel.errors import StorageFull
from kernel.positions import Epoch
from lake import storage
from replay.book import ReplayBook
from replay.derivations.derived_subject import derived_subject, log_rows
from replay.planning import InputSize, next_generation, table_size
from replay.rates import Rates, rates_for
from replay.subject import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivationPlan:
    """What would be made of which rows of the log. `place`: where the table would lie.

    `rows`: of the log, up to `epoch`; `live`: the table as it is in the lake that is read. Times in
    seconds, as a range. `free_bytes` None: not a local lake.
    """

    name: str
    place: str
    generation: int
    epoch: Epoch
    rows: int
    live: InputSize
    rates: Rates
    seconds: tuple[int, int]
    needed_bytes: int
    free_bytes: int | None
    go_back: str

    @property
    def page(self) -> str:
        """Lay it out for people."""
        free = "" if self.free_bytes is None else f", {self.free_bytes:,} are free"
        return "\n".join(
            [
                f"{self.name} as of epoch {self.epoch}, of {self.rows:,} rows of the log, "
                f"becomes the table at {self.place}",
                f"the live one has {self.live.rows:,} rows, {self.live.bytes:,} bytes; needs "
                f"{self.needed_bytes:,} bytes{free}",
                f"takes {self.seconds[0]} to {self.seconds[1]} s, from "
                f"{self.rates.slowest:,.0f} to {self.rates.fastest:,.0f} rows/s ({self.rates.of})",
                "nothing is written to the lake that is read, and nothing is sent to anyone",
                f"to go back: {self.go_back}",
            ]
        )


def plan_derivation(site: Site, asked: str) -> DerivationPlan:
    """Say what would be made. Reads statistics only. Raises as `derived_subject` does."""
    subject = derived_subject(site, asked)
    rows = sum(log_rows(site, subject).values())
    live = table_size(site, subject.name)
    rates = rates_for(asked, ReplayBook(site.place, site.tables).built())
    place = site.place.path(subject.name)
    # Facts of what is not typed lie beside it until it is made of them.
    facts = 0 if subject.kind == "typed" else table_size(site, subject.typed).bytes
    return DerivationPlan(
        name=asked,
        place=place,
        generation=next_generation(site, asked),
        epoch=subject.up_to,
        rows=rows,
        live=live,
        rates=rates,
        seconds=rates.seconds(rows),
        needed_bytes=2 * max(live.bytes, 1) + facts,
        free_bytes=storage.free_bytes(site.place.root),
        go_back=f"nobody reads it unless told to: remove {place}",
    )


def refuse_no_room(plan: DerivationPlan) -> None:
    """Raise `StorageFull` where the table would not find room."""
    if plan.free_bytes is not None and plan.needed_bytes > plan.free_bytes:
        raise StorageFull(
            f"{plan.name} needs {plan.needed_bytes} bytes and {plan.free_bytes} are free",
            remedy=f"Free disk space, or name another place: penstock replay apply {plan.name} "
            "--lake PLACE",
        )
