-- Take the append lock, then read all that the group's requests are judged by.
BEGIN;
SELECT pg_advisory_xact_lock(%(append_lock)s);
SELECT number, position, greatest(clock_timestamp(), recorded_at) AS recorded_at, known_head
    FROM es.lease, es.counter, es.store;
SELECT stream, version, deleted, tombstoned, truncate_before, max_age_s, max_count,
       archived_up_to
    FROM es.heads WHERE stream = ANY(%(streams)s::text[]);
SELECT position, id, stream, version, category, type, schema_id, data_format, data, subject,
       key_id, metadata, tags, occurred_at, recorded_at
    FROM es.events WHERE id = ANY(%(ids)s::uuid[]);
SELECT position, id, stream, version, category, type, occurred_at, recorded_at, store_id, content
    FROM es.archived WHERE id = ANY(%(ids)s::uuid[]);
