-- Text in the order of its bytes: then the columns. The indexes are there, so that nothing large is
-- built while the tables are locked.

DROP VIEW es.counter, es.recorded;

ALTER TABLE es.events DROP CONSTRAINT events_stream_version_key;
DROP INDEX es.events_category, es.events_type;
ALTER TABLE es.events
    ALTER COLUMN stream TYPE text COLLATE "C",
    ALTER COLUMN category TYPE text COLLATE "C",
    ALTER COLUMN type TYPE text COLLATE "C";
ALTER TABLE es.events
    ADD CONSTRAINT events_stream_version_key UNIQUE USING INDEX events_stream_bytes;
ALTER INDEX es.events_category_bytes RENAME TO events_category;
ALTER INDEX es.events_type_bytes RENAME TO events_type;

-- Serves prefixes too.
DROP INDEX es.streams_prefix;
ALTER TABLE es.streams DROP CONSTRAINT streams_pkey;
ALTER TABLE es.streams
    ALTER COLUMN stream TYPE text COLLATE "C",
    ALTER COLUMN category TYPE text COLLATE "C";
ALTER TABLE es.streams ADD CONSTRAINT streams_pkey PRIMARY KEY USING INDEX streams_bytes;

ALTER TABLE es.tags DROP CONSTRAINT tags_pkey;
DROP INDEX es.tags_type;
ALTER TABLE es.tags
    ALTER COLUMN tag TYPE text COLLATE "C",
    ALTER COLUMN category TYPE text COLLATE "C",
    ALTER COLUMN type TYPE text COLLATE "C";
ALTER TABLE es.tags ADD CONSTRAINT tags_pkey PRIMARY KEY USING INDEX tags_bytes;
ALTER INDEX es.tags_type_bytes RENAME TO tags_type;

ALTER TABLE es.archived DROP CONSTRAINT archived_stream_version_key;
DROP INDEX es.archived_category, es.archived_type;
ALTER TABLE es.archived
    ALTER COLUMN stream TYPE text COLLATE "C",
    ALTER COLUMN category TYPE text COLLATE "C",
    ALTER COLUMN type TYPE text COLLATE "C";
ALTER TABLE es.archived
    ADD CONSTRAINT archived_stream_version_key UNIQUE USING INDEX archived_stream_bytes;
ALTER INDEX es.archived_category_bytes RENAME TO archived_category;
ALTER INDEX es.archived_type_bytes RENAME TO archived_type;

ALTER TABLE es.snapshots DROP CONSTRAINT snapshots_pkey;
ALTER TABLE es.snapshots
    ALTER COLUMN stream TYPE text COLLATE "C",
    ALTER COLUMN decider TYPE text COLLATE "C";
ALTER TABLE es.snapshots ADD CONSTRAINT snapshots_pkey PRIMARY KEY USING INDEX snapshots_bytes;

ALTER TABLE es.commands DROP CONSTRAINT commands_pkey;
ALTER TABLE es.commands ALTER COLUMN key TYPE text COLLATE "C";
ALTER TABLE es.commands ADD CONSTRAINT commands_pkey PRIMARY KEY USING INDEX commands_bytes;

-- These are small.
ALTER TABLE es.categories ALTER COLUMN category TYPE text COLLATE "C";
ALTER TABLE es.types ALTER COLUMN subject TYPE text COLLATE "C";
ALTER TABLE es.type_schemas ALTER COLUMN subject TYPE text COLLATE "C";
ALTER TABLE es.schema_versions ALTER COLUMN subject TYPE text COLLATE "C";
ALTER TABLE es.compatibility ALTER COLUMN subject TYPE text COLLATE "C";
ALTER TABLE es.subscriptions ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE es.deliveries ALTER COLUMN subscription TYPE text COLLATE "C";
ALTER TABLE es.parked ALTER COLUMN subscription TYPE text COLLATE "C";

-- As before.
CREATE VIEW es.recorded AS
    SELECT position, id, stream, version, category, type, occurred_at, recorded_at FROM es.events
    UNION ALL
    SELECT position, id, stream, version, category, type, occurred_at, recorded_at FROM es.archived;
CREATE VIEW es.counter AS
    SELECT coalesce(last.position, 0) AS position,
           coalesce(last.recorded_at, '-infinity') AS recorded_at
    FROM es.store
    LEFT JOIN LATERAL (
        SELECT position, recorded_at FROM es.recorded ORDER BY position DESC LIMIT 1
    ) AS last ON true;
CREATE RULE counter_follows AS ON UPDATE TO es.counter DO INSTEAD NOTHING;
GRANT SELECT ON es.recorded TO penstock_service, penstock_archive;
GRANT SELECT, UPDATE ON es.counter TO penstock_service;
