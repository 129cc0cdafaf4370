"""Tests that authors write beside their projections: rows that come, rows that are expected.

Upstream: test files, and the plan trees of `projections.sql`.
Downstream: `penstock projection test` shows what differs.
Entry point: `projections.trial.playback.played`.
"""
