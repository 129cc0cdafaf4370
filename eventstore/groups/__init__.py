"""Persistent subscriptions: several consumers share a feed that remembers what was handled.

Upstream: `EventStore.read_all` (what there is to give out). Downstream: HTTP, deliverers.
`rules` decides, without I/O, what is given, given again, or parked; a `SubscriptionGroups` keeps
it durable under one row lock per group, so that several services may serve the same group.
Entry points: `eventstore.groups.port.SubscriptionGroups`, `eventstore.groups.rules.Round`.
"""
