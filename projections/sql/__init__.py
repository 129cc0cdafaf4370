"""The projection dialect: SQL text in, a plan of batch Spark SQL over affected keys out.

Upstream: kernel.errors. Downstream: projections.run, apps.cli.projection.
Entry points: `parse.parse_script`, `plan.plan`; a `catalog.Catalog` says which relations exist.
What the dialect does not cover is refused with reason, place and a form that works.
"""
