-- Move events out: what stays of them first. The append lock keeps their ids from being used anew
-- in between.
BEGIN;
SELECT pg_advisory_xact_lock(%(append_lock)s);
INSERT INTO es.archived (position, store_id, id, stream, version, category, type, occurred_at,
                         recorded_at, content, bytes)
    SELECT position, store_id, id, stream, version, category, type, occurred_at, recorded_at,
           es.content_of(type, data, tags, metadata), octet_length(data) + octet_length(metadata::text)
        FROM es.events WHERE position = ANY(%(positions)s::bigint[]);
DELETE FROM es.events WHERE position = ANY(%(positions)s::bigint[]);
