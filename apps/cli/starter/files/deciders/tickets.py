"""The rules of tickets: one is opened once, and closed once."""

from __future__ import annotations

from dataclasses import dataclass

from eventstore.deciders import Command, Decider, Event, Refused


@dataclass(frozen=True)
class Open:
    """Ask for help."""

    subject: str
    urgent: bool = False


@dataclass(frozen=True)
class Close:
    """Settle the matter."""

    answer: str


@dataclass(frozen=True)
class Ticket:
    """What is known of a ticket: not there, open or closed."""

    state: str = "absent"


def decide(command: Command, ticket: Ticket) -> list[Event]:
    """Return the events that a command leads to, or refuse it."""
    match command.data:
        case Open(subject=subject, urgent=urgent):
            if ticket.state != "absent":
                raise Refused("there is such a ticket")
            return [Event("opened", {"subject": subject, "urgent": urgent})]
        case Close(answer=answer):
            if ticket.state != "open":
                raise Refused(f"the ticket is {ticket.state}")
            return [Event("closed", {"answer": answer})]
        case _:
            return []


def evolve(ticket: Ticket, event: Event) -> Ticket:
    """Return what is known after an event."""
    match event.type:
        case "opened":
            return Ticket("open")
        case "closed":
            return Ticket("closed")
        case _:
            return ticket


tickets = Decider(
    category="ticket",
    version=1,
    commands={"open": Open, "close": Close},
    initial_state=Ticket(),
    decide=decide,
    evolve=evolve,
)
