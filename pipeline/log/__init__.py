"""The append-only Delta log: what arrived, with its bytes, exactly once, by epoch.

Upstream: arrive. Downstream: current, typed, verification, replay.
Entry points: `epoch_log` (what an epoch writes), `log_task` and `staged_rows` (the same by Spark's
executors), `committed_changes` (the log read again, in commit order).
"""
