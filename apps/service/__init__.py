"""The HTTP service: appends, reads, subscriptions, schemas, health, metrics.

Upstream: eventstore, schemas, settings. Downstream: people's services and the command line.
`edge.Edge` guards every request and serves appends itself, `app` holds the other routes, `runtime`
opens the store in the background, so that the service answers before PostgreSQL does.
Entry point: `python -m apps.service`.
"""
