"""The one form of all commands: a function with what it is asked, and a `CommandCall` that answers.

    def show(call: CommandCall, stream: Stream) -> None: ...
    register = commands(stream=[list_, show])

Each gets --workspace and --json behind its own parameters. One without such a call stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_type_hints

import typer

from apps.cli import COMMANDS
from apps.cli.groups import Group
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import call_with, emit, tell
from apps.settings import Settings, load
from kernel.errors import EXIT_NEEDS_CONFIRMATION, NotFound
from lake.layout import Lake

if TYPE_CHECKING:
    from eventstore.service_client import ServiceClient
    from projections.run.catalog import DeployedCatalog

Command = Callable[..., None]


class CommandAnswers:
    """What a command answers of several things, one after the other."""

    def __init__(self) -> None:
        self.documents: list[object] = []
        self.pages: list[str] = []

    def add(self, document: object, page: str) -> None:
        """Add the answer about one of them: for programs, and for people."""
        self.documents.append(document)
        self.pages.append(page)


class CommandCall:
    """One call of a command: about whose workspace, and whether it is answered by JSON."""

    def __init__(self, workspace: Path | None = None, *, as_json: bool = False) -> None:
        self.workspace = workspace
        self.as_json = as_json

    @cached_property
    def settings(self) -> Settings:
        """The workspace's settings. Raises `Misconfigured`."""
        return load(self.workspace)

    @property
    def lake(self) -> Lake:
        """The workspace's lake, which may not be there yet."""
        return Lake.named(self.settings.lake)

    @property
    def made_lake(self) -> Lake:
        """The workspace's lake. Raises `NotFound` where there is none yet."""
        from lake import storage

        if not storage.exists(self.settings.lake):
            raise NotFound(
                f"there is no lake at {self.settings.lake}",
                remedy="It comes with the first event or captured row, while the stack runs: "
                "penstock up",
            )
        return Lake.at(self.settings.lake)

    @property
    def catalog(self) -> DeployedCatalog:
        """What is deployed in the workspace's lake, which may not be there yet."""
        from lake.rows import SmallTables
        from projections.run.catalog import DeployedCatalog

        return DeployedCatalog(self.lake, SmallTables())

    def service(self) -> ServiceClient:
        """Return a client of the workspace's service."""
        from apps.calls import service_client

        return service_client(self.settings)

    def answer(self, document: object, text: str | None = None, *, verbatim: bool = False) -> None:
        """Print an answer, as `output.emit` does."""
        emit(document, as_json=self.as_json, text=text, verbatim=verbatim)

    @contextmanager
    def answers(self, *, several: bool, between: str = "\n\n") -> Iterator[CommandAnswers]:
        """Print what the block adds, once it ends: a list of documents where there are `several`.

        Also behind an error: what is known of the first ones is told all the same.
        """
        told = CommandAnswers()
        try:
            yield told
        finally:
            if told.documents:
                document = told.documents if several else told.documents[0]
                self.answer(document, text=between.join(told.pages))

    def refuse_unconfirmed(
        self, what: str, *, needs: str = "--yes", fix: str | None = None, **fields: object
    ) -> NoReturn:
        """Say what a command would do, and with which words it does it; nothing is done without.

        These are the words of the call and those that it `needs`, unless `fix` says otherwise: with
        one option less it could be about another workspace, or more than was asked for. `fields`
        are for programs, in place of the reason. Ends with the exit code for it.
        """
        self.answer({"needs": needs, **(fields or {"reason": what})}, text=what)
        if not self.as_json:
            tell(f"  fix: {fix or call_with(*needs.split())}")
        raise typer.Exit(EXIT_NEEDS_CONFIRMATION)


def commands(*single: Command, **groups: Sequence[Command]) -> Callable[[typer.Typer], None]:
    """Return what adds commands, and groups of them, to a Typer; `COMMANDS` has the groups' lines.

    They are called as their functions are: `list_` is `list`, `table_list` of a group `table` too.
    """

    def register(app: typer.Typer) -> None:
        for function in single:
            app.command(_name(function))(_asked(function))
        for name, members in groups.items():
            group = typer.Typer(cls=Group, help=_LINES[name])
            for function in members:
                group.command(_name(function, of=name))(_asked(function))
            app.add_typer(group, name=name)

    return register


_LINES = {name: line for lines in COMMANDS.values() for name, line in lines.items()}


def _name(function: Command, of: str = "") -> str:
    return function.__name__.removeprefix(f"{of}_").rstrip("_").replace("_", "-")


def _asked(function: Command) -> Command:
    """Return a function as Typer reads it: with the parameters that make a `CommandCall` of it."""
    first, *own = inspect.signature(function).parameters.values()
    kinds = get_type_hints(function, include_extras=True)
    if kinds[first.name] is not CommandCall:
        return function

    @wraps(function)
    def asked(*, workspace: Path | None, as_json: bool, **given: Any) -> None:
        function(CommandCall(workspace, as_json=as_json), **given)

    vars(asked)["__signature__"] = inspect.Signature(
        [
            *(each.replace(annotation=kinds[each.name]) for each in own),
            _option("workspace", WorkspaceOption, None),
            _option("as_json", JsonOption, False),
        ]
    )
    return asked


def _option(name: str, kind: Any, default: object) -> inspect.Parameter:
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, either, default=default, annotation=kind)
