"""The local stack: PostgreSQL, Kafka, registry and Connect as plain processes, without Docker.

Upstream: a lock file of jars, the PostgreSQL wheel, a Java runtime. Downstream: endpoints that
`apps` reads (`<workspace>/.penstock/endpoints.json`); imports the kernel only.
Chain: `jars.resolve`, `parts.local_parts`, `plan.StackPlan`, `supervisor`, one `shim` per part.
Entry points: `control.up`, `control.down`, `status.status`, `doctor.examine`, `java.find_java`.
"""
