"""An hour of the whole stack under work, while its parts are killed at random moments."""

from __future__ import annotations

import random
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import httpx

from apps.access import bearing
from apps.cli.stack import APPLICATIONS
from apps.settings import Settings
from stack.control import kill_part
from stack.plan import LOCAL_PARTS
from stack.status import status
from tests.support.services.waiting import until
from tests.support.services.whole_stack import ACCOUNTS, Teller, WholeStack

PARTS = (*LOCAL_PARTS, *APPLICATIONS)
DEEDS = "deed"
COMPARE_EVERY_KILLS = 10
PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How long, how often, and from which seed the moments come."""

    kills: int = 50
    minutes: float = 60.0
    seed: int = 2013


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Parts that were killed at one moment, and how long it took until all were back."""

    parts: tuple[str, ...]
    at_s: float
    back_s: float


@dataclass
class Result:
    """What a run did and saw. It holds when nothing is said in `failed`."""

    kills: list[Kill] = field(default_factory=list)
    comparisons: int = 0
    transactions: int = 0
    events: int = 0
    memory_mb: list[dict[str, int]] = field(default_factory=list)
    seconds: float = 0.0
    failed: str = ""

    def document(self) -> dict[str, object]:
        """Return it for a file."""
        return {"holds": not self.failed, **asdict(self)}


class Clerk(threading.Thread):
    """Records events without rest, each with its own id, again and again until it is answered."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(name="clerk", daemon=True)
        self.done = 0
        self._url = settings.required("service.url")
        self._headers = bearing(settings, self._url)
        self._end = threading.Event()
        self._failure: list[AssertionError] = []

    def run(self) -> None:
        try:
            self._record()
        except AssertionError as error:
            self._failure.append(error)

    def _record(self) -> None:
        with httpx.Client(
            base_url=self._url, headers=self._headers, timeout=30, trust_env=False
        ) as http:
            while not self._end.wait(0.01):
                event = {"id": str(uuid.uuid4()), "type": "done", "data": {"n": self.done}}
                while not self._recorded(http, event):
                    time.sleep(0.2)
                self.done += 1

    def finish(self) -> None:
        """Stop once the event in hand is answered."""
        self._end.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "an event was never answered"
        assert not self._failure, self._failure

    def _recorded(self, http: httpx.Client, event: dict[str, object]) -> bool:
        try:
            answer = http.post(f"/v1/streams/{DEEDS}-{self.done % 40}", json={"events": [event]})
        except httpx.TransportError:
            return False
        assert answer.status_code in (200, 201, 429, 503), answer.text
        return answer.status_code in (200, 201)


@dataclass
class WholeRun:
    """Carries out what the options ask for, on a stack of its own."""

    bank: WholeStack
    options: Options
    result: Result = field(default_factory=Result)

    def run(self) -> Result:
        """Return what came of it; a broken promise and any other error end up in `failed`."""
        began = time.monotonic()
        try:
            with self._work() as (teller, clerk):
                self._kill_at_random(teller, clerk, began)
                self._go_on(began)
            self._compare()
            self._count_events(clerk.done)
            self.result.transactions, self.result.events = teller.done, clerk.done
        except Exception as error:
            self.result.failed = f"{type(error).__name__}: {error}"
        self.result.seconds = round(time.monotonic() - began, 1)
        return self.result

    @contextmanager
    def _work(self) -> Iterator[tuple[Teller, Clerk]]:
        teller = Teller(self.bank.dsn)
        clerk = Clerk(self.bank.settings)
        teller.start()
        clerk.start()
        try:
            yield teller, clerk
        finally:
            teller.finish()
            clerk.finish()

    def _kill_at_random(self, teller: Teller, clerk: Clerk, began: float) -> None:
        rng = random.Random(self.options.seed)
        for number in range(1, self.options.kills + 1):
            # Work says when, not the clock: a slow machine is killed at the same places.
            wanted = teller.done + rng.randrange(20, 400)
            until(lambda wanted=wanted: teller.done >= wanted, "work", deadline_s=PATIENCE_S)
            parts = tuple(rng.sample(PARTS, rng.choice((1, 1, 1, 2))))
            # What a part needs may have died before, and the part with that.
            for part in PARTS:
                self.bank.revive(part, deadline_s=PATIENCE_S)
            moment = time.monotonic()
            killed = {part: kill_part(self.bank.workspace, part) for part in parts}
            for part, pid in killed.items():
                self.bank.revive(part, besides=pid, deadline_s=PATIENCE_S)
            back = time.monotonic()
            kill = Kill(parts=parts, at_s=round(moment - began, 1), back_s=round(back - moment, 1))
            self.result.kills.append(kill)
            say(
                f"kill {number} of {self.options.kills}: {' and '.join(parts)}, back after"
                f" {kill.back_s} s; {teller.done:,} transactions, {clerk.done:,} events"
            )
            if number % COMPARE_EVERY_KILLS == 0:
                self._compare()

    def _go_on(self, began: float) -> None:
        """Work on undisturbed for the rest of the time, and compare every minute."""
        while (left := began + self.options.minutes * 60 - time.monotonic()) > 0:
            say(f"{left / 60:.0f} minutes are left")
            time.sleep(min(60.0, left))
            self._compare()

    def _compare(self) -> None:
        """Let source and lake be equal at one LSN, amid the work; nothing is twice in the log."""
        self.bank.await_equal(deadline_s=PATIENCE_S)
        assert self.bank.accounts() == 100 * ACCOUNTS, "money has come or gone"
        assert self.bank.doubled() == 0, "the log has a row twice"
        self.result.comparisons += 1
        found = status(self.bank.workspace, memory=True)["parts"]
        assert isinstance(found, list)
        self.result.memory_mb.append({part["name"]: part["memory_mb"] or 0 for part in found})
        say(f"comparison {self.result.comparisons}: equal; MB {self.result.memory_mb[-1]}")

    def _count_events(self, acknowledged: int) -> None:
        """Every acknowledged event is a row, and only once."""
        self.bank.command("wait", "--caught-up", "--timeout", str(int(PATIENCE_S)))
        columns = "count(*) AS n, count(DISTINCT event_id) AS ids"
        found = self.bank.command("query", f"SELECT {columns} FROM typed.events.{DEEDS}.done")
        (row,) = found["rows"]
        assert row == {"n": acknowledged, "ids": acknowledged}, f"{acknowledged=}, but {row}"


def say(line: str) -> None:
    """Tell whoever watches."""
    print(line, file=sys.stderr, flush=True)
