"""Everything that Penstock raises, in one tree.

    PenstockError
    ├── ContractViolation     the caller asked for something that its contract forbids
    │   ├── SchemaViolation       data does not fit the registered schema
    │   ├── UnknownType           an event type without a schema, in strict mode
    │   ├── InvalidRequest        a malformed name, body, option or SQL text
    │   ├── Refused               a decider said no to a command, and why
    │   ├── SequenceReused        a change with the key and sequence of another one
    │   └── ChecksumMismatch      bytes that are not the ones that were pinned
    ├── Conflict              true when asked, no longer true now
    │   ├── VersionConflict       expected version and actual version differ
    │   ├── ConditionFailed       an event that the decision did not know of
    │   ├── IdReused              an event id with other content than before
    │   ├── BeyondHead            a feed was to start where the store has not come yet
    │   ├── SubscriptionDiffers   a subscription of that name listens to something else
    │   ├── LeaseLost             another writer took over (fencing)
    │   ├── InstallDeclined       rows that were copied do not fit what happened since
    │   └── Cancelled             somebody asked for the end of this work
    ├── NotFound              no such stream, table, projection, epoch, source
    │   └── StreamGone            a stream that was deleted for good
    ├── Incompatible          versions, schemas or stores that do not go together
    │   ├── TooLarge              more rows than one process may take in at once
    │   │   └── BeyondThisProcess     what Spark's executors compute instead, by themselves
    │   └── StoreDiverged         a position has other content than before, or is gone
    ├── Unavailable           a part that is down, full or overloaded just now
    │   ├── Overloaded            a bounded queue is full
    │   ├── NotComparable         a table that moves on while it is looked at
    │   ├── Standby               another service is the writer
    │   ├── OutcomeUnknown        it may or may not have happened: retry with the same ids
    │   └── StorageFull           a disk is full, or below the space that is kept in reserve
    └── Misconfigured         settings or surroundings that a person must mend
        └── DeciderFailed         code of the workspace's deciders or upcasters went wrong
            └── DeciderStopped    such code did not end, or took its process with it

Each class says whether a retry can help (`retry`) and what to do (`remedy`). `retry_directive`
is the only place that decides on a retry, `exit_code` the only one that maps to the shell; the
HTTP service has the one mapping to problem documents.

Bad data is not in this tree: a record that cannot be used is a value (`schemas.records.Rejected`).
"""

from __future__ import annotations

import errno
import os
import re
from enum import Enum
from typing import ClassVar

_RUST_STACK = re.compile(r"\n\s+0: ")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_FULL = re.compile("|".join(map(os.strerror, _NO_ROOM)))
_DISK_FULL = "53100"
"""The SQLSTATE of PostgreSQL."""
_TELL_OF_FILES = frozenset({"OSError", "IOException", "DeltaError", "ComputeError"})
"""Errors that tell of files, by the names that Python, DuckDB, deltalake and Polars give them."""
_TELL_OF_SPILLING = frozenset({"OutOfMemoryException"})
"""What DuckDB raises where neither memory nor the disk behind it has room: it names the latter."""
_SPILLS_NO_MORE = "max_temp_directory_size"
_TELL_OF_THROWN = frozenset({"PySparkException", "Py4JJavaError"})
_THROWN_FOR_ROOM = re.compile(
    r"(?m)(?:^|: )(?:[\w.]+\.)?(?:(?:IO|FileNotFound|FileSystem)Exception|OSError): "
    rf".*(?:{_FULL.pattern})"
)
"""Java has names of their own for a file that finds no room from its first byte on."""
_TELL_OF_COMMITS = frozenset({"TransactionException", "FatalException"})
"""What DuckDB raises where writing fails at a commit or a checkpoint; of keys that are doubled too,
which it quotes."""
_COMMITTED_WITHOUT_ROOM = re.compile(
    r"Failed to (?:commit|create checkpoint because of error): "
    rf"Could not write .*: (?:{_FULL.pattern})"
)


class Retry(Enum):
    """What a caller who wants the same thing again should do."""

    NOW = "now"
    BACKOFF = "backoff"
    NEVER = "never"


class PenstockError(Exception):
    """Root of the tree. `fields` are for programs, the message is for people.

    The message names the cause; `remedy` names the next command or change.
    """

    retry: ClassVar[Retry] = Retry.NEVER
    remedy: str = "See the message; nothing was changed."

    def __init__(self, message: str, *, remedy: str | None = None, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields
        if remedy is not None:
            self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (Spark's Python workers): keep keyword fields.
        return _rebuild, (type(self), self.message, self.remedy, self.fields)

    def __str__(self) -> str:
        return self.message


def _rebuild(
    kind: type[PenstockError], message: str, remedy: str, fields: dict[str, object]
) -> PenstockError:
    return kind(message, remedy=remedy, **fields)


class ContractViolation(PenstockError):
    """The caller asked for something that the contract forbids."""

    remedy = "Correct the request; repeating it unchanged gives the same answer."


class SchemaViolation(ContractViolation):
    """Data does not fit the registered schema."""

    remedy = "Correct the data, or register a compatible schema: penstock schema add TYPE FILE"


class UnknownType(ContractViolation):
    """An event type without a schema, where schemas are not inferred."""

    remedy = "Register its schema first: penstock schema add CATEGORY.TYPE FILE.avsc"


class InvalidRequest(ContractViolation):
    """A malformed name, body, option or SQL text."""


class Refused(ContractViolation):
    """A decider said no to a command. Deciders raise it with the reason for the caller."""

    remedy = "Read the entity's state; send the command again when the reason no longer holds."


class SequenceReused(ContractViolation):
    """Two changes have one key and one sequence, and differ: which came last cannot be known."""

    remedy = "Order by more columns, as struct(committed, place), or let such go to quarantine."


class ChecksumMismatch(ContractViolation):
    """Downloaded bytes are not the ones that the lock file pins."""

    remedy = "Remove the named file and try again; if it repeats, your mirror serves another file."


class Conflict(PenstockError):
    """Something else happened first."""

    remedy = "Read the present state and decide again."


class VersionConflict(Conflict):
    """The expected version and the actual version of a stream differ."""

    remedy = "Read the stream, decide on its present version and append again."


class ConditionFailed(Conflict):
    """An event that matches the condition of an append was recorded behind its `after`."""

    remedy = "Query again, decide on what is there now, and append with the new head as after."


class IdReused(Conflict):
    """An event id that was already used for other content."""

    remedy = "Give every new event an id of its own; repeat an id only for the same event."


class BeyondHead(Conflict):
    """A feed was asked to start behind positions that this store has not reached."""

    remedy = "Start at or below the head. A restored or new store begins again at 1."


class SubscriptionDiffers(Conflict):
    """A subscription of that name exists, with another filter or start."""

    remedy = "Choose another name, or delete it first: penstock subscription delete NAME."


class LeaseLost(Conflict):
    """Another writer holds the lease now; this one must not write any more."""

    retry = Retry.BACKOFF
    remedy = "Nothing to do: the writer that holds the lease goes on."


class InstallDeclined(Conflict):
    """Copied rows cannot become a table: what came since does not go together with them."""

    remedy = "The copier reads the table again by itself: penstock source status NAME."


class Cancelled(Conflict):
    """Somebody asked for the end of this work while it ran."""

    remedy = "Start it again when it is wanted after all."


class NotFound(PenstockError):
    """No such thing by that name."""

    remedy = "Check the name; the list command of its kind shows what there is."


class StreamGone(NotFound):
    """A stream that was deleted for good: nobody reads it or appends to it any more."""

    remedy = "Use another stream; all events that there ever were are still read by position."


class Incompatible(PenstockError):
    """Versions, schemas or stores that do not go together."""

    remedy = "Use the versions of the lock file; penstock doctor lists what differs."


class TooLarge(Incompatible):
    """Rows of Spark's executors are more than what the driver may take in at once."""

    remedy = "Set pipeline.executor to auto or spark, so that executors do what is large."


class BeyondThisProcess(TooLarge):
    """A step needs what one process does not hold or compute: Spark's executors take it over."""

    remedy = "Nothing: it is computed by Spark. Report it where it was shown."


class StoreDiverged(Incompatible):
    """A position has other content than before, or is gone: this is another store by now."""

    remedy = (
        "It was restored or replaced. Give it a new id: `penstock store renew-id --yes && "
        "penstock restart service && penstock restart pipeline`."
    )


class Unavailable(PenstockError):
    """A part that is down or not ready just now."""

    retry = Retry.BACKOFF
    remedy = "It is retried by itself; penstock status shows which part is down and why."


class Overloaded(Unavailable):
    """A bounded queue is full."""

    remedy = "Slow down and retry after the time that the answer names."


class NotComparable(Unavailable):
    """A captured table cannot be compared at one LSN of its source; at a later one it can."""

    retry = Retry.NOW
    remedy = "Verify again: a later moment has it."


class Standby(Unavailable):
    """Another service of this store is the writer; this one takes over when that one ends."""

    remedy = "Send appends to the writer, or retry: the one that is left takes over."


class OutcomeUnknown(Unavailable):
    """The request may or may not have taken effect."""

    retry = Retry.NOW
    remedy = "Send the same request again with the same event ids: it happens once."


class StorageFull(Unavailable):
    """A disk is full, or has less free space than the reserve that is kept."""

    remedy = "Free disk space, or lower storage.min_free_bytes; work resumes by itself."


class Misconfigured(PenstockError):
    """Settings or surroundings that a person must mend."""

    remedy = "Mend the named setting; penstock doctor checks all of them."


class DeciderFailed(Misconfigured):
    """Code of the workspace's deciders or upcasters raised, or returned what it may not."""

    remedy = "Mend the code at the named line and restart the service; nothing was appended."


class DeciderStopped(DeciderFailed):
    """Code of the workspace did not end in time, or took its process with it: it was killed."""

    remedy = (
        "Mend the loop or the allocation in the named decider; its stack is in the log: penstock "
        "logs service. Nothing was appended."
    )


EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NEEDS_CONFIRMATION = 3
EXIT_CONFLICT = 4
EXIT_UNHEALTHY = 5
EXIT_PARTIAL = 6


FIX = " | fix: "
"""Stands between a cause and the command that mends it, where both are one text."""


def cause_and_fix(error: Exception, *, most: int) -> str:
    """Say what went wrong, in at most so many characters, and what mends it.

    An error that is none of ours leads to the pipeline's log.
    """
    remedy = getattr(error, "remedy", "penstock logs pipeline")
    return f"{without_stack(error)[:most]}{FIX}{remedy}"


def first_line(error: BaseException) -> str:
    """Return what an error says, without the stacks and hints that libraries write below it."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""


def without_stack(error: BaseException) -> str:
    """Return all that an error says but for the stack that Rust's libraries write below it."""
    return _RUST_STACK.split(str(error), maxsplit=1)[0].strip()


def is_no_room(error: BaseException) -> bool:
    """Say whether a disk that is full is what an error tells, or what caused it.

    The words alone do not say so: a value that does not fit is quoted in an error, too.
    """
    if isinstance(error, StorageFull) or getattr(error, "sqlstate", None) == _DISK_FULL:
        return True
    number = error.errno if isinstance(error, OSError) else None
    found = number in _NO_ROOM if number is not None else _says_no_room(error)
    return found or (error.__cause__ is not None and is_no_room(error.__cause__))


def _says_no_room(error: BaseException) -> bool:
    """Read what libraries say in words alone: Rust's, DuckDB's, and Spark of what was thrown."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _TELL_OF_FILES:
        return _FULL.search(str(error)) is not None
    if names & _TELL_OF_SPILLING:
        return _SPILLS_NO_MORE in str(error)
    if names & _TELL_OF_COMMITS:
        return _COMMITTED_WITHOUT_ROOM.search(str(error)) is not None
    return bool(names & _TELL_OF_THROWN) and _THROWN_FOR_ROOM.search(str(error)) is not None


def exit_code(error: BaseException) -> int:
    """Map an error to the exit code of the command line."""
    match error:
        case Conflict():
            return EXIT_CONFLICT
        case Unavailable():
            return EXIT_UNHEALTHY
        case InvalidRequest():
            return EXIT_USAGE
        case _:
            return EXIT_FAILED


def retry_directive(error: BaseException) -> Retry:
    """Decide whether the same call may succeed later. Unknown errors are never retried."""
    return error.retry if isinstance(error, PenstockError) else Retry.NEVER
