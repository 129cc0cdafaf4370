"""How far one who follows the changes of a projection has come, as a text that is kept.

`TABLE.v3` has all of version 3 of the table; `TABLE.v3.e40.n5` its first five rows, as of epoch 40;
`TABLE.v3.w4.e41.n5` all of version 3, and the first five differences on the way to version 4, which
is of epoch 41. `TABLE` tells the tables of one projection and one lake from all others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from kernel.errors import InvalidRequest
from kernel.positions import DeltaVersion, Epoch

_PLACE: Final = re.compile(
    r"([0-9a-f]{8})\.v(\d{1,18})(?:(?:\.w(\d{1,18}))?\.e(\d{1,18})\.n(\d{1,18}))?", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPlace:
    """How far a reader has come; `epoch` and `done` are given amid rows or differences.

    `towards` is the version that differences lead to; without it the rows of `version` are sent.
    """

    table_id: str
    version: DeltaVersion
    towards: DeltaVersion | None = None
    epoch: Epoch | None = None
    done: int | None = None

    def __str__(self) -> str:
        text = f"{self.table_id}.v{self.version}"
        if self.towards is not None:
            text += f".w{self.towards}"
        return text if self.done is None else f"{text}.e{self.epoch}.n{self.done}"


def place_of(text: str) -> FeedPlace | None:
    """Read a place; None for nothing, from which all rows are sent. Raises `InvalidRequest`."""
    if not text:
        return None
    found = _PLACE.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"{text[:100]!r} is no place in a feed of changes",
            remedy="Send the id of the last change that you have, or `end`, or nothing.",
        )
    table_id, version, towards, epoch, done = found.groups()
    return FeedPlace(
        table_id=table_id,
        version=DeltaVersion(int(version)),
        towards=None if towards is None else DeltaVersion(int(towards)),
        epoch=None if epoch is None else Epoch(int(epoch)),
        done=None if done is None else int(done),
    )


def table_id_of(lake_id: str, projection: str) -> str:
    """Return what tells the versions of a projection's table from those of all others."""
    return sha256(f"{lake_id}/{projection}".encode()).hexdigest()[:8]
