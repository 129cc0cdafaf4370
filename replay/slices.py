"""A build in slices by the hash of the key: what one slice is, and what is kept between two.

Every slice is a commit of its own in the generation's table, guarded by its number, so that the
table itself says how many there are. What the book keeps beside that is how the build was cut, by
whose query, and how long its slices took.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from kernel.errors import InvalidRequest
from kernel.positions import Epoch
from lake.savepoint_tables import KeptTable
from lake.writer import Guard
from projections.run.driver_builds import BUILD_BYTES
from projections.run.relations import LakeCatalog
from projections.run.targets import Target
from projections.sql.plans.plan import Plan
from replay.bases import Base
from replay.book import CLAIM, UNFINISHED, Replay, ReplayBook
from replay.carried_keys import computed_whole, sliceable
from replay.generations import slices_app
from schemas.identifiers import spark_name

SLICE_ROWS = 500_000
"""Input rows of a slice. Each slice scans the inputs, so that smaller ones cost more."""
LEAST_SLICES, LEAST_ROWS = 20, 100_000
"""A shorter input is cut into so many slices too, so that after a tenth of them one was computed
that Spark's beginning is not in, and the time left is known. But a slice of fewer rows than these
costs more to begin than to compute."""
ROWS_HERE = 1_000_000
"""Input rows of a slice that DuckDB is to compute: as many take it a second or two."""
MANY_SLICES = 32
"""A longer input has larger slices, whose scans are then still fewer than what is computed from
them, until these are as large as a slice may be."""
MOST_ROWS = 4_000_000
"""Input rows that a slice has at most, however long the input is."""
MOST_ASKED = 10_000
"""Of slices that somebody asks for: each is a commit, and scans all that is read."""
PACE_S = 10.0
"""A build with a limited rate has slices that take about so long."""
MOST_PACED = 4096
"""But not more than so many, each of which is a commit and scans the inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slicing:
    """How many slices, and the columns of the key whose hash tells them apart.

    Only columns that the query carries through from its inputs count: a filter on these reaches
    the inputs, so that a slice is computed from its own rows. Without any there is one slice.
    """

    columns: tuple[str, ...]
    slices: int

    def condition(self, number: int, *, parts: int = 1, part: int = 0) -> str:
        """Write which rows are of a slice (from 0), or of one of several parts of it."""
        if not self.columns:
            return "true"
        return f"{self._hashed(self.slices * parts)} = {number + self.slices * part}"

    def conditions(self, number: int, many: int) -> str:
        """Write which rows are of so many slices, `number` the first of them."""
        if many == 1:
            return self.condition(number)
        return f"{self._hashed(self.slices)} BETWEEN {number} AND {number + many - 1}"

    def _hashed(self, modulus: int) -> str:
        return f"pmod(xxhash64({', '.join(map(spark_name, self.columns))}), {modulus})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedBuild:
    """What a build knows between two slices. `claim` names the process that goes on with it.

    `up_to`: the epoch that is built; `rows`: of its inputs up to there; `later`: that came after.
    `seconds`: how long each slice took that this or an earlier process finished. `rate`: the
    input rows a second that it may take, None without a limit. `ended_us`: the watermark of the
    table that it replaces, of final rows, which all slices begin with. `base`: the rows that it
    begins with, whose parts are its slices then; None from the beginning. `since`: input rows that
    came since the base, up to its own epoch. `strides`: nobody asked for so many slices, so that
    quick ones may be computed several at once. `read`: the versions of other projections that are
    read by a build into another lake. `laying_s`: how long it took to lay inputs apart.
    """

    claim: str
    up_to: Epoch
    slicing: Slicing
    done: int
    rows: int
    later: int
    seconds: tuple[float, ...]
    fingerprint: str
    rate: float | None
    ended_us: int | None = None
    base: Base | None = None
    since: int = 0
    strides: bool = False
    read: Mapping[str, int] = field(default_factory=dict)
    laying_s: float = 0.0

    @property
    def detail(self) -> dict[str, object]:
        """Return what the book keeps."""
        kept = asdict(self)
        del kept["claim"]
        return {CLAIM: self.claim, "build": kept}

    @property
    def rows_done(self) -> int:
        """Return the input rows of the finished slices: slices are about equally large."""
        return self.rows * self.done // self.slicing.slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """All rows of a projection at an epoch, cut into slices; `input_bytes` is what they read.

    With a base its parts are the slices, and what came since is taken in at the end. Where keys of
    it are computed again, they are one slice more.
    """

    plan: Plan
    target: Target
    catalog: LakeCatalog
    up_to: Epoch
    slicing: Slicing
    input_bytes: int
    base: Base | None = None
    parts: Sequence[KeptTable] = ()

    @property
    def sizes(self) -> list[int]:
        """The bytes of each slice; none where they are about equally large."""
        if self.base is None:
            return []
        copied = [sum(part.sizes.values()) for part in self.parts]
        return copied if self.base.where is None else [*copied, self.input_bytes]


def build_of(detail: Mapping[str, object]) -> SlicedBuild | None:
    """Restore what the book keeps; None for a build that was not in slices."""
    kept: Any = detail.get("build")
    if kept is None:
        return None
    columns, slices = kept["slicing"]["columns"], kept["slicing"]["slices"]
    return SlicedBuild(
        claim=str(detail[CLAIM]),
        up_to=Epoch(kept["up_to"]),
        slicing=Slicing(columns=tuple(columns), slices=slices),
        done=kept["done"],
        rows=kept["rows"],
        later=kept["later"],
        seconds=tuple(kept["seconds"]),
        fingerprint=kept["fingerprint"],
        rate=kept["rate"],
        ended_us=kept.get("ended_us"),
        base=Base(**kept["base"]) if kept.get("base") else None,
        since=kept.get("since", 0),
        strides=kept.get("strides", False),
        read=kept.get("read", {}),
        laying_s=kept.get("laying_s", 0.0),
    )


def builds_by_savepoint(book: ReplayBook) -> dict[str, Replay]:
    """Return the builds that run or rest and begin with the rows of a savepoint, by its id."""
    found = {}
    for replay in book.all():
        build = build_of(replay.detail) if replay.state in UNFINISHED else None
        if build is not None and build.base is not None and build.base.savepoint is not None:
            found[build.base.savepoint] = replay
    return found


def slicing_of(
    plan: Plan,
    rows: int,
    *,
    slices: int | None = None,
    rate: float | None = None,
    size: int = 0,
    here: bool = False,
) -> Slicing:
    """Choose slices for a query over so many input rows. Raises `InvalidRequest`.

    `size`: the bytes of the inputs' files; `here`: this process may compute slices by DuckDB.
    """
    refuse_pace(slices, rate)
    columns = sliceable(plan)
    if not columns:
        return Slicing(columns=(), slices=1)
    if slices is not None:
        return Slicing(columns=columns, slices=slices)
    least = max(1, -(-size // BUILD_BYTES), -(-rows // MOST_ROWS))
    if rate is None and here:
        if size <= BUILD_BYTES and computed_whole(plan, columns):
            # Each slice would compute a side of a join anew.
            return Slicing(columns=columns, slices=1)
        many = min(MANY_SLICES, -(-rows // ROWS_HERE))
        return Slicing(columns=columns, slices=max(least, many))
    each = SLICE_ROWS if rate is None else max(1, int(min(SLICE_ROWS, rate * PACE_S)))
    most = MANY_SLICES if rate is None else MOST_PACED
    told = min(LEAST_SLICES, rows // LEAST_ROWS)
    return Slicing(columns=columns, slices=max(least, told, min(most, -(-rows // each))))


def copying(
    parts: Sized, slices: int | None, rate: float | None, *, where: str | None = None
) -> Slicing:
    """Return the slices of a build that copies the parts of a base. Raises `InvalidRequest`.

    The last one is of the keys that are computed again, where there are some.
    """
    refuse_pace(slices, rate)
    if slices is not None:
        raise InvalidRequest(
            "a build from a base has the base's files as its slices",
            remedy="Leave --slices out.",
        )
    return Slicing(columns=(), slices=len(parts) + (where is not None))


def refuse_pace(slices: int | None, rate: float | None) -> None:
    """Raise `InvalidRequest` for slices or a rate by which no build can go."""
    if not (slices is None or 0 < slices <= MOST_ASKED) or not (rate is None or 0 < rate < inf):
        raise InvalidRequest(
            f"a build has one slice or more, {MOST_ASKED:,} at most, and a rate above zero",
            remedy="Leave --slices and --rate out, or give positive numbers.",
        )


def fingerprint_of(plan: Plan, slicing: Slicing) -> str:
    """Return a text that changes with the query, its meaning and its cut."""
    columns = [[each.name, each.type] for each in plan.columns]
    parts = [plan.fingerprint, plan.rows_sql, columns, asdict(slicing)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def slice_guard(name: str, generation: int, number: int, many: int = 1) -> Guard:
    """Return the guard of so many slices, `number` (from 0) the first, in their generation's table.

    They come behind the slice before: two processes may have cut the same ones otherwise.
    """
    return Guard(slices_app(name, generation), Epoch(number + many), after=Epoch(number))
