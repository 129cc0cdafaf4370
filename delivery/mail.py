"""Mail by SMTP, one message per event, its `Message-ID` made of subscription and event."""

from __future__ import annotations

import asyncio
import io
import re
import smtplib
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import format_datetime
from typing import TYPE_CHECKING, Literal

from delivery.outcome import Document, Hopeless, Outcome, Sent, TryAgain
from delivery.template import Template, Unfilled
from kernel.clock import Clock, SystemClock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    _Source = tuple[object, ...] | str | ReadableBuffer

_Refused = dict[str, tuple[int, bytes]]
"""The answers for recipients that were refused."""
Security = Literal["none", "starttls", "tls"]
ADDRESS = re.compile(r"[^\s@,;:<>()\[\]\\\"\x00-\x1f\x7f]+@[^\s@,;:<>()\[\]\\\"\x00-\x1f\x7f]+")
_SUBJECT_CHARS = 500
_BODY_CHARS = 200_000
_SENT_BYTES = 16_384
"""So much is sent at a time: TLS applies a socket's limit to each of its records."""
_QUIT_S = 2.0
"""For taking leave, when it is settled what became of the mail."""
_FIRST_PAUSE = 0.05
"""Of the time for a mail: before those recipients are tried again that were refused for now."""


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
        except ValueError as error:
            # What it says may have characters of the password.
            return Hopeless(reason=f"no session can be begun: {type(error).__name__}")
        try:
            refused = self._given(connection, message, recipients)
        except smtplib.SMTPRecipientsRefused as error:
            return _all_refused(error)
        except smtplib.SMTPDataError as error:
            final = error.smtp_code >= 500
            return Hopeless(reason=_shown(error)) if final else TryAgain(reason=_shown(error))
        except (OSError, smtplib.SMTPException) as error:
            return TryAgain(reason=_shown(error))
        except ValueError as error:
            return Hopeless(reason=f"no mail can be made of it: {error}")
        finally:
            with suppress(OSError, smtplib.SMTPException):
                connection.quit()
            connection.close()
        if refused:
            # The others have it: sending it again would double it for them.
            return Hopeless(reason=f"{_each_refused(refused)}; the other recipients have it")
        return Sent()

    def _given(
        self, connection: _Session, message: EmailMessage, recipients: list[str]
    ) -> _Refused:
        """Hand in a mail; return for whom it was refused, while others have it.

        Those that are refused for now get it by themselves, as long as the session may go on: only
        within it is it known who has it. Raises what `send_message` does where nobody has it.
        """
        sender = self._form.sender
        refused: _Refused = connection.send_message(message, sender, recipients)
        pause_s = self._server.timeout_s * _FIRST_PAUSE
        while (late := _late(refused)) and connection.pause(pause_s):
            pause_s *= 2
            try:
                again: _Refused = connection.send_message(message, sender, late)
            except smtplib.SMTPRecipientsRefused as error:
                again = {name: refused[name] for name in late} | error.recipients
            except smtplib.SMTPResponseException as error:
                again = dict.fromkeys(late, (error.smtp_code, b""))
            except (OSError, smtplib.SMTPException):
                break
            refused = {name: refused[name] for name in refused if name not in late} | again
        return refused

    def _connected(self) -> _Session:
        server = self._server
        name = self._form.domain
        connection: _Session
        if server.security == "tls":
            connection = _TlsSession(
                server.host,
                server.port,
                local_hostname=name,
                timeout=server.timeout_s,
                context=ssl.create_default_context(),
            )
        else:
            connection = _Session(
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


class _Session(smtplib.SMTP):
    """A session that is over `timeout` seconds after it began to connect, but for its leave.

    A socket's own limit is one for each operation: with a server that takes its time for every one
    of them the event would be given again meanwhile, and mailed twice.
    """

    until = 0.0

    def connect(
        self, host: str = "localhost", port: int = 0, source_address: _Source | None = None
    ) -> tuple[int, bytes]:
        """Connect; the time begins."""
        self.until = time.monotonic() + self.timeout
        return super().connect(host, port, source_address)

    def send(self, s: ReadableBuffer | str) -> None:
        """Send within the time that is left. Raises `SMTPServerDisconnected` when it is over."""
        data = s.encode(self.command_encoding) if isinstance(s, str) else bytes(s)
        for start in range(0, len(data), _SENT_BYTES):
            try:
                self.bound()
            except TimeoutError as error:
                self.close()  # In the middle of a mail, taking leave would be a part of it.
                raise smtplib.SMTPServerDisconnected(str(error)) from error
            super().send(data[start : start + _SENT_BYTES])

    def getreply(self) -> tuple[int, bytes]:
        """Read a reply within the time that is left. Raises as `send` does."""
        if self.file is None:
            self.file = io.BufferedReader(_Replies(self))
        return super().getreply()

    def quit(self) -> tuple[int, bytes]:
        """Take leave, within a time of its own."""
        self.until = time.monotonic() + min(_QUIT_S, self.timeout / 2)
        return super().quit()

    def pause(self, pause_s: float) -> bool:
        """Wait if there is time for that and a quarter more; return whether there was."""
        if time.monotonic() + 1.25 * pause_s > self.until:
            return False
        time.sleep(pause_s)
        return True

    def bound(self) -> None:
        """Let the next operation of the socket take no longer than the session may.

        Raises `TimeoutError` when its time is over.
        """
        left_s = self.until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"not handed in within {self.timeout:g} s")
        if self.sock is not None:
            self.sock.settimeout(left_s)


class _TlsSession(_Session, smtplib.SMTP_SSL):
    """One that speaks TLS from the beginning."""


class _Replies(io.RawIOBase):
    """What a server says: each piece of it is waited for as long as the session may go on."""

    def __init__(self, session: _Session) -> None:
        super().__init__()
        self._session = session

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read the next piece."""
        self._session.bound()
        assert self._session.sock is not None
        return self._session.sock.recv_into(buffer)


def _all_refused(error: smtplib.SMTPRecipientsRefused) -> Outcome:
    codes = [code for code, _ in error.recipients.values()]
    reason = "all recipients were refused: " + ", ".join(
        f"{name} ({code})" for name, (code, _) in sorted(error.recipients.items())
    )
    return Hopeless(reason=reason) if min(codes) >= 500 else TryAgain(reason=reason)


def _late(refused: _Refused) -> list[str]:
    """Return who may get it later."""
    return [name for name, (code, _) in sorted(refused.items()) if code < 500]


def _each_refused(refused: _Refused) -> str:
    """Say for whom a mail was refused, and for whom it was until there was no more time."""
    late = _late(refused)
    parts = {
        "refused for ": sorted(refused.keys() - late),
        "refused for now, again and again, for ": [f"{name} ({refused[name][0]})" for name in late],
    }
    return "; ".join(f"{said}{', '.join(names)}" for said, names in parts.items() if names)


def _shown(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error
        shown = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        return f"SMTP {error.smtp_code}: {shown[:200]}"
    return f"{type(error).__name__}: {error}"
