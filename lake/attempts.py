"""Work on several tables, of which one that fails keeps no other from being done."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernel.errors import LeaseLost, without_stack
from lake.layout import part_of
from lake.tables import TableAt

log = logging.getLogger("penstock.tables")


@dataclass(slots=True)
class Attempts:
    """What was done and what failed, by the tables' names.

    A name may stand for all tables below it: `typed/shop` for those of source `shop`.
    """

    done: dict[str, TableAt] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Keep an error of the block as that of one table, and go on behind the block.

        Raises `LeaseLost`: another writer took over, which ends the work on every table.
        """
        try:
            yield
        except LeaseLost:
            raise
        except Exception as error:
            log.error("%s fails: %s", name, without_stack(error), exc_info=error)
            self.failed[name] = error

    def take(self, others: Attempts) -> None:
        """Add what other attempts did and failed at."""
        self.done |= others.done
        self.failed |= others.failed

    def narrow(self, name: str) -> None:
        """Keep as `name`'s own what failed above it: nothing else was tried.

        A table that is tried alone may fail for what all of them share (their log cannot be
        read). It stays held by its own name, by which its user looks for it.
        """
        self.failed = {
            name if part_of(name, failed) else failed: error
            for failed, error in self.failed.items()
        }
