"""`penstock token`: what calls of the HTTP services carry."""

from __future__ import annotations

import sys

from apps.access import token_of
from apps.cli.commands import CommandCall, commands


def token(call: CommandCall) -> None:
    """Print the workspace's token: curl -H "authorization: Bearer $(penstock token)" …

    It is made at first use and lies in .penstock/token, which only you may read. The commands and
    the Python client find it by themselves.
    """
    found = call.settings
    if found.text("service.auth") == "none":
        print("service.auth is none: nobody asks for a token", file=sys.stderr)
    shown = token_of(found)
    call.answer({"token": shown}, text=shown)


register = commands(token)
