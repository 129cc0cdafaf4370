"""All deliverers of a workspace: started, watched, started again, ended."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, assert_never

from delivery.config import (
    PATTERNS,
    BrokenFile,
    DeliveryFile,
    MailSection,
    WebhookSection,
    delivery_files,
)
from delivery.deliverer import Deliverer, Render
from delivery.mail import MailForm, MailSender, MailServer
from delivery.outcome import Sender
from delivery.secrets import secret
from delivery.template import Template
from delivery.webhook import WebhookSender, signing_key
from eventstore.groups.port import SubscriptionGroups
from eventstore.workspace_files import Stamp, changes, stamp_of
from kernel.errors import Conflict, Misconfigured, NotFound, PenstockError, Retry, retry_directive
from kernel.retry import Backoff

_log = logging.getLogger("penstock.delivery")
_AGAIN = Backoff(base_s=0.5, cap_s=30.0)
_FINISH_S = 15.0
"""What is being sent may take so long when the service ends."""
_BEYOND_S = 5.0
"""How long after its time-out an attempt is recorded."""

State = Literal["starting", "running", "failing", "outdated", "stopped"]


class DeliveryMetrics(Protocol):
    """Counts by delivery."""

    def counted(self, delivery: str, outcome: Literal["sent", "retried", "parked"]) -> None:
        """One event more with that outcome."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryStanding:
    """How a deliverer stands. `stopped` needs a person; `failing` goes on trying.

    `outdated`: its file is not right any more, and it goes on as the file was before.
    """

    name: str
    kind: str
    subscription: str
    state: State
    reason: str | None


class _Watched:
    """One deliverer as it is watched. Is the `DeliveryObserver` of its deliverer."""

    def __init__(self, file: DeliveryFile | BrokenFile, metrics: DeliveryMetrics) -> None:
        self.file = file
        self.reason: str | None = None
        self.begun = False
        self.stopped = False
        self.outdated: str | None = None
        self.task: asyncio.Task[None] | None = None
        self.deliverer: Deliverer | None = None
        self._metrics = metrics

    def delivered(self) -> None:
        """One was sent and recorded."""
        self.reason = None
        self._metrics.counted(self.file.name, "sent")

    def failed(self, reason: str, *, parked: bool) -> None:
        """One was tried in vain."""
        self.reason = reason
        self._metrics.counted(self.file.name, "parked" if parked else "retried")

    def stand_still(self, error: PenstockError) -> None:
        """Stop until the file changes or the service is started again."""
        self.stopped = True
        self.reason = f"{error.message} ({error.remedy})"
        _log.error("delivery %s stands still: %s", self.file.name, self.reason)

    def go_on_without(self, file: BrokenFile) -> None:
        """Go on as the file was before somebody broke it."""
        self.outdated = f"{file.error.message} ({file.error.remedy})"
        _log.error("delivery %s goes on as it was: %s", self.file.name, self.outdated)

    def stop(self) -> None:
        """Let the deliverer finish what it is sending and take no more."""
        self.stopped = True
        if self.deliverer is not None:
            self.deliverer.stop()
        elif self.task is not None:
            self.task.cancel()

    def _state(self) -> State:
        if self.stopped:
            return "stopped"
        if self.reason:
            return "failing"
        if self.outdated:
            return "outdated"
        return "running" if self.begun else "starting"

    def standing(self) -> DeliveryStanding:
        """Return how it stands."""
        known = self.file if isinstance(self.file, DeliveryFile) else None
        return DeliveryStanding(
            name=self.file.name,
            kind=known.section.kind if known else "unknown",
            subscription=known.subscription if known else self.file.name,
            state=self._state(),
            reason=self.reason or self.outdated,
        )


class Deliveries:
    """The deliverers of one service, which follow their files. Use as an async context manager."""

    def __init__(
        self,
        *,
        workspace: Path,
        groups: SubscriptionGroups,
        render: Render,
        metrics: DeliveryMetrics,
    ) -> None:
        self._workspace = workspace
        self._groups = groups
        self._render = render
        self._metrics = metrics
        self._watched: dict[str, _Watched] = {}
        self._ending = False
        self._watching: asyncio.Task[None] | None = None
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
        self._consumer = f"deliverer@{host}/{os.getpid()}"

    async def __aenter__(self) -> Deliveries:
        seen = stamp_of(self._workspace, PATTERNS)
        await self._take_up(delivery_files(self._workspace))
        self._watching = asyncio.create_task(self._watch(seen), name="watch deliveries")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*(_ended(watched, _FINISH_S) for watched in self._watched.values()))

    def stop(self) -> None:
        """Let all deliverers finish what they are sending and take no more."""
        self._ending = True
        for watched in self._watched.values():
            watched.stop()

    def standings(self) -> list[DeliveryStanding]:
        """Return how all deliverers stand, by name."""
        return [watched.standing() for _, watched in sorted(self._watched.items())]

    async def _watch(self, seen: Stamp) -> None:
        async for _ in changes(self._workspace, PATTERNS, seen):
            await self._take_up(delivery_files(self._workspace))

    async def _take_up(self, files: Sequence[DeliveryFile | BrokenFile]) -> None:
        """Make the deliverers those of the files.

        1. Those whose file is gone or has another content finish what they are sending, and end.
           A file that is not right ends none: the deliverer goes on as the file was before.
        2. The others of the files are started; those that stood still get another try.
        3. Each that has ended is started as its file is now, whatever the others still send.
        """
        wanted = {file.name: file for file in files}
        leaving: list[_Watched] = []
        for name, watched in self._watched.items():
            file = wanted.get(name)
            if isinstance(file, BrokenFile) and not watched.stopped:
                watched.go_on_without(file)
            elif file != watched.file or watched.stopped:
                watched.stop()
                leaving.append(watched)
            else:
                watched.outdated = None
        for name, file in wanted.items():
            if name not in self._watched and not self._ending:
                self._watched[name] = self._started(file)
        await asyncio.gather(*(self._replace(each, wanted.get(each.file.name)) for each in leaving))

    async def _replace(self, watched: _Watched, file: DeliveryFile | BrokenFile | None) -> None:
        """Wait until a deliverer has finished what it sends; run what its file says now instead."""
        await _ended(watched, _finish_s(watched.file))
        del self._watched[watched.file.name]
        if file is not None and not self._ending:
            self._watched[file.name] = self._started(file)

    def _started(self, file: DeliveryFile | BrokenFile) -> _Watched:
        watched = _Watched(file, self._metrics)
        match file:
            case DeliveryFile():
                watched.task = asyncio.create_task(
                    self._keep_running(watched, file), name=f"delivery {file.name}"
                )
            case BrokenFile(error=error):
                watched.stand_still(error)
            case _:
                assert_never(file)
        return watched

    async def _keep_running(self, watched: _Watched, file: DeliveryFile) -> None:
        """Run a deliverer, again after each failure, until it ends or stands still."""
        attempt = 0
        while not watched.stopped:
            try:
                sender = _sender(file, self._workspace)
            except Misconfigured as error:
                watched.stand_still(error)
                return
            except Exception as error:
                # A task that ends unheard would deliver nothing, and say so nowhere.
                _log.exception("delivery %s cannot start", file.name)
                watched.stand_still(Misconfigured(f"it cannot start: {error}"))
                return
            try:
                await self._run(watched, file, sender)
            except (NotFound, Conflict) as error:
                watched.stand_still(error)
            except PenstockError as error:
                watched.reason = error.message
                if retry_directive(error) is Retry.NEVER:
                    watched.stand_still(error)
            except Exception as error:
                _log.exception("delivery %s failed", file.name)
                watched.reason = type(error).__name__
            finally:
                watched.deliverer = None
                await sender.close()
            if not watched.stopped:
                await asyncio.sleep(_AGAIN.delay_s(attempt, uniform=max))
                attempt = min(attempt + 1, 10)

    async def _run(self, watched: _Watched, file: DeliveryFile, sender: Sender) -> None:
        await self._groups.create(
            file.subscription, filter_=file.filter, start=file.start, terms=file.terms
        )
        watched.reason = None
        watched.begun = True
        watched.deliverer = Deliverer(
            subscription=file.subscription,
            consumer=self._consumer,
            groups=self._groups,
            sender=sender,
            render=self._render,
            observer=watched,
            concurrency=file.section.concurrency,
            max_deliveries=file.section.retry.max_deliveries,
        )
        await watched.deliverer.run()


async def _ended(watched: _Watched, finish_s: float) -> None:
    """Wait until a deliverer that was stopped has finished, for a while; then cut it off."""
    if watched.task is not None:
        await asyncio.wait([watched.task], timeout=finish_s)
        watched.task.cancel()
        await asyncio.gather(watched.task, return_exceptions=True)


def _finish_s(file: DeliveryFile | BrokenFile) -> float:
    """Return how long an attempt may still take: the event of one that is cut off is sent again."""
    if isinstance(file, BrokenFile):
        return _FINISH_S
    return max(_FINISH_S, file.section.timeout_s + _BEYOND_S)


def _sender(file: DeliveryFile, workspace: Path) -> Sender:
    section = file.section
    match section:
        case WebhookSection():
            return WebhookSender(
                url=section.url,
                key=signing_key(secret(section.secret, workspace)),
                timeout_s=section.timeout_s,
            )
        case MailSection():
            password = None
            if section.password is not None:
                password = secret(section.password, workspace)
            # As SMTP takes them, and no character of a password is told of.
            if not f"{section.user or ''}{password or ''}".isascii():
                raise Misconfigured(
                    "the mail server's user and password must be of ASCII characters",
                    remedy="Set others at the mail server, then save the delivery's file again.",
                )
            return MailSender(
                server=MailServer(
                    host=section.host,
                    port=section.port,
                    security=section.security,
                    timeout_s=section.timeout_s,
                    user=section.user,
                    password=password,
                ),
                form=MailForm(
                    sender=section.from_,
                    recipients=[Template(each, place="to") for each in section.to],
                    subject=Template(section.subject, place="subject"),
                    body=Template(section.body, place="body"),
                ),
                concurrency=section.concurrency,
            )
        case _:
            assert_never(section)
