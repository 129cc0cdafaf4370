"""Fixtures for all tests: see the plugin modules."""

pytest_plugins = ["tests.postgres", "tests.warm", "tests.databases"]
