"""Which derived table is made anew, and up to which epoch of the lake that is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernel.errors import InvalidRequest, NotFound
from kernel.positions import Epoch
from lake.layout import Lake
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import TYPED, Committed
from pipeline.history.shape import HistoryOf
from pipeline.installs.install_book import InstallBook
from pipeline.position.progress import Progress
from pipeline.typed.columns import SEQ_HI, SEQ_LO, TRUNCATES, truncates_name
from pipeline.typed.topics import typed_topic
from projections.run.catalog import Deployment
from projections.run.derived_holds import covered
from projections.run.relations import LakeCatalog
from replay.generation_names import derived_name
from replay.subject import Site


@dataclass(frozen=True, slots=True)
class DerivedLake(Lake):
    """A lake whose log is its own, and whose typed and history tables lie elsewhere.

    The table `name` lies at `made`, others beside it.
    """

    name: str
    made: str

    def path(self, name: str) -> str:
        """Return the root of a table; see `Lake.path`."""
        if name == self.name:
            return self.made
        if name.startswith(("typed/", "history/")):
            return Lake(f"{self.made}/_beside").path(name)
        return Lake.path(self, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedSubject:
    """A table that the log decides: `name`, as `current/shop.public.orders`.

    `typed` are its facts. `source` is None for those of an event type. `identity`: the key of a
    captured table. `history`: how versions are kept, where it is one. `up_to`: the epoch that is
    made, as of which the live table can be read.
    """

    name: str
    typed: str
    source: str | None
    table: str
    identity: tuple[str, ...]
    soft: bool
    history: HistoryOf | None
    up_to: Epoch

    @property
    def kind(self) -> str:
        """Return what kind of table it is."""
        return self.name.partition("/")[0]

    @property
    def needed(self) -> tuple[str, ...]:
        """Name the typed tables that it is made of."""
        return (self.typed,) if self.source is None else (self.typed, truncates_name(self.source))

    def of(self, done: Committed) -> Committed:
        """Return an epoch with nothing but what the table is made of."""
        if self.source is None:
            return replace(done, cuts={})
        cuts = {source: at for source, at in done.cuts.items() if source == self.source}
        return replace(done, heads={}, cuts=cuts)

    @property
    def row_key(self) -> tuple[str, ...]:
        """Return the columns by which its rows are told apart."""
        match self.kind:
            case "current":
                return self.identity
            case "history":
                assert self.history is not None, "it is one"
                return (*self.history.named_as_kept().key, "valid_from", SEQ_HI, SEQ_LO)
            case _ if self.source is None:
                return ("event_id",)
            case _:
                return (SEQ_HI, SEQ_LO, "_lsn", "_operation", *self.identity)


def derived_subject(site: Site, asked: str) -> DerivedSubject:
    """Return what is to be made under a name as users write it, as `typed.events.order.placed`.

    Raises `NotFound` where there is no such table, `InvalidRequest` for one that is not made of the
    log of a store or of a captured source.
    """
    name = derived_name(asked)
    assert name is not None, "the caller looked"
    table = site.tables.open(site.lake.path(name))
    if table is None:
        raise NotFound(f"there is no table {asked}", remedy="penstock table list")
    kind, _, rest = name.partition("/")
    deployment = site.deployed.deployment()
    history = _history(site, deployment, rest) if kind == "history" else None
    typed = f"typed/{rest}" if history is None else history.typed
    if rest.startswith("_") or typed.startswith(typed_topic("")) or typed.endswith(TRUNCATES):
        raise _not_derived(asked)
    if typed.startswith("typed/events."):
        source, _, of = "", "", ""
    else:
        source, _, of = typed.removeprefix("typed/").partition(".")
    identity = deployment.keys().get(f"{source}.{of}", ())
    if source and not identity:
        raise _not_derived(asked)
    return DerivedSubject(
        name=name,
        typed=typed,
        source=source or None,
        table=of,
        identity=identity,
        soft=deployment.keeps_deleted(source, of),
        history=history,
        up_to=_epoch(site, name, typed),
    )


def _history(site: Site, deployment: Deployment, name: str) -> HistoryOf:
    typed = [f"typed/{each}" for each in {**deployment.keys()}]
    catalog = LakeCatalog(site.lake, site.tables, deployment, typed=typed, fields=site.fields)
    found = catalog.history_of(name)
    if found is None or found.records:
        raise _not_derived(f"history.{name}")
    return found


def _not_derived(asked: str) -> InvalidRequest:
    return InvalidRequest(
        f"{asked} is not made of the log of a store or of a captured table with a key",
        remedy="Name a typed table of events, or a typed, current or history table of a captured "
        "one: penstock table list",
    )


def _epoch(site: Site, name: str, typed: str) -> Epoch:
    """Return the last epoch that the live table has, as a version of it that can be read."""
    note = site.manifest.projected().get(TYPED)
    known = _first_known(site.manifest)
    if note is None or known is None:
        raise NotFound("nothing was ingested yet", remedy="penstock wait --caught-up")
    if name.startswith("current/"):
        source, _, table = name.removeprefix("current/").partition(".")
        last = site.manifest.last()
        assert last is not None, "an epoch is known"
        stands = Progress.from_json(last.progress).held.get(source, {}).get(table)
        return last.epoch if stands is None else max(Epoch(stands.from_epoch - 1), known)
    held = [hold for each, hold in note.held.items() if covered(typed, [each]) or each == name]
    return min([note.epoch, *(Epoch(max(hold.from_epoch - 1, 0)) for hold in held)])


def _first_known(manifest: Manifest) -> Epoch | None:
    last = manifest.last()
    if last is None:
        return None
    return manifest.between(Epoch(0), last.epoch)[0].epoch


def log_rows(site: Site, subject: DerivedSubject) -> Mapping[Epoch, int]:
    """Return how many rows each known epoch logged of what the table's are among, or copied."""
    kind = "events" if subject.source is None else "changes"
    epochs = site.manifest.between(Epoch(0), subject.up_to)
    copied = {
        install.number: install.rows
        for install in InstallBook(site.lake, site.tables).installs()
        if (install.source, install.table) == (subject.source, subject.table)
    }
    return {
        done.epoch: done.counts.get(kind, 0) + sum(copied.get(n, 0) for n in done.installs)
        for done in epochs
    }
