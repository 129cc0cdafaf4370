-- Become the writer when the last one is gone (the lock on its number is free) or overdue.
BEGIN;
SELECT pg_advisory_xact_lock(%(append_lock)s);
WITH last AS MATERIALIZED (
    SELECT pg_try_advisory_lock(%(lease_lock)s, (number %% 2147483647)::integer) AS gone
        FROM es.lease
)
UPDATE es.lease
    SET number = number + 1, holder = %(holder)s,
        expires_at = clock_timestamp() + %(ttl_s)s * interval '1 second'
    FROM last
    WHERE last.gone OR holder = %(holder)s
        OR greatest(expires_at, (SELECT r.expires_at FROM es.renewals AS r
                                     WHERE r.number = lease.number
                                     ORDER BY renewal DESC LIMIT 1)) < clock_timestamp()
    RETURNING number;
DELETE FROM es.renewals WHERE number < (SELECT number FROM es.lease WHERE holder = %(holder)s);
SELECT pg_try_advisory_lock(%(lease_lock)s, (number %% 2147483647)::integer)
    FROM es.lease WHERE holder = %(holder)s;
SELECT holder, position, store_id, known_head, to_regclass('es.restoring') IS NOT NULL
    FROM es.lease, es.counter, es.store;
SELECT category FROM es.categories;
COMMIT;
