"""The projection dialect: SQL text in, a plan of operators out, with the batch SQL of each.

    words -> values -> operators -> rendering      what a query is made of, and its text per engine
    forms -> statements -> planning -> plans       from a text to a plan that is kept up to date

Each folder imports only what stands before it. Upstream: SQL of a workspace, and what there is
(`words.catalog`). Downstream: `projections.run`, builds, `projection explain`.
Entry points: `statements.parse.parse_script`, `plans.plan.plan`.
"""
