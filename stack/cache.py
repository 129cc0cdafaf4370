"""Where things that can be fetched again are kept: one folder per user, shared by workspaces."""

from __future__ import annotations

import os
from pathlib import Path

from kernel.errors import Misconfigured


def cache_dir() -> Path:
    """Return the cache folder: `PENSTOCK_CACHE`, else `$XDG_CACHE_HOME/penstock`, else ~/.cache.

    Raises `Misconfigured` where this user has no home, as one without an account in a container.
    """
    own = os.environ.get("PENSTOCK_CACHE")
    root = own or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        found = Path(root).expanduser()
    except RuntimeError as error:
        raise Misconfigured(
            f"there is no folder to keep what is fetched in: {root} leads to no home",
            remedy="Name a folder: PENSTOCK_CACHE=DIR. Or set HOME.",
        ) from error
    return found.resolve() if own else found / "penstock"
