"""The torture test: real services and a real PostgreSQL, killed while clients write and read.

Upstream: `python -m tests.torture`, `make torture`, and a short run among the fault tests.
Downstream: `verification`, which judges all that was asked, answered, shown and stored.
`workload` says what clients ask, `writing` asks and repeats, `tailing` follows, `kills` kills,
`services` and `database` are the victims, `final` reads what is stored.
Entry points: `tests.torture.run.torture`, `tests.torture.options.Options`.
"""
