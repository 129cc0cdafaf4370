"""What every part of Penstock shares: positions, errors, clock, retry, failpoints.

Upstream: the standard library only. Downstream: everything.
Entry points: `kernel.errors.PenstockError`, `kernel.positions`, `kernel.retry.retrying`.
"""
