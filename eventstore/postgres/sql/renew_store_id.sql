-- Give the store another id, between two appends: what was recorded before keeps the one it has.
BEGIN;
SELECT pg_advisory_xact_lock(%(append_lock)s);
UPDATE es.store SET store_id = gen_random_uuid(), known_head = NULL RETURNING store_id::text;
COMMIT;
