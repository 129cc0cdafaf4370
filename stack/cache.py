"""Where things that can be fetched again are kept: one folder per user, shared by workspaces."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return the cache folder: `PENSTOCK_CACHE`, else `$XDG_CACHE_HOME/penstock`, else ~/.cache."""
    if os.environ.get("PENSTOCK_CACHE"):
        return Path(os.environ["PENSTOCK_CACHE"]).expanduser().resolve()
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "penstock"
