"""The projection dialect: SQL text in, a plan of operators out, with the batch SQL of each.

Upstream: kernel.errors. Downstream: projections.run, apps.cli.projection.
Entry points: `parse.parse_script`, `plan.plan`; a `catalog.Catalog` says which relations exist.
What the dialect does not cover is refused with reason, place and a form that works.
"""
