"""Keys that have to lie together: a transaction makes one of the other.

The new half of a changed key takes what its old half had. Whoever lays rows into files by the hash
of their key therefore lays all keys that are linked in this way by one hash.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.current.key_files import Hashes

MOST_LINKS = 2_000_000
"""So many links are in memory."""
MOST_TOGETHER = 1_000
"""So many keys may be linked: all of them are in one file, and in memory at once."""


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """The hashes of linked keys, ascending, and for each the one by which its group is laid."""

    keys: Hashes
    groups: Hashes

    def grouped(self, hashes: Hashes) -> Hashes:
        """Return the hashes by which keys are laid: their own, where they are not linked."""
        if not len(self.keys):
            return hashes
        places = np.minimum(np.searchsorted(self.keys, hashes), len(self.keys) - 1)
        return np.where(self.keys[places] == hashes, self.groups[places], hashes)


def groups_of(old: Hashes, new: Hashes) -> KeyGroups | None:
    """Return the groups of keys that are linked pair by pair; None where one is too large."""
    keys, places = np.unique(np.concatenate([old, new]), return_inverse=True)
    ends = places.reshape(2, len(old))
    first = np.arange(len(keys))
    while True:
        # The least of both ends is the group of both, and a group's own group is that of all.
        least = np.minimum(first[ends[0]], first[ends[1]])
        found = first.copy()
        for side in ends:
            np.minimum.at(found, side, least)
        found = found[found]
        if np.array_equal(found, first):
            break
        first = found
    if np.bincount(first, minlength=1).max() > MOST_TOGETHER:
        return None
    return KeyGroups(keys, keys[first])
