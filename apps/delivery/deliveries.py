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

from apps.delivery.config import BrokenFile, DeliveryFile, MailSection, WebhookSection
from apps.delivery.deliverer import Deliverer, Render
from apps.delivery.mail import MailForm, MailSender, MailServer
from apps.delivery.outcome import Sender
from apps.delivery.secrets import secret
from apps.delivery.template import Template
from apps.delivery.webhook import WebhookSender, signing_key
from eventstore.groups.port import SubscriptionGroups
from kernel.errors import Conflict, Misconfigured, NotFound, PenstockError, Retry, retry_directive
from kernel.retry import Backoff

_log = logging.getLogger("penstock.delivery")
_AGAIN = Backoff(base_s=0.5, cap_s=30.0)
_FINISH_S = 15.0

State = Literal["running", "failing", "stopped"]


class DeliveryMetrics(Protocol):
    """Counts by delivery."""

    def counted(self, delivery: str, outcome: Literal["sent", "retried", "parked"]) -> None:
        """One event more with that outcome."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryStanding:
    """How a deliverer stands. `stopped` needs a person; `failing` goes on trying."""

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
        self.stopped = False
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
        """Stop until the service is started again."""
        self.stopped = True
        self.reason = f"{error.message} ({error.remedy})"
        _log.error("delivery %s stands still: %s", self.file.name, self.reason)

    def standing(self) -> DeliveryStanding:
        """Return how it stands."""
        known = self.file if isinstance(self.file, DeliveryFile) else None
        state: State = "stopped" if self.stopped else "failing" if self.reason else "running"
        return DeliveryStanding(
            name=self.file.name,
            kind=known.section.kind if known else "unknown",
            subscription=known.subscription if known else self.file.name,
            state=state,
            reason=self.reason,
        )


class Deliveries:
    """The deliverers of one service. Use as an async context manager."""

    def __init__(
        self,
        files: Sequence[DeliveryFile | BrokenFile],
        *,
        workspace: Path,
        groups: SubscriptionGroups,
        render: Render,
        metrics: DeliveryMetrics,
    ) -> None:
        self._workspace = workspace
        self._groups = groups
        self._render = render
        self._watched = [_Watched(file, metrics) for file in files]
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
        self._consumer = f"deliverer@{host}/{os.getpid()}"

    async def __aenter__(self) -> Deliveries:
        for watched in self._watched:
            match watched.file:
                case DeliveryFile() as file:
                    watched.task = asyncio.create_task(
                        self._keep_running(watched, file), name=f"delivery {file.name}"
                    )
                case BrokenFile(error=error):
                    watched.stand_still(error)
                case _:
                    assert_never(watched.file)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        tasks = [watched.task for watched in self._watched if watched.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_FINISH_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Let all deliverers finish what they are sending and take no more."""
        for watched in self._watched:
            watched.stopped = True
            if watched.deliverer is not None:
                watched.deliverer.stop()
            elif watched.task is not None:
                watched.task.cancel()

    def standings(self) -> list[DeliveryStanding]:
        """Return how all deliverers stand, by name."""
        return [watched.standing() for watched in self._watched]

    async def _keep_running(self, watched: _Watched, file: DeliveryFile) -> None:
        """Run a deliverer, again after each failure, until it ends or stands still."""
        attempt = 0
        while not watched.stopped:
            try:
                sender = _sender(file, self._workspace)
            except Misconfigured as error:
                watched.stand_still(error)
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
