"""The HTTP service: appends, reads, subscriptions, schemas, health, metrics.

Upstream: eventstore, delivery, the lake. Downstream: people's services and the command line.
`edge.Edge` guards every request and serves appends itself, `app` holds the other routes, `runtime`
opens the store in the background, so that the service answers before PostgreSQL does.
Entry points: `service.serving.server_of`; `python -m apps.service` runs it.
"""
