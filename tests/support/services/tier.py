"""What `make test` does otherwise than the matrix: fewer examples of a law, one Spark session.

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


def spark_group() -> str:
    """Return whose worker runs the tests that ask for Spark without the warm stack.

    In `make test` they are few, and go to the worker of the warm stack: its session is begun
    already. In the matrix they are half of the work, and have a worker and a session of their own.
    """
    return "stack" if _default_tier else "spark"
