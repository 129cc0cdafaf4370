"""A command that the service refuses ends as it would if the command itself had found the fault."""

from __future__ import annotations

import pytest

from eventstore.service_client import error_of
from kernel.errors import ContractViolation, InvalidRequest, LeaseLost, PenstockError, exit_code
from service.problems import KINDS, problem_of

# For who asks, a lost lease is no conflict of theirs: the service is not available just now. What
# breaks the contract in no way that has a problem of its own is an invalid request.
ANSWERED = [kind for kind, *_ in KINDS if kind not in (LeaseLost, ContractViolation)]


@pytest.mark.parametrize("kind", [*ANSWERED, InvalidRequest], ids=lambda kind: kind.__name__)
def test_a_problem_ends_a_command_with_the_exit_code_of_its_error(
    kind: type[PenstockError],
) -> None:
    error = kind("no", remedy="Do this.")
    problem = problem_of(error)
    told = error_of(problem.status, problem.body())
    assert exit_code(told) == exit_code(error)
    assert (told.message, told.remedy) == ("no", "Do this.")


def test_a_call_without_the_token_says_where_commands_find_it() -> None:
    told = error_of(401, b'{"detail": "no token", "remedy": "Send: Authorization: Bearer TOKEN"}')
    assert told.message == "no token"
    assert "penstock token" in told.remedy
    assert "Bearer" not in told.remedy
