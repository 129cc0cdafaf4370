"""The lake's side of a comparison with a source: a table as of one LSN, hashed; what was found.

Upstream: current, log, the manifest. Downstream: `cdc.verification.on_demand`.
Entry points: `as_of.StateReader`, `hashing.LakeRows`, `book.Verifications`.
"""
