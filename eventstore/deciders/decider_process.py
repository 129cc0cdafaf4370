"""The process that holds a workspace's code, with the arguments FOLDER, MEMORY and FD.

The service starts it and talks to it over the socket FD; see `eventstore.deciders.nursery`. MEMORY
is how many bytes each of its children may hold.
"""

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path

from eventstore.deciders.nursery import serve
from eventstore.deciders.tasks import Code
from eventstore.deciders.workspace_code import ToldCode, load_code
from eventstore.upcasting import MemoryVersions, Upcasting
from schemas.registry import MemoryRegistry


def main() -> None:
    """Load the code and serve it until the service is gone."""
    folder, memory, number = sys.argv[1:]
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    with socket.socket(fileno=int(number)) as control:
        serve(control, lambda: loaded(Path(folder)), memory=int(memory))


def loaded(workspace: Path) -> tuple[Code, ToldCode]:
    """Load the code. Raises what `load_code` raises, and `Misconfigured` for its upcasters."""
    found = load_code(workspace)
    # Types are brought by the service with each call.
    upcasting = Upcasting(found.upcasters, MemoryRegistry(), MemoryVersions())
    return Code(deciders=found.deciders, upcasting=upcasting), found.told()


if __name__ == "__main__":
    main()
