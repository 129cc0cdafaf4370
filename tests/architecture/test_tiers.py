"""What every change must pass still crashes at every failpoint and kills every part."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache

from apps.cli.stack import APPLICATIONS
from kernel import failpoints
from stack.plan import LOCAL_PARTS
from tests.architecture.tree import checks, parsed
from tests.support.services.workers import SHARED, WHOLE

PARTS = {*LOCAL_PARTS, *APPLICATIONS}
KILLERS = {"kill", "kill_part"}


def default_tests(module: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield the tests of a module that `make test` runs."""
    marks = (
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    )
    if any(is_matrix(mark) for mark in marks):
        return
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            if any(ast.unparse(each) == "pytest.mark.matrix" for each in node.decorator_list):
                continue
            yield node


def is_matrix(node: ast.AST) -> bool:
    return "pytest.mark.matrix" in ast.unparse(node)


def reached(test: ast.FunctionDef, module: ast.Module) -> Iterator[ast.AST]:
    """Yield all nodes of a test and of what it uses of its module, fixtures included.

    Parameters that are marked as `matrix` are left out.
    """
    definitions = {name: node for node in module.body for name in names_defined(node)}
    seen: set[str] = set()
    pending: list[ast.AST] = [test]
    while pending:
        for node in walk_default(pending.pop()):
            yield node
            name = name_used(node)
            if name in definitions and name not in seen:
                seen.add(name)
                pending.append(definitions[name])


def walk_default(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Call(func=ast.Attribute(attr="param")) if is_matrix(node):
            return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from walk_default(child)


def names_defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case _:
            return


def name_used(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name):
            return name
        case _:
            return ""


def failpoints_of(nodes: list[ast.AST]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="failpoints"), attr=name) if name.isupper():
                value = getattr(failpoints, name)
                found |= {value} if isinstance(value, str) else set(value)
            case _:
                continue
    return found


def parts_killed(nodes: list[ast.AST]) -> set[str]:
    """Return the parts that are named where something is killed."""
    kills = any(called(node) in KILLERS for node in nodes)
    words = {node.value for node in nodes if isinstance(node, ast.Constant)}

    return PARTS & words if kills else set()


def called(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
        case _:
            return ""


@cache
def nodes_by_test() -> Mapping[str, list[ast.AST]]:
    """Return what each test reaches that may crash or kill something, by its name."""
    found = {}
    for path in checks():
        text = path.read_text()
        if (
            path.name.startswith("test_")
            and path.parent.name != "architecture"
            and ("failpoints." in text or any(f"{killer}(" in text for killer in KILLERS))
        ):
            module = parsed(path)
            for test in default_tests(module):
                found[f"{path.name}::{test.name}"] = list(reached(test, module))
    return found


def test_every_change_crashes_at_every_failpoint() -> None:
    crashed = {point for nodes in nodes_by_test().values() for point in failpoints_of(nodes)}
    missing = sorted(set(failpoints.ALL) - crashed)
    assert not missing, f"no test that `make test` runs crashes at {missing}"


def test_every_change_kills_every_part() -> None:
    killed = {part for nodes in nodes_by_test().values() for part in parts_killed(nodes)}
    missing = sorted(PARTS - killed)
    assert not missing, f"no test that `make test` runs kills {missing}"


def asked_at_run_time(module: ast.Module) -> set[str]:
    """Return the fixtures that a module asks for by a word in its tests, where no group is named.

    Workers are given tests by the fixtures that these name: who asks for Spark while it runs
    starts it once more.
    """
    nodes = list(ast.walk(module))
    if any(isinstance(node, ast.Attribute) and node.attr == "xdist_group" for node in nodes):
        return set()
    return {
        str(node.args[0].value)
        for node in nodes
        if isinstance(node, ast.Call)
        and called(node) == "getfixturevalue"
        and isinstance(node.args[0], ast.Constant)
    }


def test_no_worker_starts_by_itself_what_one_has() -> None:
    shared = {*SHARED, WHOLE}
    found = {
        path.name: asked
        for path in checks()
        if path.name.startswith("test_") and (asked := asked_at_run_time(parsed(path)) & shared)
    }
    assert not found
    planted = ast.parse('def by(request):\n    return request.getfixturevalue("spark")')
    assert asked_at_run_time(planted) == {"spark"}


PLANTED = """
STEPS = (failpoints.EPOCH_AFTER_LOG,)
LEFT = [failpoints.TAIL_AFTER_FOLD]

@pytest.fixture
def killed(stack):
    kill_part(stack, "kafka")

@pytest.mark.parametrize("step", STEPS)
def test_here(step, killed):
    failpoints.arm(step)

@pytest.mark.parametrize("part", ["registry", pytest.param("connect", marks=pytest.mark.matrix)])
def test_kills(bank, part):
    bank.kill(part)

@pytest.mark.matrix
@pytest.mark.parametrize("step", LEFT)
def test_elsewhere(bank, step):
    bank.kill("postgres")
"""


def test_the_search_sees_what_the_default_leaves_out() -> None:
    module = ast.parse(PLANTED)
    tests = {test.name: list(reached(test, module)) for test in default_tests(module)}
    assert set(tests) == {"test_here", "test_kills"}
    assert failpoints_of(tests["test_here"]) == {failpoints.EPOCH_AFTER_LOG}
    assert parts_killed(tests["test_here"]) == {"kafka"}
    assert parts_killed(tests["test_kills"]) == {"registry"}
    assert not list(default_tests(ast.parse("pytestmark = [pytest.mark.matrix]\n" + PLANTED)))
