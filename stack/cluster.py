"""Make a PostgreSQL cluster with its databases: all of it, or nothing.

Run as a script before PostgreSQL's first start: `cluster.py SPEC`, SPEC being JSON. The cluster is
built beside its place and renamed at the end, so that an interrupted run leaves nothing half-made.
Databases are made in single-user mode: no port, no waiting.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


def make(spec: dict[str, Any]) -> None:
    """Build the cluster that `spec` describes at `spec["data"]`."""
    place = Path(spec["data"])
    uid, gid = spec["uid"], spec["gid"]
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh, password = place.with_name("fresh"), place.with_name("password")
    shutil.rmtree(fresh, ignore_errors=True)
    password.unlink(missing_ok=True)
    password.touch(mode=0o600)
    password.write_text(Path(spec["password_file"]).read_text())
    if uid is not None:
        os.chown(place.parent, uid, gid)
        os.chown(password, uid, gid)
    try:
        _run(spec, _initdb(spec, fresh, password), "")
        statements = "".join(f'CREATE DATABASE "{name}";\n' for name in spec["databases"])
        server = [str(Path(spec["programs"]) / "postgres"), "--single", "-D", str(fresh)]
        _run(spec, [*server, "-c", "fsync=off", "postgres"], statements)
        fresh.rename(place)
    finally:
        password.unlink(missing_ok=True)


def _initdb(spec: dict[str, Any], folder: Path, password: Path) -> list[str]:
    return [
        str(Path(spec["programs"]) / "initdb"),
        *("-D", str(folder), "-U", "postgres", f"--pwfile={password}"),
        *("--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions", "--no-sync"),
        # The same order of text on every machine, whatever its locale.
        *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
    ]


def _run(spec: dict[str, Any], command: list[str], text: str) -> None:
    subprocess.run(
        command,
        input=text.encode(),
        check=True,
        user=spec["uid"],
        group=spec["gid"],
        extra_groups=[] if spec["uid"] is not None else None,
        cwd="/",
    )


if __name__ == "__main__":
    make(json.loads(sys.argv[1]))
