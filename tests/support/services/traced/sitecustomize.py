"""Python imports this module at its start when this folder is on PYTHONPATH.

It notes the first call of each function in TRACED_FUNCTIONS (`module:qualified.name`, separated by
blanks) as a line of the file TRACED_CALLS, in every process that the environment reaches. Functions
are wrapped when their module has been imported, before anybody can take them from it.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_CALLS = os.environ.get("TRACED_CALLS", "")
_WANTED: dict[str, list[str]] = defaultdict(list)
for _place in os.environ.get("TRACED_FUNCTIONS", "").split():
    _WANTED[_place.partition(":")[0]].append(_place.partition(":")[2])


class _Watcher(MetaPathFinder):
    """Finds the wanted modules as Python does, and wraps their functions after they were run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _WANTED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_wrap(module: ModuleType) -> None:
            run(module)
            for place in _WANTED[name]:
                _wrap(module, place)

        spec.loader.exec_module = run_and_wrap  # Loaders are objects of their own for each module.
        return spec


def _wrap(module: ModuleType, place: str) -> None:
    owner_name, _, name = place.rpartition(".")
    owner = getattr(module, owner_name) if owner_name else module
    found = getattr(owner, name)
    if isinstance(found, type):
        found.__init__ = _noting(found.__init__, f"{module.__name__}:{place}")
    else:
        setattr(owner, name, _noting(found, f"{module.__name__}:{place}"))


def _noting(function: Callable[..., object], place: str) -> Callable[..., object]:
    unseen = [True]

    @functools.wraps(function)
    def noting(*arguments: object, **named: object) -> object:
        if unseen:
            unseen.clear()
            with open(_CALLS, "a") as calls:
                calls.write(f"{place}\n")
        return function(*arguments, **named)

    return noting


if _CALLS and _WANTED:
    sys.meta_path.insert(0, _Watcher())
