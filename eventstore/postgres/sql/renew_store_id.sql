-- Give the store another id, between two appends: what was recorded before keeps the one it has.
-- No row comes back for a store that is being filled: its id and its fence stay until it is whole.
BEGIN;
SELECT pg_advisory_xact_lock(%(append_lock)s);
UPDATE es.store SET store_id = gen_random_uuid(), known_head = NULL
    WHERE to_regclass('es.restoring') IS NULL RETURNING store_id::text;
COMMIT;
