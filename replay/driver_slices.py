"""Slices of a build that this process computes itself, by DuckDB, and writes part by part.

Slices are the same for both executors, and so are their commits (`projections.run.driver_builds`).
Where each of many slices would read the inputs again, they are read once and laid apart by slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from kernel import failpoints
from kernel.errors import FIX, StorageFull
from lake.space import SpaceGuard
from lake.streamed_writes import append_parts
from lake.tables import Tables
from lake.writer import Guard
from projections.run.database import TEXT
from projections.run.driver_builds import DriverBuilds
from projections.run.laid_rows import InputPiece, LaidRows
from projections.run.projector import Projector
from projections.run.region_runs import Reading
from projections.run.relations import LakeCatalog
from projections.run.spark_hashes import hash_sql, is_hashed
from projections.sql.operators.tree import Exploded, Join, Node, Windowed, inputs_of, scans
from projections.sql.plans.plan import Plan
from projections.sql.rendering.batch import ALL, Parts, satisfying
from projections.sql.words.catalog import Column
from replay.carried_keys import computed_whole, parted
from replay.slices import MOST_ROWS, Slicing, Whole

LEAST_LOOKS = 4
"""Inputs that are looked at less often are not laid apart: that reads and writes them once more."""
LEAST_BYTES = 2 * 2**30
"""Nor those of which all looks together would read no more than so much."""
LOOSER = 2
"""What is laid apart is packed quickly: it takes up to so much more than files of the lake."""
MEASURED_BYTES = 16 * 2**20
"""So much is read before it tells how much room all take: a small table's files are mostly ends."""


class DriverSlices:
    """Chooses which slices are for this process, and makes them as its projector's builds."""

    def __init__(self, projector: Projector, tables: Tables, *, reserve_bytes: int = 0) -> None:
        """`reserve_bytes` of the disk where rows are laid apart stay free."""
        self._projector = projector
        self._tables = tables
        self._reserve_bytes = reserve_bytes
        self.builds = projector.builds
        self._laid: LaidRows | None = None
        self._read = self._to_read = 0

    def takes(self, whole: Whole, many: int = 1) -> bool:
        """Say whether so many slices are computed here."""
        slicing = whole.slicing
        taken = _takes(
            self.builds, whole.plan, whole.catalog, slicing, whole.input_bytes, many=many
        )
        return taken and self.builds.bounded(-(-self._bytes(whole) * many // slicing.slices))

    def most_at_once(self, whole: Whole) -> int:
        """Return how many slices are taken in at once, at most."""
        slices = whole.slicing.slices
        most = _most_at_once(self.builds, slices, self._bytes(whole))
        if self._laid is not None:
            # Memory must not follow from how little the columns take that are needed.
            most = max(1, min(most, MOST_ROWS * slices // max(self._laid.rows, 1)))
        return most

    def append(self, whole: Whole, number: int, guard: Guard, many: int = 1) -> bool:
        """Compute so many slices and append them, in one guarded commit; False where it cannot.

        Spark says then of which row that is so.
        """

        def write(parts: Iterator[pa.Table]) -> bool:
            append_parts(
                self._tables,
                whole.target.path,
                parts,
                guard,
                written=lambda: failpoints.hit(failpoints.REPLAY_BEFORE_SLICE),
            )
            return True

        parts, laid = _apart(whole.plan, whole.slicing, number, many), self._laid
        if laid is not None:
            laid.drop(before=number)
            parts = laid.parts(number, many)
        read_elsewhere = () if laid is None else parts.keys()
        if not self.builds.write(self._reading(whole), whole.up_to, write, parts, read_elsewhere):
            return False
        failpoints.hit(failpoints.REPLAY_AFTER_SLICE)
        return True

    def pieces(self, whole: Whole, first: int, at_once: int) -> Sequence[InputPiece]:
        """Return what is laid apart before slices are computed from `first` on; nothing if none is.

        `at_once`: as many slices would be computed by one look at the inputs.
        """
        self.release()
        slicing = whole.slicing
        looks = -(-(slicing.slices - first) // at_once)
        if not (_is_laid_apart(looks, whole.input_bytes) and self.takes(whole)):
            return ()
        places = {
            node: _place(columns, slicing.slices)
            for node, columns in parted(whole.plan.tree, slicing.columns)
        }
        self._laid, self._read = LaidRows(places, slicing.slices, first=first), 0
        found = self.builds.work.pieces(self._reading(whole), whole.up_to, places)
        self._to_read = sum(each.bytes for each in found)
        return found

    def lay(self, whole: Whole, piece: InputPiece) -> bool:
        """Lay a piece of the inputs apart; False where slices have to look at these all the same.

        Raises `StorageFull` where the disk became full meanwhile, but for its reserve.
        """
        laid = self._laid
        assert laid is not None, "its pieces were asked for"
        room = self._has_reserve(laid)
        if room and self.builds.lay(self._reading(whole), whole.up_to, piece, laid):
            failpoints.hit(failpoints.REPLAY_AFTER_PIECE)
            # The first ones tell whether there is room, for what is written besides as well.
            self._read += piece.bytes
            tells = self._read - piece.bytes <= MEASURED_BYTES <= self._read
            needed = laid.bytes * (self._to_read / max(self._read, 1)) * 2 + self._reserve_bytes
            if not tells or needed < laid.free_bytes:
                return True
        self.release()
        return False

    def _has_reserve(self, laid: LaidRows) -> bool:
        """Say whether more than the reserve is free, of a disk on which nothing lies yet.

        Raises `StorageFull` where it was when the first piece was laid apart, and is not now.
        """
        guard = SpaceGuard(
            laid.place, reserve_bytes=self._reserve_bytes, free_bytes=lambda _: laid.free_bytes
        )
        shortage = guard.shortage()
        if shortage is not None and laid.pieces:
            raise StorageFull(f"rows are laid apart: {shortage.partition(FIX)[0]}")
        return shortage is None

    def release(self) -> None:
        """Remove what was laid apart."""
        if self._laid is not None:
            self._laid.close()
            self._laid = None

    def _bytes(self, whole: Whole) -> int:
        """Return how much all slices read: of what was laid apart no more than of its inputs.

        It may take more there, packed less tightly: that makes no slice one for Spark.
        """
        size, laid, slices = whole.input_bytes, self._laid, whole.slicing.slices
        if laid is None:
            return size
        # Of slices that another process computed nothing was laid apart.
        return min(size, laid.bytes * slices // (slices - laid.first))

    def _reading(self, whole: Whole) -> Reading:
        return self._projector.reading(whole.plan, whole.target, whole.catalog, whole.up_to)


def most_laid_bytes(
    builds: DriverBuilds, plan: Plan, catalog: LakeCatalog, slicing: Slicing, size: int
) -> int | None:
    """Return how much a build lays apart, at most, of inputs whose files are of `size` bytes.

    None where that does not follow from their size: of rows for each element of a list, or of the
    pairs of a join.
    """
    at_once = _most_at_once(builds, slicing.slices, size)
    laid = _is_laid_apart(-(-slicing.slices // at_once), size)
    if not (laid and _takes(builds, plan, catalog, slicing, size)):
        return 0
    most = 0
    for node, _ in parted(plan.tree, slicing.columns):
        times = _most_rows_of_a_row(node)
        if times is None:
            return None
        most += LOOSER * times * builds.work.input_bytes(scans(node), catalog)
    return most


def _most_rows_of_a_row(node: Node) -> int | None:
    """Return how many rows of a node follow from a row of its inputs, at most; None: any number."""
    match node:
        case Exploded() | Join():
            return None
        case Windowed():
            own = -(-node.size_us // node.step_us)
        case _:
            own = 1
    below = [_most_rows_of_a_row(each) for each in inputs_of(node)]
    known = [each for each in below if each is not None]
    return own * max(known, default=1) if len(known) == len(below) else None


def _most_at_once(builds: DriverBuilds, slices: int, size: int) -> int:
    return max(1, builds.most_bytes * slices // max(size, 1))


def _is_laid_apart(looks: int, size: int) -> bool:
    return looks >= LEAST_LOOKS and size * looks >= LEAST_BYTES


def _takes(
    builds: DriverBuilds,
    plan: Plan,
    catalog: LakeCatalog,
    slicing: Slicing,
    size: int,
    *,
    many: int = 1,
) -> bool:
    """Say whether slices of any size are computed by this process.

    Sides of joins that each slice would compute anew are kept by Spark.
    """
    if not builds.suits(plan, catalog, size):
        return False
    if many == slicing.slices:
        return True
    types = {each.name: each for each in plan.columns}
    hashed = all(is_hashed(types[name]) for name in slicing.columns)
    return hashed and not computed_whole(plan, slicing.columns)


def _apart(plan: Plan, slicing: Slicing, number: int, many: int) -> Parts:
    """Write which rows are of so many slices, as `Slicing.conditions` does for Spark."""
    if not slicing.columns or many == slicing.slices:
        return ALL
    between = f"BETWEEN {number} AND {number + many - 1}"
    return {
        node: satisfying(node, f"{_place(columns, slicing.slices)} {between}", TEXT)
        for node, columns in parted(plan.tree, slicing.columns)
    }


def _place(columns: Sequence[Column], slices: int) -> str:
    return f"((({hash_sql(columns)} % {slices}) + {slices}) % {slices})"
