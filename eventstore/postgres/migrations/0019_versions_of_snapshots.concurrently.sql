-- Several snapshots of a stream are kept: first the index.

CREATE UNIQUE INDEX CONCURRENTLY snapshots_versions ON es.snapshots (stream, decider, version);
