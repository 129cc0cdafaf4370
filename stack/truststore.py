"""A PKCS #12 trust store from PEM certificates, written by hand (RFC 7292, without encryption).

A JVM reads no PEM, `keytool` is missing from small runtimes, and a store that holds nothing but
public certificates needs neither password nor MAC: Java loads it as it is.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kernel.errors import Misconfigured

VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
"""Where companies put the path of their PEM bundle."""

_DATA = (1, 2, 840, 113549, 1, 7, 1)
_CERT_BAG = (1, 2, 840, 113549, 1, 12, 10, 1, 3)
_X509 = (1, 2, 840, 113549, 1, 9, 22, 1)
_FRIENDLY_NAME = (1, 2, 840, 113549, 1, 9, 20)
# Java treats a certificate as trusted only if it carries this attribute, here for any purpose.
_TRUSTED_KEY_USAGE = (2, 16, 840, 1, 113894, 746875, 1, 1)
_ANY_USAGE = (2, 5, 29, 37, 0)

_SEQUENCE, _SET, _OCTETS, _INTEGER, _OID, _BMP, _EXPLICIT = 0x30, 0x31, 0x04, 0x02, 0x06, 0x1E, 0xA0


def certificates_from_environment(environ: Mapping[str, str]) -> list[bytes]:
    """Return the DER certificates that the environment names, with the system's own.

    Empty when no variable is set: then Java's own store is right. Raises `Misconfigured` for a
    variable that names a file without certificates.
    """
    named = [(name, environ[name]) for name in VARIABLES if environ.get(name)]
    if not named:
        return []
    context = ssl.create_default_context()
    for name, path in named:
        try:
            context.load_verify_locations(cafile=path)
        except OSError as error:
            raise Misconfigured(
                f"{name} names {path}, which holds no PEM certificates: {error}",
                remedy=f"Point {name} at a PEM file, or unset it.",
            ) from error
    return context.get_ca_certs(binary_form=True)


def write_truststore(path: Path, certificates: Sequence[bytes]) -> None:
    """Write DER certificates as a trust store that any Java from 17 on reads without password."""
    bags = b"".join(_bag(number, der) for number, der in enumerate(certificates))
    safe = _content(_tag(_SEQUENCE, bags))
    store = _tag(_SEQUENCE, _tag(_INTEGER, b"\x03"), _content(_tag(_SEQUENCE, safe)))
    fresh = path.with_suffix(".new")
    fresh.write_bytes(store)
    fresh.replace(path)


def _bag(number: int, certificate: bytes) -> bytes:
    value = _tag(_SEQUENCE, _oid(_X509), _tag(_EXPLICIT, _tag(_OCTETS, certificate)))
    name = _tag(_BMP, f"authority {number}".encode("utf-16-be"))
    attributes = _tag(
        _SET,
        _tag(_SEQUENCE, _oid(_FRIENDLY_NAME), _tag(_SET, name)),
        _tag(_SEQUENCE, _oid(_TRUSTED_KEY_USAGE), _tag(_SET, _oid(_ANY_USAGE))),
    )
    return _tag(_SEQUENCE, _oid(_CERT_BAG), _tag(_EXPLICIT, value), attributes)


def _content(data: bytes) -> bytes:
    return _tag(_SEQUENCE, _oid(_DATA), _tag(_EXPLICIT, _tag(_OCTETS, data)))


def _tag(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    if len(body) < 0x80:
        return bytes([tag, len(body)]) + body
    length = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + body


def _oid(arcs: Iterable[int]) -> bytes:
    first, second, *rest = arcs
    encoded = bytearray()
    for arc in (first * 40 + second, *rest):
        chunk = [arc & 0x7F]
        while arc := arc >> 7:
            chunk.append(0x80 | (arc & 0x7F))
        encoded.extend(reversed(chunk))
    return _tag(_OID, bytes(encoded))
