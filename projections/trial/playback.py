"""A test at work: its rows as one batch, row by row, and in other orders, each compared.

The facts and which of them came late are the same every time, so that the table must be too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from kernel.errors import ContractViolation
from projections.run.dataflow import Dataflow
from projections.sql.operators.shape import InputKind, Plan
from projections.sql.operators.tree import Newest, Scan, scans
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.plan import plan
from projections.sql.statements.declarations import ProjectionDecl, SourceDecl
from projections.sql.words.places import nearest
from projections.trial.differences import Difference, differences
from projections.trial.inputs import Arrivals, GivenCatalog, Holdings, Row, TrialFact, input_rows
from projections.trial.literals import value_of
from projections.trial.statements import Expected, GivenRows, Trial, TrialFile

ONE_BATCH, ROW_BY_ROW, SHUFFLED = "one batch", "row by row", "shuffled"
_EPOCHS = 3

OnSpark = Callable[[Plan, dict[str, pa.Table]], pa.Table]
"""Computes a plan over views on Spark: for what has expressions that only Spark computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationVerdict:
    """What became of one expectation. `ways` are the orders of arrival that were tried."""

    test: str
    projection: str
    line: int
    ways: tuple[str, ...]
    failures: dict[str, tuple[Difference, ...]]
    error: str | None

    @property
    def ok(self) -> bool:
        """Whether everything was as expected."""
        return not self.failures and self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A projection under test. `small`: the small executor computes it and all that it reads.

    `reads` are the projections among its inputs.
    """

    plan: Plan
    tree: Newest
    small: bool
    reads: dict[str, _Subject]

    @property
    def streams(self) -> list[Scan]:
        """Its streams, whose watermark final rows wait for."""
        return [scan for scan in scans(self.tree) if scan.kind is InputKind.STREAM]


class _Table:
    """A projection's table, kept over facts that come in epochs."""

    def __init__(self, subject: _Subject, holdings: Holdings, lateness: timedelta) -> None:
        self._subject = subject
        self._holdings = holdings
        self._lateness = lateness
        self._dataflow = Dataflow(subject.tree)
        self._rows: dict[tuple[object, ...], Row] = {}
        self._reads = {
            name: _Table(each, holdings, lateness) for name, each in subject.reads.items()
        }
        self.taken: list[TrialFact] = []

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def close(self) -> None:
        self._dataflow.close()
        for each in self._reads.values():
            each.close()

    def take(self, facts: Sequence[TrialFact]) -> None:
        """Take in facts as one epoch."""
        before = list(self.taken)
        self.taken += facts
        stateful = self._subject.plan.stateful
        read = {name: self._moved(each, facts) for name, each in self._reads.items()}
        for scan in scans(self._subject.tree):
            if scan.kind is InputKind.STREAM:
                rows = self._holdings.rows(scan, facts, stateful=stateful)
                self._dataflow.add(scan, [rows])
                continue
            if scan.name in read:
                came, went = (input_rows(scan, rows) for rows in read[scan.name])
            else:
                came = self._holdings.rows(scan, self.taken, stateful=stateful)
                went = self._holdings.rows(scan, before, stateful=stateful)
            self._dataflow.add(scan, [came])
            self._dataflow.add(scan, [went], weight=-1)
        self._dataflow.pass_watermark(
            self._holdings.ended_us(self._subject.streams, self.taken, self._lateness)
        )
        changes = self._dataflow.round().to_pylist()
        for row in sorted(changes, key=lambda each: int(each["_w"])):
            weight = row.pop("_w")
            key = tuple(row[name] for name in self._subject.tree.keys)
            if weight < 0:
                del self._rows[key]
            else:
                self._rows[key] = row

    def _moved(self, read: _Table, facts: Sequence[TrialFact]) -> tuple[list[Row], list[Row]]:
        """Bring a table that is read up to the facts; return its rows then and before."""
        before = read.rows
        read.take(facts)
        return read.rows, before


class _Stage:
    """One test file's projections and inputs."""

    def __init__(
        self,
        file: TrialFile,
        sources: Sequence[SourceDecl],
        projections: Sequence[ProjectionDecl],
        lateness: timedelta,
        on_spark: OnSpark,
    ) -> None:
        self._file = file
        self._declared = {each.name: each for each in projections}
        self._lateness = lateness
        self._on_spark = on_spark
        self._catalog = DeclaredCatalog(GivenCatalog(file.inputs), sources, projections)
        inputs = {each.name: each for each in file.inputs}
        self._holdings = Holdings(inputs=inputs, sources=sources)
        self._subjects: dict[str, _Subject] = {}

    def verdicts(self, trial: Trial) -> Iterator[ExpectationVerdict]:
        """Play one test; yield a verdict for each expectation."""
        arrivals = Arrivals(
            script=self._file.script, holdings=self._holdings, lateness=self._lateness
        )
        facts: list[TrialFact] = []
        gradual: dict[str, _Table] = {}
        try:
            for step in trial.steps:
                if isinstance(step, GivenRows):
                    facts += arrivals.facts(step)
                else:
                    yield self._verdict(trial, step, facts, gradual)
        finally:
            for table in gradual.values():
                table.close()

    def _verdict(
        self, trial: Trial, step: Expected, facts: list[TrialFact], gradual: dict[str, _Table]
    ) -> ExpectationVerdict:
        subject = self._subject(step.name, step.at)
        names = self._names(step, subject.plan)
        wanted = self._wanted(step, names, subject.plan)
        ways = _ways(trial, step) if subject.small else (ONE_BATCH,)
        failures: dict[str, tuple[Difference, ...]] = {}
        error = None
        try:
            for way in ways:
                rows = self._played(way, step.name, subject, facts, gradual)
                found = [{name: row[name] for name in names} for row in rows]
                different = differences(wanted, found, subject.plan.key)
                if different:
                    failures[way] = tuple(different)
        except ContractViolation as broken:
            error = broken.message
        return ExpectationVerdict(
            test=trial.name,
            projection=step.name,
            line=self._file.script.place(step.at)[0],
            ways=ways,
            failures=failures,
            error=error,
        )

    def _played(
        self,
        way: str,
        name: str,
        subject: _Subject,
        facts: list[TrialFact],
        gradual: dict[str, _Table],
    ) -> list[Row]:
        """Return the rows of a projection after facts that came in one way or another."""
        if not subject.small:
            return self._whole(subject, facts)
        if way == ROW_BY_ROW:
            if name not in gradual:
                gradual[name] = _Table(subject, self._holdings, self._lateness)
            table = gradual[name]
            for fact in facts[len(table.taken) :]:
                table.take([fact])
            return table.rows
        epochs = [facts] if way == ONE_BATCH else _shuffled(facts)
        fresh = _Table(subject, self._holdings, self._lateness)
        try:
            for epoch in epochs:
                fresh.take(epoch)
            return fresh.rows
        finally:
            fresh.close()

    def _whole(self, subject: _Subject, facts: list[TrialFact]) -> list[Row]:
        stateful = subject.plan.stateful
        views = {
            scan.view: input_rows(scan, self._whole(subject.reads[scan.name], facts))
            if scan.name in subject.reads
            else self._holdings.rows(scan, facts, stateful=stateful)
            for scan in scans(subject.tree)
        }
        ended = self._holdings.ended_us(subject.streams, facts, self._lateness)
        made = replace(subject.plan, rows_sql=subject.plan.rows_at(ended))
        rows: list[Row] = self._on_spark(made, views).to_pylist()
        return [row for row in rows if all(row[name] is not None for name in subject.plan.key)]

    def _subject(self, name: str, at: int) -> _Subject:
        if name not in self._subjects:
            decl = self._declared.get(name)
            if decl is None:
                raise self._file.script.refusal(
                    f"there is no projection {name}{nearest(name, self._declared)}",
                    at=at,
                    fix="Declare it in a SQL file beside the test.",
                )
            made = plan(decl, self._catalog)
            tree = made.tree
            reads = {
                scan.name: self._subject(scan.name, at)
                for scan in scans(tree)
                if scan.kind is InputKind.PROJECTION
            }
            small = made.small and all(each.small for each in reads.values())
            self._subjects[name] = _Subject(plan=made, tree=tree, small=small, reads=reads)
        return self._subjects[name]

    def _names(self, step: Expected, made: Plan) -> tuple[str, ...]:
        """Return the columns that are compared, as the projection spells them."""
        known = {each.name.lower(): each.name for each in made.columns}
        for name in step.columns:
            if name.lower() not in known:
                raise self._file.script.refusal(
                    f"{step.name} gives no column {name}{nearest(name, known)}",
                    at=step.at,
                    fix=f"Its columns: {', '.join(known.values())}.",
                )
        names = tuple(known[name.lower()] for name in step.columns) or made.key
        lacking = [name for name in made.key if name not in names]
        if lacking:
            raise self._file.script.refusal(
                f"rows are compared by key, and {', '.join(lacking)} of {step.name} is not named",
                at=step.at,
                fix=f"Name the key's columns too: {', '.join(made.key)}.",
            )
        return names

    def _wanted(self, step: Expected, names: Sequence[str], made: Plan) -> list[Row]:
        kinds = {each.name: each.type for each in made.columns}
        rows: dict[tuple[object, ...], Row] = {}
        for literals in step.values:
            row: Row = {
                name: value_of(literal, kinds[name], self._file.script)
                for name, literal in zip(names, literals, strict=True)
            }
            key = tuple(row[name] for name in made.key)
            if key in rows:
                raise self._file.script.refusal(
                    "two expected rows have the same key",
                    at=literals[0].at,
                    fix="A projection has one row of each key.",
                )
            rows[key] = row
        return list(rows.values())


def played(
    file: TrialFile,
    sources: Sequence[SourceDecl],
    projections: Sequence[ProjectionDecl],
    *,
    lateness: timedelta,
    on_spark: OnSpark,
) -> list[ExpectationVerdict]:
    """Play all tests of a file over the declarations beside it.

    `lateness` is that of sources that name none. Raises `InvalidRequest`, with the place, for a
    test that cannot be played.
    """
    stage = _Stage(file, sources, projections, lateness, on_spark)
    return [verdict for trial in file.trials for verdict in stage.verdicts(trial)]


def _ways(trial: Trial, step: Expected) -> tuple[str, ...]:
    """Return the orders of arrival to try: other ones with all that a test gives, at its end."""
    last = [each for each in trial.steps if isinstance(each, Expected) and each.name == step.name]
    return (ONE_BATCH, ROW_BY_ROW, *([SHUFFLED] if step is last[-1] else []))


def _shuffled(facts: Sequence[TrialFact]) -> Iterable[list[TrialFact]]:
    """Split facts into epochs in another order; a table's changes keep theirs, as commits do."""
    draw = random.Random(len(facts))
    order = draw.sample(range(len(facts)), len(facts))
    mixed = [facts[place] for place in order]
    committed = iter([fact for fact in facts if not fact.of_events])
    mixed = [fact if fact.of_events else next(committed) for fact in mixed]
    borders = sorted(draw.randint(0, len(mixed)) for _ in range(_EPOCHS - 1))
    for start, end in zip([0, *borders], [*borders, len(mixed)], strict=True):
        yield mixed[start:end]
