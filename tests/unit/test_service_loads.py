"""The service's process is light: what reads the lake is loaded when somebody asks for the lake."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"pandas", "pyspark", "duckdb", "pyarrow", "deltalake", "sqlglot"}


def test_a_service_that_starts_loads_no_engine_and_no_reader_of_tables() -> None:
    code = (
        "import sys, apps.service\n"
        "from pathlib import Path\n"
        "from service.app import build\n"
        "from service.config import ServiceConfig\n"
        "from service.runtime import Runtime\n"
        "from schemas.registry import MemoryRegistry\n"
        "build(Runtime(ServiceConfig(dsn='', registry_url=''), MemoryRegistry()))\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & {*loaded}


def test_what_rows_are_looked_up_by_needs_no_engine() -> None:
    code = "import sys, projections.serve.lookups; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "deltalake" in loaded
    assert not {"pyspark", "duckdb"} & {*loaded}
