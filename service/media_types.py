"""`Accept`: which of several forms of an answer a client would rather have."""

from __future__ import annotations

from typing import Final

_ANY: Final = "*/*"
_LEAST: Final = 1e-9
"""What the usual form is worth to a client that does not name it: it is sent where nothing is."""


def preferred(accept: str | None, *offers: str) -> str:
    """Return the offer of greatest weight (`q`), the first of those that weigh the same.

    The last offer is the usual form: what a pattern such as `*/*` stands for, and what is sent
    where nothing else is asked for by its name. Offers are in lower case, parameters without
    blanks.
    """
    *others, usual = offers
    weights = _weights(accept or "", offers)
    patterns = (usual, usual.partition("/")[0] + "/*", _ANY)
    stated = next((weights[each] for each in patterns if each in weights), 0.0)
    best, most = usual, max(stated, _LEAST)
    for offer in reversed(others):
        if weights.get(offer, 0.0) >= most:
            best, most = offer, weights[offer]
    return best


def _weights(accept: str, offers: tuple[str, ...]) -> dict[str, float]:
    """Return the weight of each type, with its parameters where an offer has them."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        media, *given = ["".join(piece.split()) for piece in part.split(";")]
        weight = 1.0
        for parameter in given:
            name, _, value = parameter.partition("=")
            if name == "q":
                weight = _weight(value)
            elif f"{media};{parameter}" in offers:
                media = f"{media};{parameter}"
        weights[media] = weight
    return weights


def _weight(text: str) -> float:
    """Return a weight; one that cannot be read counts as if it were not there."""
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 1.0
