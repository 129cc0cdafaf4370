"""Event stores for tests: a PostgreSQL per run, groups, deciders, kills, and forged histories."""
