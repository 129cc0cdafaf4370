"""Payments of the first version counted cents."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from eventstore.upcasting import Upcaster


def to_amounts(data: dict[str, Any]) -> dict[str, Any]:
    """Version 2 writes the amount with two digits after the point."""
    amount = (Decimal(data["cents"]) / 100).quantize(Decimal("0.01"))
    return {"amount": str(amount), "payee": data["payee"], "day": data["day"]}


cents_to_amounts = Upcaster(event="account.paid", version=1, upcast=to_amounts)
