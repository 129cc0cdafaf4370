"""What deliverers send to, for tests: a real HTTP receiver and a real SMTP server, on loopback."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOOPBACK = ("127.0.0.1", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True, kw_only=True)
class Reply:
    """What a receiver answers."""

    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(slots=True, kw_only=True)
class HttpReceiver:
    """Keeps every request in the order of arrival and answers as `reply` says."""

    port: int = 0
    received: list[Received] = field(default_factory=list)
    reply: Callable[[Received], Reply] = field(default=lambda _request: Reply())

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}/hook"


@contextmanager
def http_receiver() -> Iterator[HttpReceiver]:
    """Serve until the end of the block."""
    receiver = HttpReceiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            body = self.rfile.read(length)
            if len(body) < length:  # The sender was killed in the middle: nobody has received it.
                self.close_connection = True
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Received(path=self.path, headers=headers, body=body)
            receiver.received.append(request)
            reply = receiver.reply(request)
            try:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)
            except OSError:
                self.close_connection = True  # The sender did not want to hear more.

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(LOOPBACK, Handler) as server, serving(server):
        receiver.port = server.server_address[1]
        yield receiver


@dataclass(slots=True, kw_only=True)
class SmtpSink:
    """Keeps every message that was accepted. `refuse` maps a command line to an answer."""

    port: int = 0
    messages: list[EmailMessage] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    refuse: Callable[[str], str | None] = field(default=lambda _line: None)


@contextmanager
def smtp_sink() -> Iterator[SmtpSink]:
    """Serve until the end of the block."""
    sink = SmtpSink()

    class Handler(socketserver.StreamRequestHandler):
        def say(self, line: str) -> None:
            self.wfile.write(line.encode() + b"\r\n")

        def handle(self) -> None:
            self.say("220 sink")
            to: list[str] = []
            while line := self.rfile.readline().decode().strip():
                answer = sink.refuse(line)
                verb = line[:4].upper()
                if answer is not None:
                    self.say(answer)
                elif verb == "DATA":
                    self.say("354 go on")
                    self.take(to)
                elif verb == "QUIT":
                    self.say("221 bye")
                    return
                else:
                    if verb == "MAIL":
                        to.clear()
                    if verb == "RCPT":
                        to.append(line.partition("<")[2].partition(">")[0])
                    self.say("250 ok")

        def take(self, to: list[str]) -> None:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line[1:] if line.startswith(b"..") else line)
            body = b"".join(lines)
            answer = sink.refuse("MESSAGE")
            if answer is None:
                message = message_from_bytes(body, policy=policy.default)
                assert isinstance(message, EmailMessage)
                sink.messages.append(message)
                sink.recipients.append(list(to))
            self.say(answer or "250 taken")

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(LOOPBACK, Handler) as server, serving(server):
        sink.port = server.server_address[1]
        yield sink


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve in a thread until the end of the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join(30)
