"""Applies explained changes to a state, as a reader of an explanation would."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from eventstore.deciders.explanation import FieldChange


def applied(state: Any, changes: Iterable[FieldChange]) -> Any:
    """Return the state after the changes, in their order; each must find what it says was there."""
    whole = [copy.deepcopy(state)]
    for change in changes:
        inside: Any = whole
        names = ["0", *change.field.split("/")[1:]]
        for name in names[:-1]:
            inside = inside[_place(inside, name)]
        place = _place(inside, names[-1])
        there = place in inside if isinstance(inside, dict) else place < len(inside)
        assert (inside[place],) == change.before if there else change.before == ()
        if not change.after:
            del inside[place]
        elif isinstance(inside, list) and not there:
            assert place == len(inside)
            inside.append(change.after[0])
        else:
            inside[place] = change.after[0]
    return whole[0]


def _place(inside: Any, name: str) -> Any:
    return int(name) if isinstance(inside, list) else name.replace("~1", "/").replace("~0", "~")
