"""`penstock init`, `penstock config show`: a workspace's files, and its settings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from apps import settings
from apps.cli.commands import CommandCall, commands
from apps.cli.options import JsonOption, NewWorkspaceOption
from apps.cli.output import HIDDEN, emit, table, without_password
from apps.settings import Setting
from kernel.errors import InvalidRequest, Misconfigured, NotFound

_SECRET = re.compile(r"service\.token|spark\..*(secret|password|token|access\.?key)", re.I)
"""Names of settings whose values are secrets; of Spark's own those that Spark hides, too."""


def init(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The folder (default: the workspace)")
    ] = None,
    workspace: NewWorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a workspace to begin with: settings, schemas, rules and a projection.

    Its README leads through them. Nothing that is there is written over.
    """
    from apps.cli.starter import begin
    from lake.layout import lake_root
    from stack.workspace import path_complaint

    if folder is not None and workspace is not None:
        raise InvalidRequest(
            "two folders are named", remedy=f"Name one: penstock init {shlex.quote(str(folder))}"
        )
    root = folder or settings.root_of(workspace)
    # Where a stack or its lake could not lie, nobody is led to begin.
    complaint = path_complaint(root.resolve())
    if complaint is not None:
        raise Misconfigured(complaint, remedy="Choose another folder: penstock init DIR")
    lake_root("lake", base=root.resolve())
    written = [str(path) for path in begin(root)]
    told = "\n".join([*written, "", f"Go on with: cd {shlex.quote(str(root))} && penstock up"])
    emit({"files": written}, as_json=as_json, text=told, verbatim=True)


def show(
    call: CommandCall,
    key: Annotated[
        str | None, typer.Argument(help="A setting or a section, as service.port or service")
    ] = None,
    changed: Annotated[bool, typer.Option(help="Only those that are not their defaults.")] = False,
) -> None:
    """Show the settings that hold here, and where each comes from; secrets are hidden.

    The first of these that has a value gives it: the command's flag, the environment, the file
    penstock.toml, the running stack, the default.
    """
    found = {
        name: setting
        for name, setting in call.settings.values.items()
        if key is None or name == key or name.startswith(f"{key}.")
    }
    if not found:
        raise NotFound(
            f"there is no setting and no section {key}", remedy="See them all: penstock config show"
        )
    if changed:
        found = {name: each for name, each in found.items() if each.origin != "default"}
    document = {
        name: {"value": _shown(name, each), "origin": each.origin} for name, each in found.items()
    }
    rows = [(name, each["value"], each["origin"]) for name, each in document.items()]
    text = table(("setting", "value", "from"), rows, nothing="every setting is its default")
    call.answer(document, text=text)


def _shown(name: str, setting: Setting) -> object:
    secret = _SECRET.match(name) and setting.value
    return HIDDEN if secret else without_password(setting.value)


register = commands(init, config=[show])
