"""Records decoded one by one, which decoding many of them together has to equal."""

from __future__ import annotations

from pipeline.decode.records import Decoder
from schemas.records import Decoded, KafkaRecord


class OneByOne:
    """A decoder without `many`."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def __call__(self, record: KafkaRecord) -> Decoded | None:
        return self._decoder(record)


class AnyTopic:
    """Gives every topic the same decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def decoder(self, topic: str) -> Decoder:
        return self._decoder
