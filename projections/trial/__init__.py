"""Files of projections before they are deployed: read, checked, and tried by their own tests.

A test has rows that come, and rows that are expected.
Upstream: SQL and test files, and the plan trees of `projections.sql`.
Downstream: `penstock projection validate | explain | test` show what is wrong, or differs.
Entry points: `projections.trial.playback.played`, `projections.trial.sql_files.read_files`.
"""
