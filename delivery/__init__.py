"""Deliverers: what happens in the store, sent out as webhooks and mail.

Upstream: a persistent subscription each (`eventstore.groups`), files `deliveries/NAME.toml` of the
workspace. Downstream: HTTP receivers, SMTP servers. A deliverer takes events of its subscription,
sends each, and records what became of it by acknowledging it: at least once, sent again only when
the process ends, or the receiver's answer is lost, between sending and recording.
Entry point: `delivery.deliveries.Deliveries`.
"""
