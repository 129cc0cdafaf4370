"""How PostgreSQL's connection strings go wrong."""

from __future__ import annotations

import re

SPELLING = (
    "Write postgresql://USER@HOST:PORT/DATABASE; write special characters of a password as %XX"
    " (%2F for /, %40 for @)."
)
"""The remedy. What is wrong is not quoted: it may be a part of the password."""

_PASSWORD_CUT = re.compile(r"postgres(?:ql)?://(?:[^@/]*@[^?]*|[^@?]*/[^?]*)@")
"""A URL with an '@' behind the one that ends the password, or behind the first '/'."""


def ends_early(dsn: str, ports: object) -> bool:
    """Say whether a bare '/' or '@' ended the password of a DSN that libpq could read.

    What was left of the password is then taken for a port, a host or a database. `ports` is what
    libpq took for them, several after commas; None where it found none.
    """
    found = str(ports or "").split(",")
    return bool(_PASSWORD_CUT.match(dsn)) or not all(re.fullmatch("[0-9]{0,5}", p) for p in found)
