"""Counts the records in quarantine that a source's transactions may lack rows for.

Records are counted by what their topic is named after: a captured table, `_messages` for logical
messages, `_transactions` for the BEGIN and END of transactions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.identifiers import topic_part
from schemas.records import MESSAGES


@dataclass(slots=True)
class Shortfalls:
    """Records of one source that no transaction has been found to lack, by table.

    `unread` wait for a decision; `waived` may be lacking without consequence.
    """

    unread: Counter[str] = field(default_factory=Counter)
    waived: Counter[str] = field(default_factory=Counter)

    def quarantined(self, table: str) -> None:
        """Count a record that cannot be read."""
        self.unread[topic_part(table)] += 1

    def read_again(self, table: str) -> None:
        """Take note that a record is out of quarantine: its row is counted, or was in the log."""
        part = topic_part(table)
        self.unread[part] -= self.unread[part] > 0

    def waive(self, table: str) -> None:
        """Let the transaction of a record that cannot be read be complete without it."""
        part = topic_part(table)
        if self.unread[part]:
            self.unread[part] -= 1
            self.waived[part] += 1

    def forget(self, table: str) -> None:
        """Take note that a copy of a table has all that its records in quarantine said."""
        self.unread.pop(topic_part(table), None)

    def concerns(self, lacking: Mapping[str, int]) -> bool:
        """Say whether what a transaction lacks may be among the records."""
        return any(self.unread[part] or self.waived[part] for part in map(topic_part, lacking))

    def excuses(self, lacking: Mapping[str, int]) -> bool:
        """Say whether a transaction that lacks these rows for good is complete.

        A logical message may have told of any table: only one that was waived is excused.
        """
        for table, rows in lacking.items():
            part = topic_part(table)
            if rows > self.waived[part] + (self.unread[part] if part != MESSAGES else 0):
                return False
        return True

    def take(self, lacking: Mapping[str, int]) -> set[str]:
        """Settle what a complete transaction lacks; return the tables that lack an unread row."""
        found: set[str] = set()
        for table, rows in lacking.items():
            part = topic_part(table)
            waived = min(rows, self.waived[part])
            self.waived[part] -= waived
            self.unread[part] -= rows - waived
            if rows > waived:
                found.add(table)
        return found

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return the form in which the manifest keeps it."""
        return {"unread": dict(+self.unread), "waived": dict(+self.waived)}

    @classmethod
    def from_json(cls, kept: object) -> Shortfalls:
        """Restore what `to_json` gave; nothing where there were none yet."""
        match kept:
            case {"unread": dict(unread), "waived": dict(waived)}:
                return cls(unread=Counter(unread), waived=Counter(waived))
        return cls()
