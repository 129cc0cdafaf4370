"""Mail by SMTP, one message per event, its `Message-ID` made of subscription and event."""

from __future__ import annotations

import asyncio
import re
import smtplib
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Literal

from delivery.outcome import Document, Hopeless, Outcome, Sent, TryAgain
from delivery.template import Template, Unfilled
from kernel.clock import Clock, SystemClock

Security = Literal["none", "starttls", "tls"]
ADDRESS = re.compile(r"[^\s@,;:<>()\[\]\\\"\x00-\x1f\x7f]+@[^\s@,;:<>()\[\]\\\"\x00-\x1f\x7f]+")
_SUBJECT_CHARS = 500
_BODY_CHARS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """Where mail is handed in. `password` is never shown."""

    host: str
    port: int
    security: Security
    timeout_s: float
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailForm:
    """What each mail looks like. Recipients are templates too."""

    sender: str
    recipients: Sequence[Template]
    subject: Template
    body: Template

    @property
    def domain(self) -> str:
        """The sender's domain: the right side of message ids."""
        return self.sender.rpartition("@")[2]


class MailSender:
    """A `Sender` that hands mail to one server, each on a connection of its own."""

    def __init__(
        self,
        *,
        server: MailServer,
        form: MailForm,
        concurrency: int,
        clock: Clock | None = None,
    ) -> None:
        self._server = server
        self._form = form
        self._clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="mail")

    async def send(self, message_id: str, document: Document) -> Outcome:
        """Send one event as mail."""
        try:
            message, recipients = self._message(message_id, document)
        except (Unfilled, ValueError) as error:
            return Hopeless(reason=f"no mail can be made of it: {error}")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._hand_in, message, recipients)

    async def close(self) -> None:
        """Let go of the threads; a hand-in that runs ends by its time-out."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _message(self, message_id: str, document: Document) -> tuple[EmailMessage, list[str]]:
        form = self._form
        recipients = [each.filled(document).strip() for each in form.recipients]
        for recipient in recipients:
            if not ADDRESS.fullmatch(recipient):
                raise Unfilled(f"{recipient[:100]!r} is no mail address")
        message = EmailMessage()
        message["Message-ID"] = f"<{message_id}@{form.domain}>"
        message["Date"] = format_datetime(self._clock.now())
        message["From"] = form.sender
        message["To"] = ", ".join(recipients)
        # One line, whatever the data holds: a line break would begin another header.
        message["Subject"] = " ".join(form.subject.filled(document).split())[:_SUBJECT_CHARS]
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(form.body.filled(document)[:_BODY_CHARS])
        return message, recipients

    def _hand_in(self, message: EmailMessage, recipients: list[str]) -> Outcome:
        try:
            connection = self._connected()
        except (OSError, smtplib.SMTPException) as error:
            return TryAgain(reason=_shown(error))
        try:
            refused = connection.send_message(message, self._form.sender, recipients)
        except smtplib.SMTPRecipientsRefused as error:
            return _all_refused(error)
        except smtplib.SMTPDataError as error:
            final = error.smtp_code >= 500
            return Hopeless(reason=_shown(error)) if final else TryAgain(reason=_shown(error))
        except (OSError, smtplib.SMTPException) as error:
            return TryAgain(reason=_shown(error))
        finally:
            with suppress(OSError, smtplib.SMTPException):
                connection.quit()
            connection.close()
        if refused:
            # The others have it: sending it again would double it for them.
            names = ", ".join(sorted(refused))
            return Hopeless(reason=f"refused for {names}; the other recipients have it")
        return Sent()

    def _connected(self) -> smtplib.SMTP:
        server = self._server
        name = self._form.domain
        connection: smtplib.SMTP
        if server.security == "tls":
            connection = smtplib.SMTP_SSL(
                server.host,
                server.port,
                local_hostname=name,
                timeout=server.timeout_s,
                context=ssl.create_default_context(),
            )
        else:
            connection = smtplib.SMTP(
                server.host, server.port, local_hostname=name, timeout=server.timeout_s
            )
        try:
            if server.security == "starttls":
                connection.starttls(context=ssl.create_default_context())
            if server.user is not None:
                connection.login(server.user, server.password or "")
        except BaseException:
            connection.close()
            raise
        return connection


def _all_refused(error: smtplib.SMTPRecipientsRefused) -> Outcome:
    codes = [code for code, _ in error.recipients.values()]
    reason = "all recipients were refused: " + ", ".join(
        f"{name} ({code})" for name, (code, _) in sorted(error.recipients.items())
    )
    return Hopeless(reason=reason) if min(codes) >= 500 else TryAgain(reason=reason)


def _shown(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error
        shown = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        return f"SMTP {error.smtp_code}: {shown[:200]}"
    return f"{type(error).__name__}: {error}"
