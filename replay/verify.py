"""Compares a built generation with the live one at one epoch, and judges it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from deltalake import DeltaTable

from kernel.errors import Conflict, Incompatible, InvalidRequest, NotFound
from kernel.positions import CLOSED, Epoch
from lake.datasets import schema_of
from lake.tables import kept
from pipeline.typed.columns import EPOCH
from projections.sql.operators.shape import ORDER, PARTIAL
from replay.book import READY, Replay, ReplayBook, State
from replay.comparison import row_differences
from replay.copies import table_of
from replay.differences import RowDifferences
from replay.generations import build_app, generation_name, live_app, version_before
from replay.subject import Site, declaration, entry_of, has_late_rows, subject_of
from replay.table_types import TypeDifference, type_differences


class Verdict(StrEnum):
    """What a comparison says. Types come first: rows of other types are other rows."""

    EQUAL = "equal"
    EXPECTED = "different as expected"
    TYPES = "types differ"
    ROWS = "rows differ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Differences that are wanted.

    `rows`: SQL over the rows `live` and `built` of one key. `columns` may come, go, change their
    type and have any values.
    """

    rows: str | None = None
    columns: tuple[str, ...] = ()


NOTHING = Expectation()
"""Both generations are to be equal."""
ATTEMPTS = 10
"""Each compares the whole: one that is brought forward during all of them is not at rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationComparison:
    """What differs between the live generation and the built one, at one epoch.

    `types` counts every column; a hidden one only where both have it and their queries are one.
    `columns` are those whose values were compared: all that both have but such hidden ones,
    `_epoch`, which says when a row was written, those of a row's order where the runner does not
    choose the newest row by them, and those that are expected to differ.
    `declared`: late rows were asked for, there are some, and nothing else can make rows differ.
    """

    name: str
    generation: int
    epoch: int
    types: tuple[TypeDifference, ...]
    rows: RowDifferences
    columns: tuple[str, ...]
    expectation: Expectation
    declared: bool

    @property
    def verdict(self) -> Verdict:
        """Return what follows from the differences."""
        if any(each.name not in self.expectation.columns for each in self.types):
            return Verdict.TYPES
        rows = self.rows
        different = rows.missing + rows.extra + rows.differing
        if rows.repeated_keys or (different > rows.expected and not self.declared):
            return Verdict.ROWS
        return Verdict.EXPECTED if different or self.types else Verdict.EQUAL

    @property
    def equal(self) -> bool:
        """Whether both have the same columns and rows."""
        return self.verdict is Verdict.EQUAL

    @property
    def accepted(self) -> bool:
        """Whether a swap needs no further confirmation."""
        return self.verdict in (Verdict.EQUAL, Verdict.EXPECTED)

    @property
    def document(self) -> dict[str, object]:
        """Return everything for programs, under stable names."""
        plain = asdict(self)
        return {
            "verdict": self.verdict.value,
            "equal": self.equal,
            "accepted": self.accepted,
            **{name: plain[name] for name in ("name", "generation", "epoch", "types")},
            **plain["rows"],
            **{name: plain[name] for name in ("columns", "expectation", "declared")},
        }


Comparing = Callable[[Site, Replay, Expectation], GenerationComparison]
"""Compares a generation with what is live."""


def comparable(site: Site, replay: Replay) -> bool:
    """Say whether the live generation has a version at exactly the built one's epoch."""
    return _stands(_built_table(site, replay), replay).epoch in _live_versions(site, replay)


def verify(
    site: Site,
    name: str,
    *,
    generation: int | None = None,
    expectation: Expectation = NOTHING,
    compare: Comparing | None = None,
) -> GenerationComparison:
    """Compare the newest built generation with the live one, and note the result in the book.

    `compare` does, where the generation is of something else than a projection.
    One that is brought forward meanwhile is compared once more. Raises `NotFound` when there is
    none, or when the live one has no version at its epoch, or does not keep it any more;
    `Incompatible` where the live one lacks the built one's key.
    """
    book = ReplayBook(site.place, site.tables)
    for attempt in range(1, ATTEMPTS + 1):
        replay = book.newest(name, *READY, generation=generation)
        generation = replay.generation
        found = (compare or _compared)(site, replay, expectation)
        state = State.VERIFIED if found.accepted else State.DIFFERS
        now = replay.now(state, epoch=Epoch(found.epoch), detail=found.document)
        try:
            # A swap may have claimed it meanwhile, or made it the table.
            book.record(now, after=READY, epoch=replay.epoch)
        except Conflict:
            known = book.known(name, generation)
            moved = known is not None and known.state in READY and known.epoch != replay.epoch
            if not moved or attempt == ATTEMPTS:
                raise
        else:
            break
    return found


def live_epoch(site: Site, replay: Replay) -> Epoch:
    """Return the newest epoch of the live generation. Raises `NotFound` before its first run."""
    versions = _live_versions(site, replay)
    if not versions:
        raise NotFound(
            f"{replay.name} has never run: there is nothing to compare with",
            remedy=f"Swap without comparison: penstock replay swap {replay.name} "
            "--yes --reason WHY",
        )
    return Epoch(max(versions))


def _built_table(site: Site, replay: Replay) -> DeltaTable:
    if site.into is not None:
        return table_of(site, replay)
    return DeltaTable(site.lake.path(generation_name(replay.name, replay.generation)))


def _stands(built: DeltaTable, replay: Replay) -> Replay:
    """Return a generation as of the epoch that its table has, by a handle of that.

    A catch-up without new input commits nothing, one that died was not noted: the book or the
    table may know better.
    """
    done = built.transaction_version(build_app(replay.name, replay.generation))
    if done is None or done == CLOSED or done <= replay.epoch:
        return replay
    return replay.now(replay.state, epoch=Epoch(done), detail=replay.detail)


def _compared(site: Site, replay: Replay, expectation: Expectation) -> GenerationComparison:
    """Compare the table of a generation as it is now with the live one's of its epoch."""
    built = _built_table(site, replay)
    replay = _stands(built, replay)
    name, versions = replay.name, _live_versions(site, replay)
    if replay.epoch not in versions:
        raise NotFound(
            f"the live generation of {name} has no version at epoch {replay.epoch}, up to which "
            f"generation {replay.generation} was built",
            remedy=f"penstock wait --caught-up, then penstock replay verify {name}",
        )
    path = site.lake.path(f"projection/{name}")
    # What somebody else wrote since then is in it: readers of the table have these rows.
    newest = version_before(path, live_app(name, replay.base), replay.epoch)
    stable = kept(path, max(versions[replay.epoch], newest or 0))
    if stable is None:
        raise NotFound(
            f"what {name} was at epoch {replay.epoch}, up to which generation "
            f"{replay.generation} was built, is not kept any more (lake.retention_days)",
            remedy=f"Build it again: penstock replay apply {name}",
        )
    declared = _is_declared(site, replay)
    return _compare(site, replay, stable, built, expectation, declared=declared)


def _is_declared(site: Site, replay: Replay) -> bool:
    """Say whether late rows alone make a generation differ: the live one would give the same."""
    live = entry_of(site, replay.name)
    if not replay.include_late or live.include_late:
        return False
    queries = {declaration(replay.name, text).fingerprint for text in (replay.text, live.text)}
    subject = subject_of(site, replay.name, replay.text)
    return len(queries) == 1 and has_late_rows(site, subject, replay.epoch)


def _live_versions(site: Site, replay: Replay) -> dict[int, int]:
    runs = site.manifest.history_of(live_app(replay.name, replay.base))
    stable = f"projection/{replay.name}"
    return {run.epoch: run.tables[stable].version for run in runs if stable in run.tables}


def _compare(
    site: Site,
    replay: Replay,
    stable: DeltaTable,
    built: DeltaTable,
    expectation: Expectation,
    *,
    declared: bool,
) -> GenerationComparison:
    theirs = set(schema_of(built).names)
    columns = [name for name in schema_of(stable).names if name in theirs]
    refuse_unknown(expectation.columns, {*theirs, *schema_of(stable).names})
    key = declaration(replay.name, replay.text).key
    if not set(key) <= set(columns):
        raise Incompatible(
            f"generation {replay.generation} has the key {', '.join(key)}, which the live one has "
            "not: rows cannot be compared",
            remedy=f"Look at both, then: penstock replay swap {replay.name} --yes --reason WHY",
        )
    # Elsewhere the order is what a first run wrote and later ones did not keep up.
    by_order = subject_of(site, replay.name, replay.text).plan.ordered
    left_out = {EPOCH, *expectation.columns, *(() if by_order else ORDER)} - set(key)
    own = _of_one_alone(site, replay, stable, built) - {*key, *expectation.columns}
    compared = tuple(name for name in columns if name not in left_out | own)
    return GenerationComparison(
        name=replay.name,
        generation=replay.generation,
        epoch=replay.epoch,
        types=tuple(each for each in type_differences(stable, built) if each.name not in own),
        rows=row_differences(
            stable,
            built,
            key=key,
            columns=compared,
            expect=expectation.rows,
            large=site.large,
        ),
        columns=compared,
        expectation=expectation,
        declared=declared,
    )


def _of_one_alone(site: Site, replay: Replay, stable: DeltaTable, built: DeltaTable) -> set[str]:
    """Return the hidden columns that say how one of two different queries is kept."""
    live, candidate = ({*schema_of(table).names} for table in (stable, built))
    hidden = {n for n in live | candidate if n.startswith(PARTIAL) or n in ORDER}
    same = entry_of(site, replay.name).text == replay.text
    return hidden - (live & candidate) if same else hidden


def refuse_unknown(expected: Sequence[str], known: set[str]) -> None:
    """Raise `InvalidRequest` for a column that is expected to differ and is in neither table."""
    for name in expected:
        if name not in known:
            raise InvalidRequest(
                f"neither generation has a column {name}",
                remedy=f"The columns are: {', '.join(sorted(known))}",
            )
