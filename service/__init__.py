"""The HTTP service: appends, reads, subscriptions, schemas, health, metrics.

Upstream: eventstore, delivery, the lake. Downstream: people's services and the command line.
`edge.Edge` guards every request and serves appends itself, `app` holds the other routes, `runtime`
opens the store in the background, so that the service answers before PostgreSQL does.
The account that the pipeline gives of itself is served by `pipeline_endpoint` and read here, too.
Entry points: `service.serving.server_of`, which `python -m apps.service` runs;
`service.caught_up.wait`.
"""
