"""What a filter of events may ask for."""

from __future__ import annotations

import pytest

from eventstore.store import EventFilter
from kernel.errors import InvalidRequest


@pytest.mark.parametrize("name", ["category", "type", "stream_prefix", "tag"])
def test_a_filter_for_what_no_text_of_the_store_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="NUL"):
        EventFilter(**{name: "a\x00b"})
    assert not EventFilter(**{name: "ab"}).everything
