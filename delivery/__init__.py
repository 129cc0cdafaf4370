"""What is sent to others: events as webhooks and mail, replays to other stores, rows as events.

Upstream: a persistent subscription for each deliverer (`eventstore.groups`), files
`deliveries/NAME.toml` of the workspace; `replay.elsewhere` and `projections.sinks`, whose ports
`topic_target`, `store_target` and `event_sink` are. Downstream: HTTP receivers, SMTP servers,
topics, the service of a store. A deliverer takes events, sends each, and records what became of it
by acknowledging it: at least once, sent again only when the process ends, or the receiver's answer
is lost, between sending and recording.
Entry points: `delivery.deliveries.Deliveries`, `delivery.store_target.StoreTarget`.
"""
