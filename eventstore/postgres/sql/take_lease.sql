-- Become the writer when the last one is gone (its connection's lock is free) or overdue.
BEGIN;
SELECT pg_advisory_xact_lock(%(append_lock)s);
UPDATE es.lease
    SET number = number + 1, holder = %(holder)s,
        expires_at = clock_timestamp() + %(ttl_s)s * interval '1 second'
    WHERE %(alone)s OR expires_at < clock_timestamp()
    RETURNING number;
SELECT holder, position, store_id FROM es.lease, es.counter, es.store;
SELECT category FROM es.categories;
COMMIT;
