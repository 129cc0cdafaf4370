"""Keys of the advisory locks that the event store takes in its database."""

from __future__ import annotations

MIGRATE_LOCK = 7_305_801_001
"""Held while migrations are applied."""
APPEND_LOCK = 7_305_801_002
"""Held from the first check of a group to its commit: positions follow commit order."""
LEASE_LOCK = 730_580_103
"""With the lease's number, held by the writer's connection as long as it lives: tells a dead
writer from a slow one. A key of two integers, unlike the others.
"""
TYPES_LOCK = 7_305_801_004
"""Held while the schema of a type is changed, so that two inferences do not lose each other."""
RESTORE_LOCK = 7_305_801_005
"""Held by the one process that fills the store."""
