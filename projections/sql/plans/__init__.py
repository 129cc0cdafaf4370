"""Plans: how a tree is kept up to date, what that costs, and what people read of it.

Upstream: a plan tree. Downstream: the runner, builds, `projection explain`.
Entry points: `plan.plan`, `key_steps`, `explain.page`, `declared_relations.DeclaredCatalog`.
"""
