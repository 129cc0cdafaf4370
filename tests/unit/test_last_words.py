"""What a part said last, as `status` and `up` quote it."""

from __future__ import annotations

from pathlib import Path

from stack.logs import last_words


def test_what_a_part_says_at_each_of_its_deaths_is_told_once(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    said = [f"{number} up" for number in range(9)]
    log.write_text("\n".join([*said, *["error: no registry", "  fix: name one"] * 6, ""]))
    told = "5 up | 6 up | 7 up | 8 up | error: no registry | fix: name one"
    assert last_words(log) == told
