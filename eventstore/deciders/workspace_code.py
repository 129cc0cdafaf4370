"""A workspace's own code: `deciders/*.py` and `upcasters/*.py`, imported when they change.

A file of `deciders/` holds one or more `Decider`s, a file of `upcasters/` one or more `Upcaster`s,
each in a variable of the module. Files whose name begins with `_` are for the others to import
(`from ._money import …`); `test_….py` and `conftest.py` are left alone.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from eventstore.deciders import Decider
from eventstore.deciders.entities import LoadedDecider
from eventstore.deciders.workers import failure, text_of
from eventstore.upcasting import Upcaster
from kernel.errors import DeciderFailed, Misconfigured, PenstockError

DECIDERS = "deciders"
UPCASTERS = "upcasters"
PATTERNS = (f"{DECIDERS}/**/*.py", f"{UPCASTERS}/**/*.py")
"""All files that the code may come from."""
_FOLDING = 1
"""Raised when this version of Penstock folds the same events to another state."""
_numbers = itertools.count(1)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldCode:
    """What a service knows of code that runs elsewhere. `upcasters`: event and version of each."""

    deciders: tuple[LoadedDecider, ...] = ()
    upcasters: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCode:
    """What a workspace's folders hold. `deciders` by category, `files` by category too."""

    deciders: dict[str, Decider[Any]]
    files: dict[str, Path]
    upcasters: tuple[Upcaster, ...]
    checksum: str

    def told(self) -> ToldCode:
        """Describe it, with what stands for each decider's code and all that it uses."""
        return ToldCode(
            deciders=tuple(
                LoadedDecider.of(each, f"{each.version}.{_FOLDING}.{self.checksum}")
                for each in self.deciders.values()
            ),
            upcasters=tuple(
                (str.__str__(each.event), int(each.version)) for each in self.upcasters
            ),
        )


def load_code(workspace: Path) -> WorkspaceCode:
    """Import a workspace's deciders and upcasters; folders that are not there hold none.

    Raises `DeciderFailed` with file and line when a file cannot be imported, lacks what its
    folder is for, or lacks a part; also when two files are for the same category, or while they
    are being written.
    """
    checksum = _checksum(workspace)
    code = _loaded(workspace, checksum)
    if _checksum(workspace) != checksum:
        raise DeciderFailed(
            f"the files of {DECIDERS}/ and {UPCASTERS}/ changed while they were read",
            remedy="They are read again at once in a running service; else start it again.",
        )
    return code


def _loaded(workspace: Path, checksum: str) -> WorkspaceCode:
    deciders: dict[str, Decider[Any]] = {}
    files: dict[str, Path] = {}
    for path, found in _instances(workspace / DECIDERS, Decider):
        if found.category in files:
            raise DeciderFailed(
                f"{path}: category {found.category} has a decider already, in "
                f"{files[found.category]}",
                remedy="Keep one decider for each category.",
            )
        files[found.category] = path
        deciders[found.category] = found
    upcasters = tuple(each for _, each in _instances(workspace / UPCASTERS, Upcaster))
    return WorkspaceCode(deciders=deciders, files=files, upcasters=upcasters, checksum=checksum)


def _instances(folder: Path, kind: type[T]) -> Iterator[tuple[Path, T]]:
    """Yield what the files of a folder hold, each object once, in the order of the names."""
    seen: set[int] = set()
    for path, module in _modules(folder):
        found = [each for each in vars(module).values() if isinstance(each, kind)]
        if not found:
            raise DeciderFailed(
                f"{path}:1: no {kind.__name__} in this file",
                remedy=f"Put one into a variable of the module, or begin the file's name with '_' "
                f"when other files of {folder.name}/ only import it.",
                file=str(path),
                line=1,
            )
        for each in found:
            if id(each) not in seen:
                seen.add(id(each))
                yield path, each


def _modules(folder: Path) -> Iterator[tuple[Path, ModuleType]]:
    paths = [path for path in sorted(folder.glob("*.py")) if not _aside(path)]
    if not paths:
        return
    # A package of its own for each load: what another workspace loaded stays what it was.
    package = f"penstock_{folder.name}_{next(_numbers)}"
    spec = importlib.machinery.ModuleSpec(package, None, is_package=True)
    spec.submodule_search_locations = [str(folder.resolve())]
    sys.modules[package] = importlib.util.module_from_spec(spec)
    # Bytecode is judged by whole seconds, so it may be that of the file before an edit.
    loader = (_SourceLoader, [".py"])
    sys.path_importer_cache[str(folder.resolve())] = FileFinder(str(folder.resolve()), loader)
    for path in paths:
        yield path, _imported(f"{package}.{path.stem}", path)


class _SourceLoader(SourceFileLoader):
    """Compiles a file as it is now, whatever bytecode lies beside it, and writes none."""

    def path_stats(self, path: str) -> Any:
        """Have no times to compare, which is how bytecode is left aside."""
        raise OSError


def _imported(name: str, path: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _not_imported(path, error) from error


def _not_imported(path: Path, error: BaseException) -> DeciderFailed:
    what = f"{path.parent.name}/{path.name} cannot be imported"
    told = failure(error, what)
    remedy = "Mend the code at the named line; a running service takes it up by itself."
    if isinstance(error, PenstockError):
        place = f"{told.fields.get('file', path)}:{told.fields.get('line', 1)}"
        return DeciderFailed(
            f"{place}: {text_of(error)}",
            remedy=error.remedy if isinstance(error, Misconfigured) else remedy,
            **told.fields,
        )
    return DeciderFailed(told.message, remedy=remedy, **told.fields)


def _aside(path: Path) -> bool:
    return path.name.startswith(("_", "test_")) or path.name == "conftest.py"


def _checksum(workspace: Path) -> str:
    """Stand for all code of the workspace: a changed file makes every snapshot worthless."""
    digest = sha256()
    for folder in (DECIDERS, UPCASTERS):
        for path in sorted((workspace / folder).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(workspace)} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:32]
