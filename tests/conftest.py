"""Fixtures for all tests: see the plugin modules."""

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# Sessions of tests live for minutes and see few rows: what Java's second compiler costs, a fifth of
# a session's CPU, is never earned back. A part that is started inherits it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")

# No verdict of a test may depend on how busy the machine is, nor on what was drawn this time: the
# same code gives the same verdict. `pytest --hypothesis-profile=explore` looks at other values.
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("penstock", settings.get_profile("explore"), derandomize=True)
settings.load_profile("penstock")

pytest_plugins = [
    "tests.support.lake.small_lake",
    "tests.support.store.postgres",
    "tests.support.services.object_store",
    "tests.support.services.warm",
    "tests.support.services.whole_stack",
    "tests.support.services.tier",
    "tests.support.services.workers",
    "tests.support.services.run_record",
    "tests.support.sources.databases",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Have no cycles looked for while what is collected only grows: a third of collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spare the collector what lives as long as the run: some 8,000 tests and all libraries.

    To go through them again and again is a tenth of a run's Python. It looks less often, too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
