"""Kafka Connect's REST API: apply a connector, watch it, stop it.

The one seam at which Connect's answers become errors of ours. Calls that meet a rebalance (409)
or a worker that is starting are `Unavailable` and repeated with back-off.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from kernel.errors import Misconfigured, NotFound, PenstockError, Unavailable
from kernel.retry import Backoff, retrying

_PATIENCE = Backoff(attempts=8, base_s=0.25, cap_s=2.0)
_TIMEOUT_S = 30.0
_RUNNING, _FAILED = "RUNNING", "FAILED"
_RIGHTS = re.compile("permission denied|must be superuser|password authentication|REPLICATION")
_TOO_LARGE = "max.request.size"
_NO_CLASS = "Failed to find any class that implements"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStatus:
    """State of a connector and its one task: RUNNING, PAUSED, STOPPED, FAILED, UNASSIGNED.

    `task` is None before Connect has made one. `cause` says in a few lines why it failed.
    """

    name: str
    connector: str
    task: str | None
    worker: str
    cause: str | None

    @property
    def running(self) -> bool:
        """Whether connector and task both run."""
        return self.connector == _RUNNING and self.task == _RUNNING

    @property
    def failed(self) -> bool:
        """Whether connector or task has given up until it is restarted."""
        return _FAILED in (self.connector, self.task)


class ConnectClient:
    """A client of one Connect cluster. Not shared between threads."""

    def __init__(
        self,
        url: str,
        *,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self.url = url.rstrip("/")
        # Certificates are read for each client anew, and clients are made for a few calls each.
        self._client = httpx.Client(
            base_url=self.url,
            timeout=timeout_s,
            transport=transport,
            verify=self.url.startswith("https:"),
        )

    def __enter__(self) -> ConnectClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def ask(self) -> None:
        """Ask once, without patience, whether a worker answers. Raises `Unavailable`."""
        self._once("GET", "/", None)

    def names(self) -> tuple[str, ...]:
        """Return the names of all connectors, sorted."""
        return tuple(sorted(self._call("GET", "/connectors")))

    def config(self, name: str) -> dict[str, str] | None:
        """Return a connector's present configuration, None when there is no such connector."""
        try:
            found = self._call("GET", f"/connectors/{_path(name)}/config")
        except NotFound:
            return None
        return {key: str(value) for key, value in found.items() if key != "name"}

    def apply(self, name: str, config: Mapping[str, str]) -> tuple[str, ...]:
        """Create or update a connector; return the keys that differed (all when it is new).

        Does nothing when the running configuration is the same.
        """
        changed = differences(config, self.config(name) or {})
        if changed:
            self._call("PUT", f"/connectors/{_path(name)}/config", dict(config))
        return changed

    def status(self, name: str) -> ConnectorStatus:
        """Return the state of a connector. Raises `NotFound`."""
        found = self._call("GET", f"/connectors/{_path(name)}/status")
        tasks = found.get("tasks") or []
        task = tasks[0] if tasks else {}
        trace = task.get("trace") or found["connector"].get("trace")
        return ConnectorStatus(
            name=name,
            connector=found["connector"]["state"],
            task=task.get("state"),
            worker=task.get("worker_id") or found["connector"]["worker_id"],
            cause=cause_of(trace) if trace else None,
        )

    def restart(self, name: str) -> None:
        """Restart the connector and its task where they have failed."""
        path = f"/connectors/{_path(name)}/restart?includeTasks=true&onlyFailed=true"
        self._call("POST", path)

    def pause(self, name: str) -> None:
        """Stop reading; the slot stays and keeps the source's WAL."""
        self._call("PUT", f"/connectors/{_path(name)}/pause")

    def resume(self, name: str) -> None:
        """Go on after a pause or stop."""
        self._call("PUT", f"/connectors/{_path(name)}/resume")

    def stop(self, name: str) -> None:
        """Shut the task down, which frees its slot; needed before offsets can be deleted."""
        self._call("PUT", f"/connectors/{_path(name)}/stop")

    def delete(self, name: str) -> None:
        """Delete a connector; nothing when there is none."""
        try:
            self._call("DELETE", f"/connectors/{_path(name)}")
        except NotFound:
            return

    def offsets(self, name: str) -> dict[str, Any]:
        """Return how far the connector has read, as Debezium words it; empty at the start."""
        found = self._call("GET", f"/connectors/{_path(name)}/offsets").get("offsets") or []
        return dict(found[0]["offset"]) if found else {}

    def forget_offsets(self, name: str) -> None:
        """Make a stopped connector begin anew."""
        self._call("DELETE", f"/connectors/{_path(name)}/offsets")

    def await_status(
        self,
        name: str,
        wanted: Callable[[ConnectorStatus], bool],
        *,
        timeout_s: float,
        watch: Callable[[], None] = lambda: None,
        give_up_failed: bool = True,
    ) -> ConnectorStatus:
        """Wait until the status is as wanted.

        `watch` is called between looks and may raise to give up early. Raises `Misconfigured`
        with the cause when the task has failed (`give_up_failed`), `Unavailable` when time is up.
        """
        deadline = time.monotonic() + timeout_s
        status: ConnectorStatus | None = None
        while True:
            try:
                status = self.status(name)
            except NotFound:
                status = None
            if status is not None and wanted(status):
                return status
            if give_up_failed and status is not None and status.failed:
                raise Misconfigured(
                    f"connector {name} failed: {status.cause}",
                    remedy=f"Mend the cause, then: penstock source resume {name.partition('-')[2]}",
                    connector=name,
                )
            if time.monotonic() > deadline:
                state = "unknown" if status is None else f"{status.connector}/{status.task}"
                raise Unavailable(
                    f"connector {name} is {state} after {timeout_s:.0f} s", connector=name
                )
            watch()
            time.sleep(0.2)

    def await_running(self, name: str, *, timeout_s: float = 60.0) -> ConnectorStatus:
        """Wait until connector and task run; see `await_status`."""
        return self.await_status(name, lambda s: s.running, timeout_s=timeout_s)

    def await_gone(self, name: str, *, timeout_s: float) -> None:
        """Wait until Connect speaks of a deleted connector no more. Raises `Unavailable`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                self.status(name)
            except NotFound:
                return
            time.sleep(0.1)
        raise Unavailable(f"connector {name} is still there {timeout_s:.0f} s after its deletion")

    def _call(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        return retrying(lambda: self._once(method, path, body), backoff=_PATIENCE)

    def _once(self, method: str, path: str, body: Mapping[str, str] | None) -> Any:
        try:
            answer = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise Unavailable(f"Kafka Connect at {self.url} does not answer: {error!r}") from error
        if answer.is_success:
            return answer.json() if answer.content else None
        raise _refusal(answer, path)


def lacks_rights(cause: str | None) -> bool:
    """Say whether a connector failed because its role lacks a right: the checks say which."""
    return cause is not None and _RIGHTS.search(cause) is not None


def refuse_too_large(status: ConnectorStatus) -> None:
    """Raise `Misconfigured` where a row does not fit into a record: no restart mends that."""
    if status.cause is not None and _TOO_LARGE in status.cause:
        raise Misconfigured(
            f"{status.name} has met a row that is larger than kafka.max_record_bytes:"
            f" {status.cause}",
            remedy="Raise kafka.max_record_bytes (its topics follow at the next start; the broker's"
            " message.max.bytes must allow it), then: penstock source resume"
            f" {status.name.partition('-')[2]}",
            connector=status.name,
        )


def differences(desired: Mapping[str, str], running: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys whose values differ, sorted; Connect's own `name` is not compared."""
    keys = (desired.keys() | running.keys()) - {"name"}
    return tuple(sorted(key for key in keys if desired.get(key) != running.get(key)))


def snapshot_phase(offsets: Mapping[str, object]) -> str:
    """Say how far a connector's own snapshot is, by what it keeps of its place."""
    if not offsets:
        return "not started"
    if offsets.get("snapshot") and not offsets.get("snapshot_completed"):
        return "running"
    return "completed"


def cause_of(trace: str) -> str:
    """Shorten a Java stack trace to its causes: the innermost first, at most three lines."""
    lines = [line for line in trace.splitlines() if line and not line.startswith(("\t", " "))]
    causes = [line.removeprefix("Caused by: ") for line in lines]
    # The outermost lines only say that something failed; the last cause says what.
    texts = [text.partition(": ")[2] or text for text in reversed(causes)]
    return " <- ".join(dict.fromkeys(texts[:3]))


def _refusal(answer: httpx.Response, path: str) -> PenstockError:
    try:
        first = str(answer.json()["message"]).strip()[:1000]
    except (ValueError, KeyError, TypeError):
        # Jetty answers before Connect has put its resources in place: a page, status 404.
        return Unavailable(f"Kafka Connect is starting: {answer.status_code} at {path}")
    if _NO_CLASS in first:
        return Misconfigured(
            f"Kafka Connect lacks a plugin: {first[:200]}",
            remedy="Put stack/connect/penstock-connect.jar beside Debezium's jars, in a folder of"
            " its plugin.path, and start it again.",
        )
    match answer.status_code:
        case 404:
            return NotFound(f"Kafka Connect: {first}", remedy="penstock source list shows them.")
        case 409 | 502 | 503:
            return Unavailable(f"Kafka Connect is rebalancing: {first}")
        case 400:
            return Misconfigured(f"Kafka Connect refuses the configuration: {first}")
        case status if status >= 500:
            return Unavailable(f"Kafka Connect fails at {path}: {first}")
        case status:
            return Misconfigured(f"Kafka Connect answers {status} at {path}: {first}")


def _path(name: str) -> str:
    return quote(name, safe="")
