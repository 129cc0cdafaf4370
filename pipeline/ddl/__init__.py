"""What DDL of a source does to its tables in the lake: followed step by step, or held by name.

Upstream: messages of the source, read from the log. Downstream: current, typed, commit.
Entry points: `table_plans` (the plan), `evolution`, `held_tables`.
"""
