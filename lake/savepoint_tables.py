"""What a savepoint keeps of a table: all that it takes to read it from its files alone."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from kernel.errors import Incompatible
from lake.datasets import dataset_of_files, has_plain_files, schema_of
from lake.file_actions import actions_of
from lake.layout import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTable:
    """A table as it was: its columns, and its files with their statistics.

    `done`: the epoch of the table's own guard at that version, None for a table without. `noted`:
    what made its rows, as the manifest said it then, for whoever builds on them; None where
    nothing is known of that.
    """

    name: str
    version: int
    done: int | None
    columns: pa.Schema
    files: pa.Table
    noted: str | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The files' sizes in bytes, by path below the table's root, as a file system knows it."""
        files = self.files.select(["path", "size_bytes"]).to_pylist()
        return {unquote(file["path"]): int(file["size_bytes"]) for file in files}

    def rows(self, lake: Lake) -> ds.Dataset:
        """Return the rows as they were."""
        return dataset_of_files(lake.path(self.name), self.columns, self.files)


def kept_table(table: DeltaTable, name: str, *, noted: str | None = None) -> KeptTable:
    """Describe a table at the version that a handle stands at.

    Raises `Incompatible` for one whose rows are more than those of its files.
    """
    if not has_plain_files(table):
        raise Incompatible(
            f"{name} has deletion vectors or mapped columns: a savepoint cannot keep it",
            remedy=f"Leave it out: --without {name}",
        )
    return KeptTable(
        name=name,
        version=int(table.version()),
        done=table.transaction_version(name),
        columns=schema_of(table),
        files=actions_of(table),
        noted=noted,
    )
