-- Text in the order of its bytes, which no library's next version changes: first the indexes.

CREATE UNIQUE INDEX CONCURRENTLY events_stream_bytes ON es.events (stream COLLATE "C", version);
CREATE INDEX CONCURRENTLY events_category_bytes ON es.events (category COLLATE "C", position);
CREATE INDEX CONCURRENTLY events_type_bytes ON es.events (type COLLATE "C", position) INCLUDE (category);
CREATE UNIQUE INDEX CONCURRENTLY streams_bytes ON es.streams (stream COLLATE "C");
CREATE UNIQUE INDEX CONCURRENTLY tags_bytes ON es.tags (tag COLLATE "C", position);
CREATE INDEX CONCURRENTLY tags_type_bytes ON es.tags (tag COLLATE "C", type COLLATE "C", position) INCLUDE (category);
CREATE UNIQUE INDEX CONCURRENTLY archived_stream_bytes ON es.archived (stream COLLATE "C", version);
CREATE INDEX CONCURRENTLY archived_category_bytes ON es.archived (category COLLATE "C", position);
CREATE INDEX CONCURRENTLY archived_type_bytes ON es.archived (type COLLATE "C", position) INCLUDE (category);
CREATE UNIQUE INDEX CONCURRENTLY snapshots_bytes ON es.snapshots (stream COLLATE "C", decider COLLATE "C");
CREATE UNIQUE INDEX CONCURRENTLY commands_bytes ON es.commands (key COLLATE "C");
