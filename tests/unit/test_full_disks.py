"""Which errors tell of a full disk: by number, SQLSTATE or type, never for a value they quote."""

from __future__ import annotations

import errno
import os

import duckdb
import polars as pl
import psycopg
import pytest
from deltalake.exceptions import CommitFailedError
from pyspark.errors import PySparkException

from kernel.errors import InvalidRequest, StorageFull, Unavailable, is_no_room

FULL = os.strerror(errno.ENOSPC)
RUST = f"Generic LocalFileSystem error: Unable to copy data to file: {FULL} (os error 28)"


def caused(error: Exception) -> Exception:
    outer = Unavailable("the table cannot be written")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    "error",
    [
        StorageFull("less than storage.min_free_bytes is free"),
        OSError(errno.ENOSPC, "kein Platz"),
        OSError(errno.EDQUOT, "quota"),
        OSError(RUST),
        CommitFailedError(RUST),
        duckdb.IOException(f'IO Error: Could not write all bytes to file "x": {FULL}'),
        duckdb.OutOfMemoryException(
            "Out of Memory Error: failed to offload data block of size 256.0 KiB (0 bytes/0 bytes "
            "used).\nThis limit was set by the 'max_temp_directory_size' setting."
        ),
        duckdb.TransactionException(
            f'TransactionContext Error: Failed to commit: Could not write file "/a.wal": {FULL}'
        ),
        duckdb.FatalException(
            "FATAL Error: Failed to create checkpoint because of error: "
            f'Could not write file "/a": {FULL}'
        ),
        psycopg.errors.DiskFull("konnte Datei nicht erweitern"),
        PySparkException(f"Lost task 0.0 in stage 1.0 (host driver): java.io.IOException: {FULL}"),
        PySparkException(f"Job aborted.\nCaused by: org.x.FSError: java.io.IOException: {FULL}"),
        PySparkException(f"Task 0 failed: java.io.FileNotFoundException: /tmp/shuffle ({FULL})"),
        PySparkException(f"x\nCaused by: java.nio.file.FileSystemException: /tmp/x: {FULL}"),
        PySparkException(f"Traceback (most recent call last):\nOSError: {RUST}"),
        caused(OSError(errno.ENOSPC, FULL)),
        caused(OSError(RUST)),
    ],
)
def test_a_full_disk_is_known_by_what_it_is(error: Exception) -> None:
    assert is_no_room(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"{FULL!r} is no number"),
        InvalidRequest(f"$.note: {FULL}"),
        OSError(errno.ENOENT, "not found", f"/logs/{FULL}"),
        duckdb.OutOfMemoryException(
            "Out of Memory Error: could not allocate block of size 256 KiB"
        ),
        duckdb.ConversionException(f"Could not convert string '{FULL}' to INT32"),
        duckdb.TransactionException(
            "TransactionContext Error: Failed to commit: PRIMARY KEY or UNIQUE constraint "
            f'violation: duplicate key "{FULL}"'
        ),
        pl.exceptions.InvalidOperationError(f'conversion failed in column "a": ["{FULL}"]'),
        psycopg.errors.InvalidTextRepresentation(f'invalid input syntax: "{FULL}"'),
        PySparkException(f"[CAST_INVALID_INPUT] The value '{FULL}' cannot be cast to INT"),
        PySparkException(f"java.io.FileNotFoundException: /x (No such file)\nThe value '{FULL}'"),
        PySparkException(f"[CAST_INVALID_INPUT] The value 'java.io.IOException: {FULL}' cannot"),
        caused(ValueError(FULL)),
    ],
)
def test_a_value_that_quotes_its_words_is_no_full_disk(error: Exception) -> None:
    assert not is_no_room(error)
