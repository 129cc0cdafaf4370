"""When the tail of a table is folded into its base: as often as is cheap, and before it is full."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPolicy:
    """When a table gets a tail, and when the tail is folded. Sizes in bytes, times in seconds.

    Up to `direct_bytes` a table is merged in every epoch and has no tail. Above, its base is at
    most about `freshness_s` behind, plus the time of two merges, while a merge takes no more than
    `dear_s`. One that took n times that is followed by a rest n times as long as itself, up to
    `rest` times: merging takes a twentieth of the time where it is dear. Up to `eager_bytes` no
    rest is longer than `longest_rest_s`: such a merge is dear where the machine stands still, and
    not by its own work. Above, a base waits as well until the tail has `share` of its rows, or for
    `longest_s` and for `rest` times as long as its merges take. `most_rows` and `most_bytes` bound
    a tail in memory: a tail that is half full is folded at once, and when it is full all the same,
    ingest waits. One that would be half full within `flood_s` is folded when it is, or once it is
    `flood_rest` times as old as a merge takes: in a backlog a merge for each epoch would take more
    than all else that is done with the epoch. Of a base whose
    `share` is more than half of `most_rows` a tail may have twice that share: a merge writes all of
    the base, and the changes that it is for grow with it.
    """

    freshness_s: float = 0.4
    direct_bytes: int = 2**19
    eager_bytes: int = 96 * 2**20
    share: float = 0.01
    longest_s: float = 60.0
    rest: float = 20.0
    dear_s: float = 1.0
    longest_rest_s: float = 300.0
    most_rows: int = 500_000
    most_bytes: int = 64 * 2**20
    flood_s: float = 10.0
    flood_rest: float = 10.0

    def due(
        self, *, age_s: float, rows: int, size: int, base_rows: int, base_bytes: int, spent_s: float
    ) -> bool:
        """Say whether a tail of `rows`, the oldest `age_s` old, is to be folded now.

        `size` is what the rows take in memory, `spent_s` what merges take.
        """
        if self.full(2 * rows, 2 * size, base_rows):
            return age_s >= self.freshness_s
        half_full = max(2 * rows / self._most_rows(base_rows), 2 * size / self.most_bytes)
        if age_s < min(self.flood_s * half_full, self.flood_rest * spent_s):
            return False
        if base_bytes <= self.eager_bytes or rows >= self.share * base_rows:
            rest_s = spent_s * min(self.rest, spent_s / self.dear_s)
            if base_bytes <= self.eager_bytes:
                rest_s = min(rest_s, self.longest_rest_s)
            cheap = spent_s <= self.dear_s
            return age_s >= (self.freshness_s if cheap else max(self.freshness_s, rest_s))
        return age_s >= max(self.longest_s, self.rest * spent_s)

    def full(self, rows: int, size: int, base_rows: int) -> bool:
        """Say whether a tail of so many rows and bytes is more than memory is to hold."""
        return rows > self._most_rows(base_rows) or size > self.most_bytes

    def _most_rows(self, base_rows: int) -> float:
        return max(self.most_rows, 2 * self.share * base_rows)
