"""Folds that are too large for this process: read in slices, staged, put together by Spark.

A source transaction may change millions of rows. Its log rows are cut into slices in the source's
order; of each slice the newest image per key goes to a staging table, numbered, and the newest of
all slices goes into the table in one commit from Spark's executors. Memory holds one slice, of so
many rows or bytes, and, for every hundredth of one, a place where it might end. One look at all
rows tells which files each slice lies in, so that what is read grows with the rows and not with
their square.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from lake.datasets import dataset_since, schema_of
from lake.file_actions import actions_of
from lake.file_batches import unpacked
from lake.table_columns import OF_NO_TABLE
from lake.tables import Tables
from pipeline.order import LOW, NEEDED, high_of, low_of, lsn_at, places_of
from schemas.debezium import PLACEHOLDER
from schemas.records import Operation

LARGE_ROWS = 150_000
"""More log rows of one table than that are folded in slices."""
LARGE_BYTES = 32 * 2**20
"""And more bytes of them, unpacked, however few they are."""
SLICE_ROWS, SLICE_BYTES = 50_000, 32 * 2**20
_MOST_PACKED = 500
"""Files unpack to no more than so many times their size, but for what nobody writes."""
_PARTS = 100
"""About so many places in a slice are known where it might end."""

_PLANNED = ("schema_id", "key_schema_id", "transaction_id", *NEEDED)
Place = tuple[int, int]
"""`commit_order` and low number of a row: see `pipeline.order`."""
_AT_THE_END: Place = (2**63 - 1, 0)
_CODES = np.dtype([("high", np.int64), ("low", np.int64), ("delete", bool), ("insert", bool)])


@dataclass(frozen=True, slots=True)
class LogRows:
    """Rows of a changes log that are not read yet: a dataset and which of its rows. Picklable.

    Parts of the same rows share `where`, which may name thousands of transactions, and differ in
    `part`: pickled together they have it once.
    """

    log: ds.Dataset
    where: pc.Expression
    part: pc.Expression | None = None

    @property
    def wanted(self) -> pc.Expression:
        """Return the filter for the rows."""
        return self.where if self.part is None else self.where & self.part

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows, or some of their columns."""
        chosen = None if columns is None else [*columns]
        # Each batch that is read ahead is a row group as a whole, whatever of it is wanted.
        scanner = self.log.scanner(columns=chosen, filter=self.wanted, batch_readahead=2)
        return scanner.to_table()

    def count(self) -> int:
        """Return how many rows these are."""
        return int(self.log.count_rows(filter=self.wanted))

    def per_part(self, most: int) -> int:
        """Return how many of the rows are to be in memory at once: `most`, or fewer wide ones."""
        rows, size = unpacked(self.log.get_fragments(self.wanted))
        return _fitting(most, SLICE_BYTES, rows, size)

    def take_more(self, most_bytes: int) -> bool:
        """Say whether the rows take more than so many bytes in memory."""
        files = [*self.log.get_fragments(self.wanted)]
        if unpacked(files)[1] <= most_bytes:
            return False
        return sum(self._bytes_in(file) for file in files) > most_bytes

    def by_table(self) -> tuple[Counter[str], Counter[str]]:
        """Return how many of the rows each table has, and about how many bytes they take."""
        counts, sizes = Counter[str](), Counter[str]()
        for file in self.log.get_fragments(self.wanted):
            rows, size = unpacked([file])
            scanner = file.scanner(schema=self.log.schema, columns=["table"], filter=self.wanted)
            for batch in scanner.to_batches():
                for each in pc.value_counts(batch["table"]).to_pylist():
                    counts[each["values"]] += each["counts"]
                    sizes[each["values"]] += each["counts"] * size // max(rows, 1)
        return counts, sizes

    def _bytes_in(self, file: ds.Fragment) -> int:
        """Return about how many bytes the rows in a file take."""
        rows, size = unpacked([file])
        return self.among([file]).count() * size // max(rows, 1)

    def has_marks(self) -> bool:
        """Say whether a text or bytes among the rows look like what an update left alone.

        No row is decoded: the mark may stand for a list as well, and is spelled otherwise there.
        """
        # A batch has all rows of a row group: few of them are to be there at once.
        ahead = {"batch_readahead": 1, "fragment_readahead": 1}
        values = self.log.scanner(columns=["value"], filter=self.wanted, **ahead)
        return any(
            pc.any(pc.match_substring(batch["value"], PLACEHOLDER)).as_py()
            for batch in values.to_batches()
        )

    def planned(self) -> pa.Table:
        """Return those rows that decide on the columns of their table, and of these what decides.

        That is the first one of each schema and operation: memory holds no more.
        """
        scanner = self.log.scanner(columns=list(_PLANNED), filter=self.wanted)
        none = scanner.projected_schema.empty_table()
        firsts = [_first_of_each(pa.table(batch)) for batch in scanner.to_batches()]
        return _first_of_each(pa.concat_tables([none, *firsts]))

    def among(self, files: Sequence[ds.Fragment]) -> LogRows:
        """Return the rows that lie in some of the files."""
        log = self.log
        return replace(
            self, log=ds.FileSystemDataset(files, log.schema, log.format, log.filesystem)
        )

    def narrowed(self, part: pc.Expression) -> LogRows:
        """Return fewer of the rows."""
        return replace(self, part=part if self.part is None else self.part & part)


def _first_of_each(rows: pa.Table) -> pa.Table:
    """Return the first row, in the source's order, of each pair of schemas and operation."""
    kinds = ["schema_id", "key_schema_id", "operation"]
    ordered = rows.append_column("__hi", high_of(rows)).append_column("__lo", low_of(rows))
    ordered = ordered.sort_by([("__hi", "ascending"), ("__lo", "ascending")])
    number = pa.array(np.arange(rows.num_rows))
    first = ordered.append_column("__n", number).group_by(kinds).aggregate([("__n", "min")])
    return ordered.take(first["__n_min"]).select(rows.schema.names)


def split(
    log: DeltaTable,
    where: pc.Expression,
    *,
    since: int,
    most: int = LARGE_ROWS,
    most_bytes: int | None = None,
) -> tuple[pc.Expression, dict[str, LogRows]]:
    """Tell the tables with more than `most` of the wanted rows, logged since an epoch, apart.

    And those whose rows take more than `most_bytes` in memory, as a rule `LARGE_BYTES`. Returns the
    filter of what remains to be read at once, and the rows of each large table.
    """
    most_bytes = LARGE_BYTES if most_bytes is None else most_bytes
    actions = actions_of(log)
    if "max.epoch" not in actions.schema.names:
        return where, {}
    recent = actions.filter(pc.fill_null(pc.greater_equal(actions["max.epoch"], since), True))
    count, packed = (pc.sum(recent[name]).as_py() or 0 for name in ("num_records", "size_bytes"))
    if count <= most and packed <= most_bytes // _MOST_PACKED:
        return where, {}
    rows = LogRows(dataset_since(log, "epoch", since), where)
    if count <= most and not rows.take_more(most_bytes):
        return where, {}
    counts, sizes = rows.by_table()
    large = {
        table: rows.narrowed(pc.field("table") == table)
        for table in counts
        if (counts[table] > most or sizes[table] > most_bytes) and table not in OF_NO_TABLE
    }
    if large:
        where = where & ~pc.is_in(pc.field("table"), pa.array(list(large), pa.string()))
    return where, large


def last_truncate(rows: LogRows) -> tuple[int, int] | None:
    """Return the place of the last TRUNCATE; None without one."""
    found = rows.log.to_table(
        columns=list(NEEDED),
        filter=rows.wanted & (pc.field("operation") == Operation.TRUNCATE.value),
    )
    return max(places_of(found), default=None)


def before(place: tuple[int, int]) -> pc.Expression:
    """Return a filter for the row changes that came before the TRUNCATE at a place."""
    return ~after(place) & (pc.field("operation") != Operation.TRUNCATE.value)


def after(place: tuple[int, int]) -> pc.Expression:
    """Return a filter for the row changes that came after a place; none of a snapshot did."""
    high = pc.field("commit_order")
    later = (high > place[0]) | ((high == place[0]) & (place[1] < LOW))
    return later & ~pc.field("snapshot")


def _fitting(most: int, most_bytes: int, rows: int, size: int) -> int:
    """Return how many of rows that take `size` together fit into bytes, at most `most`."""
    return max(1, min(most, most_bytes * rows // max(size, 1))) if rows else most


def slices(rows: LogRows, *, most: int = SLICE_ROWS) -> Iterator[LogRows]:
    """Cut rows of one table into parts of about `most`, in the source's order; wide ones sooner.

    Rows of a snapshot come first, by epoch, whole row groups each: none of them is of the key of
    another. A delete and the insert right behind it (a changed key) stay together. A part names the
    files that it lies in, so that all parts together read each file about once, however many they
    are.
    """
    survey = _surveyed(rows, max(1, most // _PARTS))
    yield from _of_snapshot(rows, survey, most)
    if not survey.files:
        return
    before: Place | None = None
    held, size, last = 0, 0, max(high for _, _, high in survey.files)
    for mark in sorted(survey.marks, key=lambda mark: mark.place):
        held, size = held + mark.rows, size + mark.size
        # Behind every cut there is a row: no part is empty.
        if (held >= most or size >= SLICE_BYTES) and mark.place < last:
            yield _between(rows, survey, before, mark.place)
            before, held, size = mark.place, 0, 0
    yield _between(rows, survey, before, None)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place behind which rows may be cut, how many there are since the one before it, and their
    bytes."""

    place: Place
    rows: int
    size: int


@dataclass(slots=True)
class _Survey:
    """Where rows lie: files with the first and last place of streamed rows; row groups with rows of
    a snapshot, their first epoch, how many these are, and their bytes."""

    files: list[tuple[ds.Fragment, Place, Place]] = field(default_factory=list)
    marks: list[_Mark] = field(default_factory=list)
    snapshots: list[tuple[ds.Fragment, int, int, int]] = field(default_factory=list)


def _surveyed(rows: LogRows, step: int) -> _Survey:
    """Look at every row once, file by file; keep a mark for each `step` of them, or fewer."""
    survey = _Survey()
    for file in rows.log.get_fragments(rows.wanted):
        scanner = file.scanner(
            schema=rows.log.schema, columns=[*NEEDED, "epoch"], filter=rows.wanted
        )
        found = scanner.to_table()
        count, size = unpacked([file])
        width = max(1, size // max(count, 1))
        if pc.any(found["snapshot"]).as_py():
            survey.snapshots += _groups_of_snapshot(rows, file)
        streamed = found.filter(pc.invert(found["snapshot"]))
        if streamed.num_rows:
            places = _places(streamed)
            survey.files.append((file, _place(places[0]), _place(places[-1])))
            fitting = _fitting(step, SLICE_BYTES // _PARTS, count, size)
            survey.marks += _marks(places, fitting, width)
    return survey


def _places(rows: pa.Table) -> npt.NDArray[np.void]:
    """Return where each streamed row stands, sorted."""
    packed = np.empty(rows.num_rows, _CODES)
    packed["high"], packed["low"] = rows["commit_order"].to_numpy(), low_of(rows).to_numpy()
    for name, meant in (("delete", Operation.DELETE), ("insert", Operation.INSERT)):
        packed[name] = pc.equal(rows["operation"], meant.value).to_numpy()
    return packed[np.lexsort((packed["low"], packed["high"]))]


def _marks(places: npt.NDArray[np.void], step: int, width: int) -> Iterator[_Mark]:
    """Yield about every `step`-th place, but none between the halves of a changed key.

    A file may end with a delete whose insert is in the next one: nothing is cut behind that.
    """
    count = len(places)
    torn = np.append(places["delete"][:-1] & places["insert"][1:], places["delete"][-1])
    ends = np.append(np.arange(step - 1, count - 2, step), [count - 2, count - 1])
    ends = np.unique(ends[ends >= 0])
    ends = ends[~torn[ends]]
    first = 0
    for end in ends.tolist():
        rows = end + 1 - first
        yield _Mark(_place(places[end]), rows, rows * width)
        first = end + 1
    if first < count:
        yield _Mark(_AT_THE_END, count - first, (count - first) * width)


def _place(code: np.void) -> Place:
    return int(code["high"]), int(code["low"])


def _between(rows: LogRows, survey: _Survey, before: Place | None, last: Place | None) -> LogRows:
    """Return the streamed rows behind a place, up to another one; None for no bound."""
    files = [
        file
        for file, low, high in survey.files
        if (before is None or high > before) and (last is None or low <= last)
    ]
    where = ~pc.field("snapshot")
    where = where if before is None else where & _beyond(before)
    where = where if last is None else where & _up_to(last)
    return rows.among(files).narrowed(where)


def _groups_of_snapshot(
    rows: LogRows, file: ds.Fragment
) -> Iterator[tuple[ds.Fragment, int, int, int]]:
    where = rows.wanted & pc.field("snapshot")
    for group in file.split_by_row_group(where, rows.log.schema):
        found = group.scanner(schema=rows.log.schema, columns=["epoch"], filter=where).to_table()
        if found.num_rows:
            count, size = unpacked([group])
            own = found.num_rows * size // max(count, 1)
            yield group, pc.min(found["epoch"]).as_py(), found.num_rows, own


def _of_snapshot(rows: LogRows, survey: _Survey, most: int) -> Iterator[LogRows]:
    held: list[ds.Fragment] = []
    count = size = 0
    where = pc.field("snapshot")
    for group, _, own, wide in sorted(survey.snapshots, key=lambda found: found[1]):
        if held and (count + own > most or size + wide > SLICE_BYTES):
            yield rows.among(held).narrowed(where)
            held, count, size = [], 0, 0
        held.append(group)
        count, size = count + own, size + wide
    if held:
        yield rows.among(held).narrowed(where)


def _beyond(place: Place) -> pc.Expression:
    """Return a filter for rows behind a place.

    Of one transaction's rows the LSN, which stands in the statistics of files, tells most.
    """
    order, lsn, (high, low) = pc.field("commit_order"), pc.field("lsn"), place
    return (order > high) | ((order == high) & (lsn >= lsn_at(place) - 1) & (low < LOW))


def _up_to(place: Place) -> pc.Expression:
    """Return a filter for rows up to a place, and the one there."""
    order, lsn, (high, low) = pc.field("commit_order"), pc.field("lsn"), place
    return (order < high) | ((order == high) & (lsn <= lsn_at(place)) & (low >= LOW))


def holds_rows(tables: Tables, path: str) -> bool:
    """Say whether there is a table with rows."""
    table = tables.open(path)
    return table is not None and bool(schema_of(table).names) and table.count() > 0
