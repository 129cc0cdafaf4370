"""Accounts that people pay into and out of, within their balance and a limit a day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal

from eventstore.deciders import Command, Decider, Event, Refused

NOTHING = Decimal("0.00")
MOST = Decimal(1_000_000_000)


# What people may want.


@dataclass(frozen=True)
class Open:
    """Open an account."""

    owner: str
    currency: str = "EUR"


@dataclass(frozen=True)
class Deposit:
    """Put money in."""

    amount: Decimal


@dataclass(frozen=True)
class Pay:
    """Pay somebody."""

    amount: Decimal
    payee: str
    reference: str | None = None


@dataclass(frozen=True)
class SetLimit:
    """Bound what may be paid on one day; without an amount, by nothing but the balance."""

    daily_limit: Decimal | None = None


# What is known.


@dataclass(frozen=True)
class Missing:
    """Nobody has opened this account."""


@dataclass(frozen=True)
class Account:
    """An open account. `paid` is what was paid on `day`, the last day with a payment."""

    owner: str
    currency: str
    balance: Decimal = NOTHING
    daily_limit: Decimal | None = None
    day: date | None = None
    paid: Decimal = NOTHING

    def paid_on(self, day: date) -> Decimal:
        """Return what was paid on a day, the last one or a later one."""
        return self.paid if day == self.day else NOTHING


State = Missing | Account


def decide(command: Command, state: State) -> Sequence[Event]:
    """Say yes with events, or no with a reason."""
    match state, command.data:
        case Missing(), Open(owner=owner, currency=currency):
            return [Event("opened", {"owner": owner, "currency": currency})]
        case Missing(), _:
            raise Refused(f"account {command.entity} is not open")
        case Account(), Open():
            raise Refused(f"account {command.entity} is open already")
        case Account(), Deposit(amount=amount):
            _check_amount(amount)
            return [Event("deposited", {"amount": amount})]
        case Account() as account, Pay() as payment:
            return _pay(account, payment, command.at.date())
        case Account() as account, SetLimit(daily_limit=limit):
            if limit is not None:
                _check_amount(limit)
            if limit == account.daily_limit:
                return []
            return [Event("limit_set", {"daily_limit": limit})]
        case _:
            raise AssertionError(f"no rule for {command.name}")


def evolve(state: State, event: Event) -> State:
    """Say what is known after an event."""
    data = event.data
    match state, event.type:
        case _, "opened":
            return Account(owner=data["owner"], currency=data["currency"])
        case Account() as account, "deposited":
            return replace(account, balance=account.balance + Decimal(data["amount"]))
        case Account() as account, "paid":
            amount, day = Decimal(data["amount"]), date.fromisoformat(data["day"])
            return replace(
                account,
                balance=account.balance - amount,
                day=day,
                paid=account.paid_on(day) + amount,
            )
        case Account() as account, "limit_set":
            limit = data["daily_limit"]
            return replace(account, daily_limit=None if limit is None else Decimal(limit))
        case _:
            return state


def _pay(account: Account, payment: Pay, day: date) -> Sequence[Event]:
    _check_amount(payment.amount)
    if payment.amount > account.balance:
        raise Refused(f"the balance is {account.balance} {account.currency}")
    today = account.paid_on(day) + payment.amount
    if account.daily_limit is not None and today > account.daily_limit:
        raise Refused(f"the limit for a day is {account.daily_limit} {account.currency}")
    return [
        Event(
            "paid",
            {
                "amount": payment.amount,
                "payee": payment.payee,
                "day": day,
                "reference": payment.reference,
            },
            tags=(f"payee:{payment.payee}",),
        )
    ]


def _check_amount(amount: Decimal) -> None:
    if not 0 < amount < MOST or amount != amount.quantize(NOTHING):
        raise Refused(f"{amount} is no amount of money")


payments: Decider[State] = Decider(
    category="account",
    version=1,
    commands={"open": Open, "deposit": Deposit, "pay": Pay, "set_limit": SetLimit},
    initial_state=Missing(),
    decide=decide,
    evolve=evolve,
)
