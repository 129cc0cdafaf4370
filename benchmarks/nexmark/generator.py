"""Events of an auction house, drawn from a seed: the same seed gives the same events.

Of each 50 events one is a new person, 3 are new auctions and 46 are bids, in this order, as the
description of Nexmark says. Half of the bids are for hot auctions, three of four come from hot
bidders and of sellers likewise. Every event has its number in the whole, which is what makes two
records one fact: bids have no other identity.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

PEOPLE, AUCTIONS, BIDS = 1, 3, 46
ROUND = PEOPLE + AUCTIONS + BIDS
STATES = ("az", "ca", "id", "or", "wa", "wy")
CITIES = ("phoenix", "palo alto", "boise", "portland", "bend", "seattle", "kent", "cheyenne")
FIRST_NAMES = ("peter", "paul", "luke", "john", "saul", "vicky", "kate", "julie", "sarah", "walter")
LAST_NAMES = (
    "shultz",
    "abrams",
    "spencer",
    "white",
    "bartels",
    "walton",
    "smith",
    "jones",
    "noris",
)
CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
FIRST_CATEGORY, CATEGORIES = 10, 5
_HOT_GROUP = 100
"""Hot are the newest auctions and people whose number is a multiple of this."""
_AUCTIONS_IN_FLIGHT = 100
_ACTIVE_PEOPLE = 1000
_OTHER_CHANNELS = 10_000

Event = tuple[str, dict[str, object]]
"""The name of the source, and the columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How many events there are, from when on, and how far apart."""

    seed: int
    events: int
    begun: datetime = datetime(2015, 7, 15, tzinfo=UTC)
    apart: timedelta = timedelta(microseconds=100)
    first_id: int = 1000
    hot_group: int = _HOT_GROUP
    in_flight: int = _AUCTIONS_IN_FLIGHT


def events(setting: Setting) -> Iterator[Event]:
    """Yield all events in the order of their time."""
    draw = random.Random(setting.seed)
    for number in range(setting.events):
        place, at = number % ROUND, setting.begun + number * setting.apart
        if place < PEOPLE:
            yield "person", _person(draw, setting, number, at)
        elif place < PEOPLE + AUCTIONS:
            yield "auction", _auction(draw, setting, number, at)
        else:
            yield "bid", _bid(draw, setting, number, at)


def _last_person(number: int) -> int:
    """Return how many people there are before an event, less one."""
    return number // ROUND


def _last_auction(number: int) -> int:
    rounds, place = divmod(number, ROUND)
    begun = min(max(place - PEOPLE, 0), AUCTIONS)
    return rounds * AUCTIONS + begun - 1


def _person(draw: random.Random, setting: Setting, number: int, at: datetime) -> dict[str, object]:
    name = f"{draw.choice(FIRST_NAMES)} {draw.choice(LAST_NAMES)}"
    return {
        "event": number,
        "id": setting.first_id + _last_person(number),
        "name": name,
        "email_address": f"{_word(draw, 7)}@{_word(draw, 5)}.com",
        "credit_card": " ".join(f"{draw.randrange(10_000):04d}" for _ in range(4)),
        "city": draw.choice(CITIES),
        "state": draw.choice(STATES),
        "date_time": at,
        "extra": _word(draw, draw.randint(20, 60)),
    }


def _auction(draw: random.Random, setting: Setting, number: int, at: datetime) -> dict[str, object]:
    first_bid = _price(draw)
    # About as many events as there are between now and the auction that is `in_flight` later.
    horizon = setting.apart * (setting.in_flight * ROUND // AUCTIONS)
    lasts = timedelta(microseconds=1 + draw.randrange(2 * max(horizon // timedelta.resolution, 1)))
    return {
        "event": number,
        "id": setting.first_id + _last_auction(number) + 1,
        "item_name": _word(draw, draw.randint(5, 20)),
        "description": _word(draw, draw.randint(20, 60)),
        "initial_bid": first_bid,
        "reserve": first_bid + _price(draw),
        "date_time": at,
        "expires": at + lasts,
        "seller": setting.first_id + _someone(draw, setting, number, hot_of=4),
        "category": FIRST_CATEGORY + draw.randrange(CATEGORIES),
        "extra": _word(draw, draw.randint(20, 60)),
    }


def _bid(draw: random.Random, setting: Setting, number: int, at: datetime) -> dict[str, object]:
    newest = _last_auction(number)
    if draw.randrange(2):
        auction = newest // setting.hot_group * setting.hot_group
    else:
        auction = draw.randint(max(newest - setting.in_flight, 0), newest)
    if draw.randrange(2):
        channel = draw.choice(CHANNELS)
        url = (
            f"https://www.nexmark.com/{'/'.join(_word(draw, 5) for _ in range(3))}/item.htm?query=1"
        )
    else:
        other = draw.randrange(_OTHER_CHANNELS)
        channel = f"channel-{other}"
        url = (
            f"https://www.nexmark.com/{'/'.join(_word(draw, 5) for _ in range(3))}/item.htm?"
            f"query=1&channel_id={other}"
        )
    return {
        "event": number,
        "auction": setting.first_id + auction,
        "bidder": setting.first_id + _someone(draw, setting, number, hot_of=4),
        "price": _price(draw),
        "channel": channel,
        "url": url,
        "date_time": at,
        "extra": _word(draw, draw.randint(20, 60)),
    }


def _someone(draw: random.Random, setting: Setting, number: int, *, hot_of: int) -> int:
    """Draw a person: one of `hot_of` is anyone who is active, the others are a hot one."""
    newest = _last_person(number)
    if draw.randrange(hot_of):
        return newest // setting.hot_group * setting.hot_group
    return draw.randint(max(newest - _ACTIVE_PEOPLE, 0), newest)


def _price(draw: random.Random) -> int:
    """Draw a price in cents, from one to a million, by its order of magnitude."""
    return round(math.pow(10.0, draw.random() * 6.0) * 100.0)


def _word(draw: random.Random, length: int) -> str:
    return "".join(draw.choices(string.ascii_lowercase, k=length))
