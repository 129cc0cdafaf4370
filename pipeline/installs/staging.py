"""One install while it is being read: text to the log, lake values to a generation of the table.

A generation lies below the table's root in `_gen/<id>`, with a Delta log of its own, so that no
reader of the table sees it before it is swapped in. Each chunk is one commit there, and that
commit carries the chunk's number and the LSN at which it was read: after a crash the generation
itself says which chunks it has. The text is written first; rows of `log/snapshots/<source>.<table>`
count when chunk and LSN are those of the install.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Unavailable
from lake.adoption import commit_staged
from lake.datasets import dataset_of, schema_of
from lake.exactness import as_spelled
from lake.layout import Lake, current_name
from lake.staged_files import StagedFiles
from lake.tables import Tables
from pipeline.current.key_ends import refuse_met_rows
from pipeline.current.newest_images import DELETED
from schemas.pg_exact import EXACT, refuse_lost_keys
from schemas.pg_text import text_to_lake
from schemas.pg_types import SourceColumn, lake_type

INSTALL, CHUNK, LSN = "_install", "_chunk", "_lsn"
MARKS = pa.schema([(INSTALL, pa.string()), (CHUNK, pa.int32()), (LSN, pa.int64())])


@dataclass(frozen=True, slots=True)
class GenerationLake(Lake):
    """A lake of one `current` table: the generation of an install."""

    def path(self, name: str) -> str:
        """Return the generation's root, or for a tail and staged slices a place beside it."""
        beside = ("current/_tail/", "current/_staging/")
        place = next((each for each in beside if name.startswith(each)), None)
        return self.root if place is None else f"{self.root}/{place.split('/')[1]}"


def generation_folder(install: str) -> str:
    """Return where an install's generation lies, relative to the table's root."""
    return f"_gen/{install}"


def generation_lake(lake: Lake, source: str, table: str, install: str) -> GenerationLake:
    """Return the lake in which an install's rows are the `current` table."""
    stable = lake.path(current_name(source, table))
    return GenerationLake(f"{stable}/{generation_folder(install)}")


def snapshot_log(source: str, table: str) -> str:
    """Name the log of a table's bulk reads, as PostgreSQL's text."""
    return f"log/snapshots/{source}.{table}"


class Staging:
    """Takes the chunks of one install, from several threads, each chunk once."""

    def __init__(
        self,
        lake: Lake,
        *,
        id: str,
        source: str,
        table: str,
        columns: Sequence[SourceColumn],
        soft_deletes: bool = False,
        keys: Sequence[str] = (),
    ) -> None:
        self._id = id
        self._name = f"{source}.{table}"
        self._columns = tuple(columns)
        self._soft = soft_deletes
        self._keys = tuple(keys)
        self._lock = threading.Lock()
        tables = Tables()
        shape = pa.schema([pa.field(c.lake_name, lake_type(c)) for c in columns])
        if soft_deletes:
            shape = shape.append(pa.field(DELETED, pa.bool_()))
        texts = [pa.field(column.lake_name, pa.string()) for column in columns]
        self._texts = tables.ensure(
            lake.path(snapshot_log(source, table)), pa.schema([*texts, *MARKS])
        )
        # A column may have been renamed since, in letter case alone: Delta would refuse it.
        self._spelled = schema_of(self._texts).names
        self._rows = tables.ensure(generation_lake(lake, source, table, id).root, shape)

    def lsn_of(self, chunk: int) -> int | None:
        """Return the LSN at which a chunk was read; None when it is not there yet."""
        with self._lock:
            self._rows.update_incremental()
            found: int | None = self._rows.transaction_version(_app(chunk))
            return found

    @property
    def version(self) -> int:
        """Version of the generation now."""
        with self._lock:
            self._rows.update_incremental()
            return int(self._rows.version())

    @property
    def rows(self) -> int:
        """Rows of all chunks that are there."""
        with self._lock:
            self._rows.update_incremental()
            return int(self._rows.count())

    def stage(self, chunk: int, lsn: int, blocks: Iterable[pa.Table]) -> int:
        """Write a chunk as of `lsn`; return its rows. One that is there already is left alone.

        `blocks` are tables of text with the install's columns, under their lake names. Raises
        `SchemaViolation` for text that is not of its type, or a key that the lake cannot tell from
        others, `Unavailable` when storage does not answer.
        """
        if self.lsn_of(chunk) is not None:
            return 0
        texts, rows = StagedFiles(self._texts), StagedFiles(self._rows)
        try:
            for block in blocks:
                texts.write(self._marked(block, chunk, lsn))
                rows.write(self._values(block))
            text_files, row_files = texts.close(), rows.close()
        except OSError as error:
            raise Unavailable(f"staging {self._name} failed: {error}") from error
        except BaseException:
            texts.discard()
            rows.discard()
            raise
        with self._lock:
            commit_staged(self._texts, text_files, texts.schemas, f"{self._id}/{chunk}", lsn)
            commit_staged(self._rows, row_files, rows.schemas, _app(chunk), lsn)
        return rows.rows

    def refuse_met_keys(self) -> None:
        """Raise `SchemaViolation` where rows of its chunks would be one row of the lake."""
        with self._lock:
            self._rows.update_incremental()
            refuse_met_rows(self._rows, self._keys)

    def _values(self, block: pa.Table) -> pa.Table:
        rows = text_to_lake(self._columns, block)
        if EXACT in rows.schema.names:
            refuse_lost_keys(rows[EXACT], self._keys)
        if not self._soft:
            return rows
        return rows.append_column(DELETED, pa.array([False] * rows.num_rows, pa.bool_()))

    def _marked(self, block: pa.Table, chunk: int, lsn: int) -> pa.Table:
        n = block.num_rows
        block = as_spelled(block, self._spelled)
        for name, value in ((INSTALL, self._id), (CHUNK, chunk), (LSN, lsn)):
            kind = MARKS.field(name).type
            block = block.append_column(name, pa.repeat(pa.scalar(value, kind), n))
        return block


def text_rows(
    lake: Lake,
    tables: Tables,
    *,
    id: str,
    source: str,
    table: str,
    columns: Sequence[SourceColumn],
) -> Iterator[pa.RecordBatch]:
    """Read an install's rows back as text, in batches, with `_chunk` and `_lsn`.

    Its `columns` have their lake names, whatever letter case the log has them in.
    """
    handle = tables.open(lake.path(snapshot_log(source, table)))
    if handle is None:
        return
    names = [column.lake_name for column in columns]
    for batch in dataset_of(handle).to_batches(
        filter=pc.field(INSTALL) == id, batch_size=65_536, batch_readahead=2, fragment_readahead=1
    ):
        yield as_spelled(batch, names)


def _app(chunk: int) -> str:
    return f"chunk/{chunk}"
