"""What a caller says with `If-Match` and `If-None-Match`, as RFC 9110 has it."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from kernel.positions import Version
from service.preconditions import is_held, precondition_of


@pytest.mark.parametrize(
    ("headers", "held"),
    [
        ([], False),
        (["*"], True),
        ([" * "], True),
        (['"t-1"'], True),
        (['W/"t-1"'], True),
        (['"other", W/"t-1"'], True),
        (['"other"', '"t-1"'], True),
        (['"t-12"', '"xt-1"', "t-1", '"t-1', ""], False),
        (['"*"'], False),
    ],
)
def test_a_reader_has_a_state_whose_tag_is_among_his(headers: list[str], held: bool) -> None:
    assert is_held("t-1", headers) is held


@pytest.mark.parametrize("version", ["0", "7", "999999999999999999"])
def test_a_version_is_the_tag_that_was_given_out(version: str) -> None:
    assert precondition_of({b"if-match": f'"{version}"'.encode()}) == Version(int(version))


@pytest.mark.parametrize(
    "tag", ['"01"', '"00"', '"-1"', '"+1"', "1", '"1", "2"', 'W/"1"', "", '"1000000000000000000"']
)
def test_what_no_answer_gave_out_is_no_version(tag: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be used as given"):
        precondition_of({b"if-match": tag.encode()})
