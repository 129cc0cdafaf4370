"""Running parts for tests: stacks, HTTP services, receivers, and waiting for states."""
