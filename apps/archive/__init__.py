"""The archive of events: the log in the lake, behind the event store's port.

Upstream: eventstore.archive (the port), lake (the tables). Downstream: the service,
which reads archived events, and `penstock stream archive`, which moves them there.
Entry points: `LakeArchive`, `run.archive`.
"""
