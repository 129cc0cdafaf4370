"""Captured sources for tests: databases, random values, and what was read from them."""
