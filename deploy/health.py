"""Exit with 0 when a URL answers with 2xx: the health check inside Penstock's image."""

from __future__ import annotations

import sys
import urllib.request


def main(url: str) -> int:
    """Return 0 for an answer of 2xx within three seconds, else 1."""
    try:
        with urllib.request.urlopen(url, timeout=3) as answer:
            return 0 if 200 <= answer.status < 300 else 1
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
