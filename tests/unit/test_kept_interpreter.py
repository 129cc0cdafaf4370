"""Nobody keeps the interpreter while he waits for one who needs it: all threads would stand still.

Each in a process of its own, with one thread of deltalake, which somebody occupies meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_BEGIN = """
import sys, threading, time
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from kernel.positions import Epoch

inside = threading.Event()
root = sys.argv[1]
NUMBERS = pa.schema([("n", pa.int64())])
for name in ("one", "other"):
    for part in range(3):
        write_deltalake(f"{root}/{name}", pa.table({"n": [part]}, schema=NUMBERS), mode="append")

def slow(rows):
    for each in rows:
        inside.set()
        time.sleep(0.1)
        yield each
"""
_SELECTED = """
from lake.rows import SmallTables

small = SmallTables()
chosen = "SELECT n FROM rows WHERE n > 1"
small.select(f"{root}/other", chosen)
# A look at the log would wait until the other one is done, and leave the interpreter to him.
DeltaTable.update_incremental = lambda self: None
rows = slow(pa.table({"n": range(8)}, schema=NUMBERS).to_batches(max_chunksize=1))
reader = pa.RecordBatchReader.from_batches(NUMBERS, rows)
writing = threading.Thread(
    target=write_deltalake, args=(f"{root}/one", reader), kwargs={"mode": "append"}
)
writing.start()
inside.wait()
assert small.select(f"{root}/other", chosen) == [{"n": 2}]
writing.join()
"""
_EVOLVED = """
from lake.tables import Tables
from pipeline.ddl import table_rewrites
from pipeline.ddl.steps import Renamed

stored = table_rewrites._rows
table_rewrites._rows = lambda *args: slow(stored(*args))
change = [Renamed("n", "number")]
evolving = threading.Thread(
    target=table_rewrites.evolve, args=(Tables(), f"{root}/one", change, None)
)
other = DeltaTable(f"{root}/other")
evolving.start()
inside.wait()
settings = {"delta.logRetentionDuration": "interval 3 days"}
other.alter.set_table_properties(settings)
evolving.join()
rows = Tables().read(f"{root}/one")
assert sorted(rows["number"].to_pylist()) == [0, 1, 2]
"""
_SEIZED = """
import ctypes, threading
from pipeline.process.watchdog import Watchdog

watchdog = Watchdog([], end_after_s=900, seized_s=6)
threading.Thread(target=watchdog.run, args=(threading.Event(),), daemon=True).start()
threading.Event().wait(1.5)
print("works", flush=True)
ctypes.PyDLL(None).sleep(300)
"""


def _ran(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env=os.environ | {"TOKIO_WORKER_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("work", [_SELECTED, _EVOLVED], ids=["rows are selected", "DDL"])
def test_one_who_waits_for_deltalake_leaves_the_interpreter_to_others(
    work: str, tmp_path: Path
) -> None:
    done = _ran(_BEGIN + work, tmp_path)
    assert done.returncode == 0, done.stderr


def test_p11_a_pipeline_whose_interpreter_is_kept_for_ever_ends_with_all_stacks(
    tmp_path: Path,
) -> None:
    done = _ran(_SEIZED, tmp_path)
    assert done.stdout == "works\n"
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert 'File "<string>", line 9' in done.stderr
