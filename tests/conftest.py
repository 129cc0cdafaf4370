"""Fixtures for all tests: see the plugin modules."""

from hypothesis import HealthCheck, settings

# No verdict of a test may depend on how busy the machine is.
settings.register_profile(
    "penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("penstock")

pytest_plugins = ["tests.postgres", "tests.warm", "tests.databases"]
