"""How many examples of a law are tried: few in `make test`, more in the whole matrix.

A pytest plugin module. A test that is named on the command line tries as many as the matrix does.
"""

from __future__ import annotations

import pytest

_default_tier = False


def pytest_configure(config: pytest.Config) -> None:
    """See whether the matrix is left out, before tests are collected."""
    global _default_tier
    _default_tier = config.option.markexpr == "not matrix"


def examples(number: int, *, matrix: int) -> int:
    """Return how many examples to try, given how many `make test` and the matrix try."""
    return number if _default_tier else matrix
